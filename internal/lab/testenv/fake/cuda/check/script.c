/* The script language of the fake: every line of it, and what it refuses. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

#define SCRIPT(text) \
    do { \
        if (d.script(text) != 0) fail(__FILE__, __LINE__, "%s: %s", text, d.script_error()); \
    } while (0)

CHECK_FAKE(script_errors_that_stay) {
    start();
    CUdeviceptr p, q;
    CUevent e;
    CUstream s;
    CUcontext x;
    OK(d.cuMemAlloc_v2(&p, 4096));
    OK(d.cuEventCreate(&e, 0));
    OK(d.cuStreamCreate(&s, 0));
    SCRIPT("sticky cuMemsetD32Async call 2 ILLEGAL_ADDRESS");
    OK(d.cuMemsetD32Async(p, 1, 4, s));
    OK(d.cuStreamSynchronize(s));
    OK(d.cuMemsetD32Async(p, 1, 4, s)); /* this one breaks the device */
    OK(d.cuMemAlloc_v2(&q, 64));        /* and nobody knows */
    OK(d.cuMemsetD32Async(p, 1, 4, s));
    OK(d.cuEventRecord(e, s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuStreamSynchronize(s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuMemAlloc_v2(&q, 64));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuEventSynchronize(e));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuMemcpyDtoH_v2(&q, p, 4));
    OK(d.cuCtxPopCurrent_v2(&x)); /* what only ends things still works */
    OK(d.cuCtxDestroy_v2(x));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, d.cuDevicePrimaryCtxRetain(&x, 0)); /* until the process starts again */
    OK(d.cuDevicePrimaryCtxRetain(&x, 1));
    OK(d.cuDevicePrimaryCtxRelease_v2(1));
    IS(0, d.live());
    expect_clean();
}

CHECK_FAKE(script_describes_devices) {
    int v;
    size_t n;
    CUcontext x;
    CUdeviceptr p, q;
    load();
    SCRIPT("devices 3; driver 11040\n# a comment\ndevice * memory 64M; device 2 attribute COMPUTE_CAPABILITY_MAJOR 9;"
           "device 1 attribute CU_DEVICE_ATTRIBUTE_INTEGRATED 1; device 1 attribute 118 0");
    OK(d.cuInit(0));
    OK(d.cuDeviceGetCount(&v));
    IS(3, v);
    OK(d.cuDriverGetVersion(&v));
    IS(11040, v);
    OK(d.cuDeviceTotalMem_v2(&n, 2));
    IS(64 << 20, n);
    OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 2));
    IS(9, v);
    OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_INTEGRATED, 1));
    IS(1, v);
    OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0));
    IS(0, v);
    OK(d.cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 1));
    IS(0, v);
    OK(d.cuCtxCreate_v2(&x, 0, 0));
    OK(d.cuMemAlloc_v2(&p, 40 << 20));
    IS(CUDA_ERROR_OUT_OF_MEMORY, d.cuMemAlloc_v2(&q, 40 << 20));
    OK(d.cuMemFree_v2(p));
    OK(d.cuMemAlloc_v2(&q, 40 << 20));
    void *f;
    CUdriverProcAddressQueryResult status;
    OK(d.cuGetProcAddress_v2("cuMemGetHandleForAddressRange", &f, 12000, 0, &status)); /* 11.7 and later */
    TRUE(f == NULL);
    IS(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
    CUmodule m;
    IS(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, d.cuModuleLoadData(&m, ".version 7.5\n.target sm_70\n"));
    OK(d.cuModuleLoadData(&m, ".version 7.4\n.target sm_80\n"));
    IS(CUDA_ERROR_NO_BINARY_FOR_GPU, d.cuModuleLoadData(&m, ".version 7.4\n.target sm_90\n"));
    expect_clean();
}

CHECK_FAKE(script_latency) {
    start();
    CUdeviceptr p = buffer(4096, 1);
    CUstream s;
    CUcontext x;
    SCRIPT("latency copy 20ms");
    OK(d.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d.cuMemsetD8Async(p, 2, 4096, s));
    OK(d.cuStreamSynchronize(s));
    SCRIPT("latency copy 60s; latency launch 1us");
    OK(d.cuMemsetD8Async(p, 3, 4096, s));
    IS(CUDA_ERROR_NOT_READY, d.cuStreamQuery(s));
    SCRIPT("latency copy 0s");
    expect_words(p, 0x02020202, 1024); /* the default stream does not wait for this one */
    OK(d.cuCtxPopCurrent_v2(&x));
    OK(d.cuCtxDestroy_v2(x)); /* does not take a minute */
    expect_violation("have work to do");
}

