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

CHECK(versions_and_names) {
    int v;
    const char *s;
    load();
    OK(d.cuDriverGetVersion(&v));
    TRUE(v >= 11000);
    OK(d.cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &s));
    IS(0, strcmp(s, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    OK(d.cuGetErrorName((CUresult)719, &s));
    IS(0, strcmp(s, "CUDA_ERROR_LAUNCH_FAILED"));
    OK(d.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &s));
    TRUE(*s != 0);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuGetErrorName((CUresult)9999, &s));
}

CHECK(proc_address) {
    void *p = NULL;
    CUdriverProcAddressQueryResult status;
    load();
    if (d.cuGetProcAddress_v2 == NULL) skip("the driver is older than 12.0");
    OK(d.cuInit(0));
    OK(d.cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 0, &status));
    IS(CU_GET_PROC_ADDRESS_SUCCESS, status);
    TRUE(p != NULL);
    d.cuGetProcAddress_v2("cuNoSuchCall", &p, 12000, 0, &status); /* the manual: success, and a NULL */
    IS(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
    TRUE(p == NULL);
    d.cuGetProcAddress_v2("cuMemAlloc", &p, 1000, 0, &status);
    IS(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
    TRUE(p == NULL);
}

CHECK(devices) {
    int n, v;
    CUdevice dev;
    char name[128], bus[32];
    CUuuid id;
    size_t total;
    load();
    OK(d.cuInit(0));
    OK(d.cuDeviceGetCount(&n));
    IS(CUDA_ERROR_INVALID_DEVICE, d.cuDeviceGet(&dev, n));
    IS(CUDA_ERROR_INVALID_DEVICE, d.cuDeviceGet(&dev, -1));
    for (int i = 0; i < n; i++) {
        CUdevice again;
        OK(d.cuDeviceGet(&dev, i));
        OK(d.cuDeviceGetName(name, sizeof name, dev));
        TRUE(strlen(name) > 0);
        OK(d.cuDeviceGetUuid(&id, dev));
        OK(d.cuDeviceTotalMem_v2(&total, dev));
        TRUE(total >= (size_t)64 << 20);
        OK(d.cuDeviceGetPCIBusId(bus, sizeof bus, dev));
        OK(d.cuDeviceGetByPCIBusId(&again, bus));
        IS(dev, again);
        OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev));
        TRUE(v >= 3);
        OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, dev));
        IS(32, v);
    }
    OK(d.cuDeviceGetName(name, 4, 0));
    TRUE(strlen(name) <= 3);
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

CHECK(context_stack) {
    CUcontext a = start(), b, x;
    CUdevice dev;
    OK(d.cuCtxCreate_v2(&b, 0, 0));
    OK(d.cuCtxGetCurrent(&x));
    TRUE(x == b);
    OK(d.cuCtxPopCurrent_v2(&x));
    TRUE(x == b);
    OK(d.cuCtxGetCurrent(&x));
    TRUE(x == a);
    OK(d.cuCtxPushCurrent_v2(b));
    OK(d.cuCtxGetDevice(&dev));
    IS(0, dev);
    OK(d.cuCtxDestroy_v2(b));
    OK(d.cuCtxGetCurrent(&x));
    TRUE(x == a);
    OK(d.cuCtxSetCurrent(NULL));
    OK(d.cuCtxGetCurrent(&x));
    TRUE(x == NULL);
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

CHECK(copies) {
    start();
    size_t sizes[] = {1, 3, 512, 4097, 65536, (1 << 20) + 1, 5 << 20};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        unsigned char *a = malloc(n), *b = calloc(1, n);
        CUdeviceptr p, q;
        for (size_t i = 0; i < n; i++) a[i] = (unsigned char)(i * 131 + k);
        OK(d.cuMemAlloc_v2(&p, n));
        OK(d.cuMemAlloc_v2(&q, n));
        OK(d.cuMemcpyHtoD_v2(p, a, n));
        OK(d.cuMemcpyDtoD_v2(q, p, n));
        OK(d.cuMemcpyDtoH_v2(b, q, n));
        IS(0, memcmp(a, b, n));
        memset(b, 0, n);
        OK(d.cuMemcpy((CUdeviceptr)(uintptr_t)b, p, n));
        IS(0, memcmp(a, b, n));
        if (n > 2) {
            OK(d.cuMemcpyDtoH_v2(b, q + 1, n - 2));
            IS(0, memcmp(a + 1, b, n - 2));
        }
        OK(d.cuMemFree_v2(p));
        OK(d.cuMemFree_v2(q));
        free(a);
        free(b);
    }
    OK(d.cuMemFree_v2(0)); /* like free(NULL); seen on real drivers */
    OK(d.cuMemFreeHost(NULL));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemHostUnregister(NULL));
}

