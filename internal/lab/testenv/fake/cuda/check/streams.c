/* What any driver does: the order of streams. */
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
