/*
 * Copies, fills, and words written and awaited by streams. What is synchronous follows "API synchronization behavior" of the
 * driver API manual; where it says "might be", the fake does what hurts more: a copy with pageable memory waits for its stream
 * and for itself, and copies between device memories and fills do not wait for the host.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

/* Where the CPU finds memory that check_device allowed. */
char *cpu_address(uint64_t p) {
    if (!is_device(p)) return (char *)(uintptr_t)p;
    alloc *a = alloc_at(p);
    return a != NULL && a->alias != NULL ? a->alias + (p - a->base) : shadow(p);
}

/*
 * May the n bytes at device address p be read or written? Kernels see only memory of their own context, of peers that were
 * enabled, and what cuMemSetAccess gave their device; copies find the owner by the address (unified addressing).
 */
CUresult check_device(const call *c, context *x, uint64_t p, size_t n, bool write, bool kernel, const char *what) {
    CUresult r = kernel ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_INVALID_VALUE;
    unsigned long long q = p;
    char who[128];
    if (n == 0) return CUDA_SUCCESS;
    if (p + n < p) return bad(c, r, "%s: %zu bytes at %#llx go round the end of memory", what, n, q);
    if (!is_device(p)) {
        host *h = host_at(p);
        if (h == NULL) return bad(c, r, "%s: %#llx is no memory of the device, nor pinned", what, q);
        if (p + n > (uint64_t)(uintptr_t)h->p + h->size)
            return bad(c, r, "%s: %zu bytes at %#llx go beyond the pinned memory, which is %zu bytes at %p", what, n, q, h->size,
                (void *)h->p);
        if (h->dev != (uint64_t)(uintptr_t)h->p && kernel)
            return bad(c, r, "%s: %#llx is a host address; the device knows it as %#llx", what, q,
                (unsigned long long)(h->dev + p - (uint64_t)(uintptr_t)h->p));
        if (write && h->registered && (h->flags & CU_MEMHOSTREGISTER_READ_ONLY))
            return bad(c, r, "%s: %#llx was registered for reading only", what, q);
        return CUDA_SUCCESS;
    }
    uint64_t stop = p + n;
    for (uint64_t at = p; at < stop;) {
        alloc *a = alloc_at(at);
        unsigned long long here = at;
        if (a == NULL) {
            const char *by = freed_by(at, who, sizeof who);
            if (by != NULL) return bad(c, r, "%s: %#llx was freed by %s", what, here, by);
            alloc *before = at > p ? alloc_at(at - 1) : NULL;
            if (before != NULL)
                return bad(c, r, "%s: %zu bytes at %#llx go beyond the allocation, which is %zu bytes at %#llx (%s)", what, n, q,
                    before->size,
                           (unsigned long long)before->base, show_origin(before->born, who, sizeof who));
            return bad(c, r, "%s: nothing is allocated at %#llx", what, here);
        }
        if (at > p && a->kind != A_MAP) {
            alloc *before = alloc_at(at - 1);
            return bad(c, r, "%s: %zu bytes at %#llx go beyond the allocation, which is %zu bytes at %#llx (%s)", what, n, q,
                before->size,
                       (unsigned long long)before->base, show_origin(before->born, who, sizeof who));
        }
        if (a->kind == A_MAP) {
            int need = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
            if ((a->access[x->dev->ordinal] & need) != need)
                return bad(c, r, "%s: cuMemSetAccess did not give device %d this access to %#llx", what, x->dev->ordinal, here);
        } else if (kernel && a->ctx != x && !peer_enabled(x, a->ctx)) {
            return bad(c, r, "%s: %#llx belongs to another context, and peer access to it is not enabled", what, here);
        }
        at = a->base + a->size;
    }
    return CUDA_SUCCESS;
}

