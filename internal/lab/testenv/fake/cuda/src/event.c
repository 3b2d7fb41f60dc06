/* Events. Driver API manual, "Event Management". */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

record *record_new(stream *s, uint64_t seq) {
    record *r = calloc(1, sizeof *r);
    if (r == NULL) abort();
    *r = (record){.refs = 1, .s = s, .seq = seq};
    s->refs++;
    return r;
}

void record_unref(record *r) {
    if (r == NULL || --r->refs > 0) return;
    stream_unref(r->s);
    free(r);
}

void event_free(event *e) {
    object_remove(&e->o);
    record_unref(e->rec);
    ipcevent_free(e->ipc);
    free(e);
}

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

#define EVENT(fn) \
    BEGIN(fn); \
    event *e = FIND(event, T_EVENT, event_); \
    if (e == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)event_, T_EVENT))

CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    BEGIN(cuEventCreate);
    if (out == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "event is NULL"));
    if ((flags & ~7u) != 0 || (flags & (CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING)) == CU_EVENT_INTERPROCESS)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x: an interprocess event must also disable timing", flags));
    struct ipcevent *ipc = NULL;
    if (flags & CU_EVENT_INTERPROCESS) {
        if (!c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED]) return end(&c, CUDA_ERROR_NOT_SUPPORTED);
        if ((ipc = ipcevent_new()) == NULL) return end(&c, CUDA_ERROR_OPERATING_SYSTEM);
    }
    event *e = calloc(1, sizeof *e);
    if (e == NULL) abort();
    e->flags = flags;
    e->ipc = ipc;
    object_add(&e->o, T_EVENT, c.ctx, &c);
    *out = (CUevent)(uintptr_t)e->o.handle;
    return end(&c, CUDA_SUCCESS);
}

static void run_record(op *o) {
    o->rec->at = seconds();
    if (o->ipc != NULL) ipcevent_completed(o->ipc);
}

static void drop_record(op *o) {
    o->rec->done = true;
    record_unref(o->rec);
    ipcevent_free(o->ipc);
}

CUresult cuEventRecord(CUevent event_, CUstream stream_) {
    EVENT(cuEventRecord);
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (s->o.ctx != e->o.ctx) return end(&c, bad(&c, CUDA_ERROR_INVALID_HANDLE,
        "the event and the stream are of different contexts"));
    op *o = op_new(run_record);
    o->always = true;
    o->drop = drop_record;
    o->rec = record_new(s, s->submitted + 1);
    if (e->ipc != NULL) {
        ipcevent_recorded(e->ipc);
        o->ipc = ipcevent_ref(e->ipc);
    }
    record_unref(e->rec);
    e->rec = o->rec;
    e->rec->refs++;
    return end(&c, submit(&c, s, o));
}

static void run_wait_ipc(op *o) {
    /* another process completes it: there is nobody here to wake this thread */
    while (!ipcevent_reached(o->ipc, o->value) && !__atomic_load_n(&o->s->abort, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){0, 50000}, NULL);
}

static void drop_wait_ipc(op *o) { ipcevent_free(o->ipc); }

CUresult cuStreamWaitEvent(CUstream stream_, CUevent event_, unsigned int flags) {
    EVENT(cuStreamWaitEvent);
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags));
    op *o = op_new(NULL);
    if (e->ipc != NULL) {
        o->run = run_wait_ipc;
        o->drop = drop_wait_ipc;
        o->value = ipcevent_last(e->ipc);
        o->ipc = ipcevent_ref(e->ipc);
    } else if (e->rec != NULL && e->rec->s != s) {
        submit_dep(o, e->rec->s, e->rec->seq);
    }
    return end(&c, submit(&c, s, o));
}

/* What the event recorded last is over; an event that recorded nothing counts as complete. */
static bool complete(const event *e) {
    if (e->ipc != NULL) return ipcevent_done(e->ipc);
    return e->rec == NULL || e->rec->s->completed >= e->rec->seq;
}

CUresult cuEventQuery(CUevent event_) {
    EVENT(cuEventQuery);
    if (!complete(e)) return end(&c, CUDA_ERROR_NOT_READY);
    return end(&c, surface(e->o.ctx->o.handle));
}

CUresult cuEventSynchronize(CUevent event_) {
    EVENT(cuEventSynchronize);
    uint64_t h = e->o.ctx->o.handle;
    if (e->ipc != NULL && (e->rec == NULL || e->rec->s->completed >= e->rec->seq)) {
        uint64_t n = ipcevent_last(e->ipc);
        while ((e = FIND(event, T_EVENT, event_)) != NULL && !ipcevent_reached(e->ipc, n)) {
            pthread_mutex_unlock(&G.mu);
            nanosleep(&(struct timespec){0, 50000}, NULL);
            pthread_mutex_lock(&G.mu);
        }
    } else if (e->rec != NULL) {
        wait_for(e->rec->s, e->rec->seq);
    }
    return end(&c, surface(h));
}

static CUresult elapsed(const call *c, float *ms, CUevent start, CUevent stop) {
    event *a = FIND(event, T_EVENT, start), *b = FIND(event, T_EVENT, stop);
    if (a == NULL) return bad_handle(c, (uint64_t)(uintptr_t)start, T_EVENT);
    if (b == NULL) return bad_handle(c, (uint64_t)(uintptr_t)stop, T_EVENT);
    if (ms == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "ms is NULL");
    if (a->o.ctx != b->o.ctx) return bad(c, CUDA_ERROR_INVALID_HANDLE, "the events are of different contexts");
    if (a->rec == NULL || b->rec == NULL) return bad(c, CUDA_ERROR_INVALID_HANDLE, "an event was not recorded");
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) return bad(c, CUDA_ERROR_INVALID_HANDLE,
        "an event was created without timing");
    if (!complete(a) || !complete(b)) return CUDA_ERROR_NOT_READY;
    *ms = (float)((b->rec->at - a->rec->at) * 1e3);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent stop) {
    BEGIN(cuEventElapsedTime);
    return end(&c, elapsed(&c, ms, start, stop));
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent stop) {
    BEGIN(cuEventElapsedTime_v2);
    return end(&c, elapsed(&c, ms, start, stop));
}

CUresult cuEventDestroy_v2(CUevent event_) {
    EVENT(cuEventDestroy_v2);
    event_free(e);
    return end(&c, CUDA_SUCCESS);
}
