package cuda

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// Feature is a group of functions of the driver that came together. A driver has all of a feature
// or none of it.
type Feature uint8

// The features. Core is what every driver of use has; the others are asked for with [Driver.Has].
const (
	Core          Feature = iota // contexts, streams, events, memory, copies, modules, launches
	IPC                          // memory and events of other processes
	Peer                         // memory of other devices
	VirtualMemory                // addresses and memory apart: cuMemCreate, cuMemMap
	DMABuf                       // device memory as a dma-buf, for network cards
	FlushWrites                  // ordering of writes that came past the driver
	StreamValues                 // a stream writes and awaits values in memory
	features
)

// featureTable: what each feature is for in errors, and the first version of the driver that has it
// (1000 × major + 10 × minor).
var featureTable = [features]struct {
	name  string
	since int
}{
	Core:          {"the basic functions", 11000},
	IPC:           {"sharing with other processes", 11000},
	Peer:          {"access to other devices", 11000},
	VirtualMemory: {"virtual memory management", 10020},
	DMABuf:        {"export as dma-buf", 11070},
	FlushWrites:   {"flushing of GPUDirect writes", 11030},
	StreamValues:  {"values written and awaited by streams", 11070},
}

// String says what the feature is for.
func (f Feature) String() string {
	if f < features {
		return featureTable[f].name
	}
	return fmt.Sprintf("feature %d", uint8(f))
}

// fn is a function of the driver, as an index of symbolTable and of [Driver.fn].
type fn uint8

const (
	fnInit fn = iota
	fnDriverGetVersion
	fnDeviceGet
	fnDeviceGetCount
	fnDeviceGetName
	fnDeviceGetUUID
	fnDeviceTotalMem
	fnDeviceGetAttribute
	fnDeviceGetPCIBusID
	fnDeviceCanAccessPeer
	fnDeviceGetP2PAttribute
	fnPrimaryRetain
	fnPrimaryRelease
	fnPrimaryGetState
	fnCtxSetCurrent
	fnCtxGetCurrent
	fnCtxGetAPIVersion
	fnCtxGetPriorityRange
	fnCtxSynchronize
	fnCtxEnablePeer
	fnCtxDisablePeer
	fnMemGetInfo
	fnMemAlloc
	fnMemFree
	fnMemGetAddressRange
	fnMemHostAlloc
	fnMemFreeHost
	fnMemHostGetDevicePointer
	fnMemHostGetFlags
	fnMemHostRegister
	fnMemHostUnregister
	fnPointerGetAttribute
	fnPointerSetAttribute
	fnMemcpyHtoD
	fnMemcpyDtoH
	fnMemcpyDtoD
	fnMemcpyHtoDAsync
	fnMemcpyDtoHAsync
	fnMemcpyDtoDAsync
	fnMemcpyPeerAsync
	fnMemcpyAsync
	fnMemsetD8Async
	fnMemsetD16Async
	fnMemsetD32Async
	fnStreamCreate
	fnStreamDestroy
	fnStreamSynchronize
	fnStreamQuery
	fnStreamGetPriority
	fnStreamWaitEvent
	fnStreamWriteValue32
	fnStreamWriteValue64
	fnStreamWaitValue32
	fnStreamWaitValue64
	fnEventCreate
	fnEventRecord
	fnEventQuery
	fnEventSynchronize
	fnEventElapsedTime
	fnEventDestroy
	fnMemGetHandleForAddressRange
	fnIPCGetMemHandle
	fnIPCOpenMemHandle
	fnIPCCloseMemHandle
	fnIPCGetEventHandle
	fnIPCOpenEventHandle
	fnMemAddressReserve
	fnMemAddressFree
	fnMemCreate
	fnMemRelease
	fnMemMap
	fnMemUnmap
	fnMemSetAccess
	fnMemExport
	fnMemImport
	fnMemGetGranularity
	fnModuleLoadDataEx
	fnModuleUnload
	fnModuleGetFunction
	fnModuleGetGlobal
	fnFuncGetAttribute
	fnFuncSetAttribute
	fnOccupancy
	fnLaunchKernel
	fnLaunchCooperative
	fnFlushWrites
	functions
)

