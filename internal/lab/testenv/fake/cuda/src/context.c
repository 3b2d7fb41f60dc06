/* Contexts, and which one each thread has. Driver API manual, "Context Management", "Primary Context Management". */
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define DEPTH 32

/* Handles, not pointers: a context may be destroyed by another thread. */
static __thread struct {
    uint64_t stack[DEPTH];
    int n;
    bool callback;
    unsigned generation;
} mine;
static unsigned generation; /* goes up when everything is forgotten */

static context destroyed = {.dead = true};

static void refresh(void) {
    if (mine.generation == generation) return;
    mine.n = 0;
    mine.generation = generation;
}

/* The thread's context, NULL when it has none, one that is dead when it was destroyed. */
context *current(void) {
    refresh();
    if (mine.n == 0) return NULL;
    context *x = FIND(context, T_CONTEXT, mine.stack[mine.n - 1]);
    return x == NULL || x->dead ? &destroyed : x;
}

void current_forget(void) { generation++; }
bool in_callback(void) { return mine.callback; }
void set_in_callback(bool on) { mine.callback = on; }

context *context_new(device *d, unsigned flags, bool primary, const call *c) {
    context *x = calloc(1, sizeof *x);
    if (x == NULL) abort();
    x->dev = d;
    x->flags = flags;
    x->is_primary = primary;
    object_add(&x->o, T_CONTEXT, x, c);
    x->next = G.contexts;
    G.contexts = x;
    x->legacy = stream_new(x, 0, 0, c);
    x->legacy->legacy = true;
    return x;
}

static void end_object(object *o, void *arg) {
    context *x = ((void **)arg)[0];
    const call *c = ((void **)arg)[1];
    if (o->ctx != x) return;
    switch (o->kind) {
    case T_EVENT: event_free((event *)o); break;
    default: (void)c; break;
    }
}

/* Ends everything that belongs to the context. Work that is still queued is not done; kernels are asked to stop. */
void context_destroy(context *x, const call *c) {
    x->dead = true;
    stream_join_all(x);
    void *arg[2] = {x, (void *)(uintptr_t)c};
    objects_each(end_object, arg);
    object *o;
    while (objects_of(x, T_MODULE, &o, 1) == 1) module_free((module *)o, c);
    memory_of_context_end(x, c);
    for (context **p = &G.contexts; *p != NULL; p = &(*p)->next)
        if (*p == x) {
            *p = x->next;
            break;
        }
    for (context *y = G.contexts; y != NULL; y = y->next)
        for (int i = 0; i < y->npeers; i++)
            if (y->peers[i] == x) y->peers[i--] = y->peers[--y->npeers];
    if (x->dev->primary == x) x->dev->primary = NULL;
    object_remove(&x->o);
    free(x);
}

static void refuse_work(context *x, const call *c) {
    if (x->pending != CUDA_SUCCESS || x->dev->sticky != CUDA_SUCCESS) return; /* nobody can wait for work of a device that has failed */
    int busy = 0;
    for (stream *s = x->streams; s != NULL; s = s->next) busy += !stream_idle(s);
    if (busy > 0) violation(c, "the context is destroyed while %d of its streams have work to do", busy);
}

/* An asynchronous failure: nobody knows until something synchronises. */
void device_fail(device *d, context *x, CUresult r) {
    (void)d;
    if (x->pending == CUDA_SUCCESS) x->pending = r;
}

/* The memory of a device that has failed is the caller's again: a driver stops its copy engines before it says so. */
CUresult failed(device *d) {
    CUresult r = d->sticky;
    while (r != CUDA_SUCCESS && d->copying > 0) pthread_cond_wait(&G.progress, &G.mu);
    return r;
}

/* Synchronising calls end with this: the error shows itself, and stays until the process starts again. */
CUresult surface(uint64_t ctx_handle) {
    context *x = FIND(context, T_CONTEXT, ctx_handle);
    if (x == NULL || x->dead) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (x->pending != CUDA_SUCCESS && x->dev->sticky == CUDA_SUCCESS) x->dev->sticky = x->pending;
    return failed(x->dev);
}

/*
 * Calls that synchronise with the device although they do not say so. With a kernel that runs until the host lets it go, real
 * hardware would hang here for ever; the fake says so.
 */
