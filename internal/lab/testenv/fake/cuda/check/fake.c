/* What only the fake does: it notices mistakes that hardware lets pass, and obeys scripts. */
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

CHECK_FAKE(order_of_calls_is_reported) {
    int n;
    CUdeviceptr p;
    load();
    CAUGHT(CUDA_ERROR_NOT_INITIALIZED, "before cuInit", d.cuDeviceGetCount(&n));
    OK(d.cuInit(0));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "this thread has no current context", d.cuMemAlloc_v2(&p, 1));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "not retained", d.cuDevicePrimaryCtxRelease_v2(0));
    IS(1, d.calls("cuMemAlloc_v2"));
    IS(0, d.calls("cuMemFree_v2"));
    IS(-1, d.calls("cuMemAlloc"));
}

static void *destroy(void *x) { return (void *)(intptr_t)d.cuCtxDestroy_v2(x); }

CHECK_FAKE(destroyed_contexts) {
    CUcontext x = start(), y = NULL;
    CUdeviceptr p;
    OK((CUresult)(intptr_t)thread(destroy, x));
    expect_clean();
    CAUGHT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "current context was destroyed", d.cuMemAlloc_v2(&p, 4096));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "the context 0x", d.cuCtxSetCurrent(x));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "was destroyed", d.cuCtxDestroy_v2(x));
    OK(d.cuCtxPopCurrent_v2(NULL));
    OK(d.cuDevicePrimaryCtxRetain(&y, 0));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "is released, not destroyed", d.cuCtxDestroy_v2(y));
    OK(d.cuCtxSetCurrent(y));
    OK(d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuDevicePrimaryCtxReset_v2(0));
    TRUE(reported("1 pieces of device memory, 4096 bytes, go with their context"));
    CAUGHT(CUDA_ERROR_CONTEXT_IS_DESTROYED, "current context was destroyed", d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuDevicePrimaryCtxRelease_v2(0));
    IS(0, d.live());
}

CHECK_FAKE(frees_that_are_wrong) {
    start();
    CUdeviceptr p, keep;
    void *h;
    char local[16];
    OK(d.cuMemAlloc_v2(&keep, 4096));
    OK(d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuMemHostAlloc(&h, 4096, 0));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "512 bytes inside an allocation", d.cuMemFree_v2(p + 512));
    OK(d.cuMemFree_v2(p));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "freed twice: the first time by call", d.cuMemFree_v2(p));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "never allocated", d.cuMemFree_v2(p + (1 << 30)));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is pinned host memory", d.cuMemFree_v2((CUdeviceptr)(uintptr_t)h));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is host memory, or nothing", d.cuMemFree_v2((CUdeviceptr)(uintptr_t)local));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is device memory", d.cuMemFreeHost((void *)(uintptr_t)keep));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "inside an allocation", d.cuMemFreeHost((char *)h + 8));
    OK(d.cuMemFreeHost(h));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "freed twice?", d.cuMemFreeHost(h));
    OK(d.cuMemFree_v2(keep));
    expect_clean();
}

CHECK_FAKE(accesses_that_are_wrong) {
    start();
    CUdeviceptr p = buffer(4096, 1), q = buffer(4096, 2);
    char *h;
    static char big[8192];
    OK(d.cuMemHostAlloc((void **)&h, 4096, 0));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "the destination: 4097 bytes", d.cuMemcpyHtoD_v2(p, big, 4097));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "the source: 97 bytes", d.cuMemcpyDtoH_v2(big, p + 4000, 97));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "go beyond the allocation, which is 4096 bytes", d.cuMemsetD8_v2(p + 1, 0, 4096));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "device memory, given as host memory", d.cuMemcpyHtoD_v2(p, (void *)(uintptr_t)q, 16));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is no memory of the device, nor pinned", d.cuMemcpyDtoD_v2(p, (CUdeviceptr)(uintptr_t)big, 16));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is NULL", d.cuMemcpyHtoD_v2(p, NULL, 16));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "pinned only in part", d.cuMemcpyHtoD_v2(p, h + 4000, 200));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "go round the end of memory", d.cuMemcpyDtoD_v2(p, q, (size_t)-1));
    OK(d.cuMemFree_v2(q));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "was freed by call", d.cuMemcpyDtoH_v2(big, q, 16));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "nothing is allocated", d.cuMemcpyDtoH_v2(big, q + ((CUdeviceptr)1 << 35), 16));
    expect_words(p, 0x01010101, 1024);
}

