/* What any driver does: virtual memory, other processes, other devices, threads. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

CHECK(virtual_memory) {
    start();
    if (!attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) skip("the device has no virtual memory management");
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc rw = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t unit;
    CUmemGenericAllocationHandle a, b, again;
    CUdeviceptr p;
    unsigned long long flags;
    OK(d.cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemCreate(&a, unit + 1, &prop, 0));
    OK(d.cuMemCreate(&a, unit, &prop, 0));
    OK(d.cuMemCreate(&b, unit, &prop, 0));
    OK(d.cuMemAddressReserve(&p, 2 * unit, 0, 0, 0));
    OK(d.cuMemMap(p, unit, 0, a, 0));
    OK(d.cuMemMap(p + unit, unit, 0, b, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemMap(p, unit, 0, b, 0));
    OK(d.cuMemSetAccess(p, 2 * unit, &rw, 1));
    OK(d.cuMemGetAccess(&flags, &rw.location, p));
    IS(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
    OK(d.cuMemsetD32_v2(p, 0x55aa, 2 * unit / 4)); /* over both */
    expect_words(p + unit - 64, 0x55aa, 32);
    int fd = -1;
    OK(d.cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRUE(fd >= 0);
    OK(d.cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CUdeviceptr q;
    OK(d.cuMemAddressReserve(&q, unit, 0, 0, 0));
    OK(d.cuMemMap(q, unit, 0, again, 0));
    OK(d.cuMemSetAccess(q, unit, &rw, 1));
    OK(d.cuMemsetD32_v2(p, 0x66, 16));
    expect_words(q, 0x66, 16); /* the same memory */
    OK(d.cuMemRelease(a)); /* lives on in its mapping */
    expect_words(p, 0x66, 16);
    OK(d.cuMemUnmap(q, unit));
    OK(d.cuMemAddressFree(q, unit));
    OK(d.cuMemRelease(again));
    OK(d.cuMemUnmap(p, 2 * unit));
    OK(d.cuMemRelease(b));
    OK(d.cuMemAddressFree(p, 2 * unit));
}

CHECK(dma_buf) {
    start();
    if (d.cuMemGetHandleForAddressRange == NULL) skip("the driver is older than 11.7");
    if (!attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)) skip("the device has no dma-buf support");
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CUdeviceptr p;
    int fd = -1;
    OK(d.cuMemAlloc_v2(&p, 4 << 20));
    OK(d.cuMemGetHandleForAddressRange(&fd, p, 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    TRUE(fd >= 0);
    TRUE(lseek(fd, 0, SEEK_END) >= 4 << 20);
    close(fd);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemGetHandleForAddressRange(&fd, p + 512, page, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemGetHandleForAddressRange(&fd, p, page / 2, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemGetHandleForAddressRange(&fd, p, 0, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
}

HELPER(ipc_memory) {
    CUipcMemHandle h;
    CUdeviceptr p, again;
    if (n != sizeof h) return 3;
    memcpy(&h, data, sizeof h);
    start();
    OK(d.cuIpcOpenMemHandle_v2(&p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(d.cuIpcOpenMemHandle_v2(&again, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    TRUE(again == p);
    OK(d.cuIpcCloseMemHandle(again));
    expect_words(p, 0x21212121, 1 << 20);
    OK(d.cuMemsetD32_v2(p, 0x77, 1 << 20));
    OK(d.cuCtxSynchronize());
    TRUE(d.cuMemFree_v2(p) != CUDA_SUCCESS);
    OK(d.cuIpcCloseMemHandle(p));
    TRUE(d.cuIpcCloseMemHandle(p) != CUDA_SUCCESS);
    return 0;
}

CHECK(ipc_memory_of_two_processes) {
    start();
    CUipcMemHandle h;
    CUdeviceptr p = buffer(4 << 20, 0x21), q;
    OK(d.cuIpcGetMemHandle(&h, p));
    TRUE(d.cuIpcOpenMemHandle_v2(&q, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS); /* not in the same process */
    TRUE(d.cuIpcOpenMemHandle_v2(&q, h, 0) != CUDA_SUCCESS);
    IS(0, helper("ipc_memory", &h, sizeof h));
    expect_words(p, 0x77, 1 << 20);
}

struct ipc_events { CUipcEventHandle e; CUipcMemHandle m; };

HELPER(ipc_event) {
    struct ipc_events h;
    CUevent e;
    CUdeviceptr p;
    CUstream s;
    if (n != sizeof h) return 3;
    memcpy(&h, data, sizeof h);
    start();
    OK(d.cuIpcOpenEventHandle(&e, h.e));
    OK(d.cuIpcOpenMemHandle_v2(&p, h.m, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamWaitEvent(s, e, 0));
    OK(d.cuEventSynchronize(e));
    OK(d.cuEventQuery(e));
    OK(d.cuStreamSynchronize(s));
    expect_words(p, 0x31313131, 1 << 19);
    OK(d.cuIpcCloseMemHandle(p));
    OK(d.cuEventDestroy_v2(e));
    return 0;
}

CHECK(ipc_event_of_two_processes) {
    start();
    if (!attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)) skip("the device has no IPC events");
    struct ipc_events h;
    CUevent e;
    CUdeviceptr p = buffer(2 << 20, 0);
    OK(d.cuEventCreate(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(d.cuIpcGetEventHandle(&h.e, e));
    OK(d.cuIpcGetMemHandle(&h.m, p));
    OK(d.cuMemsetD8Async(p, 0x31, 2 << 20, NULL));
    OK(d.cuEventRecord(e, NULL));
    IS(0, helper("ipc_event", &h, sizeof h));
}

CHECK(memory_runs_out) {
    start();
    size_t free_, total, after;
    CUdeviceptr p;
    OK(d.cuMemGetInfo_v2(&free_, &total));
    TRUE(free_ <= total && free_ > 0);
    IS(CUDA_ERROR_OUT_OF_MEMORY, d.cuMemAlloc_v2(&p, total + 1));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuMemAlloc_v2(&p, 0));
    OK(d.cuMemAlloc_v2(&p, 64 << 20));
    OK(d.cuMemGetInfo_v2(&after, &total));
    TRUE(after <= free_ - (64 << 20));
    OK(d.cuMemFree_v2(p));
}

CHECK(a_forked_child_cannot_use_the_driver) {
    start();
    pid_t pid = fork();
    if (pid == 0) {
        int n;
        CUresult r = d.cuInit(0);
        _exit(r == CUDA_ERROR_NOT_INITIALIZED || d.cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    TRUE(waitpid(pid, &status, 0) == pid);
    TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(d.cuMemFree_v2(buffer(4096, 1)));
}

CHECK(two_devices) {
    int n, can;
    CUcontext a = start(), b;
    OK(d.cuDeviceGetCount(&n));
    if (n < 2) skip("there is one device");
    CUdeviceptr p = buffer(1 << 20, 0x41), q;
    OK(d.cuCtxCreate_v2(&b, 0, 1));
    q = buffer(1 << 20, 0);
    OK(d.cuMemcpyPeer(q, b, p, a, 1 << 20));
    expect_words(q, 0x41414141, 1 << 18);
    OK(d.cuDeviceCanAccessPeer(&can, 1, 0));
    if (!can) return;
    IS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, d.cuCtxDisablePeerAccess(a));
    OK(d.cuCtxEnablePeerAccess(a, 0));
    IS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, d.cuCtxEnablePeerAccess(a, 0));
    CUfunction f = kernel("fill");
    uint32_t value = 6, count = 64;
    launch1(f, NULL, (void *[]){&p, &value, &count}); /* memory of the other device */
    OK(d.cuCtxSynchronize());
    expect_words(p, 6, 64);
    OK(d.cuCtxDisablePeerAccess(a));
}

static void *many(void *x) {
    if (d.cuCtxSetCurrent(x) != CUDA_SUCCESS) return (void *)1;
    CUstream s;
    uint32_t *h;
    CUdeviceptr p;
    for (int i = 0; i < 20; i++) {
        if (d.cuStreamCreate(&s, i % 2) || d.cuMemAlloc_v2(&p, 65536) || d.cuMemHostAlloc((void **)&h, 65536, 0)) return (void *)2;
        if (d.cuMemsetD32Async(p, 0x1234 + (unsigned)i, 16384, s) || d.cuMemcpyDtoHAsync_v2(h, p, 65536, s)) return (void *)3;
        if (d.cuStreamSynchronize(s)) return (void *)4;
        for (int k = 0; k < 16384; k++)
            if (h[k] != 0x1234 + (unsigned)i) return (void *)5;
        if (d.cuMemFree_v2(p) || d.cuMemFreeHost(h) || d.cuStreamDestroy_v2(s)) return (void *)6;
    }
    return NULL;
}

CHECK(many_threads) {
    CUcontext x = start();
    pthread_t t[6];
    for (int i = 0; i < 6; i++) TRUE(pthread_create(&t[i], NULL, many, x) == 0);
    for (int i = 0; i < 6; i++) {
        void *r;
        TRUE(pthread_join(t[i], &r) == 0);
        IS(0, (intptr_t)r);
    }
}
