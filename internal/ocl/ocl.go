// Package ocl calls the part of OpenCL that Penstock uses, by dlopen. [Load] finds libOpenCL.so.1,
// the loader of whatever platforms the machine has; the functions of the standard are methods, with
// their results as errors.
//
// Handles are plain numbers of the library, as in C: nothing here counts references or knows
// owners. Package gpu/opencl does. What is enqueued goes through a [Queue], which keeps the memory
// that its calls need, so that they allocate nothing.
package ocl

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
)

// ErrUnavailable is wrapped by errors of [Load] and [Library.Platforms]: there is no OpenCL on this
// machine.
var ErrUnavailable = errors.New("no OpenCL on this machine")

// Install says what to install, for errors.
const Install = "on Debian: apt-get install ocl-icd-libopencl1, and the driver of the device (pocl-opencl-icd for " +
	"the CPU)"

// fn is a function of the library.
type fn int

const (
	getPlatformIDs fn = iota
	getPlatformInfo
	getDeviceIDs
	getDeviceInfo
	createContext
	releaseContext
	createQueue
	releaseQueue
	createBuffer
	createSubBuffer
	releaseMem
	createProgram
	buildProgram
	getBuildInfo
	releaseProgram
	createKernel
	getKernelInfo
	getKernelGroupInfo
	releaseKernel
	setKernelArg
	enqueueRead
	enqueueWrite
	enqueueCopy
	enqueueFill
	enqueueMap
	enqueueUnmap
	enqueueKernel
	enqueueMarker
	enqueueBarrier
	waitForEvents
	getEventInfo
	getProfilingInfo
	retainEvent
	releaseEvent
	flush
	finish
	// Since OpenCL 2.0; missing where the loader is older.
	createQueueWithProperties
	svmAlloc
	svmFree
	svmMemcpy
	svmFill
	setKernelArgSVM

	fns
)

// optional is the first function that may be missing.
const optional = createQueueWithProperties

var names = [fns]string{
	getPlatformIDs: "clGetPlatformIDs", getPlatformInfo: "clGetPlatformInfo", getDeviceIDs: "clGetDeviceIDs",
	getDeviceInfo: "clGetDeviceInfo",
	createContext: "clCreateContext", releaseContext: "clReleaseContext", createQueue: "clCreateCommandQueue",
	releaseQueue: "clReleaseCommandQueue",
	createBuffer: "clCreateBuffer", createSubBuffer: "clCreateSubBuffer", releaseMem: "clReleaseMemObject",
	createProgram: "clCreateProgramWithSource", buildProgram: "clBuildProgram", getBuildInfo: "clGetProgramBuildInfo",
	releaseProgram: "clReleaseProgram",
	createKernel:   "clCreateKernel", getKernelInfo: "clGetKernelInfo", getKernelGroupInfo: "clGetKernelWorkGroupInfo",
	releaseKernel: "clReleaseKernel", setKernelArg: "clSetKernelArg",
	enqueueRead: "clEnqueueReadBuffer", enqueueWrite: "clEnqueueWriteBuffer", enqueueCopy: "clEnqueueCopyBuffer",
	enqueueFill: "clEnqueueFillBuffer",
	enqueueMap:  "clEnqueueMapBuffer", enqueueUnmap: "clEnqueueUnmapMemObject", enqueueKernel: "clEnqueueNDRangeKernel",
	enqueueMarker:  "clEnqueueMarkerWithWaitList",
	enqueueBarrier: "clEnqueueBarrierWithWaitList", waitForEvents: "clWaitForEvents", getEventInfo: "clGetEventInfo",
	getProfilingInfo: "clGetEventProfilingInfo",
	retainEvent:      "clRetainEvent", releaseEvent: "clReleaseEvent", flush: "clFlush", finish: "clFinish",
	createQueueWithProperties: "clCreateCommandQueueWithProperties", svmAlloc: "clSVMAlloc", svmFree: "clSVMFree",
	svmMemcpy: "clEnqueueSVMMemcpy",
	svmFill:   "clEnqueueSVMMemFill", setKernelArgSVM: "clSetKernelArgSVMPointer",
}

// Library is a loaded libOpenCL. It may be used by several goroutines.
type Library struct {
	lib *dl.Library
	fn  [fns]dl.Func
}

// Load loads the library at path, or libOpenCL.so.1 where path is "". The caller closes it. The
// error wraps ErrUnavailable.
func Load(path string) (*Library, error) {
	if path == "" {
		path = "libOpenCL.so.1"
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, fmt.Errorf("ocl: %w: %w; %s", ErrUnavailable, err, Install)
	}
	l := &Library{lib: lib}
	for i := range fns {
		f, err := lib.Symbol(names[i])
		if err != nil && i < optional {
			return nil, errors.Join(fmt.Errorf("ocl: %w: %s is too old (OpenCL 1.2 is needed): %w; %s", ErrUnavailable,
				path, err, Install), lib.Close())
		}
		l.fn[i] = f
	}
	return l, nil
}

