/* Virtual memory: physical memory, reservations and mappings apart. Driver API manual, "Virtual Memory Management". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_INIT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

int reopen(int fd);

/* One reference less, of a mapping or of the handle. */
void phys_unref(phys *p) {
    if (--p->refs > 0) return;
    object_remove(&p->o);
    slab_release(p->slab);
    free(p);
}

static CUresult check_prop(const call *c, const CUmemAllocationProp *prop, device **d) {
    if (prop == NULL) return bad(c, CUDA_ERROR_INVALID_VALUE, "prop is NULL");
    if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return bad(c, CUDA_ERROR_INVALID_VALUE, "allocation type %d", (int)prop->type);
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return bad(c, CUDA_ERROR_NOT_SUPPORTED, "location type %d: the fake maps device memory only", (int)prop->location.type);
    if ((*d = device_of(prop->location.id)) == NULL) return bad(c, CUDA_ERROR_INVALID_DEVICE, "device %d of %d",
        prop->location.id, G.ndevices);
    if (!(*d)->attr[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED]) return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return bad(c, CUDA_ERROR_NOT_SUPPORTED, "handle types %#x", (unsigned)prop->requestedHandleTypes);
    if (prop->requestedHandleTypes != 0 && !(*d)->attr[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED])
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->allocFlags.gpuDirectRDMACapable && !(*d)->attr[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED])
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
    CUmemAllocationGranularity_flags option) {
    BEGIN(cuMemGetAllocationGranularity);
    device *d;
    if (granularity == NULL || (unsigned)option > 1) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "granularity is NULL, or option %d", (int)option));
    if ((r = check_prop(&c, prop, &d)) != CUDA_SUCCESS) return end(&c, r);
    *granularity = BLOCK;
    return end(&c, CUDA_SUCCESS);
}

static phys *phys_new(const call *c, slab *s, const CUmemAllocationProp *prop) {
    phys *p = calloc(1, sizeof *p);
    if (p == NULL) abort();
    p->slab = s;
    p->refs = p->handles = 1;
    p->prop = *prop;
    object_add(&p->o, T_PHYS, NULL, c);
    return p;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    BEGIN(cuMemCreate);
    device *d;
    if ((r = check_prop(&c, prop, &d)) != CUDA_SUCCESS) return end(&c, r);
    if (handle == NULL || flags != 0 || size == 0 || size % BLOCK != 0)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes, flags %#llx: the size must be a multiple of the granularity",
            size, flags));
    if (d->sticky != CUDA_SUCCESS) return end(&c, failed(d));
    for (context *x = G.contexts; x != NULL; x = x->next)
        if (x->dev == d && (r = implicit_sync(&c, x)) != CUDA_SUCCESS) return end(&c, r);
    slab *s = slab_new(d, size);
    if (s == NULL) return end(&c, CUDA_ERROR_OUT_OF_MEMORY);
    *handle = phys_new(&c, s, prop)->o.handle;
    return end(&c, CUDA_SUCCESS);
}

static phys *phys_get(const call *c, CUmemGenericAllocationHandle h, CUresult *r) {
    phys *p = FIND(phys, T_PHYS, h);
    if (p != NULL && !p->released) return p;
    if (p != NULL) *r = bad(c, CUDA_ERROR_INVALID_VALUE, "the memory handle %#llx was released; only its mappings live", h);
    else *r = bad_handle(c, h, T_PHYS);
    return NULL;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
    BEGIN(cuMemRelease);
    phys *p = phys_get(&c, h, &r);
    if (p == NULL) return end(&c, r);
    if (--p->handles == 0) p->released = true;
    phys_unref(p);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    BEGIN(cuMemRetainAllocationHandle);
    alloc *a = alloc_at((uint64_t)(uintptr_t)addr);
    if (handle == NULL || a == NULL || a->kind != A_MAP) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "nothing is mapped at %p, or handle is NULL", addr));
    phys *p = (phys *)a->phys;
    p->released = false;
    p->handles++;
    p->refs++;
    *handle = p->o.handle;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle h) {
    BEGIN(cuMemGetAllocationPropertiesFromHandle);
    phys *p = phys_get(&c, h, &r);
    if (p == NULL) return end(&c, r);
    if (prop == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "prop is NULL"));
    *prop = p->prop;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags) {
    BEGIN(cuMemAddressReserve);
    if (ptr == NULL || flags != 0 || size == 0 || size % BLOCK != 0 || (alignment & (alignment - 1)) != 0)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes aligned to %zu, flags %#llx", size, alignment, flags));
    uint64_t base = va_take(size, alignment, addr);
    if (base == 0) return end(&c, CUDA_ERROR_OUT_OF_MEMORY);
    alloc_add(A_RESERVATION, base, size, NULL, &c);
    *ptr = base;
    return end(&c, CUDA_SUCCESS);
}