CHECK_FAKE(new_and_freed_memory_is_not_zero) {
    start();
    CUdeviceptr p, keep;
    OK(d.cuMemAlloc_v2(&keep, 512));
    OK(d.cuMemAlloc_v2(&p, 4096));
    expect_words(p, 0xc5c5c5c5, 1024);
    OK(d.cuMemAlloc_v2(&p, 8 << 20));
    expect_words(p, 0xc5c5c5c5, 4096);
    expect_words(p + (8 << 20) - 4096, 0xc5c5c5c5, 1024);
}

CHECK_FAKE(handles_that_are_wrong) {
    CUcontext a = start(), b;
    CUstream s, sb;
    CUevent e, eb;
    CUmodule m;
    CUfunction f = kernel("fill");
    OK(d.cuStreamCreate(&s, 0));
    OK(d.cuEventCreate(&e, 0));
    OK(d.cuStreamDestroy_v2(s));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the stream 0x", d.cuStreamSynchronize(s));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "was destroyed", d.cuStreamDestroy_v2(s));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "a default stream cannot be destroyed", d.cuStreamDestroy_v2(NULL));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "is a function, not a event", d.cuEventRecord((CUevent)f, NULL));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "0x1234 is no event", d.cuEventQuery((CUevent)(uintptr_t)0x1234));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the event is NULL", d.cuEventQuery(NULL));
    OK(d.cuEventDestroy_v2(e));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the event 0x", d.cuEventRecord(e, NULL));
    OK(d.cuModuleLoadData(&m, ptx));
    OK(d.cuModuleUnload(m));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the module 0x", d.cuModuleUnload(m));
    /* of another context */
    OK(d.cuStreamCreate(&s, 0));
    OK(d.cuEventCreate(&e, 0));
    OK(d.cuCtxCreate_v2(&b, 0, 1));
    OK(d.cuStreamCreate(&sb, 0));
    OK(d.cuEventCreate(&eb, 0));
    uint32_t v = 0;
    CUdeviceptr p = 0;
    IS(CUDA_ERROR_INVALID_HANDLE, d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, sb, (void *[]){&p, &v, &v}, NULL));
    expect_violation("the function belongs to another context");
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the event and the stream are of different contexts", d.cuEventRecord(e, sb));
    OK(d.cuEventRecord(eb, sb));
    OK(d.cuStreamWaitEvent(s, eb, 0)); /* this may be mixed */
    OK(d.cuStreamSynchronize(s));
    OK(d.cuCtxSetCurrent(a));
    IS(CUDA_ERROR_INVALID_HANDLE, d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, sb, (void *[]){&p, &v, &v}, NULL));
    expect_violation("the stream belongs to another context");
    expect_clean();
}

CHECK_FAKE(kernels_that_are_wrong) {
    start();
    CUfunction f = kernel("fill");
    CUmodule m;
    CUdeviceptr p = buffer(4096, 1), q = buffer(4096, 1);
    uint32_t value = 1, count = 1025;
    OK(d.cuModuleLoadData(&m, ptx));
    CUfunction none;
    IS(CUDA_ERROR_NOT_FOUND, d.cuModuleGetFunction(&none, m, "bodyless"));
    TRUE(reported("there is no C function for it"));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "has 3 parameters, none is given", d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&p, NULL, &count}, NULL));
    expect_violation("params[1] is NULL");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 1 << 20, NULL, (void *[]){&p, &value, &count}, NULL));
    expect_violation("bytes of shared memory");
    launch1(f, NULL, (void *[]){&p, &value, &count}); /* one word too many: nobody hears of it yet */
    CAUGHT(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel fill: 4100 bytes", d.cuCtxSynchronize());
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuMemFree_v2(q)); /* and it stays */
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuStreamSynchronize(NULL));
    CUcontext x;
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuCtxCreate_v2(&x, 0, 0));
    OK(d.cuCtxCreate_v2(&x, 0, 1)); /* the other device is well */
    OK(d.cuMemFree_v2(buffer(64, 1)));
    expect_clean();
}

