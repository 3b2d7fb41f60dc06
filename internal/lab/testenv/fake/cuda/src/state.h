/*
 * The fake's inside. One mutex (G.mu) guards everything here; only the bodies of queued operations run without it. Handles are
 * never addresses of ours: they are places in a reservation that nobody can touch, numbered upwards and never used twice, so
 * that a stale or invented handle is recognised and a dereference of one faults.
 */
#ifndef PENSTOCK_FAKE_CUDA_STATE_H
#define PENSTOCK_FAKE_CUDA_STATE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_api.h"
#include "fake.h"

#define MAX_DEVICES 16
#define BLOCK ((size_t)2 << 20)  /* memory comes from the "hardware" in blocks of 2 MiB */
#define SMALL ((size_t)1 << 20)  /* allocations up to here share blocks, as the real driver's do */
#define UNIT ((size_t)512)       /* and begin at multiples of this */

enum call_id {
#define X(symbol, base, since, args) F_##symbol,
    CUDA_CALLS(X)
#undef X
    F_COUNT
};

typedef enum { T_NONE, T_CONTEXT, T_STREAM, T_EVENT, T_MODULE, T_FUNCTION, T_PHYS, T_COUNT } kind;

typedef struct origin { /* who made or ended a thing */
    uint64_t call;      /* number of the call in this process, from 1 */
    int fn, tid;
} origin;

typedef struct object {
    kind kind;
    uint64_t handle;
    struct context *ctx;
    origin born;
    struct object *next; /* of its bucket */
} object;

typedef struct device {
    int ordinal;
    size_t total, used;
    int attr[CU_DEVICE_ATTRIBUTE_MAX];
    struct context *primary;
    int retained;
    unsigned primary_flags;
    CUresult sticky; /* an error after which the process must start again */
    int copying;     /* copies that run at this moment */
} device;

typedef struct context {
    object o;
    device *dev;
    unsigned flags;
    bool is_primary, dead;
    struct stream *streams; /* all, the legacy one included */
    struct stream *legacy;
    struct context *peers[MAX_DEVICES];
    int npeers;
    int resident; /* resident kernels queued or running */
    CUresult pending; /* an asynchronous error that nobody has seen yet */
    struct context *next;
} context;

typedef struct dep { struct stream *s; uint64_t seq; } dep;

typedef struct op op;
struct op {
    op *next;
    uint64_t seq;
    void (*run)(op *); /* without the mutex */
    void (*drop)(op *); /* with it, when the operation is over or will never run */
    bool always; /* runs although the context has failed */
    bool resident;
    bool skipped; /* set when it did not run because the context had failed */
    uint64_t born; /* number of the call that made it */
    dep *deps;
    int ndeps;
    struct stream *s;
    uint64_t use_p[16]; /* device addresses that it will use, to notice a free in between */
    size_t use_n[16];
    struct alloc *uses[16];
    struct host *huses[16];
    int nuses;
    long delay_us;
    /* arguments; which ones mean something is known to run */
    CUresult result;
    char *dst;
    const char *src;
    size_t n, dpitch, spitch, rows;
    uint64_t value;
    unsigned width, flags;
    void (*callback)(CUstream, CUresult, void *);
    void (*hostfn)(void *);
    void *data;
    struct record *rec;
    struct ipcevent *ipc;
    struct function *fn;
    penstock_fake_cuda_launch launch;
    char *args;
};

typedef struct stream {
    object o;
    unsigned flags;
    int priority, refs;
    bool closing, legacy, thread_own, started, ended, abort;
    int resident; /* of the operations queued */
    pthread_t thread;
    pthread_cond_t cond;
    op *head, *tail;
    uint64_t submitted, completed;
    struct stream *next;
} stream;

typedef struct record { int refs; stream *s; uint64_t seq; double at; bool done; } record;

typedef struct event {
    object o;
    unsigned flags;
    record *rec;
    struct ipcevent *ipc;
} event;

