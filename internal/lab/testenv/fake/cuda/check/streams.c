/* What any driver does: streams, events, host functions, kernels. */
#include <unistd.h>

#include "check.h"

/* A gate that the host opens: what is behind it in the stream has not run before. */
static uint32_t *gate;
static CUdeviceptr gate_at;

static void gate_new(void) {
    int v = 1;
    if (d.cuStreamWaitValue32_v2 == NULL) skip("the driver is older than 11.7");
    (void)v;
    OK(d.cuMemHostAlloc((void **)&gate, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(gate, 0, 4096);
    OK(d.cuMemHostGetDevicePointer_v2(&gate_at, gate, 0));
}

static void gate_open(void) { __atomic_store_n(gate, 1, __ATOMIC_RELEASE); }

CHECK(streams_are_asynchronous) {
    start();
    CUstream s, other;
    CUdeviceptr p = buffer(4096, 1);
    char *h;
    gate_new();
    OK(d.cuMemHostAlloc((void **)&h, 8192, 0));
    memset(h, 9, 8192);
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamWaitValue32_v2(s, gate_at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(d.cuMemcpyDtoHAsync_v2(h, p, 4096, s));
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(s));
    OK(d.cuMemcpyDtoHAsync_v2(h + 4096, p, 4096, other)); /* is not held up */
    OK(d.cuStreamSynchronize(other));
    IS(1, h[4096]);
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(s));
    IS(9, h[0]);
    gate_open();
    OK(d.cuStreamSynchronize(s));
    IS(1, h[0]);
    OK(d.cuStreamQuery(s));
}

CHECK(the_default_stream_waits_for_blocking_ones) {
    start();
    CUstream blocking, free_;
    CUdeviceptr p = buffer(4096, 1);
    unsigned flags;
    gate_new();
    OK(d.cuStreamCreate(&blocking, 0));
    OK(d.cuStreamCreate(&free_, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamGetFlags(free_, &flags));
    IS(CU_STREAM_NON_BLOCKING, flags);
    OK(d.cuStreamWaitValue32_v2(blocking, gate_at, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(d.cuMemsetD32Async(p, 5, 1024, NULL));
    OK(d.cuMemsetD32Async(p, 6, 1024, blocking)); /* after the default stream's */
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(NULL));
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(blocking));
    OK(d.cuMemsetD32Async(p + 4096 - 4, 5, 1, free_));
    OK(d.cuStreamSynchronize(free_));
    gate_open();
    OK(d.cuCtxSynchronize());
    expect_words(p, 6, 1024);
    *gate = 0; /* and the other way round: blocking streams wait for the default one */
    OK(d.cuStreamWaitValue32_v2(NULL, gate_at, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(d.cuMemsetD32Async(p, 7, 1024, NULL));
    OK(d.cuMemsetD32Async(p, 8, 1024, blocking));
    usleep(20000); /* time for a wrong driver to run ahead; a right one does not need it */
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(blocking));
    gate_open();
    OK(d.cuCtxSynchronize());
    expect_words(p, 8, 1024);
}

CHECK(words_written_by_streams) {
    start();
    CUstream s;
    CUdeviceptr p = buffer(4096, 0);
    uint64_t v[2] = {0, 0};
    gate_new();
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamWriteValue32_v2(s, p, 0x12345678, 0));
    if (attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
        OK(d.cuStreamWriteValue64_v2(s, p + 8, 0x123456789abcdef0, 0));
        OK(d.cuStreamWaitValue64_v2(s, p + 8, 0x123456789abcdef0, CU_STREAM_WAIT_VALUE_EQ));
    }
    OK(d.cuStreamWriteValue32_v2(s, gate_at, 77, 0));
    OK(d.cuStreamSynchronize(s));
    OK(d.cuMemcpyDtoH_v2(v, p, sizeof v));
    IS(0x12345678, v[0]);
    if (attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) IS(0x123456789abcdef0, v[1]);
    IS(77, gate[0]);
    CUstreamBatchMemOpParams ops[2] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = p, .value = 3}},
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = p, .value = 3, .flags = CU_STREAM_WAIT_VALUE_EQ}},
    };
    OK(d.cuStreamBatchMemOp_v2(s, 2, ops, 0));
    OK(d.cuStreamSynchronize(s));
    expect_words(p, 3, 1);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuStreamWriteValue32_v2(s, p + 2, 1, 0));
}

