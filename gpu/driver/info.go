package driver

import (
	"fmt"
	"strings"
)

// Info is what a device is, as its runtime reports it.
type Info struct {
	Runtime string // "cuda", "opencl", "host"
	Index   int    // of the device in its runtime, from 0
	Name    string // the maker's: "NVIDIA H200", "pthread-skylake-avx512"
	Driver  string // version of the driver
	Arch    string // what kernels are made for: "sm_90", "opencl 3.0", "amd64"
	// PCI address as in /sys/bus/pci/devices ("0000:65:00.0"), "" where it is on no bus or that is
	// not known
	Bus       string
	NUMANode  int    // of the host's memory that is nearest, -1 where that is not known
	Processor bool   // it is the host's own processor: nothing is on a bus, and its memory is the host's
	Memory    uint64 // bytes of device memory in all
	MaxAlloc  uint64 // bytes of the largest single allocation
	Align     uint64 // bytes to which every allocation is aligned; a power of two
	// bytes to which the offset of a span that is given to a kernel must be aligned; 1 where any
	// will do
	ArgAlign  uint64
	Units     int    // multiprocessors, compute units, cores
	MaxGroup  uint32 // work-items of a group at most (CUDA: threads of a block)
	MaxGroups uint32 // groups of a launch at most
	// FlushWrites: what network cards wrote into device memory is seen by work that begins
	// afterwards only if Context.FlushWrites came between.
	FlushWrites bool
	// Watchdog: the driver ends the context of a kernel that runs for more than some seconds,
	// because the device shows a picture too.
	Watchdog     bool
	Capabilities Capabilities
}

// Capability is something that a device may be able to do.
type Capability uint8

const (
	CapMapped Capability = iota // memory of kind MappedMemory: host memory that kernels reach
	// memory of kind SharedMemory: one address for kernels and the CPU, no copies asked for
	CapShared
	// atomic operations of the CPU and of a running kernel on MappedMemory and SharedMemory see
	// each other
	CapSharedAtomics
	CapDeviceBytes // the CPU can reach memory of kind DeviceMemory (Memory.Bytes)
	CapAddresses   // memory has device addresses (Memory.Addr)
	CapElapsed     // events measure time between each other
	CapPriorities  // streams have priorities
	CapSource      // programs are built from OpenCL C
	CapPTX         // programs are loaded as PTX
	CapGoKernels   // programs run as Go functions
	// a kernel may stay, see what the CPU does and be seen, while other streams go on; the device
	// says how many groups stay together (Occupancy)
	CapResident
	CapAdopt        // host memory that exists already can be registered
	CapPeer         // copies between two devices of the runtime without the host in between
	CapIPC          // device memory can be opened by another process
	CapDMABuf       // device memory can be exported as a dma-buf
	CapGPUDirect    // network cards may reach device memory
	CapAdoptAddress // device memory that another library allocated is known by its address

	NumCapabilities // how many there are
)

var capabilityNames = [NumCapabilities]string{"mapped", "shared", "shared_atomics", "device_bytes", "addresses",
	"elapsed", "priorities", "source", "ptx",
	"go_kernels", "resident", "adopt", "peer", "ipc", "dmabuf", "gpudirect",
	"adopt_address"}

func (c Capability) String() string {
	if c < NumCapabilities {
		return capabilityNames[c]
	}
	return fmt.Sprintf("capability(%d)", uint8(c))
}

// Support says whether a device has a capability, and why not.
type Support struct {
	OK  bool
	Why string // where it is missing: what is missing, and how to get it where one can
}

// Capabilities says of each Capability whether a device has it. The zero value has none and gives
// no reasons, which no runtime may leave so.
type Capabilities [NumCapabilities]Support

// Set notes that the device has the capabilities.
func (c *Capabilities) Set(has ...Capability) {
	for _, x := range has {
		c[x] = Support{OK: true}
	}
}

// Missing notes why the device does not have a capability.
func (c *Capabilities) Missing(x Capability, why string) { c[x] = Support{Why: why} }

// Has reports whether the device has the capability.
func (c *Capabilities) Has(x Capability) bool { return x < NumCapabilities && c[x].OK }

// Check is nil where the device has the capability; otherwise an error that wraps ErrUnsupported
// and says why.
func (c *Capabilities) Check(x Capability) error {
	if c.Has(x) {
		return nil
	}
	why := "the runtime does not know it"
	if x < NumCapabilities && c[x].Why != "" {
		why = c[x].Why
	}
	return fmt.Errorf("%w: %s: %s", ErrUnsupported, x, why)
}

// String lists what the device has: "mapped shared elapsed".
func (c *Capabilities) String() string {
	var names []string
	for x := range NumCapabilities {
		if c[x].OK {
			names = append(names, x.String())
		}
	}
	return strings.Join(names, " ")
}

// Kind says what memory is, and what reaches it.
type Kind uint8

const (
	// memory of the device; the CPU reaches it by copies, and directly only with CapDeviceBytes
	DeviceMemory Kind = iota
	// page-locked host memory: copies to and from the device are fast and asynchronous; kernels do
	// not reach it
	PinnedMemory
	MappedMemory // page-locked host memory that kernels reach too, over the bus
	SharedMemory // memory with one address for kernels and the CPU

	NumKinds // how many there are
)

var kindNames = [NumKinds]string{"device", "pinned", "mapped", "shared"}

func (k Kind) String() string {
	if k < NumKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Needs is the capability without which there is no memory of this kind; ok is false for kinds that
// every device has.
func (k Kind) Needs() (c Capability, ok bool) {
	switch k {
	case MappedMemory:
		return CapMapped, true
	case SharedMemory:
		return CapShared, true
	}
	return 0, false
}
