/*
 * The other half: the header that video programs load libcuda with (Debian: libffmpeg-nvenc-dev), written from NVIDIA's by other
 * people. Its types stand in for ours; where a call's arguments differ, this does not compile.
 */
#include <stdio.h>

#include <ffnvcodec/dynlink_cuda.h>

#include "cuda_api.h"

#include "abi_names.h"

#define SAME(call, type) _Static_assert(__builtin_types_compatible_p(__typeof__(call), type), #call);
#define PLAIN(call) SAME(call, t##call)
PLAIN(cuInit) PLAIN(cuDeviceGetCount) PLAIN(cuDeviceGet) PLAIN(cuDeviceGetAttribute) PLAIN(cuDeviceGetName) PLAIN(cuDeviceGetUuid)
PLAIN(cuDeviceComputeCapability) PLAIN(cuCtxCreate_v2) PLAIN(cuCtxSetLimit) PLAIN(cuCtxPushCurrent_v2) PLAIN(cuCtxPopCurrent_v2)
PLAIN(cuCtxDestroy_v2) PLAIN(cuMemAlloc_v2) PLAIN(cuMemAllocPitch_v2) PLAIN(cuMemsetD8Async) PLAIN(cuMemFree_v2) PLAIN(cuMemcpy)
PLAIN(cuMemcpyAsync) PLAIN(cuMemcpy2D_v2) PLAIN(cuMemcpy2DAsync_v2) PLAIN(cuMemcpyHtoD_v2) PLAIN(cuMemcpyHtoDAsync_v2)
PLAIN(cuMemcpyDtoH_v2) PLAIN(cuMemcpyDtoHAsync_v2) PLAIN(cuMemcpyDtoD_v2) PLAIN(cuMemcpyDtoDAsync_v2) PLAIN(cuGetErrorName)
PLAIN(cuGetErrorString) PLAIN(cuCtxGetDevice) PLAIN(cuDevicePrimaryCtxRetain) PLAIN(cuDevicePrimaryCtxRelease)
PLAIN(cuDevicePrimaryCtxSetFlags) PLAIN(cuDevicePrimaryCtxGetState) PLAIN(cuDevicePrimaryCtxReset) PLAIN(cuStreamCreate)
PLAIN(cuStreamQuery) PLAIN(cuStreamSynchronize) PLAIN(cuStreamDestroy_v2) PLAIN(cuStreamAddCallback) PLAIN(cuEventCreate)
PLAIN(cuEventDestroy_v2) PLAIN(cuEventSynchronize) PLAIN(cuEventQuery) PLAIN(cuEventRecord) PLAIN(cuLaunchKernel)
PLAIN(cuModuleLoadData) PLAIN(cuModuleUnload) PLAIN(cuModuleGetFunction)
SAME(cuModuleGetGlobal_v2, tcuModuleGetGlobal)
SAME(cuDevicePrimaryCtxRelease_v2, tcuDevicePrimaryCtxRelease)
SAME(cuDevicePrimaryCtxReset_v2, tcuDevicePrimaryCtxReset)
SAME(cuDevicePrimaryCtxSetFlags_v2, tcuDevicePrimaryCtxSetFlags)

extern const long long abi_ours[];
static const long long theirs[] = {
#define X(name) (long long)name,
    ABI_NAMES(X)
#undef X
};
static const char *const names[] = {
#define X(name) #name,
    ABI_NAMES(X)
#undef X
};

int main(void) {
    int bad = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (abi_ours[i] != theirs[i]) {
            printf("%s is %lld here, %lld there\n", names[i], abi_ours[i], theirs[i]);
            bad = 1;
        }
    if (!bad) printf("%zu values and 52 calls agree\n", sizeof names / sizeof *names);
    return bad;
}