/* The reservation that holds all of the range. */
static alloc *reservation(uint64_t p, size_t size) {
    alloc *a;
    for (int i = 0; (a = alloc_in(G.dev_base, p + 1, A_RESERVATION, i)) != NULL; i++)
        if (p - a->base < a->size && size <= a->size - (p - a->base)) return a;
    return NULL;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    BEGIN(cuMemAddressFree);
    alloc *a = reservation(ptr, size);
    if (a == NULL || a->base != ptr || a->size != size)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx are not what cuMemAddressReserve gave", size, ptr));
    if (alloc_in(ptr, ptr + size, A_MAP, 0) != NULL)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "something is still mapped in the %zu bytes at %#llx", size, ptr));
    va_give(ptr);
    alloc_remove(a, &c);
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags) {
    BEGIN(cuMemMap);
    phys *p = phys_get(&c, h, &r);
    if (p == NULL) return end(&c, r);
    if (flags != 0 || offset != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "offset %zu, flags %#llx: both must be 0",
        offset, flags));
    if (size == 0 || size % BLOCK != 0 || ptr % BLOCK != 0 || size > p->slab->size)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx of memory of %zu bytes", size, ptr, p->slab->size));
    if (reservation(ptr, size) == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx are not reserved",
        size, ptr));
    for (uint64_t q = ptr; q < ptr + size; q += BLOCK)
        if (alloc_at(q) != NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "something is mapped at %#llx already",
            (unsigned long long)q));
    if (!slab_map(p->slab, ptr, 0, size)) return end(&c, CUDA_ERROR_MAP_FAILED);
    alloc *a = alloc_add(A_MAP, ptr, size, NULL, &c);
    a->dev = device_of(p->prop.location.id);
    a->phys = &p->o;
    p->refs++;
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    BEGIN(cuMemUnmap);
    uint64_t at = ptr;
    while (at < ptr + size) {
        alloc *a = alloc_at(at);
        if (a == NULL || a->kind != A_MAP || a->base != at || a->size > ptr + size - at)
            return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx are not whole mappings", size, ptr));
        if (a->use > 0) {
            violation(&c, "unmaps %#llx while %d queued operations use it", (unsigned long long)at, a->use);
            pthread_cond_wait(&G.progress, &G.mu);
            continue; /* it may be gone: look again */
        }
        at += a->size;
    }
    if (size == 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "0 bytes"));
    while (ptr < at) {
        alloc *a = alloc_at(ptr);
        phys *p = (phys *)a->phys;
        size_t n = a->size;
        slab_unmap(ptr, n);
        alloc_remove(a, &c);
        phys_unref(p);
        ptr += n;
    }
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    BEGIN(cuMemSetAccess);
    if (desc == NULL || count == 0 || size == 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "%zu descriptions for %zu bytes", count, size));
    for (size_t i = 0; i < count; i++) {
        device *d = desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_of(desc[i].location.id) : NULL;
        int f = (int)desc[i].flags;
        if (d == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "location %d of type %d", desc[i].location.id,
            (int)desc[i].location.type));
        if (f != 0 && f != CU_MEM_ACCESS_FLAGS_PROT_READ && f != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "access %#x", f));
        for (uint64_t at = ptr; at < ptr + size;) {
            alloc *a = alloc_at(at);
            if (a == NULL || a->kind != A_MAP || a->base != at || a->size > ptr + size - at)
                return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%zu bytes at %#llx are not whole mappings", size, ptr));
            if (a->dev != d && G.peers_off)
                return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "device %d cannot access memory of device %d", d->ordinal,
                    a->dev->ordinal));
            at += a->size;
        }
    }
    for (size_t i = 0; i < count; i++)
        for (uint64_t at = ptr; at < ptr + size;) {
            alloc *a = alloc_at(at);
            a->access[desc[i].location.id] = (int)desc[i].flags;
            at += a->size;
        }
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    BEGIN(cuMemGetAccess);
    alloc *a = alloc_at(ptr);
    if (flags == NULL || location == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE || device_of(location->id) == NULL)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "flags or location"));
    if (a == NULL || a->kind != A_MAP) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "nothing is mapped at %#llx", ptr));
    *flags = (unsigned long long)a->access[location->id];
    return end(&c, CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type,
    unsigned long long flags) {
    BEGIN(cuMemExportToShareableHandle);
    phys *p = phys_get(&c, h, &r);
    if (p == NULL) return end(&c, r);
    if (shareable == NULL || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "handle type %d, flags %#llx", (int)type, flags));
    if (!(p->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
            "the memory was not created for this type of handle (requestedHandleTypes)"));
    int fd = reopen(p->slab->fd);
    if (fd < 0) return end(&c, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(shareable, &fd, sizeof fd);
    return end(&c, CUDA_SUCCESS);
}

/* os is the descriptor itself, cast to a pointer; it stays the caller's. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os, CUmemAllocationHandleType type) {
    BEGIN(cuMemImportFromShareableHandle);
    int fd = (int)(intptr_t)os;
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE,
        "handle type %d", (int)type));
    char link[64], name[128];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    struct stat st;
    if (n < 0 || fstat(fd, &st) != 0) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%d is no open descriptor", fd));
    name[n] = 0;
    if (strncmp(name, "/memfd:penstock-fake-cuda", 25) != 0 || st.st_size <= 0 || (size_t)st.st_size % BLOCK != 0)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "descriptor %d is no exported memory but %s", fd, name));
    int mine = reopen(fd);
    if (mine < 0) return end(&c, CUDA_ERROR_OPERATING_SYSTEM);
    context *x = current();
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, x == NULL || x->dead ? 0 : x->dev->ordinal}};
    *handle = phys_new(&c, slab_import(mine, (size_t)st.st_size), &prop)->o.handle;
    return end(&c, CUDA_SUCCESS);
}
