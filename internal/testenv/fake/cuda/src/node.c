/*
 * Graphs that are built node by node. Driver API manual, "Graph Management". A node is made as a captured operation is: on a stream that exists for the
 * moment of the call only. Nodes run in the order in which they were added, which every set of dependencies allows, since a node
 * can only depend on earlier ones.
 */
#include <stdlib.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

typedef struct node { object o; graph *g; } node;

static void drop_node(object *o, void *g) {
    if (o->kind != T_NODE || ((node *)o)->g != g) return;
    object_remove(o);
    free(o);
}

void graph_nodes_end(graph *g) { objects_each(drop_node, g); }

CUresult cuGraphCreate(CUgraph *out, unsigned int flags) {
    BEGIN(cuGraphCreate);
    if (out == NULL || flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "graph is NULL, or flags %#x", flags));
    graph *g = calloc(1, sizeof *g);
    if (g == NULL) abort();
    g->refs = 1;
    object_add(&g->o, T_GRAPH, c.ctx, &c);
    *out = (CUgraph)(uintptr_t)g->o.handle;
    return end(&c, CUDA_SUCCESS);
}

/* The stream on which the node's operation is "captured", and the node. */
static CUresult node_begin(call *c, CUgraph h, const CUgraphNode *after, size_t n, CUgraphNode *out, const void *params, stream **s, graph **g) {
    *g = FIND(graph, T_GRAPH, h);
    if (*g == NULL) return bad_handle(c, (uint64_t)(uintptr_t)h, T_GRAPH);
    if (out == NULL || params == NULL || (n > 0 && after == NULL))
        return bad(c, CUDA_ERROR_INVALID_VALUE, "node or parameters are NULL, or %zu dependencies but no list", n);
    for (size_t i = 0; i < n; i++) {
        node *d = FIND(node, T_NODE, after[i]);
        if (d == NULL) return bad_handle(c, (uint64_t)(uintptr_t)after[i], T_NODE);
        if (d->g != *g) return bad(c, CUDA_ERROR_INVALID_VALUE, "dependency %zu is a node of another graph", i);
    }
    if ((*g)->refs > 1) {
        warning_(c, "the fake adds no nodes to a graph that was instantiated already");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *s = stream_new(c->ctx, CU_STREAM_NON_BLOCKING, 0, c);
    (*s)->capture = *g;
    return CUDA_SUCCESS;
}

static CUresult node_end(call *c, stream *s, graph *g, CUresult r, CUgraphNode *out) {
    s->capture = NULL;
    stream_close(s);
    if (r != CUDA_SUCCESS) return r;
    node *d = calloc(1, sizeof *d);
    if (d == NULL) abort();
    d->g = g;
    object_add(&d->o, T_NODE, g->o.ctx, c);
    *out = (CUgraphNode)(uintptr_t)d->o.handle;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph_, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    BEGIN(cuGraphAddKernelNode_v2);
    stream *s;
    graph *g;
    if ((r = node_begin(&c, graph_, after, n, out, p, &s, &g)) != CUDA_SUCCESS) return end(&c, r);
    if (p->kern != NULL) r = bad(&c, CUDA_ERROR_INVALID_VALUE, "kern is not NULL: the fake has no libraries");
    else if (p->ctx != NULL && (uint64_t)(uintptr_t)p->ctx != c.ctx->o.handle)
        r = bad(&c, CUDA_ERROR_INVALID_CONTEXT, "the node names another context than the current one");
    else r = launch(&c, p->func, (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ}, (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ},
                    p->sharedMemBytes, (CUstream)(uintptr_t)s->o.handle, p->kernelParams, p->extra);
    return end(&c, node_end(&c, s, g, r, out));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph_, const CUgraphNode *after, size_t n, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    BEGIN(cuGraphAddMemcpyNode);
    stream *s;
    graph *g;
    if ((r = node_begin(&c, graph_, after, n, out, p, &s, &g)) != CUDA_SUCCESS) return end(&c, r);
    if ((uint64_t)(uintptr_t)ctx != c.ctx->o.handle) r = bad(&c, CUDA_ERROR_INVALID_CONTEXT, "the node names another context than the current one");
    else if (p->Height != 1 || p->Depth != 1 || p->srcLOD != 0 || p->dstLOD != 0 || p->reserved0 != NULL || p->reserved1 != NULL)
        r = bad(&c, CUDA_ERROR_INVALID_VALUE, "the fake copies one row: %zu rows in %zu planes", p->Height, p->Depth);
    else r = copy_node(&c, p, s);
    return end(&c, node_end(&c, s, g, r, out));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph_, const CUgraphNode *after, size_t n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
    BEGIN(cuGraphAddMemsetNode);
    stream *s;
    graph *g;
    if ((r = node_begin(&c, graph_, after, n, out, p, &s, &g)) != CUDA_SUCCESS) return end(&c, r);
    if ((uint64_t)(uintptr_t)ctx != c.ctx->o.handle) r = bad(&c, CUDA_ERROR_INVALID_CONTEXT, "the node names another context than the current one");
    else if (p->height != 1 || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        r = bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu rows of elements of %u bytes: one row of 1, 2 or 4 here", p->height, p->elementSize);
    else r = fill_node(&c, p, s);
    return end(&c, node_end(&c, s, g, r, out));
}
