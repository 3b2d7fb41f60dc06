/*
 * Streams: a queue and a thread each. Operations of one stream run in order; an operation of the default (legacy) stream runs
 * after everything that was queued before it in the context's blocking streams, and what is queued in those later runs after
 * it (Runtime API manual, "Stream synchronization behavior").
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define OWN 16
static __thread struct { uint64_t ctx, stream; } per_thread[OWN];
static __thread unsigned nper_thread;

stream *stream_new(context *x, unsigned flags, int priority, const call *c) {
    stream *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    s->flags = flags;
    s->priority = priority;
    s->refs = 1;
    pthread_cond_init(&s->cond, NULL);
    object_add(&s->o, T_STREAM, x, c);
    s->next = x->streams;
    x->streams = s;
    return s;
}

bool stream_idle(const stream *s) { return s->completed == s->submitted; }

void stream_unref(stream *s) {
    if (--s->refs > 0) return;
    pthread_cond_destroy(&s->cond);
    free(s);
}

/* The stream is over: nothing is queued and its thread, if it had one, is gone. */
static void stream_end(stream *s) {
    s->ended = true;
    if (s->o.ctx != NULL)
        for (stream **p = &s->o.ctx->streams; *p != NULL; p = &(*p)->next)
            if (*p == s) {
                *p = s->next;
                break;
            }
    s->o.ctx = NULL;
    pthread_cond_broadcast(&G.progress);
    stream_unref(s);
}

/* No more handle; the stream ends when its work is done (cuStreamDestroy: "resources are released asynchronously"). */
void stream_close(stream *s) {
    if (s->closing) return;
    s->closing = true;
    object_remove(&s->o);
    if (s->started) pthread_cond_signal(&s->cond);
    else stream_end(s);
}

/* Ends all streams of a context that is going away. Takes until their current operations are over. */
void stream_join_all(context *x) {
    for (stream *s = x->streams, *next; s != NULL; s = next) {
        next = s->next;
        __atomic_store_n(&s->abort, true, __ATOMIC_RELEASE);
        stream_close(s);
    }
    pthread_cond_broadcast(&G.progress);
    while (x->streams != NULL) pthread_cond_wait(&G.progress, &G.mu);
}

CUresult stream_get(const call *c, CUstream h, stream **out) {
    uintptr_t v = (uintptr_t)h;
    if (v <= 1) {
        *out = c->ctx->legacy;
        return CUDA_SUCCESS;
    }
    if (h != CU_STREAM_PER_THREAD) {
        *out = FIND(stream, T_STREAM, h);
        return *out == NULL || (*out)->closing ? bad_handle(c, v, T_STREAM) : CUDA_SUCCESS;
    }
    uint64_t x = c->ctx->o.handle;
    for (unsigned i = 0; i < OWN; i++)
        if (per_thread[i].ctx == x && (*out = FIND(stream, T_STREAM, per_thread[i].stream)) != NULL) return CUDA_SUCCESS;
    *out = stream_new(c->ctx, 0, 0, c);
    (*out)->thread_own = true;
    per_thread[nper_thread % OWN].ctx = x;
    per_thread[nper_thread++ % OWN].stream = (*out)->o.handle;
    return CUDA_SUCCESS;
}

op *op_new(void (*run)(op *)) {
    op *o = calloc(1, sizeof *o);
    if (o == NULL) abort();
    o->run = run;
    o->born = G.calls;
    return o;
}

/* The operation will touch the n bytes at an address of a device or of pinned host memory. */
void op_use(op *o, uint64_t p, size_t n) {
    if (o->nuses == (int)(sizeof o->uses / sizeof *o->uses)) return;
    o->use_p[o->nuses] = p;
    o->use_n[o->nuses++] = n;
}

void submit_dep(op *o, stream *s, uint64_t seq) {
    if (s->completed >= seq) return;
    o->deps = realloc(o->deps, (size_t)(o->ndeps + 1) * sizeof *o->deps);
    if (o->deps == NULL) abort();
    s->refs++;
    o->deps[o->ndeps++] = (dep){s, seq};
}