typedef enum { A_DEVICE, A_IPC, A_MAP, A_ALIAS, A_RESERVATION } alloc_kind;

typedef struct slab { /* physical memory: a memfd */
    int fd, refs;
    size_t size;
    device *dev; /* whose memory it is counted as; NULL when another process's */
    context *ctx; /* whose small allocations share it, or NULL */
    uint64_t base; /* device address of a block of cuMemAlloc */
    size_t bump; /* small allocations begin here */
    int users;
    struct slab *next;
} slab;

typedef struct alloc { /* a range of device addresses that means something */
    alloc_kind kind;
    uint64_t base;
    size_t size;
    size_t slab_off;
    slab *slab;
    context *ctx;
    device *dev;
    int use, ipc_refs, access[MAX_DEVICES], dead;
    bool sync_memops, module_global;
    uint64_t id;
    object *phys;
    char *alias; /* host memory that the device knows under this address */
    origin born;
} alloc;

typedef struct host { /* pinned host memory */
    char *p;
    size_t size, map_size;
    unsigned flags;
    bool registered;
    context *ctx;
    uint64_t dev, id; /* address on the device */
    int use;
    origin born;
} host;

typedef struct phys { /* of cuMemCreate: lives as long as a handle or a mapping does */
    object o;
    slab *slab;
    CUmemAllocationProp prop;
    bool released;
    int refs, handles; /* handles: how often cuMemRelease is due */
} phys;
typedef struct global { char *name; size_t size; alloc *mem; } global;

typedef struct param { size_t size, off; } param;
typedef struct function {
    object o;
    struct module *mod;
    char *name;
    penstock_fake_cuda_fn fn;
    bool resident;
    param *params;
    int nparams;
    size_t args;
    int dynamic_shared;
} function;

typedef struct module {
    object o;
    struct entry { char *name; param *params; int nparams; size_t args; function *fn; } *entries;
    int nentries, ptx, sm;
    global *globals;
    int nglobals;
} module;

typedef struct rule { /* of a script */
    int fn, alt; /* -1: any; the other version of the call, or fn again */
    long at; /* calls to let pass first; -1: every one */
    CUresult result;
    bool sticky;
    struct rule *next;
} rule;

struct state {
    pthread_mutex_t mu;
    pthread_cond_t progress; /* something completed, anywhere */
    bool initialised, forked;
    int pid;
    int ndevices, driver;
    device dev[MAX_DEVICES];
    context *contexts;
    uint64_t calls, per_fn[F_COUNT], next_id;
    rule *rules;
    long delay_copy, delay_launch;
    bool resident_allowed, peers_off;
    char name[64];
    int workers; /* threads of streams that have not ended */
    char env_error[256];
    uint64_t dev_base, shadow_base, handle_base, next_handle;
    size_t dev_size;
};

extern struct state G;

/* core.c */
typedef struct call {
    int fn;
    context *ctx; /* current one, when the function needs one; after a wait it may be gone, its handle tells */
    uint64_t ctx_handle;
    CUresult later; /* by script: the error that the device has when this call is over */
} call;

enum needs { NEEDS_NOTHING, NEEDS_INIT, NEEDS_CONTEXT };
CUresult begin(call *c, int fn, enum needs needs);
CUresult end(call *c, CUresult r); /* gives r back */
extern const char *const call_names[F_COUNT];
const char *result_name(int r);
const char *result_text(int r);
origin origin_now(const call *c);
device *device_of(CUdevice d);
double seconds(void);

/* object.c */
void object_add(object *o, kind k, context *ctx, const call *c);
void object_remove(object *o);
object *object_find(uint64_t handle, kind k);
uint64_t handle_at(kind k); /* takes a number */
int objects_of(context *ctx, kind k, object **out, int max);
void objects_each(void (*f)(object *, void *), void *arg);
kind handle_kind(uint64_t handle); /* T_NONE: no handle of ours */
#define FIND(type, k, h) ((type *)object_find((uint64_t)(uintptr_t)(h), k))
CUresult bad_handle(const call *c, uint64_t h, kind k);

