/*
 * The calls: symbol that the library exports, name under which cuGetProcAddress gives it, first driver version that has it
 * (1000 * major + 10 * minor), arguments. One list, from which come the prototypes, the table of cuGetProcAddress, the names
 * that scripts may use, and the pointers of the check program.
 */
#ifndef PENSTOCK_CUDA_CALLS_H
#define PENSTOCK_CUDA_CALLS_H

#define CUDA_CALLS(X) \
    X(cuInit, cuInit, 2000, (unsigned int flags)) \
    X(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *version)) \
    X(cuGetErrorName, cuGetErrorName, 6000, (CUresult error, const char **str)) \
    X(cuGetErrorString, cuGetErrorString, 6000, (CUresult error, const char **str)) \
    X(cuGetProcAddress, cuGetProcAddress, 11030, (const char *symbol, void **pfn, int version, uint64_t flags)) \
    X(cuGetProcAddress_v2, cuGetProcAddress, 12000, \
      (const char *symbol, void **pfn, int version, uint64_t flags, CUdriverProcAddressQueryResult *status)) \
    X(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *device, int ordinal)) \
    X(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *count)) \
    X(cuDeviceGetName, cuDeviceGetName, 2000, (char *name, int len, CUdevice dev)) \
    X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, (CUuuid *uuid, CUdevice dev)) \
    X(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, (CUuuid *uuid, CUdevice dev)) \
    X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *bytes, CUdevice dev)) \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, (int *pi, CUdevice_attribute attrib, CUdevice dev)) \
    X(cuDeviceComputeCapability, cuDeviceComputeCapability, 2000, (int *major, int *minor, CUdevice dev)) \
    X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, (char *id, int len, CUdevice dev)) \
    X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010, (CUdevice *dev, const char *id)) \
    X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int *can, CUdevice dev, CUdevice peer)) \
    X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, (int *value, CUdevice_P2PAttribute attrib, CUdevice src, \
        CUdevice dst)) \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (CUcontext *pctx, CUdevice dev)) \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, (CUdevice dev)) \
    X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, (CUdevice dev)) \
    X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags, 7000, (CUdevice dev, unsigned int flags)) \
    X(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags, 11000, (CUdevice dev, unsigned int flags)) \
    X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, (CUdevice dev, unsigned int *flags, int *active)) \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, (CUdevice dev)) \
    X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, (CUdevice dev)) \
    X(cuCtxCreate_v2, cuCtxCreate, 3020, (CUcontext *pctx, unsigned int flags, CUdevice dev)) \
    X(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext ctx)) \
    X(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, (CUcontext ctx)) \
    X(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, (CUcontext *pctx)) \
    X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext ctx)) \
    X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *pctx)) \
    X(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *device)) \
    X(cuCtxGetFlags, cuCtxGetFlags, 7000, (unsigned int *flags)) \
    X(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, (CUcontext ctx, unsigned int *version)) \
    X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest)) \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void)) \
    X(cuCtxSetLimit, cuCtxSetLimit, 3010, (CUlimit limit, size_t value)) \
    X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned int flags)) \
    X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, (CUcontext peer)) \
    X(cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *free, size_t *total)) \
    X(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *dptr, size_t bytesize)) \
    X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, (CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, \
        unsigned int element)) \
    X(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr dptr)) \
    X(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020, (CUdeviceptr *base, size_t *size, CUdeviceptr dptr)) \
    X(cuMemAllocHost_v2, cuMemAllocHost, 3020, (void **pp, size_t bytesize)) \
    X(cuMemHostAlloc, cuMemHostAlloc, 2020, (void **pp, size_t bytesize, unsigned int flags)) \
    X(cuMemFreeHost, cuMemFreeHost, 2000, (void *p)) \
    X(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020, (CUdeviceptr *dptr, void *p, unsigned int flags)) \
    X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, (unsigned int *flags, void *p)) \
    X(cuMemHostRegister_v2, cuMemHostRegister, 6050, (void *p, size_t bytesize, unsigned int flags)) \
    X(cuMemHostUnregister, cuMemHostUnregister, 4000, (void *p)) \
    X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void *data, CUpointer_attribute attribute, CUdeviceptr ptr)) \
    X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, \
      (unsigned int n, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)) \
    X(cuPointerSetAttribute, cuPointerSetAttribute, 6000, (const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)) \
    X(cuMemcpy, cuMemcpy, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t n)) \
    X(cuMemcpyAsync, cuMemcpyAsync, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)) \
    X(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, (CUdeviceptr dst, const void *src, size_t n)) \
    X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020, (CUdeviceptr dst, const void *src, size_t n, CUstream stream)) \
    X(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, (void *dst, CUdeviceptr src, size_t n)) \
    X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020, (void *dst, CUdeviceptr src, size_t n, CUstream stream)) \
    X(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t n)) \
    X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)) \
    X(cuMemcpyPeer, cuMemcpyPeer, 4000, (CUdeviceptr dst, CUcontext dstctx, CUdeviceptr src, CUcontext srcctx, size_t n)) \
    X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000, \
      (CUdeviceptr dst, CUcontext dstctx, CUdeviceptr src, CUcontext srcctx, size_t n, CUstream stream)) \
    X(cuMemcpy2D_v2, cuMemcpy2D, 3020, (const CUDA_MEMCPY2D *copy)) \
    X(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, (const CUDA_MEMCPY2D *copy)) \
    X(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *copy, CUstream stream)) \
    X(cuMemsetD8_v2, cuMemsetD8, 3020, (CUdeviceptr dst, unsigned char value, size_t n)) \
    X(cuMemsetD16_v2, cuMemsetD16, 3020, (CUdeviceptr dst, unsigned short value, size_t n)) \
    X(cuMemsetD32_v2, cuMemsetD32, 3020, (CUdeviceptr dst, unsigned int value, size_t n)) \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020, (CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)) \
    X(cuMemsetD16Async, cuMemsetD16Async, 3020, (CUdeviceptr dst, unsigned short value, size_t n, CUstream stream)) \
    X(cuMemsetD32Async, cuMemsetD32Async, 3020, (CUdeviceptr dst, unsigned int value, size_t n, CUstream stream)) \
    X(cuStreamCreate, cuStreamCreate, 2000, (CUstream *stream, unsigned int flags)) \
    X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, (CUstream *stream, unsigned int flags, int priority)) \
    X(cuStreamDestroy_v2, cuStreamDestroy, 4000, (CUstream stream)) \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream)) \
    X(cuStreamQuery, cuStreamQuery, 2000, (CUstream stream)) \
    X(cuStreamGetFlags, cuStreamGetFlags, 5050, (CUstream stream, unsigned int *flags)) \
    X(cuStreamGetPriority, cuStreamGetPriority, 5050, (CUstream stream, int *priority)) \
    X(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *pctx)) \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags)) \
    X(cuStreamAddCallback, cuStreamAddCallback, 5000, \
      (CUstream stream, void (*callback)(CUstream, CUresult, void *), void *data, unsigned int flags)) \
    X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, (CUstream stream, void (*fn)(void *), void *data)) \
    X(cuStreamWriteValue32, cuStreamWriteValue32, 8000, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags)) \
    X(cuStreamWriteValue32_v2, cuStreamWriteValue32, 11070, (CUstream stream, CUdeviceptr addr, uint32_t value, \
        unsigned int flags)) \
    X(cuStreamWriteValue64, cuStreamWriteValue64, 9000, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags)) \
    X(cuStreamWriteValue64_v2, cuStreamWriteValue64, 11070, (CUstream stream, CUdeviceptr addr, uint64_t value, \
        unsigned int flags)) \
    X(cuStreamWaitValue32, cuStreamWaitValue32, 8000, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags)) \
    X(cuStreamWaitValue32_v2, cuStreamWaitValue32, 11070, (CUstream stream, CUdeviceptr addr, uint32_t value, unsigned int flags)) \
    X(cuStreamWaitValue64, cuStreamWaitValue64, 9000, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags)) \
    X(cuStreamWaitValue64_v2, cuStreamWaitValue64, 11070, (CUstream stream, CUdeviceptr addr, uint64_t value, unsigned int flags)) \
    X(cuStreamBatchMemOp_v2, cuStreamBatchMemOp, 11070, \
      (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags)) \
    X(cuEventCreate, cuEventCreate, 2000, (CUevent *event, unsigned int flags)) \
    X(cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream)) \
    X(cuEventQuery, cuEventQuery, 2000, (CUevent event)) \
    X(cuEventSynchronize, cuEventSynchronize, 2000, (CUevent event)) \
    X(cuEventElapsedTime, cuEventElapsedTime, 2000, (float *ms, CUevent start, CUevent end)) \
    X(cuEventElapsedTime_v2, cuEventElapsedTime, 12080, (float *ms, CUevent start, CUevent end)) \
    X(cuEventDestroy_v2, cuEventDestroy, 4000, (CUevent event)) \
    X(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, \
      (void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType type, unsigned long long flags)) \
    X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *handle, CUdeviceptr dptr)) \
    X(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000, (CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)) \
    X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr dptr)) \
    X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, (CUipcEventHandle *handle, CUevent event)) \
    X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, (CUevent *event, CUipcEventHandle handle)) \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020, \
      (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)) \
    X(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr ptr, size_t size)) \
    X(cuMemCreate, cuMemCreate, 10020, \
      (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)) \
    X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle)) \
    X(cuMemMap, cuMemMap, 10020, \
      (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
    X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr ptr, size_t size)) \
    X(cuMemSetAccess, cuMemSetAccess, 10020, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)) \
    X(cuMemGetAccess, cuMemGetAccess, 10020, (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)) \
    X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, \
      (void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)) \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, \
      (CUmemGenericAllocationHandle *handle, void *os, CUmemAllocationHandleType type)) \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, \
      (size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)) \
    X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, \
      (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)) \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *handle, void *addr)) \
    X(cuModuleLoadData, cuModuleLoadData, 2000, (CUmodule *module, const void *image)) \
    X(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, \
      (CUmodule *module, const void *image, unsigned int n, CUjit_option *options, void **values)) \
    X(cuModuleUnload, cuModuleUnload, 2000, (CUmodule module)) \
    X(cuModuleGetFunction, cuModuleGetFunction, 2000, (CUfunction *fn, CUmodule module, const char *name)) \
    X(cuModuleGetGlobal_v2, cuModuleGetGlobal, 3020, (CUdeviceptr *dptr, size_t *bytes, CUmodule module, const char *name)) \
    X(cuFuncGetAttribute, cuFuncGetAttribute, 2020, (int *pi, CUfunction_attribute attrib, CUfunction fn)) \
    X(cuFuncSetAttribute, cuFuncSetAttribute, 9000, (CUfunction fn, CUfunction_attribute attrib, int value)) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, \
      (int *blocks, CUfunction fn, int block, size_t shared)) \
    X(cuLaunchKernel, cuLaunchKernel, 4000, \
      (CUfunction fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
       unsigned int shared, CUstream stream, void **params, void **extra)) \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, \
      (CUfunction fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
       unsigned int shared, CUstream stream, void **params)) \
    X(cuFlushGPUDirectRDMAWrites, cuFlushGPUDirectRDMAWrites, 11030, \
      (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope))

#define X(symbol, base, since, args) CUDA_API CUresult symbol args;
CUDA_CALLS(X)
#undef X

#endif
