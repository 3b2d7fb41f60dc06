/* What the driver knows of an address. Driver API manual, "Unified Addressing". */
#include <string.h>

#include "state.h"

#define BEGIN(fn) \
    call c; \
    CUresult r = begin(&c, F_##fn, NEEDS_CONTEXT); \
    if (r != CUDA_SUCCESS) return end(&c, r)

#define PUT(type, value) \
    do { \
        type v_ = (type)(value); \
        memcpy(data, &v_, sizeof v_); \
        return CUDA_SUCCESS; \
    } while (0)

/* One attribute; CUDA_ERROR_INVALID_VALUE where the address is no memory of the driver's. */
static CUresult get(void *data, int attribute, uint64_t p) {
    alloc *a = alloc_at(p);
    host *h = a == NULL ? host_at(p) : NULL;
    alloc *resv = NULL;
    if (a == NULL && h == NULL && is_device(p))
        for (int i = 0; (resv = alloc_in(G.dev_base, p + 1, A_RESERVATION, i)) != NULL && p - resv->base >= resv->size;) i++;
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPED) PUT(uint32_t, a != NULL || h != NULL);
    if (a == NULL && h == NULL && resv == NULL) return CUDA_ERROR_INVALID_VALUE;
    context *x = a != NULL ? a->ctx : h != NULL ? h->ctx : resv->ctx;
    device *d = x != NULL ? x->dev : a != NULL ? a->dev : NULL;
    bool on_device = h == NULL && !(a != NULL && a->kind == A_ALIAS);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (x == NULL) return CUDA_ERROR_INVALID_VALUE; /* mappings belong to no context */
        PUT(uint64_t, x->o.handle);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: PUT(uint32_t, on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: PUT(uint64_t, h != NULL ? h->dev + (p - (uint64_t)(uintptr_t)h->p) : p);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (h != NULL) PUT(uint64_t, p);
        if (a != NULL && a->alias != NULL) PUT(uint64_t, (uintptr_t)a->alias + (p - a->base));
        return CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: PUT(uint32_t, a != NULL && a->sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: PUT(uint64_t, a != NULL ? a->id : h != NULL ? h->id : resv->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: PUT(uint32_t, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: PUT(int32_t, d == NULL ? -2 : d->ordinal); /* -2: no device, says the manual */
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: PUT(uint32_t, a != NULL && a->kind == A_DEVICE);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: PUT(uint64_t, a != NULL ? a->base : h != NULL ? h->dev : resv->base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: PUT(size_t, a != NULL ? a->size : h != NULL ? h->size : resv->size);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(uint64_t, a != NULL && a->kind == A_MAP ? ((phys *)a->phys)->prop.requestedHandleTypes : 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        if (a != NULL && a->kind == A_MAP) PUT(uint32_t, ((phys *)a->phys)->prop.allocFlags.gpuDirectRDMACapable != 0);
        PUT(uint32_t, a != NULL && a->kind == A_DEVICE && d != NULL && d->attr[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED]);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
        context *now = current();
        int flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        if (a != NULL && a->kind == A_MAP) flags = now == NULL || now->dead ? 0 : a->access[now->dev->ordinal];
        PUT(uint32_t, resv != NULL ? 0 : flags);
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    BEGIN(cuPointerGetAttribute);
    if (data == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "data is NULL"));
    return end(&c, get(data, (int)attribute, ptr)); /* not a violation: programs ask to find out */
}

CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr) {
    BEGIN(cuPointerGetAttributes);
    if (n == 0 || attributes == NULL || data == NULL) return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "%u attributes, or NULL",
        n));
    for (unsigned i = 0; i < n; i++) {
        /* what cannot be said of this address is 0, and no error, says the manual */
        static const size_t eight = 1u << CU_POINTER_ATTRIBUTE_CONTEXT | 1u << CU_POINTER_ATTRIBUTE_DEVICE_POINTER |
                                    1u << CU_POINTER_ATTRIBUTE_HOST_POINTER | 1u << CU_POINTER_ATTRIBUTE_BUFFER_ID |
                                    1u << CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | 1u << CU_POINTER_ATTRIBUTE_RANGE_SIZE |
                                    1u << CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
        int a = (int)attributes[i];
        if (a < CU_POINTER_ATTRIBUTE_CONTEXT || a > CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)
            return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d", a));
        if (get(data[i], a, ptr) == CUDA_SUCCESS) continue;
        if (a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) memcpy(data[i], &(int32_t){-2}, 4);
        else memset(data[i], 0, eight >> a & 1 ? 8 : 4);
    }
    return end(&c, CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    BEGIN(cuPointerSetAttribute);
    alloc *a = alloc_at(ptr);
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return end(&c, bad(&c, CUDA_ERROR_INVALID_VALUE, "attribute %d cannot be set, or the value is NULL", (int)attribute));
    if (a == NULL || (a->kind != A_DEVICE && a->kind != A_MAP))
        return end(&c, bad(&c, CUDA_ERROR_INVALID_DEVICE, "%#llx is no memory of a device", ptr));
    a->sync_memops = *(const unsigned *)value != 0;
    return end(&c, CUDA_SUCCESS);
}