CHECK_FAKE(kernels_and_foreign_memory) {
    CUcontext a = start(), b;
    CUdeviceptr p = buffer(4096, 1);
    uint32_t value = 1, count = 4;
    OK(d.cuCtxCreate_v2(&b, 0, 1));
    launch1(kernel("fill"), NULL, (void *[]){&p, &value, &count});
    CAUGHT(CUDA_ERROR_ILLEGAL_ADDRESS, "peer access to it is not enabled", d.cuCtxSynchronize());
    OK(d.cuCtxSetCurrent(a));
    static uint32_t pageable[16];
    CUdeviceptr h = (CUdeviceptr)(uintptr_t)pageable;
    launch1(kernel("fill"), NULL, (void *[]){&h, &value, &count});
    CAUGHT(CUDA_ERROR_ILLEGAL_ADDRESS, "is no memory of the device, nor pinned", d.cuCtxSynchronize());
    IS(0, pageable[0]);
}

CHECK_FAKE(host_memory_that_is_wrong) {
    start();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *h = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr p = buffer(4096, 1);
    CAUGHT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "HOST_MEMORY_NOT_REGISTERED", d.cuMemHostUnregister(h));
    OK(d.cuMemHostRegister_v2(h + page, page, CU_MEMHOSTREGISTER_READ_ONLY));
    CAUGHT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "are pinned already", d.cuMemHostRegister_v2(h, 4 * page, 0));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "inside a registration", d.cuMemHostUnregister(h + page + 1));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "registered for reading only", d.cuMemcpyDtoD_v2((CUdeviceptr)(uintptr_t)(h + page), p, 16));
    OK(d.cuMemHostUnregister(h + page));
    munmap(h + 2 * page, page);
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "are memory", d.cuMemHostRegister_v2(h, 4 * page, 0));
    OK(d.cuMemHostRegister_v2(h, page, 0));
    munmap(h, page);
    OK(d.cuMemHostUnregister(h));
    expect_violation("was unmapped while it was registered");
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "is device memory", d.cuMemHostRegister_v2((void *)(uintptr_t)p, 16, 0));
}

