/*
 * Memory and events that other processes and devices use. Driver API manual, "Memory Management" (cuIpc*,
 * cuMemGetHandleForAddressRange). A block of device memory is a memfd; another process of the same user opens it as
 * /proc/PID/fd/N, so a handle is worthless when the process that made it has ended, as on hardware.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

CUresult ipc_begins(const call *c, uint64_t p, alloc **out);
alloc *ipc_wait_unused(const call *c, alloc *a);

/* A descriptor of the same memory with a position of its own. */
int reopen(int fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType type,
    unsigned long long flags) {
    BEGIN(cuMemGetHandleForAddressRange);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (handle == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags > 1)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "handle type %d, flags %#llx", (int)type, flags));
    if (!c.ctx->dev->attr[CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED]) return end(&c, CUDA_ERROR_NOT_SUPPORTED);
    if (size == 0 || dptr % page != 0 || size % page != 0)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx: both must be multiples of the page, %zu bytes",
            size, dptr, page));
    alloc *a = alloc_at(dptr);
    if (a == NULL || (a->kind != A_DEVICE && a->kind != A_MAP))
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%#llx is no memory of this process on a device", dptr));
    /* a range up to the end of the allocation's last page is fine, as long as nobody else is on that page */
    uint64_t last = (a->base + a->size + page - 1) & ~(uint64_t)(page - 1);
    if (size > last - dptr) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "%zu bytes at %#llx go beyond the allocation, which is %zu bytes", size, dptr, a->size));
    slab *s = a->kind == A_MAP ? ((phys *)a->phys)->slab : a->slab;
    uint64_t off = a->kind == A_MAP ? dptr - a->base : dptr - s->base;
    if (off != 0) {
        /* a memfd cannot begin in the middle of another; a real dma-buf can */
        warning_(&c, "the fake exports ranges only from the beginning of a block of 2 MiB; this one begins %llu bytes inside",
            (unsigned long long)off);
        return end(&c, CUDA_ERROR_NOT_SUPPORTED);
    }
    if (s->users > 1) warning_(&c, "the exported block holds %d other allocations", s->users - 1);
    int fd = reopen(s->fd);
    if (fd < 0) return end(&c, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(handle, &fd, sizeof fd);
    return end(&c, CUDA_SUCCESS);
}

struct token { /* inside the 64 bytes of a handle */
    char magic[8];
    int32_t pid, fd;
    uint64_t dev, ino, slab_size, off, size;
    uint32_t ordinal;
};
_Static_assert(sizeof(struct token) <= CU_IPC_HANDLE_SIZE, "handle");

static CUresult token_make(void *handle, const char *magic, int fd, struct token t) {
    struct stat st;
    if (fstat(fd, &st) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memcpy(t.magic, magic, sizeof t.magic);
    t.pid = getpid();
    t.fd = fd;
    t.dev = st.st_dev;
    t.ino = st.st_ino;
    memset(handle, 0, CU_IPC_HANDLE_SIZE);
    memcpy(handle, &t, sizeof t);
    return CUDA_SUCCESS;
}

/* Opens what a token names; it came from another process and may be anything. */
static CUresult token_open(const call *c, const void *handle, const char *magic, struct token *t, int *fd) {
    memcpy(t, handle, sizeof *t);
    if (memcmp(t->magic, magic, sizeof t->magic) != 0 || t->pid <= 0 || t->fd < 0) return bad(c, CUDA_ERROR_INVALID_VALUE,
        "these 64 bytes are no such handle");
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", t->pid, t->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return bad(c, CUDA_ERROR_MAP_FAILED, "%s: %m (has process %d ended, or is it another user's?)", path, t->pid);
    if (fstat(*fd, &st) != 0 || st.st_dev != t->dev || st.st_ino != t->ino || (uint64_t)st.st_size != t->slab_size ||
        t->off > t->slab_size ||
        t->size > t->slab_size - t->off) {
        close(*fd);
        return bad(c, CUDA_ERROR_MAP_FAILED, "process %d has freed this memory", t->pid);
    }
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    BEGIN(cuIpcGetMemHandle);
    alloc *a = alloc_at(dptr);
    if (handle == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "handle is NULL"));
    if (a == NULL || a->kind != A_DEVICE || a->base != dptr)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%#llx is not the beginning of memory of cuMemAlloc", dptr));
    if (a->slab->users > 1)
        warning_(&c, "the other process gets the whole block of 2 MiB, with %d other allocations: share multiples of 2 MiB",
                 a->slab->users - 1);
    return end(&c, token_make(handle, "pfcmem1", a->slab->fd,
                              (struct token){.slab_size = a->slab->size, .off = a->slab_off, .size = a->size,
                                  .ordinal = (uint32_t)a->dev->ordinal}));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    BEGIN(cuIpcOpenMemHandle_v2);
    struct token t;
    int fd;
    if (dptr == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags %#x: must be CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", flags));
    memcpy(&t, &handle, sizeof t);
    if (t.pid == getpid()) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT,
        "a handle cannot be opened by the process that made it"));
    if ((r = implicit_sync(&c, c.ctx)) != CUDA_SUCCESS) return end(&c, r);
    if ((r = token_open(&c, &handle, "pfcmem1", &t, &fd)) != CUDA_SUCCESS) return end(&c, r);
    alloc *a;
    for (int i = 0; (a = alloc_in(G.dev_base, G.dev_base + G.dev_size, A_IPC, i)) != NULL; i++) {
        struct stat st;
        if (a->ctx != c.ctx || fstat(a->slab->fd, &st) != 0 || st.st_ino != t.ino || st.st_dev != t.dev || a->slab_off != t.off)
            continue;
        close(fd); /* opened before: the same address, one close more to come */
        a->ipc_refs++;
        *dptr = a->base;
        return end(&c, CUDA_SUCCESS);
    }
    slab *s = slab_import(fd, t.slab_size);
    s->base = t.slab_size % BLOCK == 0 ? va_take(t.slab_size, BLOCK, 0) : 0;
    if (s->base == 0 || !slab_map(s, s->base, 0, t.slab_size)) {
        if (s->base != 0) va_give(s->base);
        slab_release(s);
        return end(&c, CUDA_ERROR_MAP_FAILED);
    }
    a = alloc_add(A_IPC, s->base + t.off, t.size, c.ctx, &c);
    a->slab = s;
    a->slab_off = t.off;
    a->ipc_refs = 1;
    *dptr = a->base;
    return end(&c, CUDA_SUCCESS);
}

