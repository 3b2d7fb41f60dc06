/* Memory of devices and pinned memory of the host. Driver API manual, "Memory Management", "Unified Addressing". */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

static slab *shared; /* blocks of small allocations */

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

static void fill(uint64_t base, size_t n, int byte) {
    /* New memory holds what it held before, on hardware: here, a pattern that no program expects. Only the ends of large memory,
     * which would cost real pages. */
    size_t some = (size_t)64 << 10;
    if (n <= SMALL) {
        memset(shadow(base), byte, n);
        return;
    }
    memset(shadow(base), byte, some);
    memset(shadow(base + n - some), byte, some);
}

static alloc *place(const call *c, context *x, slab *s, size_t off, size_t n) {
    alloc *a = alloc_add(A_DEVICE, s->base + off, n, x, c);
    a->slab = s;
    a->slab_off = off;
    s->users++;
    return a;
}

static slab *block_new(context *x, size_t size, CUresult *r) {
    slab *s = slab_new(x->dev, size);
    if (s == NULL) {
        *r = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    s->base = va_take(size, BLOCK, 0);
    if (s->base == 0 || !slab_map(s, s->base, 0, size)) {
        if (s->base != 0) va_give(s->base);
        slab_release(s);
        *r = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    return s;
}

/* Room for n bytes in a shared block: behind everything, or in a gap when the block was filled once. */
static bool room(slab *s, size_t n, size_t *off) {
    if (s->bump + n <= BLOCK) {
        *off = s->bump;
        s->bump += n;
        return true;
    }
    size_t at = 0;
    for (int i = 0;; i++) {
        alloc *a = alloc_in(s->base, s->base + BLOCK, A_DEVICE, i);
        size_t next = a == NULL ? BLOCK : (size_t)(a->base - s->base);
        if (next >= at + n) {
            *off = at;
            return true;
        }
        if (a == NULL) return false;
        at = (next + a->size + UNIT - 1) & ~(UNIT - 1);
    }
}

alloc *mem_alloc(const call *c, context *x, size_t n, CUresult *r) {
    *r = CUDA_SUCCESS;
    if (n == 0 || n > (size_t)1 << 46) {
        *r = n == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    slab *s;
    size_t off = 0;
    if (n > SMALL) {
        if ((s = block_new(x, (n + BLOCK - 1) & ~(BLOCK - 1), r)) == NULL) return NULL;
    } else {
        size_t rounded = (n + UNIT - 1) & ~(UNIT - 1);
        for (s = shared; s != NULL; s = s->next)
            if (s->ctx == x && room(s, rounded, &off)) break;
        if (s == NULL) {
            if ((s = block_new(x, BLOCK, r)) == NULL) return NULL;
            s->ctx = x;
            s->bump = rounded;
            s->next = shared;
            shared = s;
        }
    }
    alloc *a = place(c, x, s, off, n);
    fill(a->base, n, 0xc5);
    return a;
}

void mem_free(alloc *a, const call *c) {
    slab *s = a->slab;
    fill(a->base, a->size, 0xdd);
    alloc_remove(a, c);
    if (--s->users > 0) return;
    for (slab **p = &shared; *p != NULL; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    slab_unmap(s->base, s->size);
    va_give(s->base);
    slab_release(s);
}

static void host_release(host *h, const call *c) {
    if (h->dev != (uint64_t)(uintptr_t)h->p) {
        alloc *a = alloc_at(h->dev);
        uint64_t base = a->base;
        alloc_remove(a, c);
        va_give(base);
    }
    if (!h->registered) munmap(h->p, h->map_size);
    host_remove(h);
}

struct ending { context *x; const call *c; alloc *found; int n; size_t bytes; };

static void find_owned(alloc *a, void *arg) {
    struct ending *e = arg;
    if (a->ctx == e->x && (a->kind == A_DEVICE || a->kind == A_IPC)) {
        e->found = a;
        e->n++;
        e->bytes += a->size;
    }
}

static void end_host(host *h, void *arg) {
    struct ending *e = arg;
    if (h->ctx != e->x) return;
    warning_(e->c, "%s of %zu bytes goes with its context", h->registered ? "registered host memory" : "pinned host memory",
        h->size);
    host_release(h, e->c);
}

void ipc_close(alloc *a, const call *c);

void memory_of_context_end(context *x, const call *c) {
    struct ending e = {.x = x, .c = c};
    allocs_each(find_owned, &e);
    if (e.n > 0) warning_(c, "%d pieces of device memory, %zu bytes, go with their context", e.n, e.bytes);
    for (;;) {
        e.found = NULL;
        allocs_each(find_owned, &e);
        if (e.found == NULL) break;
        if (e.found->kind == A_IPC) ipc_close(e.found, c);
        else mem_free(e.found, c);
    }
    hosts_each(end_host, &e);
}

CUresult cuMemGetInfo_v2(size_t *free_, size_t *total) {
    BEGIN(cuMemGetInfo_v2);
    if (free_ == NULL || total == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "free or total is NULL"));
    device *d = c.ctx->dev;
    *total = d->total;
    *free_ = d->total > d->used ? d->total - d->used : 0;
    return end(&c, CUDA_SUCCESS);
}

static CUresult allocate(call *c, CUdeviceptr *out, size_t n) {
    CUresult r;
    if (out == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "dptr is NULL");
    if (n == 0) return bad(c, CUDA_ERROR_INVALID_VALUE, "0 bytes");
    if ((r = implicit_sync(c, c->ctx)) != CUDA_SUCCESS) return r;
    alloc *a = mem_alloc(c, c->ctx, n, &r);
    if (a != NULL) *out = a->base;
    return r;
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    BEGIN(cuMemAlloc_v2);
    return end(&c, allocate(&c, dptr, bytesize));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element) {
    BEGIN(cuMemAllocPitch_v2);
    if (pitch == NULL || (element != 4 && element != 8 && element != 16) || width == 0 || width > (size_t)1 << 31 ||
        height > (size_t)1 << 31)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "pitch is NULL, or the shape is %zu x %zu of %u", width, height, element));
    size_t row = (width + 511) & ~(size_t)511;
    r = allocate(&c, dptr, row * height);
    if (r == CUDA_SUCCESS) *pitch = row;
    return end(&c, r);
}

/* Finds memory that begins at p; where none does, says what is there instead. */
static CUresult begins(const call *c, uint64_t p, alloc_kind want, alloc **out) {
    char who[128];
    alloc *a = alloc_at(p);
    if (a != NULL && a->base == p && a->kind == want && !a->module_global) {
        *out = a;
        return CUDA_SUCCESS;
    }
    if (!is_device(p)) {
        if (host_at(p) != NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is pinned host memory", (unsigned long long)p);
        return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is host memory, or nothing", (unsigned long long)p);
    }
    if (a == NULL) {
        const char *by = freed_by(p, who, sizeof who);
        if (by != NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is freed twice: the first time by %s",
            (unsigned long long)p, by);
        return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx was never allocated", (unsigned long long)p);
    }
    if (a->kind != want || a->module_global)
        return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx was not made by the call that pairs with this one, but by %s",
            (unsigned long long)p,
                   show_origin(a->born, who, sizeof who));
    return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is %llu bytes inside an allocation, not its beginning", (unsigned long long)p,
               (unsigned long long)(p - a->base));
}

