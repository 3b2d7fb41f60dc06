/* What any driver does: order, contexts, memory. These run on a machine with a GPU as they are, and so do streams.c and share.c. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

CHECK(init_first) {
    int n;
    load();
    IS(CUDA_ERROR_NOT_INITIALIZED, d.cuDeviceGetCount(&n));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuInit(1));
    OK(d.cuInit(0));
    OK(d.cuInit(0));
    OK(d.cuDeviceGetCount(&n));
    TRUE(n >= 1);
}

CHECK(no_context) {
    CUdeviceptr p;
    CUstream s;
    CUcontext x = (CUcontext)1;
    load();
    OK(d.cuInit(0));
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuMemAlloc_v2(&p, 4096));
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuStreamCreate(&s, 0));
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuCtxSynchronize());
    OK(d.cuCtxGetCurrent(&x));
    TRUE(x == NULL);
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuCtxPopCurrent_v2(&x));
}

static void *alloc_without(void *arg) {
    CUdeviceptr p;
    (void)arg;
    return (void *)(intptr_t)d.cuMemAlloc_v2(&p, 4096);
}

static void *alloc_with(void *x) {
    CUdeviceptr p;
    CUresult r = d.cuCtxSetCurrent(x);
    if (r == CUDA_SUCCESS) r = d.cuMemAlloc_v2(&p, 4096);
    if (r == CUDA_SUCCESS) r = d.cuMemFree_v2(p);
    return (void *)(intptr_t)r;
}

/* What goes wrong when a runtime moves its work to another OS thread. */
CHECK(contexts_belong_to_threads) {
    CUcontext x = start();
    IS(CUDA_ERROR_INVALID_CONTEXT, (intptr_t)thread(alloc_without, NULL));
    IS(CUDA_SUCCESS, (intptr_t)thread(alloc_with, x));
    IS(CUDA_ERROR_INVALID_CONTEXT, (intptr_t)thread(alloc_without, NULL));
    CUdeviceptr p;
    OK(d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuMemFree_v2(p));
}

CHECK(primary_context) {
    CUcontext a, b;
    unsigned flags;
    int active;
    load();
    OK(d.cuInit(0));
    OK(d.cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(0, active);
    OK(d.cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
    OK(d.cuDevicePrimaryCtxRetain(&a, 0));
    OK(d.cuDevicePrimaryCtxRetain(&b, 0));
    TRUE(a == b);
    OK(d.cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(1, active);
    IS(CU_CTX_SCHED_BLOCKING_SYNC, flags & 7);
    OK(d.cuCtxSetCurrent(a));
    OK(d.cuMemFree_v2(buffer(4096, 1)));
    OK(d.cuDevicePrimaryCtxRelease_v2(0));
    OK(d.cuMemFree_v2(buffer(4096, 1)));
    OK(d.cuDevicePrimaryCtxRelease_v2(0));
    OK(d.cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(0, active);
}

CHECK(what_an_address_is) {
    start();
    enum { N = 3 << 20 };
    CUdeviceptr p, base, at;
    size_t n;
    unsigned type;
    int dev, on = 1;
    void *h;
    OK(d.cuMemAlloc_v2(&p, N));
    OK(d.cuMemGetAddressRange_v2(&base, &n, p + 12345));
    TRUE(base == p);
    TRUE(n >= N);
    OK(d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 1));
    IS(CU_MEMORYTYPE_DEVICE, type);
    OK(d.cuPointerGetAttribute(&dev, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    IS(0, dev);
    OK(d.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    OK(d.cuMemHostAlloc(&h, 4096, 0));
    OK(d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)h));
    IS(CU_MEMORYTYPE_HOST, type);
    OK(d.cuMemHostGetDevicePointer_v2(&at, h, 0));
    TRUE(at != 0);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&on));
    CUpointer_attribute as[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *out[] = {&type, &dev};
    OK(d.cuPointerGetAttributes(2, as, out, (CUdeviceptr)(uintptr_t)&on));
    IS(0, type);
    IS(-2, dev);
}

/* Device memory is not the CPU's: a program that reads through a device pointer ends here, and not one release later. */
CHECK(the_cpu_cannot_touch_device_memory) {
    start();
    if (attribute(100)) skip("CPU and device share page tables"); /* PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES */
    CUdeviceptr p = buffer(4096, 1);
    for (int write = 0; write <= 1; write++) {
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGSEGV, SIG_DFL);
            volatile char *q = (volatile char *)(uintptr_t)p;
            if (write) *q = 1;
            _exit(*q == 1 ? 0 : 2);
        }
        int status;
        TRUE(waitpid(pid, &status, 0) == pid);
        TRUE(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
    }
}