// HasSVM reports whether the loader knows shared virtual memory (OpenCL 2.0). Each device says for
// itself.
func (l *Library) HasSVM() bool {
	for _, f := range l.fn[svmAlloc : setKernelArgSVM+1] {
		if f == 0 {
			return false
		}
	}
	return true
}

// Close gives the library back. Nothing of it may be in use.
func (l *Library) Close() error { return l.lib.Close() }

// Error is a result of a function that is not CL_SUCCESS.
type Error struct {
	Op   string // "clCreateBuffer"
	Code int    // negative
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Op, e.Name(), e.Code) }

// Name is the standard's name of the code.
func (e *Error) Name() string {
	if n, ok := codes[e.Code]; ok {
		return n
	}
	return "an unknown error"
}

// check makes an error of a result.
func (f fn) check(code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{names[f], int(code)}
}

// Codes that callers tell apart.
const (
	DeviceNotAvailable = -2
	CompilerMissing    = -3
	AllocationFailure  = -4
	OutOfResources     = -5
	OutOfHostMemory    = -6
	BuildFailure       = -11
	FailedEventInList  = -14
	InvalidQueue       = -36
	InvalidKernelName  = -46
	InvalidBufferSize  = -61
	NoPlatform         = -1001
	noDevice           = -1
)

var codes = map[int]string{
	-1: "CL_DEVICE_NOT_FOUND", -2: "CL_DEVICE_NOT_AVAILABLE", -3: "CL_COMPILER_NOT_AVAILABLE",
	-4: "CL_MEM_OBJECT_ALLOCATION_FAILURE", -5: "CL_OUT_OF_RESOURCES",
	-6: "CL_OUT_OF_HOST_MEMORY", -7: "CL_PROFILING_INFO_NOT_AVAILABLE", -8: "CL_MEM_COPY_OVERLAP",
	-9: "CL_IMAGE_FORMAT_MISMATCH", -10: "CL_IMAGE_FORMAT_NOT_SUPPORTED",
	-11: "CL_BUILD_PROGRAM_FAILURE", -12: "CL_MAP_FAILURE", -13: "CL_MISALIGNED_SUB_BUFFER_OFFSET",
	-14: "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
	-15: "CL_COMPILE_PROGRAM_FAILURE", -16: "CL_LINKER_NOT_AVAILABLE", -17: "CL_LINK_PROGRAM_FAILURE",
	-18: "CL_DEVICE_PARTITION_FAILED", -19: "CL_KERNEL_ARG_INFO_NOT_AVAILABLE",
	-30: "CL_INVALID_VALUE", -31: "CL_INVALID_DEVICE_TYPE", -32: "CL_INVALID_PLATFORM", -33: "CL_INVALID_DEVICE",
	-34: "CL_INVALID_CONTEXT", -35: "CL_INVALID_QUEUE_PROPERTIES",
	-36: "CL_INVALID_COMMAND_QUEUE", -37: "CL_INVALID_HOST_PTR", -38: "CL_INVALID_MEM_OBJECT", -42: "CL_INVALID_BINARY",
	-43: "CL_INVALID_BUILD_OPTIONS", -44: "CL_INVALID_PROGRAM",
	-45: "CL_INVALID_PROGRAM_EXECUTABLE", -46: "CL_INVALID_KERNEL_NAME", -47: "CL_INVALID_KERNEL_DEFINITION",
	-48: "CL_INVALID_KERNEL", -49: "CL_INVALID_ARG_INDEX",
	-50: "CL_INVALID_ARG_VALUE", -51: "CL_INVALID_ARG_SIZE", -52: "CL_INVALID_KERNEL_ARGS",
	-53: "CL_INVALID_WORK_DIMENSION", -54: "CL_INVALID_WORK_GROUP_SIZE",
	-55: "CL_INVALID_WORK_ITEM_SIZE", -56: "CL_INVALID_GLOBAL_OFFSET", -57: "CL_INVALID_EVENT_WAIT_LIST",
	-58: "CL_INVALID_EVENT", -59: "CL_INVALID_OPERATION",
	-61: "CL_INVALID_BUFFER_SIZE", -63: "CL_INVALID_GLOBAL_WORK_SIZE", -64: "CL_INVALID_PROPERTY",
	-68: "CL_INVALID_DEVICE_PARTITION_COUNT", -1001: "CL_PLATFORM_NOT_FOUND_KHR",
}

// Platform is one vendor's OpenCL.
type Platform uintptr

// Device is a device of a platform.
type Device uintptr

// Context owns memory, queues and programs of one device.
type Context uintptr

// Mem is a buffer.
type Mem uintptr

// Event is the end of an enqueued command.
type Event uintptr

// Program is source that was built.
type Program uintptr

// Kernel is a function of a program, with its arguments.
type Kernel uintptr