/* Host memory given as such: is it pinned? */
static CUresult check_host(const call *c, const void *p, size_t n, bool *pinned) {
    uint64_t v = (uint64_t)(uintptr_t)p;
    if (p == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "the host address is NULL");
    if (v + n < v) return bad(c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p go round the end of memory", n, p);
    if (is_device(v) || (v < G.dev_base && v + n > G.dev_base))
        return bad(c, CUDA_ERROR_INVALID_VALUE, "%p is device memory, given as host memory", p);
    host *h = host_overlap(v, n == 0 ? 1 : n);
    *pinned = h != NULL;
    if (h != NULL && (v < (uint64_t)(uintptr_t)h->p || v + n > (uint64_t)(uintptr_t)h->p + h->size))
        return bad(c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %p are pinned only in part: %zu bytes at %p", n, p, h->size,
            (void *)h->p);
    return CUDA_SUCCESS;
}

void run_copy(op *o) {
    for (size_t i = 0; i < o->rows; i++) memmove(o->dst + i * o->dpitch, o->src + i * o->spitch, o->n);
}

enum end_kind { HOST, DEVICE, EITHER };

/* One end of a copy: kind, address and, for a matrix, distance of rows. */
struct side { enum end_kind kind; uint64_t p; size_t pitch; bool pinned, pageable; };

static CUresult check_side(const call *c, struct side *e, size_t n, bool write) {
    if (e->kind == EITHER) e->kind = is_device(e->p) ? DEVICE : HOST;
    const char *what = write ? "the destination" : "the source";
    if (e->kind == DEVICE) return check_device(c, c->ctx, e->p, n, write, false, what);
    CUresult r = check_host(c, (void *)(uintptr_t)e->p, n, &e->pinned);
    e->pageable = !e->pinned;
    return r;
}

/* An operation that this thread will wait for, with a resident kernel before it, never comes. */
static CUresult check_wait(const call *c, stream *s) {
    bool stuck = s->resident > 0;
    for (stream *t = s->o.ctx->streams; t != NULL; t = t->next)
        if (t->resident > 0 && !(t->flags & CU_STREAM_NON_BLOCKING) && !(s->flags & CU_STREAM_NON_BLOCKING) && (s->legacy ||
            t->legacy)) stuck = true;
    if (!stuck) return CUDA_SUCCESS;
    if (G.resident_allowed) {
        warning_(c, "would deadlock on hardware: waits for a resident kernel");
        return CUDA_SUCCESS;
    }
    return bad(c, CUDA_ERROR_TIMEOUT,
        "would deadlock on hardware: this call waits for a resident kernel (use a non-blocking stream and pinned memory)");
}

static CUresult copy(call *c, struct side dst, struct side src, size_t n, size_t rows, CUstream stream_, bool async) {
    CUresult r;
    stream *s;
    if ((r = stream_get(c, stream_, &s)) != CUDA_SUCCESS) return r;
    if (n == 0 || rows == 0) return CUDA_SUCCESS;
    if (rows > 1 && (dst.pitch < n || src.pitch < n || rows > ((size_t)1 << 62) / (dst.pitch > src.pitch ? dst.pitch : src.pitch)))
        return bad(c, CUDA_ERROR_INVALID_VALUE, "rows of %zu bytes with pitches %zu and %zu", n, dst.pitch, src.pitch);
    if ((r = check_side(c, &dst, (rows - 1) * dst.pitch + n, true)) != CUDA_SUCCESS) return r;
    if ((r = check_side(c, &src, (rows - 1) * src.pitch + n, false)) != CUDA_SUCCESS) return r;
    bool wait = dst.pageable || src.pageable || (dst.kind == HOST && src.kind == HOST) || (!async && (dst.kind == HOST ||
        src.kind == HOST));
    if (wait && (r = check_wait(c, s)) != CUDA_SUCCESS) return r;
    op *o = op_new(run_copy);
    o->dst = cpu_address(dst.p);
    o->src = cpu_address(src.p);
    o->n = n;
    o->rows = rows;
    o->dpitch = dst.pitch;
    o->spitch = src.pitch;
    o->delay_us = G.delay_copy;
    op_use(o, dst.p, (rows - 1) * dst.pitch + n);
    op_use(o, src.p, (rows - 1) * src.pitch + n);
    if ((r = submit(c, s, o)) != CUDA_SUCCESS || !wait) return r;
    wait_for(s, s->submitted);
    return surface(c->ctx_handle);
}

#define D(v) ((struct side){.kind = DEVICE, .p = (v)})
#define H(v) ((struct side){.kind = HOST, .p = (uint64_t)(uintptr_t)(v)})
#define E(v) ((struct side){.kind = EITHER, .p = (v)})

#define COPY(fn, dst, src, stream, async) \
    { \
        BEGIN(fn); \
        return end(&c, copy(&c, dst, src, n, 1, stream, async)); \
    }

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n) COPY(cuMemcpy, E(dst), E(src), NULL, false)
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream) COPY(cuMemcpyAsync, E(dst), E(src), stream,
    true)
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n) COPY(cuMemcpyHtoD_v2, D(dst), H(src), NULL, false)
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
    COPY(cuMemcpyHtoDAsync_v2, D(dst), H(src), stream, true)
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n) COPY(cuMemcpyDtoH_v2, H(dst), D(src), NULL, false)
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream)
    COPY(cuMemcpyDtoHAsync_v2, H(dst), D(src), stream, true)
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n) COPY(cuMemcpyDtoD_v2, D(dst), D(src), NULL, false)
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
    COPY(cuMemcpyDtoDAsync_v2, D(dst), D(src), stream, true)

