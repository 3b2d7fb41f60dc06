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
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "not the beginning", d.cuIpcGetMemHandle(&h, a + 512));
    OK(d.cuIpcGetMemHandle(&h, a));
    TRUE(reported("the other process gets the whole block"));
    CAUGHT(CUDA_ERROR_INVALID_CONTEXT, "cannot be opened by the process that made it", d.cuIpcOpenMemHandle_v2(&b, h, 1));
    memset(&h, 0, sizeof h);
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "these 64 bytes are no such handle", d.cuIpcOpenMemHandle_v2(&b, h, 1));
    OK((CUresult)d.script("device 0 attribute 124 0"));
    IS(CUDA_ERROR_NOT_SUPPORTED, d.cuMemGetHandleForAddressRange(&fd, a, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    expect_clean();
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
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "of memory of", d.cuMemMap(p + unit, 2 * unit, 0, h, 0));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "are not reserved", d.cuMemMap(p + 2 * unit, unit, 0, h, 0));
    OK(d.cuMemMap(p, unit, 0, h, 0));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess did not give device 0", d.cuMemsetD8_v2(p, 0, 16));
    OK(d.cuMemSetAccess(p, unit, &ro, 1));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess did not give device 0", d.cuMemsetD8_v2(p, 0, 16));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "something is still mapped", d.cuMemAddressFree(p, 2 * unit));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "are not whole mappings", d.cuMemUnmap(p, 2 * unit));
    OK(d.cuMemUnmap(p, unit));
    OK(d.cuMemRelease(h));
    CAUGHT(CUDA_ERROR_INVALID_HANDLE, "the memory handle 0x", d.cuMemRelease(h));
    OK(d.cuMemAddressFree(p, 2 * unit));
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "not what cuMemAddressReserve gave", d.cuMemAddressFree(p, 2 * unit));
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

