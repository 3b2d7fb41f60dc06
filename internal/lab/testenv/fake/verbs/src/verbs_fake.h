/* The fake verbs provider: types shared by its files. The Go package's comment says what the fake is and what it cannot show.
 *
 * Everything lives under one mutex, the_lock. Functions whose name starts with fake_ expect it held; the exported functions
 * take it. An object begins with the public structure of verbs.h, so that a pointer to one is a pointer to the other, and is
 * followed by struct obj, which says whether it is alive. Destroyed objects stay in a quarantine, so that a use after the
 * destruction is found and not followed. */
#ifndef VERBS_FAKE_H
#define VERBS_FAKE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* verbs.h makes macros of these names; here are the functions behind them. */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

/* The project calls the inline verbs through these offsets, from Go without a C compiler. */
_Static_assert(offsetof(struct ibv_context, ops) == 8, "ibv_context.ops");
_Static_assert(offsetof(struct ibv_context_ops, poll_cq) == 88, "ops.poll_cq");
_Static_assert(offsetof(struct ibv_context_ops, req_notify_cq) == 96, "ops.req_notify_cq");
_Static_assert(offsetof(struct ibv_context_ops, post_srq_recv) == 160, "ops.post_srq_recv");
_Static_assert(offsetof(struct ibv_context_ops, post_send) == 200, "ops.post_send");
_Static_assert(offsetof(struct ibv_context_ops, post_recv) == 208, "ops.post_recv");
_Static_assert(offsetof(struct verbs_context, context) - offsetof(struct verbs_context, sz) == sizeof(size_t), "verbs_context.sz");

#define EXPORT __attribute__((visibility("default")))

enum {
	MAX_DEVICES = 8,
	MAX_GIDS = 16,
	PORTS = 1,
	COMP_VECTORS = 2,
	GRH_LEN = 40,
	MAX_INLINE = 512,
	MAX_SLOTS = 1 << 20,     /* keys of memory regions and windows */
	MAX_QPS = 1 << 16,
	MAX_MESSAGE = 1 << 30,
};

enum kind { K_CONTEXT, K_PD, K_MR, K_MW, K_CHANNEL, K_CQ, K_QP, K_SRQ, K_AH, K_XRCD, K_FLOW, K_CM_CHANNEL, K_CM_ID, K_CM_EVENT, KINDS };

struct obj {
	uint32_t magic;
	enum kind kind;
	uint64_t serial;         /* order of creation, for the report */
	struct fake_context *ctx; /* NULL: of the connection manager */
	struct obj *prev, *next; /* of the same kind; in the quarantine: next only */
	void *memory;            /* what to free */
};

/* One port of one device. */
struct fake_port {
	enum ibv_port_state state;
	bool cut;                /* the cable is out, nobody noticed yet */
	union ibv_gid gid[MAX_GIDS];
	uint8_t gid_type[MAX_GIDS]; /* enum ibv_gid_type; valid where the gid is not zero */
};

struct fake_device {
	struct ibv_device ibv;
	int index;
	struct fake_port port;   /* port 1 */
	struct fake_qp **qps;    /* by number - FIRST_QPN */
	uint32_t qps_len, qps_next;
};

/* A queue of events behind an eventfd in semaphore mode: the count of the descriptor is the length of the queue. */
struct event {
	struct event *next;
	void *element;           /* the object it is about; NULL for a port or a device */
	struct ibv_async_event async;
};

struct events {
	int fd;
	struct event *first, **last;
};

struct fake_context {
	struct verbs_context v;  /* v.context is what the user sees */
	struct obj o;
	struct fake_device *dev;
	struct events async;
};

struct fake_pd {
	struct ibv_pd ibv;
	struct obj o;
	int mrs, mws, qps, srqs, ahs;
};

struct fake_mr {
	struct ibv_mr ibv;
	struct obj o;
	uint64_t iova;           /* address that work requests use for the first byte */
	char *host;              /* where that byte is */
	unsigned access;
	size_t locked;           /* bytes counted against the memlock limit */
	void *map;               /* of a dma-buf */
	size_t map_len;
	int windows;             /* memory windows bound to it */
};

struct fake_mw {
	struct ibv_mw ibv;
	struct obj o;
	uint32_t key;            /* the current rkey, ibv.rkey is the user's copy */
	struct fake_mr *mr;      /* bound to it; NULL: free or invalid */
	uint64_t addr, length;
	unsigned access;
	struct fake_qp *qp;      /* type 2B: the only queue pair through which it works */
};