static CUresult peer(call *c, uint64_t dst, CUcontext dstctx, uint64_t src, CUcontext srcctx, size_t n, CUstream stream,
    bool async) {
    CUcontext ctxs[2] = {dstctx, srcctx};
    uint64_t ps[2] = {dst, src};
    for (int i = 0; i < 2; i++) {
        context *x = FIND(context, T_CONTEXT, ctxs[i]);
        if (x == NULL || x->dead) return bad_handle(c, (uint64_t)(uintptr_t)ctxs[i], T_CONTEXT);
        alloc *a = alloc_at(ps[i]);
        if (a != NULL && a->kind != A_MAP && a->ctx != x)
            return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is not memory of the context given for it", (unsigned long long)ps[i]);
    }
    return copy(c, D(dst), D(src), n, 1, stream, async);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dstctx, CUdeviceptr src, CUcontext srcctx, size_t n) {
    BEGIN(cuMemcpyPeer);
    return end(&c, peer(&c, dst, dstctx, src, srcctx, n, NULL, false));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dstctx, CUdeviceptr src, CUcontext srcctx, size_t n, CUstream stream) {
    BEGIN(cuMemcpyPeerAsync);
    return end(&c, peer(&c, dst, dstctx, src, srcctx, n, stream, true));
}

static CUresult copy2d(call *c, const CUDA_MEMCPY2D *m, CUstream stream, bool async) {
    if (m == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "the description is NULL");
    struct side dst = {.pitch = m->dstPitch == 0 ? m->WidthInBytes : m->dstPitch};
    struct side src = {.pitch = m->srcPitch == 0 ? m->WidthInBytes : m->srcPitch};
    switch ((int)m->dstMemoryType) {
    case CU_MEMORYTYPE_HOST: dst.kind = HOST, dst.p = (uint64_t)(uintptr_t)m->dstHost; break;
    case CU_MEMORYTYPE_DEVICE: dst.kind = DEVICE, dst.p = m->dstDevice; break;
    case 4: dst.kind = EITHER, dst.p = m->dstDevice; break; /* CU_MEMORYTYPE_UNIFIED */
    default: return bad(c, CUDA_ERROR_INVALID_VALUE, "memory type %d of the destination: the fake has no arrays",
        (int)m->dstMemoryType);
    }
    switch ((int)m->srcMemoryType) {
    case CU_MEMORYTYPE_HOST: src.kind = HOST, src.p = (uint64_t)(uintptr_t)m->srcHost; break;
    case CU_MEMORYTYPE_DEVICE: src.kind = DEVICE, src.p = m->srcDevice; break;
    case 4: src.kind = EITHER, src.p = m->srcDevice; break;
    default: return bad(c, CUDA_ERROR_INVALID_VALUE, "memory type %d of the source: the fake has no arrays", (int)m->srcMemoryType);
    }
    if (m->dstXInBytes + m->WidthInBytes > dst.pitch && m->Height > 1) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "a row goes beyond the destination's pitch");
    if (m->srcXInBytes + m->WidthInBytes > src.pitch && m->Height > 1) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "a row goes beyond the source's pitch");
    dst.p += m->dstY * dst.pitch + m->dstXInBytes;
    src.p += m->srcY * src.pitch + m->srcXInBytes;
    return copy(c, dst, src, m->WidthInBytes, m->Height, stream, async);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *m) {
    BEGIN(cuMemcpy2D_v2);
    return end(&c, copy2d(&c, m, NULL, false));
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *m) {
    BEGIN(cuMemcpy2DUnaligned_v2);
    return end(&c, copy2d(&c, m, NULL, false));
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *m, CUstream stream) {
    BEGIN(cuMemcpy2DAsync_v2);
    return end(&c, copy2d(&c, m, stream, true));
}