void op_free(op *o) {
    if (o->drop != NULL) o->drop(o);
    for (int i = 0; i < o->ndeps; i++) stream_unref(o->deps[i].s);
    free(o->deps);
    free(o->args);
    free(o->launch.params);
    free(o);
}

static bool deps_done(op *o) {
    while (o->ndeps > 0 && o->deps[o->ndeps - 1].s->completed >= o->deps[o->ndeps - 1].seq) stream_unref(o->deps[--o->ndeps].s);
    return o->ndeps == 0;
}

static void *work(void *arg) {
    stream *s = arg;
    pthread_mutex_lock(&G.mu);
    for (;;) {
        while (s->head == NULL && !s->closing) pthread_cond_wait(&s->cond, &G.mu);
        op *o = s->head;
        if (o == NULL) break;
        while (!deps_done(o) && !s->abort) pthread_cond_wait(&G.progress, &G.mu);
        context *x = s->o.ctx;
        o->skipped = s->abort || x->pending != CUDA_SUCCESS || x->dev->sticky != CUDA_SUCCESS;
        CUresult status = x->pending != CUDA_SUCCESS ? x->pending : x->dev->sticky;
        if (o->always) o->result = s->abort && status == CUDA_SUCCESS ? CUDA_ERROR_CONTEXT_IS_DESTROYED : status;
        long delay = o->skipped ? 0 : o->delay_us;
        bool copies = o->run == run_copy && !o->skipped;
        x->dev->copying += copies;
        pthread_mutex_unlock(&G.mu);
        for (double until = seconds() + (double)delay / 1e6, left; delay > 0 && (left = until - seconds()) > 0;) {
            if (__atomic_load_n(&s->abort, __ATOMIC_ACQUIRE)) {
                o->skipped = true; /* its context goes away meanwhile */
                break;
            }
            nanosleep(&(struct timespec){0, left > 0.01 ? 10000000 : (long)(left * 1e9)}, NULL);
        }
        if (o->run != NULL && (!o->skipped || o->always)) o->run(o);
        pthread_mutex_lock(&G.mu);
        x->dev->copying -= copies;
        if (!o->always && o->result != CUDA_SUCCESS) device_fail(x->dev, x, o->result);
        for (int i = 0; i < o->nuses; i++) {
            if (o->uses[i] != NULL) o->uses[i]->use--;
            if (o->huses[i] != NULL) o->huses[i]->use--;
        }
        if (o->resident) {
            x->resident--;
            s->resident--;
        }
        s->completed = o->seq;
        s->head = o->next;
        if (s->head == NULL) s->tail = NULL;
        op_free(o);
        pthread_cond_broadcast(&G.progress);
    }
    G.workers--;
    stream_end(s);
    pthread_mutex_unlock(&G.mu);
    return NULL;
}

static bool start(stream *s) {
    sigset_t all, old;
    pthread_attr_t attr;
    /* Signals are the program's: a runtime such as Go's does not expect them on a thread that it does not know. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    s->started = pthread_create(&s->thread, &attr, work, s) == 0;
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (s->started) G.workers++;
    return s->started;
}

/* Queues the operation, which is the stream's from here on, also after an error. */
CUresult submit(const call *c, stream *s, op *o) {
    context *x = s->o.ctx;
    o->s = s;
    if (!s->started && !start(s)) {
        op_free(o);
        return bad(c, CUDA_ERROR_OPERATING_SYSTEM, "no thread for a stream");
    }
    for (int i = 0; i < o->nuses; i++) {
        o->uses[i] = alloc_at(o->use_p[i]);
        if (o->uses[i] != NULL) o->uses[i]->use++;
        o->huses[i] = host_at(o->use_p[i]);
        if (o->huses[i] != NULL) o->huses[i]->use++;
    }
    if (s->legacy) {
        for (stream *t = x->streams; t != NULL; t = t->next)
            if (t != s && !(t->flags & CU_STREAM_NON_BLOCKING)) submit_dep(o, t, t->submitted);
    } else if (!(s->flags & CU_STREAM_NON_BLOCKING)) {
        submit_dep(o, x->legacy, x->legacy->submitted);
    }
    if (o->resident) {
        x->resident++;
        s->resident++;
    }
    o->seq = ++s->submitted;
    if (s->tail != NULL) s->tail->next = o;
    else s->head = o;
    s->tail = o;
    pthread_cond_signal(&s->cond);
    return CUDA_SUCCESS;
}

void wait_for(stream *s, uint64_t seq) {
    s->refs++;
    while (s->completed < seq && !s->ended) pthread_cond_wait(&G.progress, &G.mu);
    stream_unref(s);
}

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

#define STREAM(fn) \
    BEGIN(fn); \
    stream *s; \
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r)