struct fake_channel {
	struct ibv_comp_channel ibv;
	struct obj o;
	struct events events;
};

struct cqe {
	struct ibv_wc wc;
	uint64_t ts;             /* ns, CLOCK_MONOTONIC */
	uint64_t wall;           /* ns, CLOCK_REALTIME */
	struct fake_qp *qp;      /* whose slots polling it gives back; NULL: none */
	uint64_t sq_upto;        /* send slots below this are free then */
	bool rq;                 /* a receive slot of qp is */
	struct fake_srq *srq;    /* a slot of it is */
};

struct fake_cq {
	struct ibv_cq_ex ibv;
	struct obj o;
	struct cqe *ring;
	uint32_t size;
	uint64_t put, got;
	int armed;               /* 0 no, 1 for solicited, 2 for any */
	bool overrun, polling;
	unsigned comp_events, async_events; /* delivered by get; the user acknowledges them */
	int qps, srqs;
	struct cqe cur;          /* of start_poll and next_poll */
};

struct rqe {
	uint64_t wr_id;
	int nsge;
	struct ibv_sge *sge;
};

/* A queue of receives. */
struct rq {
	struct rqe *ring;
	struct ibv_sge *sges;
	uint32_t size, max_sge;
	uint64_t post, done;
	uint32_t busy;           /* slots not yet given back: posted, or completed and not polled */
};

struct fake_srq {
	struct ibv_srq ibv;
	struct obj o;
	struct rq rq;
	uint32_t limit, number;
	unsigned async_events;
	int qps;
	enum ibv_srq_type type;
	struct fake_xrcd *xrcd;
	struct fake_cq *cq;
};

struct fake_xrcd {
	struct ibv_xrcd ibv;
	struct obj o;
	int users;
};

struct fake_ah {
	struct ibv_ah ibv;
	struct obj o;
	struct ibv_ah_attr attr;
};

/* A rule of a port: which frames come to a queue pair of raw packets. */
struct fake_flow {
	struct ibv_flow ibv;
	struct obj o;
	struct fake_qp *qp;
	struct ibv_flow_attr attr;
	uint32_t specs_len;
	char specs[256];
};

/* What the script wants of one request's completion. */
struct fate {
	bool drop;
	uint64_t delay_ns;
	enum ibv_wc_status status; /* IBV_WC_SUCCESS: as it comes */
};

struct wqe {
	struct ibv_send_wr wr;   /* sg_list points into the queue pair's memory; next is not used */
	struct ibv_ah_attr av;   /* of a datagram */
	char *inlined;
	uint32_t inlined_len;
	uint64_t due;            /* ns; not before */
	bool counted;            /* the script's rules have seen it */
};

struct fake_qp {
	struct ibv_qp ibv;
	struct obj o;
	struct fake_device *dev;
	struct fake_cq *scq, *rcq;
	struct fake_srq *srq;
	struct fake_xrcd *xrcd;
	enum ibv_qp_type type;
	enum ibv_qp_state state; /* the true one; ibv.state is what modify or query said last */
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	bool sig_all, est, last_wqe, partial;
	uint64_t partial_id;     /* the receive that it had begun to fill */
	int flows;
	unsigned async_events;
	uint32_t sq_psn, rq_psn;
	struct wqe *sq;
	struct ibv_sge *sq_sges;
	char *sq_inline;
	uint64_t sq_post, sq_done, sq_free;
	struct rq rq;
	/* the request at the head */
	uint64_t not_before;     /* ns; 0: now */
	int tries, rnr_tries;
	struct fate fate;
	bool landed;             /* it is executed, its completion waits */
	uint32_t landed_len;
	struct fake_qp *active_next;
	bool active;             /* in the list of the wire */
};