/* report.c */
void violation(const call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void warning_(const call *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void report_forget(void);
CUresult bad(const call *c, CUresult r, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *show_origin(origin o, char *buf, size_t n);

/* script.c */
int script_run(const char *text, char *err, size_t n);
void script_forget(void);
void devices_default(void);

/* context.c */
context *current(void);
bool in_callback(void);
void set_in_callback(bool on);
context *context_new(device *d, unsigned flags, bool primary, const call *c);
void context_destroy(context *x, const call *c);
void current_forget(void);
bool peer_enabled(context *from, context *to);
CUresult implicit_sync(const call *c, context *x);
void device_fail(device *d, context *x, CUresult r);
CUresult failed(device *d); /* the sticky error, which a call returns only when no copy runs any more */
CUresult surface(uint64_t ctx_handle); /* after waiting: makes an asynchronous error visible */

/* range.c */
bool ranges_init(void);
uint64_t va_take(size_t size, size_t align, uint64_t want);
void va_give(uint64_t base);
alloc *alloc_add(alloc_kind k, uint64_t base, size_t size, context *ctx, const call *c);
void alloc_remove(alloc *a, const call *c);
alloc *alloc_at(uint64_t p);
alloc *alloc_in(uint64_t lo, uint64_t hi, alloc_kind k, int nth); /* nth live allocation that begins in [lo, hi) */
void allocs_each(void (*f)(alloc *, void *), void *arg);
bool is_device(uint64_t p);
const char *freed_by(uint64_t p, char *buf, size_t n);
char *shadow(uint64_t p);
host *host_at(uint64_t p);
host *host_overlap(uint64_t p, size_t n);
host *host_add(char *p, size_t n, const call *c);
void host_remove(host *h);
void hosts_each(void (*f)(host *, void *), void *arg);
slab *slab_new(device *d, size_t size);
slab *slab_import(int fd, size_t size);
void slab_release(slab *s);
bool slab_map(slab *s, uint64_t base, size_t off, size_t size);
void slab_unmap(uint64_t base, size_t size);
void ranges_forget(void);

/* memory.c */
alloc *mem_alloc(const call *c, context *x, size_t n, CUresult *r);
void mem_free(alloc *a, const call *c);
void memory_of_context_end(context *x, const call *c);

/* stream.c */
stream *stream_new(context *x, unsigned flags, int priority, const call *c);
CUresult stream_get(const call *c, CUstream h, stream **out);
op *op_new(void (*run)(op *));
void op_use(op *o, uint64_t p, size_t n);
CUresult submit(const call *c, stream *s, op *o);
void submit_dep(op *o, stream *s, uint64_t seq);
void run_copy(op *o);
void wait_for(stream *s, uint64_t seq);
void stream_close(stream *s);
void stream_unref(stream *s);
void stream_join_all(context *x);
void op_free(op *o);
void op_execute(op *o, bool failed);
bool stream_idle(const stream *s);

/* event.c, ipc.c */
void event_free(event *e);
record *record_new(stream *s, uint64_t seq);
void record_unref(record *r);
struct ipcevent *ipcevent_new(void);
struct ipcevent *ipcevent_ref(struct ipcevent *p);
void ipcevent_free(struct ipcevent *p);
void ipcevent_recorded(struct ipcevent *p);
void ipcevent_completed(struct ipcevent *p);
bool ipcevent_done(struct ipcevent *p);
uint64_t ipcevent_last(struct ipcevent *p);
bool ipcevent_reached(struct ipcevent *p, uint64_t n);

/* copy.c */
CUresult check_device(const call *c, context *x, uint64_t p, size_t n, bool write, bool kernel, const char *what);
char *cpu_address(uint64_t p); /* of checked memory */

/* vmm.c */
void phys_unref(phys *p);

/* module.c, ptx.c */
CUresult ptx_parse(const char *text, module *m, char *log, size_t n);
void module_free(module *m, const call *c);
void kernels_forget(void);

#endif