static CUresult create(call *c, CUstream *out, unsigned flags, int priority) {
    if (out == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "stream is NULL");
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return bad(c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags);
    /* a priority out of range is lowered into it, says the manual */
    stream *s = stream_new(c->ctx, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority, c);
    *out = (CUstream)(uintptr_t)s->o.handle;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    BEGIN(cuStreamCreate);
    return end(&c, create(&c, out, flags, 0));
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    BEGIN(cuStreamCreateWithPriority);
    return end(&c, create(&c, out, flags, priority));
}

CUresult cuStreamDestroy_v2(CUstream stream_) {
    BEGIN(cuStreamDestroy_v2);
    if ((uintptr_t)stream_ <= 2) return end(&c, bad(&c, CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed"));
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    stream_close(s);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuStreamSynchronize(CUstream stream_) {
    STREAM(cuStreamSynchronize);
    uint64_t h = s->o.ctx->o.handle;
    wait_for(s, s->submitted);
    return end(&c, surface(h));
}

CUresult cuStreamQuery(CUstream stream_) {
    STREAM(cuStreamQuery);
    if (!stream_idle(s)) return end(&c, CUDA_ERROR_NOT_READY);
    return end(&c, surface(s->o.ctx->o.handle));
}

CUresult cuStreamGetFlags(CUstream stream_, unsigned int *flags) {
    STREAM(cuStreamGetFlags);
    if (flags == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags is NULL"));
    *flags = s->flags;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream stream_, int *priority) {
    STREAM(cuStreamGetPriority);
    if (priority == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "priority is NULL"));
    *priority = s->priority;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream stream_, CUcontext *pctx) {
    STREAM(cuStreamGetCtx);
    if (pctx == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pctx is NULL"));
    *pctx = (CUcontext)(uintptr_t)s->o.ctx->o.handle;
    return end(&c, CUDA_SUCCESS);
}

static void run_callback(op *o) {
    set_in_callback(true);
    o->callback((CUstream)(uintptr_t)o->value, o->result, o->data);
    set_in_callback(false);
}

CUresult cuStreamAddCallback(CUstream stream_, void (*callback)(CUstream, CUresult, void *), void *data, unsigned int flags) {
    STREAM(cuStreamAddCallback);
    if (callback == NULL || flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "callback is NULL, or flags are not 0"));
    op *o = op_new(run_callback);
    o->always = true; /* with the error as its status */
    o->callback = callback;
    o->data = data;
    o->value = (uintptr_t)stream_;
    return end(&c, submit(&c, s, o));
}

static void run_hostfn(op *o) {
    set_in_callback(true);
    o->hostfn(o->data);
    set_in_callback(false);
}

CUresult cuLaunchHostFunc(CUstream stream_, void (*fn)(void *), void *data) {
    STREAM(cuLaunchHostFunc);
    if (fn == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "fn is NULL"));
    op *o = op_new(run_hostfn); /* not called when the context has failed, says the manual */
    o->hostfn = fn;
    o->data = data;
    return end(&c, submit(&c, s, o));
}