CUresult implicit_sync(const call *c, context *x) {
    int n = 0;
    for (context *y = G.contexts; y != NULL; y = y->next)
        if (y->dev == x->dev) n += y->resident;
    if (n == 0) return CUDA_SUCCESS;
    if (G.resident_allowed) {
        warning_(c, "would deadlock on hardware: implicit synchronisation while a resident kernel runs");
        return CUDA_SUCCESS;
    }
    return bad(c, CUDA_ERROR_TIMEOUT,
               "would deadlock on hardware: implicit synchronisation while a resident kernel runs "
               "(allocate, load and register before)");
}

bool peer_enabled(context *from, context *to) {
    for (int i = 0; i < from->npeers; i++)
        if (from->peers[i] == to) return true;
    return false;
}

#define BEGIN(fn, needs) \
    call c; \
    CUresult r = begin(&c, F_##fn, needs); \
    if (r != CUDA_SUCCESS) return end(&c, r)

#define DEVICE(fn) \
    BEGIN(fn, NEEDS_INIT); \
    device *d = device_of(dev); \
    if (d == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "device %d of %d", dev, G.ndevices))

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    DEVICE(cuDevicePrimaryCtxRetain);
    if (pctx == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pctx is NULL"));
    if (d->sticky != CUDA_SUCCESS) return end(&c, failed(d));
    if (d->primary == NULL) d->primary = context_new(d, d->primary_flags, true, &c);
    d->retained++;
    *pctx = (CUcontext)(uintptr_t)d->primary->o.handle;
    return end(&c, CUDA_SUCCESS);
}

static CUresult primary_release(const call *c, device *d) {
    if (d->retained == 0) return bad(c, CUDA_ERROR_INVALID_CONTEXT, "the primary context of device %d is not retained", d->ordinal);
    if (--d->retained == 0 && d->primary != NULL) {
        refuse_work(d->primary, c);
        context_destroy(d->primary, c);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    DEVICE(cuDevicePrimaryCtxRelease);
    return end(&c, primary_release(&c, d));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    DEVICE(cuDevicePrimaryCtxRelease_v2);
    return end(&c, primary_release(&c, d));
}

static CUresult primary_flags(const call *c, device *d, unsigned flags) {
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0 || (flags & 7) > 4 || (flags & 7) == 3) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "flags %#x", flags);
    d->primary_flags = flags;
    if (d->primary != NULL) d->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    DEVICE(cuDevicePrimaryCtxSetFlags);
    if (d->primary != NULL) return end(&c, bad(&c, CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "device %d", dev));
    return end(&c, primary_flags(&c, d, flags));
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    DEVICE(cuDevicePrimaryCtxSetFlags_v2);
    return end(&c, primary_flags(&c, d, flags));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    DEVICE(cuDevicePrimaryCtxGetState);
    if (flags == NULL || active == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags or active is NULL"));
    *flags = d->primary_flags;
    *active = d->primary != NULL;
    return end(&c, CUDA_SUCCESS);
}