CHECK(pinned_copies_on_a_stream) {
    start();
    enum { N = 3 << 20 };
    uint32_t *a, *b;
    CUstream s;
    CUdeviceptr p;
    OK(d.cuMemHostAlloc((void **)&a, N, CU_MEMHOSTALLOC_PORTABLE));
    OK(d.cuMemAllocHost_v2((void **)&b, N));
    OK(d.cuMemAlloc_v2(&p, N));
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < N / 4; i++) a[i] = (uint32_t)i * 2654435761u;
    memset(b, 0, N);
    OK(d.cuMemcpyHtoDAsync_v2(p, a, N, s));
    OK(d.cuMemcpyDtoHAsync_v2(b, p, N, s));
    OK(d.cuStreamSynchronize(s));
    IS(0, memcmp(a, b, N));
    OK(d.cuStreamQuery(s));
    OK(d.cuStreamDestroy_v2(s));
    OK(d.cuMemFreeHost(a));
    OK(d.cuMemFreeHost(b));
    OK(d.cuMemFree_v2(p));
}

CHECK(fills) {
    start();
    unsigned char b[64];
    CUdeviceptr p = buffer(64, 0x11);
    OK(d.cuMemsetD16_v2(p + 8, 0xbeef, 4));
    OK(d.cuMemsetD32_v2(p + 16, 0xdeadbeef, 2));
    OK(d.cuMemsetD8Async(p + 24, 0x77, 1, NULL));
    OK(d.cuMemcpyDtoH_v2(b, p, sizeof b));
    unsigned char want[64];
    memset(want, 0x11, 64);
    for (int i = 8; i < 16; i += 2) want[i] = 0xef, want[i + 1] = 0xbe;
    for (int i = 16; i < 24; i += 4) want[i] = 0xef, want[i + 1] = 0xbe, want[i + 2] = 0xad, want[i + 3] = 0xde;
    want[24] = 0x77;
    IS(0, memcmp(b, want, 64));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemsetD32_v2(p + 2, 1, 1));
}

CHECK(copies_of_matrices) {
    start();
    unsigned char a[6][10], b[6][10];
    size_t pitch;
    CUdeviceptr p;
    for (int i = 0; i < 60; i++) ((unsigned char *)a)[i] = (unsigned char)i;
    memset(b, 0xff, sizeof b);
    OK(d.cuMemAllocPitch_v2(&p, &pitch, 10, 6, 4));
    TRUE(pitch >= 10);
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = a, .srcPitch = 10, .WidthInBytes = 10, .Height = 6,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = pitch};
    OK(d.cuMemcpy2D_v2(&to));
    CUDA_MEMCPY2D from = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = pitch, .srcXInBytes = 2, .srcY = 1,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = b, .dstPitch = 10, .WidthInBytes = 5, .Height = 3};
    OK(d.cuMemcpy2D_v2(&from));
    for (int y = 0; y < 3; y++)
        for (int x = 0; x < 10; x++) IS(x < 5 ? a[y + 1][x + 2] : 0xff, b[y][x]);
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

CHECK(registered_host_memory) {
    start();
    if (!attribute(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)) skip("the device cannot register host memory");
    enum { N = 1 << 20 };
    char *h = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr at, p = buffer(N, 7);
    CUstream s;
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuMemHostRegister_v2(h, N, CU_MEMHOSTREGISTER_DEVICEMAP));
    IS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, d.cuMemHostRegister_v2(h, N, 0));
    OK(d.cuMemHostGetDevicePointer_v2(&at, h, 0));
    OK(d.cuMemcpyDtoHAsync_v2(h, p, N, s));
    OK(d.cuStreamSynchronize(s));
    TRUE(h[0] == 7 && h[N - 1] == 7);
    OK(d.cuMemHostUnregister(h));
    IS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, d.cuMemHostUnregister(h));
    OK(d.cuMemHostRegister_v2(h, N, 0));
    OK(d.cuMemHostUnregister(h));
}