/* ---- verbs_fake_core.c: lock, time, objects, events, violations */
extern pthread_mutex_t the_lock;
extern struct fake_device devices[MAX_DEVICES];
void lock(void);
void unlock(void);
uint64_t now_ns(void);
void *fake_new(size_t size, size_t obj_offset, enum kind kind, struct fake_context *ctx);
void fake_bury(struct obj *o);
bool fake_alive(const void *p, const struct obj *o, enum kind kind, const char *where);
struct obj *fake_first(enum kind kind);
void fake_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int events_open(struct events *q);
void events_close(struct events *q);
void events_put(struct events *q, void *element, const struct ibv_async_event *ev);
void events_forget(struct events *q, const void *element);
bool events_get(struct events *q, struct event *out, int *err);
void fake_async(struct fake_context *ctx, void *element, enum ibv_event_type type);
bool fake_wait_acks(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *acked, const unsigned *want, const char *what);

#define NEW(type, kind, ctx) ((type *)fake_new(sizeof(type), offsetof(type, o), kind, ctx))
#define ALIVE(p, kind, where) fake_alive(p, (p) ? &(p)->o : NULL, kind, where)
#define CTX(c) ((struct fake_context *)verbs_get_ctx(c))
#define container(p, type, field) ((type *)((char *)(p) - offsetof(type, field)))

/* ---- verbs_fake_script.c: the script, its rules, counters */
#define FAKE_CALLS(X) \
	X(ibv_get_device_list) X(ibv_open_device) X(ibv_close_device) X(ibv_query_device) X(ibv_query_port) X(ibv_query_gid) \
	X(ibv_query_pkey) X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_reg_dmabuf_mr) X(ibv_rereg_mr) X(ibv_dereg_mr) \
	X(ibv_alloc_mw) X(ibv_bind_mw) X(ibv_dealloc_mw) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) X(ibv_create_cq) \
	X(ibv_resize_cq) X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_poll_cq) X(ibv_req_notify_cq) \
	X(ibv_create_srq) X(ibv_modify_srq) X(ibv_query_srq) X(ibv_destroy_srq) X(ibv_post_srq_recv) X(ibv_open_xrcd) \
	X(ibv_close_xrcd) X(ibv_create_qp) X(ibv_modify_qp) X(ibv_query_qp) X(ibv_destroy_qp) X(ibv_post_send) X(ibv_post_recv) \
	X(ibv_create_ah) X(ibv_destroy_ah) X(ibv_attach_mcast) X(ibv_create_flow) X(ibv_destroy_flow) X(ibv_get_async_event) X(ibv_ack_async_event) \
	X(rdma_create_event_channel) X(rdma_destroy_event_channel) X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_create_id) \
	X(rdma_create_ep) X(rdma_migrate_id) X(rdma_destroy_id) X(rdma_bind_addr) X(rdma_resolve_addr) X(rdma_resolve_route) \
	X(rdma_listen) X(rdma_connect) X(rdma_accept) X(rdma_reject) X(rdma_establish) X(rdma_disconnect) X(rdma_set_option) \
	X(rdma_init_qp_attr) X(cm_address) X(cm_route) X(cm_connect) X(cm_accept)

/* Not calls of the user, but counted by the same function. */
#define FAKE_COUNTS(X) X(send_requests) X(recv_requests) X(completions) X(bytes) X(rnr_naks) X(retries) X(drops) X(raw_kernel) \
	X(raw_dry_0) X(raw_dry_1)

enum call {
#define X(name) CALL_##name,
	FAKE_CALLS(X) FAKE_COUNTS(X)
#undef X
	CALLS
};

enum mode { MODE_POST, MODE_WIRE, MODE_PUMP };
enum side { SIDE_SEND, SIDE_RECV };
enum absent { ABSENT_DMABUF = 1, ABSENT_MW = 2, ABSENT_ATOMICS = 4, ABSENT_SRQ = 8, ABSENT_XRC = 16, ABSENT_UD = 32, ABSENT_EX = 64,
	      ABSENT_WALLCLOCK = 128, ABSENT_FLOWS = 256 };

enum { MAX_PEERS = 8 };

extern struct config {
	int devices;
	enum mode mode;
	uint64_t delay_ns, seed;
	uint64_t loss, lottery;  /* of 100 packets of the unreliable transports; state of the generator that chooses them */
	uint64_t memlock;        /* bytes; UINT64_MAX: no limit */
	unsigned absent;         /* enum absent */
	bool infiniband;         /* LIDs; else RoCE */
	bool odp;                /* on-demand paging, of RC and UD */
	bool raw;                /* queue pairs of raw packets, and steering rules */
	bool instant;            /* retry timers end at once */
	bool partial;            /* a queue pair that goes into error has begun to fill a shared receive */
	bool report;             /* to stderr at exit */
	struct ibv_device_attr attr;
	int max_inline;
	struct peer { uint64_t addr, len; int fd; } peers[MAX_PEERS]; /* memory of devices by its address; len 0: none */
} config;