CUresult ipc_begins(const call *c, uint64_t p, alloc **out) { return begins(c, p, A_IPC, out); }

/* Waits until no queued operation uses it. The real call may do the same, but nobody may count on it. */
static alloc *wait_unused(const call *c, alloc *a, const char *what) {
    uint64_t base = a->base, id = a->id;
    if (a->use > 0) violation(c, "%s %#llx while %d queued operations use it", what, (unsigned long long)base, a->use);
    while (a != NULL && a->id == id && a->use > 0) {
        pthread_cond_wait(&G.progress, &G.mu);
        a = alloc_at(base);
    }
    return a != NULL && a->id == id ? a : NULL;
}

alloc *ipc_wait_unused(const call *c, alloc *a) { return wait_unused(c, a, "closes"); }

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    BEGIN(cuMemFree_v2);
    alloc *a;
    if (dptr == 0) return end(&c, CUDA_SUCCESS);
    if ((r = begins(&c, dptr, A_DEVICE, &a)) != CUDA_SUCCESS) return end(&c, r);
    if ((r = implicit_sync(&c, a->ctx)) != CUDA_SUCCESS) return end(&c, r);
    if ((a = wait_unused(&c, a, "frees")) == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "freed by another thread meanwhile"));
    mem_free(a, &c);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr) {
    BEGIN(cuMemGetAddressRange_v2);
    alloc *a = alloc_at(dptr);
    host *h = host_at(dptr);
    if (a == NULL && h == NULL) return end(&c, bad(&c, CUDA_ERROR_NOT_FOUND, "%#llx is no memory of the driver's", dptr));
    if (base != NULL) *base = a != NULL ? a->base : h->dev;
    if (size != NULL) *size = a != NULL ? a->size : h->size;
    return end(&c, CUDA_SUCCESS);
}

static CUresult host_alloc(call *c, void **pp, size_t n, unsigned flags) {
    CUresult r;
    if (pp == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "pp is NULL");
    if (n == 0) return bad(c, CUDA_ERROR_INVALID_VALUE, "0 bytes");
    if (flags & ~7u) return bad(c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags);
    if ((r = implicit_sync(c, c->ctx)) != CUDA_SUCCESS) return r;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (n + page - 1) & ~(page - 1);
    void *p = size < n ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    host *h = host_add(p, n, c);
    h->map_size = size;
    h->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    *pp = p;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) {
    BEGIN(cuMemAllocHost_v2);
    return end(&c, host_alloc(&c, pp, bytesize, 0));
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags) {
    BEGIN(cuMemHostAlloc);
    return end(&c, host_alloc(&c, pp, bytesize, flags));
}