static void run_fill(op *o) {
    if (o->width == 1) {
        memset(o->dst, (int)o->value, o->n);
        return;
    }
    for (size_t i = 0; i < o->n; i++) memcpy(o->dst + i * o->width, &o->value, o->width); /* little endian */
}

static CUresult fill(call *c, uint64_t dst, uint64_t value, unsigned width, size_t n, CUstream stream_) {
    CUresult r;
    stream *s;
    if ((r = stream_get(c, stream_, &s)) != CUDA_SUCCESS) return r;
    if (dst % width != 0) return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is not a multiple of %u", (unsigned long long)dst, width);
    if (n == 0) return CUDA_SUCCESS;
    if (n > ((size_t)1 << 60)) return bad(c, CUDA_ERROR_INVALID_VALUE, "%zu elements", n);
    if ((r = check_device(c, c->ctx, dst, n * width, true, false, "the destination")) != CUDA_SUCCESS) return r;
    op *o = op_new(run_fill);
    o->dst = cpu_address(dst);
    o->value = value;
    o->width = width;
    o->n = n;
    o->delay_us = G.delay_copy;
    op_use(o, dst, n * width);
    return submit(c, s, o);
}

#define FILL(name, type, stream_parameter, stream) \
    CUresult name(CUdeviceptr dst, type value, size_t n stream_parameter) { \
        BEGIN(name); \
        return end(&c, fill(&c, dst, value, sizeof value, n, stream)); \
    }
#define AND_STREAM , CUstream stream
FILL(cuMemsetD8_v2, unsigned char, , NULL)
FILL(cuMemsetD16_v2, unsigned short, , NULL)
FILL(cuMemsetD32_v2, unsigned int, , NULL)
FILL(cuMemsetD8Async, unsigned char, AND_STREAM, stream)
FILL(cuMemsetD16Async, unsigned short, AND_STREAM, stream)
FILL(cuMemsetD32Async, unsigned int, AND_STREAM, stream)

static void run_write(op *o) {
    if (o->width == 4) __atomic_store_n((uint32_t *)(void *)o->dst, (uint32_t)o->value, __ATOMIC_RELEASE);
    else __atomic_store_n((uint64_t *)(void *)o->dst, o->value, __ATOMIC_RELEASE);
}

static bool arrived(const op *o) {
    if (o->width == 4) {
        uint32_t v = __atomic_load_n((uint32_t *)(void *)o->dst, __ATOMIC_ACQUIRE), w = (uint32_t)o->value;
        switch (o->flags & 3) {
        case CU_STREAM_WAIT_VALUE_GEQ: return (int32_t)(v - w) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ: return v == w;
        case CU_STREAM_WAIT_VALUE_AND: return (v & w) != 0;
        default: return ~(v | w) != 0;
        }
    }
    uint64_t v = __atomic_load_n((uint64_t *)(void *)o->dst, __ATOMIC_ACQUIRE), w = o->value;
    switch (o->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return (int64_t)(v - w) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return v == w;
    case CU_STREAM_WAIT_VALUE_AND: return (v & w) != 0;
    default: return ~(v | w) != 0;
    }
}

static void run_wait(op *o) {
    /* memory that somebody writes: there is no event to wait for */
    for (long pause = 1000; !arrived(o) && !__atomic_load_n(&o->s->abort, __ATOMIC_ACQUIRE);
        pause = pause < 200000 ? pause * 2 : pause)
        nanosleep(&(struct timespec){0, pause}, NULL);
}