void ipc_close(alloc *a, const call *c) {
    slab *s = a->slab;
    alloc_remove(a, c);
    slab_unmap(s->base, s->size);
    va_give(s->base);
    slab_release(s);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    BEGIN(cuIpcCloseMemHandle);
    alloc *a;
    if ((r = ipc_begins(&c, dptr, &a)) != CUDA_SUCCESS) return end(&c, r);
    if (a->ipc_refs > 1) {
        a->ipc_refs--;
        return end(&c, CUDA_SUCCESS);
    }
    if ((r = implicit_sync(&c, c.ctx)) != CUDA_SUCCESS) return end(&c, r);
    if ((a = ipc_wait_unused(&c, a)) == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "closed by another thread meanwhile"));
    ipc_close(a, &c);
    return end(&c, CUDA_SUCCESS);
}

/* An event that processes share: how often it was recorded, and the last record that was reached. */
struct ipcevent {
    int fd, refs;
    struct { uint64_t recorded, completed; } *page;
};

static struct ipcevent *ipcevent_map(int fd) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct ipcevent *p = page == MAP_FAILED ? NULL : calloc(1, sizeof *p);
    if (p == NULL) {
        close(fd);
        return NULL;
    }
    *p = (struct ipcevent){.fd = fd, .refs = 1, .page = page};
    return p;
}

struct ipcevent *ipcevent_new(void) {
    int fd = memfd_create("penstock-fake-cuda-event", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    if (ftruncate(fd, 4096) != 0) {
        close(fd);
        return NULL;
    }
    return ipcevent_map(fd);
}

struct ipcevent *ipcevent_ref(struct ipcevent *p) {
    p->refs++;
    return p;
}

void ipcevent_free(struct ipcevent *p) {
    if (p == NULL || --p->refs > 0) return;
    munmap(p->page, 4096);
    close(p->fd);
    free(p);
}

void ipcevent_recorded(struct ipcevent *p) { __atomic_add_fetch(&p->page->recorded, 1, __ATOMIC_ACQ_REL); }
void ipcevent_completed(struct ipcevent *p) { __atomic_add_fetch(&p->page->completed, 1, __ATOMIC_ACQ_REL); }
uint64_t ipcevent_last(struct ipcevent *p) { return __atomic_load_n(&p->page->recorded, __ATOMIC_ACQUIRE); }
bool ipcevent_reached(struct ipcevent *p, uint64_t n) { return __atomic_load_n(&p->page->completed, __ATOMIC_ACQUIRE) >= n; }
bool ipcevent_done(struct ipcevent *p) { return ipcevent_reached(p, ipcevent_last(p)); }

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_) {
    BEGIN(cuIpcGetEventHandle);
    event *e = FIND(event, T_EVENT, event_);
    if (e == NULL) return end(&c, bad_handle(&c, (uint64_t)(uintptr_t)event_, T_EVENT));
    if (handle == NULL || e->ipc == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "the event was not created for other processes, or handle is NULL"));
    return end(&c, token_make(handle, "pfcevt1", e->ipc->fd, (struct token){.slab_size = 4096}));
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle) {
    BEGIN(cuIpcOpenEventHandle);
    struct token t;
    int fd;
    if (out == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "event is NULL"));
    memcpy(&t, &handle, sizeof t);
    if (t.pid == getpid()) return end(&c, bad(&c, CUDA_ERROR_INVALID_CONTEXT,
        "a handle cannot be opened by the process that made it"));
    if ((r = token_open(&c, &handle, "pfcevt1", &t, &fd)) != CUDA_SUCCESS) return end(&c, r);
    struct ipcevent *p = ipcevent_map(fd);
    if (p == NULL) return end(&c, CUDA_ERROR_MAP_FAILED);
    event *e = calloc(1, sizeof *e);
    if (e == NULL) abort();
    e->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    e->ipc = p;
    object_add(&e->o, T_EVENT, c.ctx, &c);
    *out = (CUevent)(uintptr_t)e->o.handle;
    return end(&c, CUDA_SUCCESS);
}