static host *wait_host_unused(const call *c, host *h, const char *what) {
    uint64_t p = (uint64_t)(uintptr_t)h->p, id = h->id;
    if (h->use > 0) violation(c, "%s %#llx while %d queued operations use it", what, (unsigned long long)p, h->use);
    while (h != NULL && h->id == id && h->use > 0) {
        pthread_cond_wait(&G.progress, &G.mu);
        h = host_at(p);
    }
    return h != NULL && h->id == id ? h : NULL;
}

CUresult cuMemFreeHost(void *p) {
    BEGIN(cuMemFreeHost);
    if (p == NULL) return end(&c, CUDA_SUCCESS);
    uint64_t v = (uint64_t)(uintptr_t)p;
    host *h = host_at(v);
    if (is_device(v)) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is device memory", p));
    if (h == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is no pinned host memory (freed twice?)", p));
    if (h->registered) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p was registered: unregister it", p));
    if (h->p != p) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is inside an allocation, not its beginning", p));
    if ((r = implicit_sync(&c, h->ctx)) != CUDA_SUCCESS) return end(&c, r);
    if ((h = wait_host_unused(&c, h, "frees")) == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "freed by another thread meanwhile"));
    host_release(h, &c);
    return end(&c, CUDA_SUCCESS);
}

/* Whether all pages of the range are mapped: mincore refuses holes. */
static bool is_mapped(char *p, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), off = (size_t)((uintptr_t)p % page);
    unsigned char state[1024];
    for (char *q = p - off, *stop = p + n; q < stop;) {
        size_t some = (size_t)(stop - q);
        if (some > sizeof state * page) some = sizeof state * page;
        if (mincore(q, some, state) != 0) return false;
        q += some;
    }
    return true;
}

CUresult cuMemHostRegister_v2(void *p, size_t n, unsigned int flags) {
    BEGIN(cuMemHostRegister_v2);
    uint64_t v = (uint64_t)(uintptr_t)p;
    const int *attr = c.ctx->dev->attr;
    if (p == NULL || n == 0 || v + n < v) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p", n, p));
    if (flags & ~15u) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags));
    if (is_device(v)) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is device memory", p));
    if (!attr[CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED]) return end(&c, CUDA_ERROR_NOT_SUPPORTED);
    if ((flags & CU_MEMHOSTREGISTER_READ_ONLY) && !attr[CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED]) return end(&c,
        CUDA_ERROR_NOT_SUPPORTED);
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY) return end(&c, CUDA_ERROR_NOT_PERMITTED); /* there is no I/O memory here */
    if (host_overlap(v, n) != NULL)
        return end(&c, bad(&c, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "some of the %zu bytes at %p are pinned already", n, p));
    if ((r = implicit_sync(&c, c.ctx)) != CUDA_SUCCESS) return end(&c, r);
    if (!is_mapped(p, n)) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "not all of the %zu bytes at %p are memory", n, p));
    uint64_t dev = v;
    if (!attr[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM]) {
        /* the device knows it under an address of its own */
        if ((dev = va_take((n + v % 4096 + BLOCK - 1) & ~(BLOCK - 1), BLOCK, 0)) == 0) return end(&c, CUDA_ERROR_OUT_OF_MEMORY);
        alloc_add(A_ALIAS, dev, n, c.ctx, &c)->alias = p;
    }
    host *h = host_add(p, n, &c);
    h->dev = dev;
    h->registered = true;
    h->flags = flags;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *p) {
    BEGIN(cuMemHostUnregister);
    if (p == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "the address is NULL"));
    host *h = host_at((uint64_t)(uintptr_t)p);
    if (h == NULL || !h->registered) return end(&c, bad(&c, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p", p));
    if (h->p != p) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is inside a registration, not its beginning", p));
    if ((r = implicit_sync(&c, h->ctx)) != CUDA_SUCCESS) return end(&c, r);
    if ((h = wait_host_unused(&c, h, "unregisters")) == NULL)
        return end(&c, bad(&c, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "unregistered by another thread meanwhile"));
    if (!is_mapped(h->p, h->size)) violation(&c, "the memory at %p was unmapped while it was registered", p);
    host_release(h, &c);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *p, unsigned int flags) {
    BEGIN(cuMemHostGetDevicePointer_v2);
    if (dptr == NULL || flags != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "dptr is NULL, or flags are not 0"));
    host *h = host_at((uint64_t)(uintptr_t)p);
    if (h == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p is no pinned host memory", p));
    *dptr = h->dev + (uint64_t)((char *)p - h->p);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p) {
    BEGIN(cuMemHostGetFlags);
    if (flags == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags is NULL"));
    host *h = host_at((uint64_t)(uintptr_t)p);
    if (h == NULL || h->registered) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%p was not made by cuMemHostAlloc", p));
    *flags = h->flags;
    return end(&c, CUDA_SUCCESS);
}