CHECK_FAKE(script_mistakes_have_a_place) {
    static const struct { const char *script, *error; } bad[] = {
        {"fial cuMemAlloc 700",
            "line 1, column 1: expected fail, sticky, device, devices, driver, latency, peers or resident, found \"fial\""},
        {"fail cuMemalloc 700",
            "line 1, column 6: expected a driver call that the fake has, such as cuMemAlloc, or * for any, found \"cuMemalloc\""},
        {"# fine\n  fail cuInit twice", "line 2, column 15: expected a result other than success"},
        {"fail cuInit 0", "line 1, column 13: expected a result other than success"},
        {"fail cuInit 12345678901234567890", "line 1, column 13: expected a result"},
        {"fail cuInit call 0 700", "line 1, column 18: expected the number of the call"},
        {"fail cuInit 700 again", "line 1, column 17: expected the end of the line, found \"again\""},
        {"fail", "line 1, column 5: expected a driver call, or * for any, found the end of the line"},
        {"peers on; devices 17", "line 2, column 10: expected how many devices"},
        {"device 16 memory 1G", "line 1, column 8: expected the number of a device"},
        {"device 0 memory 1", "line 1, column 17: expected a size of at least 2 MiB"},
        {"device 0 memory -1G", "line 1, column 17: expected a size"},
        {"device 0 colour red", "line 1, column 10: expected memory or attribute"},
        {"device 0 attribute DMA_BUF 1", "line 1, column 20: expected an attribute that the fake knows"},
        {"device 0 attribute 124 much", "line 1, column 24: expected the attribute's value"},
        {"driver 12", "line 1, column 8: expected a driver version"},
        {"latency copy 3", "line 1, column 14: expected a duration"},
        {"latency paste 3ms", "line 1, column 9: expected copy or launch"},
        {"peers maybe", "line 1, column 7: expected on or off"},
        {"resident yes", "line 1, column 10: expected allow or refuse"},
    };
    load();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (d.script(bad[i].script) == 0) fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i].script);
        if (strncmp(d.script_error(), bad[i].error, strlen(bad[i].error)) != 0)
            fail(__FILE__, __LINE__, "\"%s\": \"%s\", want \"%s\"", bad[i].script, d.script_error(), bad[i].error);
    }
    IS(-1, d.script("fail cuInit 999\nnonsense")); /* all or nothing */
    OK(d.cuInit(0));
    IS(-1, d.script("devices 1"));
    TRUE(strstr(d.script_error(), "expected devices before cuInit") != NULL);
}

CHECK_FAKE(script_from_the_environment) {
    int n;
    setenv("PENSTOCK_FAKE_CUDA", "devices 4; fail cuDeviceGetCount 999", 1);
    load();
    OK(d.cuInit(0));
    IS(CUDA_ERROR_UNKNOWN, d.cuDeviceGetCount(&n));
    OK(d.cuDeviceGetCount(&n));
    IS(4, n);
}

CHECK_FAKE(script_mistakes_in_the_environment) {
    setenv("PENSTOCK_FAKE_CUDA", "devices many", 1);
    load();
    int keep = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2); /* it also says so there */
    CUresult r = d.cuInit(0);
    dup2(keep, 2);
    CAUGHT(CUDA_ERROR_INVALID_VALUE, "$PENSTOCK_FAKE_CUDA: line 1, column 9: expected how many devices", r);
}

CHECK_FAKE(script_every_call_can_fail) {
    load();
    int calls = 0;
#define X(symbol, base, since, args) \
    SCRIPT("fail " #symbol " always 999; sticky " #symbol " 700; fail " #symbol " call 7 OUT_OF_MEMORY"); \
    if (d.symbol == NULL || d.calls(#symbol) != 0) fail(__FILE__, __LINE__, "%s is not exported", #symbol); \
    calls++;
    CUDA_CALLS(X)
#undef X
    TRUE(calls > 130);
    int n;
    IS(CUDA_ERROR_UNKNOWN, d.cuInit(0));
    IS(CUDA_ERROR_UNKNOWN, d.cuDriverGetVersion(&n));
    IS(CUDA_ERROR_UNKNOWN, d.cuStreamSynchronize(NULL));
}
