package gpu

import (
	"errors"

	"github.com/penstock-io/penstock/gpu/driver"
)

// What runtimes and users share is declared in package driver.
type (
	// Info is what a device is.
	Info = driver.Info
	// Capability is something that a device may be able to do.
	Capability = driver.Capability
	// Capabilities says of each Capability whether a device has it, and why not.
	Capabilities = driver.Capabilities
	// Support says whether a device has a capability, and why not.
	Support = driver.Support
	// Kind says what memory is, and what reaches it.
	Kind = driver.Kind
	// Grid is how many work-items of a kernel run.
	Grid = driver.Grid
	// Program is kernels in every form that there is of them.
	Program = driver.Program
	// PTX is a program compiled for NVIDIA's virtual machine.
	PTX = driver.PTX
	// Signature is a kernel's name and parameters.
	Signature = driver.Signature
	// Param is the type of a kernel's parameter, named for messages.
	Param = driver.Param
	// Type is the type of a parameter.
	Type = driver.Type
	// GoFunc is a kernel in Go.
	GoFunc = driver.GoFunc
	// GoArg is an argument of a GoFunc.
	GoArg = driver.GoArg
	// Error is what a runtime's library said.
	Error = driver.Error
)

// Kinds of memory.
const (
	DeviceMemory = driver.DeviceMemory
	PinnedMemory = driver.PinnedMemory
	MappedMemory = driver.MappedMemory
	SharedMemory = driver.SharedMemory
)

// Capabilities of devices; package driver says what each means.
const (
	CapMapped        = driver.CapMapped
	CapShared        = driver.CapShared
	CapSharedAtomics = driver.CapSharedAtomics
	CapDeviceBytes   = driver.CapDeviceBytes
	CapAddresses     = driver.CapAddresses
	CapElapsed       = driver.CapElapsed
	CapPriorities    = driver.CapPriorities
	CapSource        = driver.CapSource
	CapPTX           = driver.CapPTX
	CapGoKernels     = driver.CapGoKernels
	CapResident      = driver.CapResident
	CapAdopt         = driver.CapAdopt
	CapPeer          = driver.CapPeer
	CapIPC           = driver.CapIPC
	CapDMABuf        = driver.CapDMABuf
	CapGPUDirect     = driver.CapGPUDirect
	CapAdoptAddress  = driver.CapAdoptAddress
)

// What runtimes refuse; see package driver.
var (
	ErrUnavailable = driver.ErrUnavailable
	ErrOutOfMemory = driver.ErrOutOfMemory
	ErrDeviceLost  = driver.ErrDeviceLost
	ErrArch        = driver.ErrArch
	ErrBuild       = driver.ErrBuild
	ErrDriver      = driver.ErrDriver
	ErrUnsupported = driver.ErrUnsupported
)

// What this package refuses, before anything was done.
var (
	ErrClosed   = errors.New("closed")
	ErrInUse    = errors.New("still in use")
	ErrBounds   = errors.New("span outside its memory")
	ErrArgument = errors.New("argument refused")
)
