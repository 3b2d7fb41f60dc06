/*
 * CUresult: every value of the manual's "Data types used by CUDA driver" up to CUDA 12.9, with its name, and the short sentence
 * that cuGetErrorString gives in the fake (the real driver's wording may differ; nobody should compare it).
 */
#ifndef PENSTOCK_CUDA_RESULTS_H
#define PENSTOCK_CUDA_RESULTS_H

#define CUDA_RESULTS(X) \
    X(CUDA_SUCCESS, 0, "no error") \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument") \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory") \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error") \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down") \
    X(CUDA_ERROR_PROFILER_DISABLED, 5, "profiler disabled") \
    X(CUDA_ERROR_PROFILER_NOT_INITIALIZED, 6, "profiler not initialized") \
    X(CUDA_ERROR_PROFILER_ALREADY_STARTED, 7, "profiler already started") \
    X(CUDA_ERROR_PROFILER_ALREADY_STOPPED, 8, "profiler already stopped") \
    X(CUDA_ERROR_STUB_LIBRARY, 34, "the loaded library is a stub") \
    X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36, "the driver is older than this call") \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "device busy or unavailable") \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected") \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
    X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "device not licensed") \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid") \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context") \
    X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "context already current") \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping failed") \
    X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping failed") \
    X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "array is mapped") \
    X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped") \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image is available for the device") \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "resource already acquired") \
    X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped") \
    X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "resource not mapped as array") \
    X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "resource not mapped as pointer") \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered") \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this device") \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "context already in use by another thread") \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported between these two devices") \
    X(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed") \
    X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "invalid graphics context") \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error detected") \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "PTX JIT compiler library not found") \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "the PTX was compiled with a newer toolchain than the driver knows") \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "PTX JIT compilation was disabled") \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "execution affinity is not supported") \
    X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, "device-side synchronize is not supported") \
    X(CUDA_ERROR_CONTAINED, 226, "contained error") \
    X(CUDA_ERROR_INVALID_SOURCE, 300, "device kernel source is invalid") \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found") \
    X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "shared object symbol not found") \
    X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object initialization failed") \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "operating system call failed") \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle") \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "resource in a state that does not allow the operation") \
    X(CUDA_ERROR_LOSSY_QUERY, 402, "query would lose information") \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found") \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready") \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered") \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated") \
    X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "launch uses incompatible texturing mode") \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is already enabled") \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access has not been enabled") \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "cannot set while the primary context is active") \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed") \
    X(CUDA_ERROR_ASSERT, 710, "device-side assert triggered") \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711, "peer mapping resources exhausted") \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the memory range is already registered") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered memory region") \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error") \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered") \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address") \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "operation not supported on this address space") \
    X(CUDA_ERROR_INVALID_PC, 718, "invalid program counter") \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure") \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "too many blocks in a cooperative launch") \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory was not freed") \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted") \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported") \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized") \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "system has an unsupported combination of display driver and CUDA driver") \
    X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility is not supported on this device") \
    X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, "MPS client failed to connect") \
    X(CUDA_ERROR_MPS_RPC_FAILURE, 806, "MPS remote procedure call failed") \
    X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "MPS server is not ready") \
    X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, "MPS clients exhausted") \
    X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, "MPS connections exhausted") \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "MPS client was terminated") \
    X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, "dynamic parallelism is not supported") \
    X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, "dynamic parallelism versions do not match") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when the stream is capturing") \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "operation would merge two captures") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not begun in this stream") \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capture ended with unjoined work") \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency crosses the boundary of the capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "operation would implicitly depend on a capturing stream") \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on an event recorded in a capture") \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "capture must end in the thread that began it") \
    X(CUDA_ERROR_TIMEOUT, 909, "wait operation timed out") \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "the graph update was not performed") \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "an asynchronous error occurred on a device outside of CUDA") \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "invalid cluster size") \
    X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "function is not loaded") \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type") \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration") \
    X(CUDA_ERROR_KEY_ROTATION, 916, "key rotation in progress") \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

typedef enum cudaError_enum {
#define X(name, value, text) name = value,
    CUDA_RESULTS(X)
#undef X
} CUresult;

#endif