int fake_call(enum call c);      /* counts it; an errno when the script fails it */
void fake_count(enum call c, uint64_t n);
struct fate fake_fate(enum side side);
bool fake_start(void);           /* reads PENSTOCK_FAKE_VERBS once; false: it is wrong, errno is EINVAL */
void fake_clear_violations(void);

/* ---- verbs_fake_device.c */
void fake_devices_init(void);
struct fake_device *fake_route(struct fake_device *from, const struct ibv_ah_attr *av);
int fake_check_av(struct fake_device *dev, const struct ibv_ah_attr *av);
void fake_port_set(struct fake_device *dev, enum ibv_port_state state);
void fake_device_event(struct fake_device *dev, enum ibv_event_type type);
int fake_query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t n);

/* ---- verbs_fake_memory.c */
enum ibv_wc_status fake_local(struct fake_pd *pd, const struct ibv_sge *s, bool write, char **host);
enum ibv_wc_status fake_remote(struct fake_qp *resp, struct ibv_pd *pd, uint32_t rkey, uint64_t addr, uint64_t len, unsigned need,
			       char **host);
enum ibv_wc_status fake_bind(struct fake_qp *qp, struct fake_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info);
enum ibv_wc_status fake_invalidate(struct fake_qp *qp, uint32_t rkey);
struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int fake_dealloc_mw(struct ibv_mw *mw);
int fake_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *b);
void fake_windows_of(struct fake_qp *qp);

/* ---- verbs_fake_cq.c */
void fake_push(struct fake_cq *cq, struct cqe *e, bool solicited);
void fake_overrun(struct fake_cq *cq);
void fake_cq_forget(struct fake_qp *qp, struct fake_srq *srq);
int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int fake_req_notify(struct ibv_cq *cq, int solicited_only);
struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a);

/* ---- verbs_fake_qp.c, verbs_fake_srq.c */
struct ibv_qp *fake_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a);
struct fake_qp *fake_qp_find(struct fake_device *dev, uint32_t qpn);
int fake_rq_open(struct rq *rq, uint32_t wrs, uint32_t sges);
void fake_rq_close(struct rq *rq);
int fake_rq_post(struct rq *rq, struct ibv_recv_wr *wr);
int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct ibv_srq *fake_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a);
int fake_get_srq_num(struct ibv_srq *srq, uint32_t *num);
struct ibv_xrcd *fake_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a);
int fake_close_xrcd(struct ibv_xrcd *x);
struct fake_srq *fake_srq_find(struct fake_device *dev, uint32_t number);
void fake_srq_taken(struct fake_srq *srq);

/* ---- verbs_fake_post.c, verbs_fake_wr.c */
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int fake_post_locked(struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool windows1);

/* ---- verbs_fake_wire.c: execution */
void fake_kick(struct fake_qp *qp); /* something changed for its send queue */
void fake_unwire(struct fake_qp *qp);
void fake_flush(struct fake_qp *qp);
void fake_qp_error(struct fake_qp *qp, enum ibv_qp_state state);
int fake_wire_start(void);
void fake_wire_stop(void);
int fake_pump(int n);
void fake_wire_poke(void);

/* ---- verbs_fake_rc.c: what one request does. Statuses that are no completion yet: */
enum { ST_RNR = 1000, ST_TIMEOUT, ST_SEQ };
int fake_execute(struct fake_qp *qp, struct wqe *w, uint32_t *len, uint8_t *rnr_timer);
uint64_t fake_rnr_ns(uint8_t timer);

/* ---- verbs_fake_raw.c: frames */
struct ibv_flow *fake_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *a);
int fake_destroy_flow(struct ibv_flow *f);
int fake_raw_receivers(struct fake_device *dev, const uint8_t *frame, uint32_t len, struct fake_qp **out, int max);
bool fake_raw_sums(uint8_t *frame, uint32_t len, bool write);

/* ---- verbs_fake_cm.c: connections */
void fake_cm_expire(void);
void fake_cm_remove(struct fake_device *dev);
void fake_cm_tell_all(int type);

#endif