// symbolTable is every function of the driver that this package calls, by the name that the library
// exports: with the version (_v2) whose arguments are meant here. The names without version are
// older functions with other arguments.
var symbolTable = [functions]struct {
	name    string
	feature Feature
}{
	fnInit:                        {"cuInit", Core},
	fnDriverGetVersion:            {"cuDriverGetVersion", Core},
	fnDeviceGet:                   {"cuDeviceGet", Core},
	fnDeviceGetCount:              {"cuDeviceGetCount", Core},
	fnDeviceGetName:               {"cuDeviceGetName", Core},
	fnDeviceGetUUID:               {"cuDeviceGetUuid", Core},
	fnDeviceTotalMem:              {"cuDeviceTotalMem_v2", Core},
	fnDeviceGetAttribute:          {"cuDeviceGetAttribute", Core},
	fnDeviceGetPCIBusID:           {"cuDeviceGetPCIBusId", Core},
	fnDeviceCanAccessPeer:         {"cuDeviceCanAccessPeer", Peer},
	fnDeviceGetP2PAttribute:       {"cuDeviceGetP2PAttribute", Peer},
	fnPrimaryRetain:               {"cuDevicePrimaryCtxRetain", Core},
	fnPrimaryRelease:              {"cuDevicePrimaryCtxRelease_v2", Core},
	fnPrimaryGetState:             {"cuDevicePrimaryCtxGetState", Core},
	fnCtxSetCurrent:               {"cuCtxSetCurrent", Core},
	fnCtxGetCurrent:               {"cuCtxGetCurrent", Core},
	fnCtxGetAPIVersion:            {"cuCtxGetApiVersion", Core},
	fnCtxGetPriorityRange:         {"cuCtxGetStreamPriorityRange", Core},
	fnCtxSynchronize:              {"cuCtxSynchronize", Core},
	fnCtxEnablePeer:               {"cuCtxEnablePeerAccess", Peer},
	fnCtxDisablePeer:              {"cuCtxDisablePeerAccess", Peer},
	fnMemGetInfo:                  {"cuMemGetInfo_v2", Core},
	fnMemAlloc:                    {"cuMemAlloc_v2", Core},
	fnMemFree:                     {"cuMemFree_v2", Core},
	fnMemGetAddressRange:          {"cuMemGetAddressRange_v2", Core},
	fnMemHostAlloc:                {"cuMemHostAlloc", Core},
	fnMemFreeHost:                 {"cuMemFreeHost", Core},
	fnMemHostGetDevicePointer:     {"cuMemHostGetDevicePointer_v2", Core},
	fnMemHostGetFlags:             {"cuMemHostGetFlags", Core},
	fnMemHostRegister:             {"cuMemHostRegister_v2", Core},
	fnMemHostUnregister:           {"cuMemHostUnregister", Core},
	fnPointerGetAttribute:         {"cuPointerGetAttribute", Core},
	fnPointerSetAttribute:         {"cuPointerSetAttribute", Core},
	fnMemcpyHtoD:                  {"cuMemcpyHtoD_v2", Core},
	fnMemcpyDtoH:                  {"cuMemcpyDtoH_v2", Core},
	fnMemcpyDtoD:                  {"cuMemcpyDtoD_v2", Core},
	fnMemcpyHtoDAsync:             {"cuMemcpyHtoDAsync_v2", Core},
	fnMemcpyDtoHAsync:             {"cuMemcpyDtoHAsync_v2", Core},
	fnMemcpyDtoDAsync:             {"cuMemcpyDtoDAsync_v2", Core},
	fnMemcpyPeerAsync:             {"cuMemcpyPeerAsync", Peer},
	fnMemcpyAsync:                 {"cuMemcpyAsync", Core},
	fnMemsetD8Async:               {"cuMemsetD8Async", Core},
	fnMemsetD16Async:              {"cuMemsetD16Async", Core},
	fnMemsetD32Async:              {"cuMemsetD32Async", Core},
	fnStreamCreate:                {"cuStreamCreateWithPriority", Core},
	fnStreamDestroy:               {"cuStreamDestroy_v2", Core},
	fnStreamSynchronize:           {"cuStreamSynchronize", Core},
	fnStreamQuery:                 {"cuStreamQuery", Core},
	fnStreamGetPriority:           {"cuStreamGetPriority", Core},
	fnStreamWaitEvent:             {"cuStreamWaitEvent", Core},
	fnStreamWriteValue32:          {"cuStreamWriteValue32_v2", StreamValues},
	fnStreamWriteValue64:          {"cuStreamWriteValue64_v2", StreamValues},
	fnStreamWaitValue32:           {"cuStreamWaitValue32_v2", StreamValues},
	fnStreamWaitValue64:           {"cuStreamWaitValue64_v2", StreamValues},
	fnEventCreate:                 {"cuEventCreate", Core},
	fnEventRecord:                 {"cuEventRecord", Core},
	fnEventQuery:                  {"cuEventQuery", Core},
	fnEventSynchronize:            {"cuEventSynchronize", Core},
	fnEventElapsedTime:            {"cuEventElapsedTime", Core},
	fnEventDestroy:                {"cuEventDestroy_v2", Core},
	fnMemGetHandleForAddressRange: {"cuMemGetHandleForAddressRange", DMABuf},
	fnIPCGetMemHandle:             {"cuIpcGetMemHandle", IPC},
	fnIPCOpenMemHandle:            {"cuIpcOpenMemHandle_v2", IPC},
	fnIPCCloseMemHandle:           {"cuIpcCloseMemHandle", IPC},
	fnIPCGetEventHandle:           {"cuIpcGetEventHandle", IPC},
	fnIPCOpenEventHandle:          {"cuIpcOpenEventHandle", IPC},
	fnMemAddressReserve:           {"cuMemAddressReserve", VirtualMemory},
	fnMemAddressFree:              {"cuMemAddressFree", VirtualMemory},
	fnMemCreate:                   {"cuMemCreate", VirtualMemory},
	fnMemRelease:                  {"cuMemRelease", VirtualMemory},
	fnMemMap:                      {"cuMemMap", VirtualMemory},
	fnMemUnmap:                    {"cuMemUnmap", VirtualMemory},
	fnMemSetAccess:                {"cuMemSetAccess", VirtualMemory},
	fnMemExport:                   {"cuMemExportToShareableHandle", VirtualMemory},
	fnMemImport:                   {"cuMemImportFromShareableHandle", VirtualMemory},
	fnMemGetGranularity:           {"cuMemGetAllocationGranularity", VirtualMemory},
	fnModuleLoadDataEx:            {"cuModuleLoadDataEx", Core},
	fnModuleUnload:                {"cuModuleUnload", Core},
	fnModuleGetFunction:           {"cuModuleGetFunction", Core},
	fnModuleGetGlobal:             {"cuModuleGetGlobal_v2", Core},
	fnFuncGetAttribute:            {"cuFuncGetAttribute", Core},
	fnFuncSetAttribute:            {"cuFuncSetAttribute", Core},
	fnOccupancy:                   {"cuOccupancyMaxActiveBlocksPerMultiprocessor", Core},
	fnLaunchKernel:                {"cuLaunchKernel", Core},
	fnLaunchCooperative:           {"cuLaunchCooperativeKernel", Core},
	fnFlushWrites:                 {"cuFlushGPUDirectRDMAWrites", FlushWrites},
}

// missingSet is, for each feature, the first function that a driver lacks; "" where it lacks none.
type missingSet [features]string

// bind finds every function of the table by find. It fails when one of Core is missing.
func bind(find func(name string) (dl.Func, error)) (fns [functions]dl.Func, missing missingSet, err error) {
	for i, s := range symbolTable {
		f, e := find(s.name)
		switch {
		case e == nil:
			fns[i] = f
		case s.feature == Core:
			return fns, missing,
				fmt.Errorf("cuda: %w: it has no %s, which every driver since CUDA 11 has: update NVIDIA's driver (%v)",
					ErrDriver, s.name, e)
		case missing[s.feature] == "":
			missing[s.feature] = s.name
		}
	}
	return fns, missing, nil
}

// Features are all features, Core first.
func Features() []Feature {
	all := make([]Feature, features)
	for i := range all {
		all[i] = Feature(i)
	}
	return all
}