CHECK_FAKE(registered_memory_under_another_address) {
    start();
    OK((CUresult)d.script("device 0 attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM 0"));
    static uint32_t words[1024] __attribute__((aligned(4096)));
    CUdeviceptr at, same = (CUdeviceptr)(uintptr_t)words;
    CUfunction f = kernel("fill");
    uint32_t value = 3, count = 1024;
    OK(d.cuMemHostRegister_v2(words, sizeof words, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(d.cuMemHostGetDevicePointer_v2(&at, words, 0));
    TRUE(at != same);
    launch1(f, NULL, (void *[]){&at, &value, &count});
    OK(d.cuCtxSynchronize());
    IS(3, words[1023]);
    unsigned type;
    void *back;
    OK(d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    IS(CU_MEMORYTYPE_HOST, type);
    OK(d.cuPointerGetAttribute(&back, CU_POINTER_ATTRIBUTE_HOST_POINTER, at + 8));
    TRUE(back == (char *)words + 8);
    launch1(f, NULL, (void *[]){&same, &value, &count});
    CAUGHT(CUDA_ERROR_ILLEGAL_ADDRESS, "the device knows it as", d.cuCtxSynchronize());
}

static uint32_t *gate;

/* Opens the gate when somebody was caught. */
static void *open_when_caught(void *before) {
    while (d.violations() == (int)(intptr_t)before) usleep(1000);
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    return NULL;
}

CHECK_FAKE(freed_while_in_use) {
    start();
    CUstream s;
    CUdeviceptr p = buffer(4096, 1), at;
    char *h;
    pthread_t t;
    OK(d.cuMemHostAlloc((void **)&gate, 4096, 0));
    OK(d.cuMemHostGetDevicePointer_v2(&at, gate, 0));
    OK(d.cuMemHostAlloc((void **)&h, 4096, 0));
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int what = 0; what < 2; what++) {
        *gate = 0;
        h[0] = 0;
        OK(d.cuStreamWaitValue32_v2(s, at, 1, CU_STREAM_WAIT_VALUE_EQ));
        OK(d.cuMemcpyDtoHAsync_v2(h, p, 4096, s));
        TRUE(pthread_create(&t, NULL, open_when_caught, (void *)(intptr_t)d.violations()) == 0);
        if (what == 0) {
            OK(d.cuMemFree_v2(p)); /* waits, as hardware may; but nobody promised it */
            IS(1, h[0]);
        } else {
            OK(d.cuMemFreeHost(h));
        }
        expect_violation("while 1 queued operations use it");
        TRUE(pthread_join(t, NULL) == 0);
        OK(d.cuStreamSynchronize(s));
        p = buffer(4096, 2);
    }
    *gate = 0;
    OK(d.cuStreamWaitValue32_v2(s, at, 1, CU_STREAM_WAIT_VALUE_EQ));
    CUcontext x;
    OK(d.cuCtxPopCurrent_v2(&x));
    OK(d.cuCtxDestroy_v2(x));
    expect_violation("while 1 of its streams have work to do");
}

CHECK_FAKE(pinned_copies_read_late_and_pageable_ones_at_once) {
    start();
    CUdeviceptr p = buffer(4096, 0);
    CUstream s;
    unsigned char *h, local[64];
    OK(d.cuMemHostAlloc((void **)&h, 4096, 0));
    memset(h, 1, 64);
    memset(local, 3, 64);
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    uint32_t *gate;
    OK(d.cuMemHostAlloc((void **)&gate, 4096, 0));
    *gate = 0;
    OK(d.cuStreamWaitValue32_v2(s, (CUdeviceptr)(uintptr_t)gate, 1, 0));
    OK(d.cuMemcpyHtoDAsync_v2(p, h, 64, s));
    memset(h, 2, 64); /* too early: the copy has not run */
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    OK(d.cuStreamSynchronize(s));
    expect_words(p, 0x02020202, 16);
    OK(d.cuMemcpyHtoDAsync_v2(p, local, 64, s));
    OK(d.cuStreamQuery(s)); /* pageable: over when the call returns */
    memset(local, 4, 64);
    expect_words(p, 0x03030303, 16);
}

CHECK_FAKE(resident_kernels_and_implicit_synchronisation) {
    start();
    CUfunction f = kernel("echo");
    CUmodule m;
    CUstream s, blocking;
    CUdeviceptr p = buffer(4096, 3), q;
    uint32_t *bell;
    void *h;
    static char local[4096] __attribute__((aligned(4096)));
    OK(d.cuMemHostAlloc((void **)&bell, 4096, 0));
    memset(bell, 0, 4096);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)bell;
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamCreate(&blocking, 0));
    launch1(f, s, (void *[]){&at});
    static const char text[] = "would deadlock on hardware: implicit synchronisation";
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuMemAlloc_v2(&q, 4096));
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuMemFree_v2(p));
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuModuleLoadData(&m, ptx));
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuMemHostAlloc(&h, 4096, 0));
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuMemHostRegister_v2(local, 4096, 0));
    CAUGHT(CUDA_ERROR_TIMEOUT, text, d.cuMemFreeHost(bell));
    IS(CUDA_ERROR_TIMEOUT, d.cuMemcpyDtoHAsync_v2(local, p, 64, s)); /* pageable, behind it */
    expect_violation("would deadlock on hardware: this call waits for a resident kernel");
    OK(d.cuMemcpyDtoH_v2(local, p, 64)); /* the default stream does not wait for a non-blocking one */
    IS(-1, d.restart());
    OK((CUresult)d.script("resident allow"));
    OK(d.cuMemAlloc_v2(&q, 4096));
    TRUE(reported("warning: "));
    OK((CUresult)d.script("resident refuse"));
    __atomic_store_n(bell, 0xffffffff, __ATOMIC_RELEASE);
    OK(d.cuStreamSynchronize(s));
    OK(d.cuMemFree_v2(q));
    /* in a blocking stream it holds up the default stream too */
    __atomic_store_n(bell, 0, __ATOMIC_RELEASE);
    launch1(f, blocking, (void *[]){&at});
    CAUGHT(CUDA_ERROR_TIMEOUT, "would deadlock on hardware: this call waits", d.cuMemcpyDtoH_v2(local, p, 64));
    CUcontext x;
    OK(d.cuCtxPopCurrent_v2(&x));
    OK(d.cuCtxDestroy_v2(x)); /* asks it to stop */
    expect_violation("have work to do");
    IS(0, d.live());
}