static CUresult primary_reset(const call *c, device *d) {
    if (d->primary != NULL) {
        refuse_work(d->primary, c);
        context_destroy(d->primary, c);
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    DEVICE(cuDevicePrimaryCtxReset);
    return end(&c, primary_reset(&c, d));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    DEVICE(cuDevicePrimaryCtxReset_v2);
    return end(&c, primary_reset(&c, d));
}

static CUresult push(const call *c, context *x) {
    refresh();
    if (mine.n == DEPTH) return bad(c, CUDA_ERROR_OUT_OF_MEMORY, "more than %d contexts on the stack of this thread", DEPTH);
    mine.stack[mine.n++] = x->o.handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    DEVICE(cuCtxCreate_v2);
    if (pctx == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pctx is NULL"));
    if ((flags & ~CU_CTX_FLAGS_MASK) != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags));
    if (d->sticky != CUDA_SUCCESS) return end(&c, failed(d));
    context *x = context_new(d, flags, false, &c);
    r = push(&c, x);
    if (r != CUDA_SUCCESS)
        context_destroy(x, &c);
    else
        *pctx = (CUcontext)(uintptr_t)x->o.handle;
    return end(&c, r);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    BEGIN(cuCtxDestroy_v2, NEEDS_INIT);
    context *x = FIND(context, T_CONTEXT, ctx);
    if (x == NULL || x->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)ctx, T_CONTEXT));
    if (x->is_primary) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT, "a primary context is released, not destroyed"));
    refuse_work(x, &c);
    refresh();
    if (mine.n > 0 && mine.stack[mine.n - 1] == x->o.handle) mine.n--;
    context_destroy(x, &c);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    BEGIN(cuCtxPushCurrent_v2, NEEDS_INIT);
    context *x = FIND(context, T_CONTEXT, ctx);
    if (x == NULL || x->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)ctx, T_CONTEXT));
    return end(&c, push(&c, x));
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
    BEGIN(cuCtxPopCurrent_v2, NEEDS_INIT);
    refresh();
    if (mine.n == 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT, "this thread's stack of contexts is empty"));
    uint64_t h = mine.stack[--mine.n];
    if (pctx != NULL) *pctx = (CUcontext)(uintptr_t)h;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    BEGIN(cuCtxSetCurrent, NEEDS_INIT);
    refresh();
    if (ctx == NULL) {
        if (mine.n > 0) mine.n--;
        return end(&c, CUDA_SUCCESS);
    }
    context *x = FIND(context, T_CONTEXT, ctx);
    if (x == NULL || x->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)ctx, T_CONTEXT));
    if (mine.n > 0) mine.n--;
    return end(&c, push(&c, x));
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    BEGIN(cuCtxGetCurrent, NEEDS_INIT);
    if (pctx == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pctx is NULL"));
    refresh();
    *pctx = mine.n == 0 ? NULL : (CUcontext)(uintptr_t)mine.stack[mine.n - 1];
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *dev) {
    BEGIN(cuCtxGetDevice, NEEDS_CONTEXT);
    if (dev == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "device is NULL"));
    *dev = c.ctx->dev->ordinal;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    BEGIN(cuCtxGetFlags, NEEDS_CONTEXT);
    if (flags == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags is NULL"));
    *flags = c.ctx->flags;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    BEGIN(cuCtxGetApiVersion, NEEDS_INIT);
    context *x = ctx == NULL ? current() : FIND(context, T_CONTEXT, ctx);
    if (x == NULL || x->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)ctx, T_CONTEXT));
    if (version == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "version is NULL"));
    *version = 3020;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    BEGIN(cuCtxGetStreamPriorityRange, NEEDS_CONTEXT);
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void) {
    BEGIN(cuCtxSynchronize, NEEDS_CONTEXT);
    /* what is queued now; others may queue more, and streams may come and go, while this thread waits */
    context *x = c.ctx;
    int n = 0;
    for (stream *s = x->streams; s != NULL; s = s->next) n++;
    dep *wait = calloc((size_t)n + 1, sizeof *wait);
    if (wait == NULL) return end(&c, CUDA_ERROR_OUT_OF_MEMORY);
    n = 0;
    for (stream *s = x->streams; s != NULL; s = s->next) {
        s->refs++;
        wait[n++] = (dep){s, s->submitted};
    }
    for (int i = 0; i < n; i++) {
        wait_for(wait[i].s, wait[i].seq);
        stream_unref(wait[i].s);
    }
    free(wait);
    return end(&c, surface(c.ctx_handle));
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    BEGIN(cuCtxSetLimit, NEEDS_CONTEXT);
    (void)value;
    if ((int)limit < 0 || (int)limit > 6) return end(&c, bad(&c, CUDA_ERROR_UNSUPPORTED_LIMIT, "limit %d", (int)limit));
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    BEGIN(cuCtxEnablePeerAccess, NEEDS_CONTEXT);
    context *x = c.ctx, *p = FIND(context, T_CONTEXT, peer);
    if (flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x: must be 0", flags));
    if (p == NULL || p->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)peer, T_CONTEXT));
    if (p == x) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT, "the peer is the current context"));
    if (p->dev == x->dev || G.peers_off)
        return end(&c, bad(&c, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "from device %d to %d", x->dev->ordinal, p->dev->ordinal));
    if (peer_enabled(x, p)) return end(&c, bad(&c, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "to device %d", p->dev->ordinal));
    if (x->npeers == MAX_DEVICES) return end(&c, bad(&c, CUDA_ERROR_TOO_MANY_PEERS, "%d", x->npeers));
    if ((r = implicit_sync(&c, x)) != CUDA_SUCCESS) return end(&c, r);
    x->peers[x->npeers++] = p;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    BEGIN(cuCtxDisablePeerAccess, NEEDS_CONTEXT);
    context *x = c.ctx, *p = FIND(context, T_CONTEXT, peer);
    if (p == NULL || p->dead) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)peer, T_CONTEXT));
    for (int i = 0; i < x->npeers; i++)
        if (x->peers[i] == p) {
            x->peers[i] = x->peers[--x->npeers];
            return end(&c, CUDA_SUCCESS);
        }
    return end(&c, bad(&c, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "to device %d", p->dev->ordinal));
}
