/* What only the fake does, about exports, virtual memory, the report and starting again. */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

CHECK_FAKE(exports_that_are_wrong) {
    start();
    CUdeviceptr a, b;
    CUipcMemHandle h;
    int fd = -1;
    OK(d.cuMemAlloc_v2(&a, 8192));
    OK(d.cuMemAlloc_v2(&b, 8192));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemGetHandleForAddressRange(&fd, a + 512, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    expect_violation("must be multiples of the page");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemGetHandleForAddressRange(&fd, a, 12288, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    expect_violation("go beyond the allocation");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuIpcGetMemHandle(&h, a + 512));
    expect_violation("not the beginning");
    OK(d.cuIpcGetMemHandle(&h, a));
    TRUE(reported("the other process gets the whole block"));
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuIpcOpenMemHandle_v2(&b, h, 1));
    expect_violation("cannot be opened by the process that made it");
    memset(&h, 0, sizeof h);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuIpcOpenMemHandle_v2(&b, h, 1));
    expect_violation("these 64 bytes are no such handle");
    OK((CUresult)d.script("device 0 attribute 124 0"));
    IS(CUDA_ERROR_NOT_SUPPORTED, d.cuMemGetHandleForAddressRange(&fd, a, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    expect_clean();
}

HELPER(stale_ipc) {
    CUipcMemHandle h;
    CUdeviceptr p;
    if (n != sizeof h) return 3;
    memcpy(&h, data, sizeof h);
    start();
    IS(CUDA_ERROR_MAP_FAILED, d.cuIpcOpenMemHandle_v2(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    expect_violation(d.script == NULL ? "" : "MAP_FAILED");
    return 0;
}

CHECK_FAKE(ipc_memory_that_is_gone) {
    start();
    CUipcMemHandle h;
    CUdeviceptr p = buffer(2 << 20, 1);
    OK(d.cuIpcGetMemHandle(&h, p));
    OK(d.cuMemFree_v2(p));
    IS(0, helper("stale_ipc", &h, sizeof h));
}

CHECK_FAKE(dma_buf_is_the_memory) {
    start();
    CUdeviceptr p = buffer(2 << 20, 0x5a);
    int fd = -1;
    OK(d.cuMemGetHandleForAddressRange(&fd, p, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    unsigned char *m = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); /* what a fake NIC does */
    TRUE(m != MAP_FAILED);
    IS(0x5a, m[(2 << 20) - 1]);
    m[0] = m[1] = m[2] = m[3] = 0x11;
    expect_words(p, 0x11111111, 1);
    TRUE(ftruncate(fd, 4096) != 0); /* sealed: nobody can pull it away */
}

CHECK_FAKE(virtual_memory_that_is_wrong) {
    start();
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc ro = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    size_t unit = 2 << 20;
    int fd;
    OK(d.cuMemCreate(&h, unit, &prop, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    expect_violation("not created for this type of handle");
    OK(d.cuMemAddressReserve(&p, 2 * unit, 0, 0, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemMap(p + unit, 2 * unit, 0, h, 0));
    expect_violation("of memory of");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemMap(p + 2 * unit, unit, 0, h, 0));
    expect_violation("are not reserved");
    OK(d.cuMemMap(p, unit, 0, h, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemsetD8_v2(p, 0, 16));
    expect_violation("cuMemSetAccess did not give device 0");
    OK(d.cuMemSetAccess(p, unit, &ro, 1));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemsetD8_v2(p, 0, 16));
    expect_violation("cuMemSetAccess did not give device 0");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemAddressFree(p, 2 * unit));
    expect_violation("something is still mapped");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemUnmap(p, 2 * unit));
    expect_violation("are not whole mappings");
    OK(d.cuMemUnmap(p, unit));
    OK(d.cuMemRelease(h));
    IS(CUDA_ERROR_INVALID_HANDLE, d.cuMemRelease(h));
    expect_violation("the memory handle 0x");
    OK(d.cuMemAddressFree(p, 2 * unit));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemAddressFree(p, 2 * unit));
    expect_violation("not what cuMemAddressReserve gave");
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)2,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    expect_violation("is no exported memory");
    IS(1, d.live()); /* the context */
}

CHECK_FAKE(the_report_lists_what_lives) {
    CUcontext x = start(), primary;
    CUstream s;
    CUevent e;
    CUmodule m;
    CUdeviceptr p;
    void *h;
    IS(1, d.live());
    OK(d.cuDevicePrimaryCtxRetain(&primary, 1));
    OK(d.cuStreamCreate(&s, 0));
    OK(d.cuEventCreate(&e, 0));
    OK(d.cuModuleLoadData(&m, ptx));
    OK(d.cuMemAlloc_v2(&p, 12345));
    OK(d.cuMemHostAlloc(&h, 777, 0));
    IS(7, d.live());
    TRUE(reported("of 12345 bytes (call"));
    TRUE(reported("live: pinned host memory"));
    TRUE(reported("live: primary context of device 1"));
    TRUE(reported(", cuEventCreate, thread"));
    size_t n = d.report(NULL, 0);
    char *buf = malloc(n + 1);
    IS(n, d.report(buf, n + 1));
    IS(n, strlen(buf));
    buf[9] = 'x';
    IS(n, d.report(buf, 10)); /* cut, and ended */
    IS(9, strlen(buf));
    free(buf);
    OK(d.cuMemFreeHost(h));
    OK(d.cuMemFree_v2(p));
    OK(d.cuModuleUnload(m));
    OK(d.cuEventDestroy_v2(e));
    OK(d.cuStreamDestroy_v2(s));
    OK(d.cuDevicePrimaryCtxRelease_v2(1));
    OK(d.cuCtxDestroy_v2(x));
    IS(0, d.live());
    expect_clean();
}

/* Nothing grows: addresses, descriptors, threads, handles. */
CHECK_FAKE(a_thousand_contexts) {
    load();
    OK(d.cuInit(0));
    int before = dup(0); /* the lowest that is free */
    close(before);
    for (int i = 0; i < 1000; i++) {
        CUcontext x;
        CUstream s;
        OK(d.cuCtxCreate_v2(&x, 0, 0));
        OK(d.cuStreamCreate(&s, 0));
        CUdeviceptr p;
        OK(d.cuMemAlloc_v2(&p, 4 << 20));
        OK(d.cuMemsetD32Async(p, 2, 16, s));
        OK(d.cuStreamSynchronize(s));
        OK(d.cuCtxDestroy_v2(x));
    }
    IS(0, d.live());
    expect_clean();
    int after = dup(0);
    IS(before, after);
}

CHECK_FAKE(restart_forgets) {
    start();
    CUdeviceptr p = buffer(4096, 1);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr v;
    int n;
    OK(d.cuMemCreate(&h, 2 << 20, &prop, 0));
    OK(d.cuMemAddressReserve(&v, 2 << 20, 0, 0, 0));
    OK(d.cuMemMap(v, 2 << 20, 0, h, 0));
    OK((CUresult)d.script("sticky cuMemsetD8 700; fail cuMemAlloc call 2 OUT_OF_MEMORY"));
    OK(d.cuMemsetD8_v2(p, 0, 1));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuCtxSynchronize());
    IS(0, d.restart());
    IS(0, d.live());
    IS(0, d.violations());
    IS(CUDA_ERROR_NOT_INITIALIZED, d.cuDeviceGetCount(&n));
    OK((CUresult)d.script("devices 1"));
    CUcontext x;
    OK(d.cuInit(0));
    OK(d.cuDeviceGetCount(&n));
    IS(1, n);
    IS(CUDA_ERROR_INVALID_CONTEXT, d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuCtxCreate_v2(&x, 0, 0));
    size_t free_, total;
    OK(d.cuMemGetInfo_v2(&free_, &total));
    IS(total, free_);
    OK(d.cuMemFree_v2(buffer(4096, 1)));
}
