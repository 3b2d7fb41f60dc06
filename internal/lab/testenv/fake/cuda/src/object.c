/* Handles: what is alive, and of which kind and number a dead or foreign one is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

#define BUCKETS 4096
static object *buckets[BUCKETS];

static const char *const kind_names[T_COUNT] = {"handle", "context", "stream", "event", "module", "function", "memory handle"};

static size_t bucket(uint64_t handle) { return (size_t)(handle >> 4) % BUCKETS; }

/* A handle is (place in the reservation) + 16 * number + kind. Its memory cannot be touched. */
uint64_t handle_at(kind k) { return G.handle_base + 16 * ++G.next_handle + (uint64_t)k; }

kind handle_kind(uint64_t handle) {
    if (handle <= G.handle_base || handle > G.handle_base + 16 * G.next_handle + 15) return T_NONE;
    return (kind)(handle & 15);
}

void object_add(object *o, kind k, context *ctx, const call *c) {
    o->kind = k;
    o->ctx = ctx;
    o->handle = handle_at(k);
    o->born = origin_now(c);
    size_t b = bucket(o->handle);
    o->next = buckets[b];
    buckets[b] = o;
}

void object_remove(object *o) {
    for (object **p = &buckets[bucket(o->handle)]; *p != NULL; p = &(*p)->next)
        if (*p == o) {
            *p = o->next;
            return;
        }
}

object *object_find(uint64_t handle, kind k) {
    for (object *o = buckets[bucket(handle)]; o != NULL; o = o->next)
        if (o->handle == handle) return o->kind == k ? o : NULL;
    return NULL;
}

void objects_each(void (*f)(object *, void *), void *arg) {
    for (size_t b = 0; b < BUCKETS; b++)
        for (object *o = buckets[b], *next; o != NULL; o = next) {
            next = o->next;
            f(o, arg);
        }
}

struct find { context *ctx; kind k; object **out; int n, max; };
static void collect(object *o, void *arg) {
    struct find *f = arg;
    if (o->kind == f->k && o->ctx == f->ctx && f->n < f->max) f->out[f->n++] = o;
}

/* Up to max objects of one kind that belong to a context. */
int objects_of(context *ctx, kind k, object **out, int max) {
    struct find f = {ctx, k, out, 0, max};
    objects_each(collect, &f);
    return f.n;
}

CUresult bad_handle(const call *c, uint64_t h, kind k) {
    /* the manual: contexts have an error of their own, other handles share CUDA_ERROR_INVALID_HANDLE */
    CUresult r = k == T_CONTEXT ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    kind was = handle_kind(h);
    if (h == 0) return bad(c, r, "the %s is NULL", kind_names[k]);
    if (was <= T_NONE || was >= T_COUNT) return bad(c, r, "%#llx is no %s", (unsigned long long)h, kind_names[k]);
    if (was != k) return bad(c, r, "%#llx is a %s, not a %s", (unsigned long long)h, kind_names[was], kind_names[k]);
    return bad(c, r, "the %s %#llx was destroyed", kind_names[k], (unsigned long long)h);
}
