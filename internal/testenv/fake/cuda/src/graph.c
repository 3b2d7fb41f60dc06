/*
 * Stream capture and graphs, as far as one stream goes: what is queued in a capturing stream becomes the nodes of a graph, in
 * order. Driver API manual, "Stream Management", "Graph Management". Events, callbacks and other streams cannot take part.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

/* For calls that a capturing stream does not allow: they end its capture. */
CUresult capture_refuse(const call *c, stream *s) {
    if (s->capture == NULL) {
        /* the default stream would wait for capturing streams, which are not doing anything */
        if (s->legacy)
            for (stream *t = s->o.ctx->streams; t != NULL; t = t->next)
                if (t->capture != NULL && !(t->flags & CU_STREAM_NON_BLOCKING)) {
                    t->capture->invalid = true;
                    return bad(c, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                        "the default stream depends on a stream that is being captured");
                }
        return CUDA_SUCCESS;
    }
    s->capture->invalid = true;
    return bad(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        "the stream is being captured (the fake captures copies, fills, launches and host functions of one stream)");
}

void graph_unref(graph *g) {
    if (--g->refs > 0) return;
    for (int i = 0; i < g->nops; i++) op_free(g->ops[i]);
    free(g->ops);
    free(g);
}

CUresult graph_capture(const call *c, graph *g, op *o) {
    (void)c;
    g->ops = realloc(g->ops, (size_t)(g->nops + 1) * sizeof(op *));
    if (g->ops == NULL) abort();
    g->ops[g->nops++] = o;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream_, CUstreamCaptureMode mode) {
    BEGIN(cuStreamBeginCapture_v2);
    stream *s;
    if ((unsigned)mode > 2) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "mode %d", (int)mode));
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (s->legacy) return end(&c, bad(&c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the default stream cannot be captured"));
    if (s->capture != NULL) return end(&c, bad(&c, CUDA_ERROR_ILLEGAL_STATE, "the stream is being captured already"));
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) abort();
    g->refs = 1;
    g->tid = gettid();
    g->origin = mode == CU_STREAM_CAPTURE_MODE_RELAXED ? NULL : s;
    s->capture = g;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuStreamEndCapture(CUstream stream_, CUgraph *out) {
    BEGIN(cuStreamEndCapture);
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    graph *g = s->capture;
    if (out == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "graph is NULL"));
    if (g == NULL) return end(&c, bad(&c, CUDA_ERROR_ILLEGAL_STATE, "the stream is not being captured"));
    if (g->origin != NULL && g->tid != gettid())
        return end(&c, bad(&c, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture began in thread %d", g->tid));
    s->capture = NULL;
    g->origin = NULL;
    *out = NULL;
    if (g->invalid) {
        graph_unref(g);
        return end(&c, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    object_add(&g->o, T_GRAPH, s->o.ctx, &c);
    *out = (CUgraph)(uintptr_t)g->o.handle;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream stream_, CUstreamCaptureStatus *status) {
    BEGIN(cuStreamIsCapturing);
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (status == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "status is NULL"));
    *status = s->capture == NULL     ? CU_STREAM_CAPTURE_STATUS_NONE
              : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return end(&c, CUDA_SUCCESS);
}

static CUresult instantiate(call *c, CUgraphExec *out, CUgraph h, unsigned long long flags) {
    CUresult r;
    graph *g = FIND(graph, T_GRAPH, h);
    if (g == NULL) return bad_handle(c, (uint64_t)(uintptr_t)h, T_GRAPH);
    if (out == NULL || flags > 15) return bad(c, CUDA_ERROR_INVALID_VALUE, "exec is NULL, or flags %#llx", flags);
    if ((r = implicit_sync(c, c->ctx)) != CUDA_SUCCESS) return r;
    exec *e = calloc(1, sizeof *e);
    if (e == NULL) abort();
    e->g = g;
    g->refs++;
    object_add(&e->o, T_EXEC, g->o.ctx, c);
    *out = (CUgraphExec)(uintptr_t)e->o.handle;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *node, char *log, size_t n) {
    BEGIN(cuGraphInstantiate_v2);
    if (node != NULL) *node = NULL;
    if (log != NULL && n > 0) *log = 0;
    return end(&c, instantiate(&c, out, g, 0));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
    BEGIN(cuGraphInstantiateWithFlags);
    return end(&c, instantiate(&c, out, g, flags));
}

static op *copy_of(const op *t) {
    op *o = op_new(t->run);
    *o = *t;
    o->next = NULL;
    o->deps = NULL;
    o->ndeps = 0;
    o->args = NULL;
    o->launch.params = NULL;
    if (t->fn != NULL) {
        o->args = malloc(t->fn->args + 16);
        o->launch.params = calloc((size_t)t->fn->nparams + 1, sizeof *o->launch.params);
        if (o->args == NULL || o->launch.params == NULL) abort();
        memcpy(o->args, t->args, t->fn->args);
        for (int i = 0; i < t->fn->nparams; i++) o->launch.params[i] = o->args + t->fn->params[i].off;
    }
    return o;
}

CUresult cuGraphLaunch(CUgraphExec h, CUstream stream_) {
    BEGIN(cuGraphLaunch);
    stream *s;
    exec *e = FIND(exec, T_EXEC, h);
    if (e == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)h, T_EXEC));
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (s->o.ctx != e->o.ctx) return end(&c, bad(&c, CUDA_ERROR_INVALID_HANDLE,
        "the graph and the stream are of different contexts"));
    if ((r = capture_refuse(&c, s)) != CUDA_SUCCESS) return end(&c, r);
    /* the addresses were fixed at capture; what was freed since then faults on the device */
    for (int i = 0; i < e->g->nops; i++) {
        op *t = e->g->ops[i];
        if (t->fn != NULL && FIND(function, T_FUNCTION, t->value) == NULL)
            return end(&c, bad(&c, CUDA_ERROR_INVALID_HANDLE, "node %d of the graph launches a kernel whose module was unloaded",
                i));
        for (int k = 0; k < t->nuses; k++) {
            alloc *a = alloc_at(t->use_p[k]);
            host *x = host_at(t->use_p[k]);
            if ((a == NULL || a->born.call > t->born) && (x == NULL || x->born.call > t->born)) {
                violation(&c, "node %d of the graph uses %#llx, which was freed after the capture", i,
                    (unsigned long long)t->use_p[k]);
                device_fail(s->o.ctx->dev, s->o.ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
                return end(&c, CUDA_SUCCESS);
            }
        }
    }
    for (int i = 0; i < e->g->nops && r == CUDA_SUCCESS; i++) r = submit(&c, s, copy_of(e->g->ops[i]));
    return end(&c, r);
}

CUresult cuGraphExecDestroy(CUgraphExec h) {
    BEGIN(cuGraphExecDestroy);
    exec *e = FIND(exec, T_EXEC, h);
    if (e == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)h, T_EXEC));
    object_remove(&e->o);
    graph_unref(e->g);
    free(e);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph h) {
    BEGIN(cuGraphDestroy);
    graph *g = FIND(graph, T_GRAPH, h);
    if (g == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)h, T_GRAPH));
    object_remove(&g->o);
    graph_nodes_end(g); /* also where an executable graph lives on */
    graph_unref(g);
    return end(&c, CUDA_SUCCESS);
}