CHECK(events) {
    start();
    CUstream a, b;
    CUevent e, f, quiet;
    float ms = -1;
    CUdeviceptr p = buffer(4096, 0);
    gate_new();
    OK(d.cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamCreateWithPriority(&b, CU_STREAM_NON_BLOCKING, -1));
    OK(d.cuEventCreate(&e, 0));
    OK(d.cuEventCreate(&f, 0));
    OK(d.cuEventCreate(&quiet, CU_EVENT_DISABLE_TIMING));
    OK(d.cuEventQuery(e)); /* nothing recorded: complete */
    IS(CUDA_ERROR_INVALID_HANDLE, d.cuEventElapsedTime(&ms, e, f));
    OK(d.cuEventRecord(e, b));
    OK(d.cuEventSynchronize(e));
    OK(d.cuStreamWaitValue32_v2(a, gate_at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(d.cuMemsetD32Async(p, 4, 1024, a));
    OK(d.cuEventRecord(f, a));
    IS(CUDA_ERROR_NOT_READY, d.cuEventQuery(f));
    IS(CUDA_ERROR_NOT_READY, d.cuEventElapsedTime(&ms, e, f));
    OK(d.cuStreamWaitEvent(b, f, 0));
    OK(d.cuMemsetD32Async(p, 8, 512, b));
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(b));
    gate_open();
    OK(d.cuEventSynchronize(f));
    OK(d.cuStreamSynchronize(b));
    expect_words(p, 8, 512);
    expect_words(p + 2048, 4, 512);
    OK(d.cuEventElapsedTime(&ms, e, f));
    TRUE(ms >= 0);
    OK(d.cuEventRecord(quiet, a));
    OK(d.cuEventSynchronize(quiet));
    IS(CUDA_ERROR_INVALID_HANDLE, d.cuEventElapsedTime(&ms, e, quiet));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuEventCreate(&e, CU_EVENT_INTERPROCESS));
    OK(d.cuEventDestroy_v2(f));
    OK(d.cuEventDestroy_v2(quiet));
}

static int order[4], norder;
static void note(void *data) { order[norder++] = (int)(intptr_t)data; }
static void noted(CUstream s, CUresult status, void *data) {
    (void)s;
    order[norder++] = (int)(intptr_t)data + (int)status * 100;
}

CHECK(host_functions) {
    start();
    CUstream s;
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuLaunchHostFunc(s, note, (void *)1));
    OK(d.cuStreamAddCallback(s, noted, (void *)2, 0));
    OK(d.cuLaunchHostFunc(s, note, (void *)3));
    OK(d.cuStreamSynchronize(s));
    IS(3, norder);
    IS(1, order[0]);
    IS(2, order[1]);
    IS(3, order[2]);
}

static CUresult in_callback;
static void misbehave(void *data) { in_callback = d.cuMemAlloc_v2(data, 4096); }

CHECK(host_functions_may_not_call_the_driver) {
    start();
    CUdeviceptr p;
    OK(d.cuLaunchHostFunc(NULL, misbehave, &p));
    OK(d.cuCtxSynchronize());
    IS(CUDA_ERROR_NOT_PERMITTED, in_callback);
}

CHECK(kernels) {
    start();
    CUmodule m;
    CUfunction f;
    CUstream s;
    CUdeviceptr p = buffer(4096, 0), g;
    size_t n;
    OK(d.cuModuleLoadData(&m, ptx));
    IS(CUDA_ERROR_NOT_FOUND, d.cuModuleGetFunction(&f, m, "no_such_kernel"));
    IS(CUDA_ERROR_NOT_FOUND, d.cuModuleGetGlobal_v2(&g, &n, m, "no_such_global"));
    OK(d.cuModuleGetFunction(&f, m, "fill"));
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    uint32_t value = 0xabcd0123, count = 1000;
    launch1(f, s, (void *[]){&p, &value, &count});
    OK(d.cuStreamSynchronize(s));
    expect_words(p, value, count);
    expect_words(p + 4000, 0, 24);
    struct { CUdeviceptr p; uint32_t value, n; } packed = {p, 5, 3};
    size_t size = sizeof packed;
    OK(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, (void *[]){CU_LAUNCH_PARAM_BUFFER_POINTER, &packed,
        CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END}));
    OK(d.cuStreamSynchronize(s));
    expect_words(p, 5, 3);
    OK(d.cuModuleGetFunction(&f, m, "question"));
    OK(d.cuModuleGetGlobal_v2(&g, &n, m, "answer"));
    IS(4, n);
    launch1(f, s, NULL);
    OK(d.cuStreamSynchronize(s));
    expect_words(g, 42, 1);
    IS(CUDA_ERROR_INVALID_VALUE, d.cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, d.cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, s, NULL, NULL));
    OK(d.cuModuleUnload(m));
}

CHECK(bad_modules) {
    start();
    CUmodule m;
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    TRUE(d.cuModuleLoadData(&m, "this is no PTX") != CUDA_SUCCESS);
    CUresult r = d.cuModuleLoadDataEx(&m,
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f(.param u64 x) { ret; }\n", 2, options, values);
    IS(CUDA_ERROR_INVALID_PTX, r);
    TRUE(strlen(log) > 0);
    IS(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, d.cuModuleLoadData(&m, ".version 99.0\n.target sm_70\n.address_size 64\n"));
}

CHECK(a_resident_kernel) {
    start();
    CUfunction f = kernel("echo");
    CUstream s, other;
    CUdeviceptr p = buffer(4096, 3);
    uint32_t *h;
    gate_new(); /* everything is allocated before the kernel starts */
    OK(d.cuMemHostAlloc((void **)&h, 4096, 0));
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    launch1(f, s, (void *[]){&gate_at});
    for (uint32_t i = 1; i <= 100; i++) {
        __atomic_store_n(&gate[0], i, __ATOMIC_RELEASE);
        while (__atomic_load_n(&gate[1], __ATOMIC_ACQUIRE) != i) {}
    }
    OK(d.cuMemcpyDtoHAsync_v2(h, p, 4096, other)); /* beside it */
    OK(d.cuStreamSynchronize(other));
    IS(0x03030303, h[0]);
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(s));
    __atomic_store_n(&gate[0], 0xffffffff, __ATOMIC_RELEASE);
    OK(d.cuStreamSynchronize(s));
    OK(d.cuMemFree_v2(p));
}