static CUresult mem_op(call *c, stream *s, bool wait, uint64_t addr, uint64_t value, unsigned width, unsigned flags) {
    CUresult r;
    const int *attr = c->ctx->dev->attr;
    if (width == 8 && !attr[CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS]) return CUDA_ERROR_NOT_SUPPORTED;
    if (wait && (flags & CU_STREAM_WAIT_VALUE_FLUSH) && !attr[CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES])
        return CUDA_ERROR_NOT_SUPPORTED;
    if (wait && (flags & 3) == CU_STREAM_WAIT_VALUE_NOR && !attr[CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR])
        return CUDA_ERROR_NOT_SUPPORTED;
    if (flags & ~(wait ? CU_STREAM_WAIT_VALUE_FLUSH | 3u : 1u)) return bad(c, CUDA_ERROR_INVALID_VALUE, "flags %#x", flags);
    if (addr % width != 0) return bad(c, CUDA_ERROR_INVALID_VALUE, "%#llx is not a multiple of %u", (unsigned long long)addr,
        width);
    if ((r = check_device(c, c->ctx, addr, width, !wait, false, "the word")) != CUDA_SUCCESS) return r;
    op *o = op_new(wait ? run_wait : run_write);
    o->dst = cpu_address(addr);
    o->value = value;
    o->width = width;
    o->flags = flags;
    op_use(o, addr, width);
    return submit(c, s, o);
}

static CUresult mem_op_call(call *c, CUstream stream_, bool wait, uint64_t addr, uint64_t value, unsigned width, unsigned flags) {
    stream *s;
    CUresult r = stream_get(c, stream_, &s);
    return r != CUDA_SUCCESS ? r : mem_op(c, s, wait, addr, value, width, flags);
}

#define MEM_OP(name, type, wait) \
    CUresult name(CUstream stream, CUdeviceptr addr, type value, unsigned int flags) { \
        BEGIN(name); \
        return end(&c, mem_op_call(&c, stream, wait, addr, value, sizeof value, flags)); \
    }
MEM_OP(cuStreamWriteValue32, uint32_t, false)
MEM_OP(cuStreamWriteValue32_v2, uint32_t, false)
MEM_OP(cuStreamWriteValue64, uint64_t, false)
MEM_OP(cuStreamWriteValue64_v2, uint64_t, false)
MEM_OP(cuStreamWaitValue32, uint32_t, true)
MEM_OP(cuStreamWaitValue32_v2, uint32_t, true)
MEM_OP(cuStreamWaitValue64, uint64_t, true)
MEM_OP(cuStreamWaitValue64_v2, uint64_t, true)

CUresult cuStreamBatchMemOp_v2(CUstream stream_, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags) {
    BEGIN(cuStreamBatchMemOp_v2);
    stream *s;
    if ((r = stream_get(&c, stream_, &s)) != CUDA_SUCCESS) return end(&c, r);
    if (flags != 0 || params == NULL || count == 0 || count > 256)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%u operations (256 at most), flags %#x", count, flags));
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        CUstreamBatchMemOpParams *p = &params[i];
        switch ((int)p->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32: r = mem_op(&c, s, true, p->waitValue.address, p->waitValue.value, 4,
            p->waitValue.flags); break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: r = mem_op(&c, s, true, p->waitValue.address, p->waitValue.value64, 8,
            p->waitValue.flags); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: r = mem_op(&c, s, false, p->writeValue.address, p->writeValue.value, 4,
            p->writeValue.flags); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: r = mem_op(&c, s, false, p->writeValue.address, p->writeValue.value64, 8,
            p->writeValue.flags); break;
        case CU_STREAM_MEM_OP_BARRIER: break;
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
            if (!c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES]) r = CUDA_ERROR_NOT_SUPPORTED;
            break;
        default: r = bad(&c, CUDA_ERROR_INVALID_VALUE, "operation %d", (int)p->operation);
        }
    }
    return end(&c, r);
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
    BEGIN(cuFlushGPUDirectRDMAWrites);
    if (target != 0 || (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
        scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "target %d, scope %d", (int)target, (int)scope));
    if (!(c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS] & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST))
        return end(&c, CUDA_ERROR_NOT_SUPPORTED);
    return end(&c, CUDA_SUCCESS);
}
