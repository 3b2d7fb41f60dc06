// Package host is the reference runtime of package gpu: this process is the device, in Go, on every
// machine.
//
// A device is this process. Memory of every kind is pages outside the Go heap, which CPU and
// kernels reach at one address. A stream is a goroutine that ends with it; so work is as
// asynchronous as on an accelerator, streams overlap, and a kernel may stay while others come and
// go. Kernels are the Go functions of a program ([gpu.GoFunc]). One that panics, or touches memory
// that is not there, loses the device as a fault on a GPU does: every later call of the context
// fails with ErrDeviceLost, and memory is undefined. Only a new context works again.
//
// It is not a pretence of an accelerator: it is slower than using memory directly, and is there to
// develop and test with, and for the kernels that a machine without an accelerator has to run
// somewhere.
package host

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/sys"
)

// Options change what the runtime offers. The zero value is right for most.
type Options struct {
	Devices int // how many there are; 0 means 1
	// bytes that may be allocated on each device; 0 means what the machine has available when the
	// runtime is opened
	Memory uint64
}

// Open opens the runtime. The caller closes it.
func Open(o Options) (*gpu.Runtime, error) {
	d, err := Driver(o)
	if err != nil {
		return nil, err
	}
	return gpu.New(d)
}

// Driver is the lower half of Open, for tests that put something in between.
func Driver(o Options) (driver.Runtime, error) {
	if o.Devices < 0 || o.Devices > 64 {
		return nil, fmt.Errorf("gpu/host: %w: %d devices: expected 1 to 64", gpu.ErrArgument, o.Devices)
	}
	if o.Memory == 0 {
		n, err := sys.MemAvailable()
		if err != nil {
			return nil, fmt.Errorf("gpu/host: how much memory there is: %w", err)
		}
		o.Memory = n
	}
	r := &hostRuntime{}
	for i := range max(o.Devices, 1) {
		r.devices = append(r.devices, &device{info: describe(i, o.Memory)})
	}
	return r, nil
}

// occupancy is the number of groups that run side by side: goroutines do so in any number, of which
// this is enough.
const occupancy = 4096

// align is the alignment of memory in bytes: a page.
const align = 4096

func describe(index int, memory uint64) driver.Info {
	f := driver.Info{
		Runtime: "host", Index: index, Name: "this process, in Go", Driver: runtime.Version(), Arch: runtime.GOARCH,
		NUMANode: -1, Processor: true,
		Memory: memory, MaxAlloc: min(memory, math.MaxInt64/2), Align: align, ArgAlign: 1, Units: runtime.GOMAXPROCS(0),
		MaxGroup: 1024, MaxGroups: math.MaxInt32,
	}
	c := &f.Capabilities
	c.Set(driver.CapMapped, driver.CapShared, driver.CapSharedAtomics, driver.CapDeviceBytes, driver.CapAddresses,
		driver.CapElapsed, driver.CapGoKernels,
		driver.CapResident, driver.CapAdopt, driver.CapPeer)
	c.Missing(driver.CapPriorities, "goroutines have none")
	c.Missing(driver.CapSource,
		"it runs kernels in Go only: OpenCL C needs the runtime opencl, for example on the CPU (apt-get install "+
			"pocl-opencl-icd)")
	c.Missing(driver.CapPTX, "it runs kernels in Go only: PTX needs the runtime cuda and an NVIDIA card")
	c.Missing(driver.CapIPC, "memory of the host goes to other processes by package transfer/path/shm")
	c.Missing(driver.CapDMABuf, "memory of the host is no dma-buf: network cards register it as it is")
	c.Missing(driver.CapGPUDirect, "memory of the host needs none: network cards reach it anyway")
	c.Missing(driver.CapAdoptAddress, "nothing says what is at an address of the host: adopt its bytes")
	return f
}

type hostRuntime struct{ devices []driver.Device }

func (r *hostRuntime) Name() string             { return "host" }
func (r *hostRuntime) Version() string          { return runtime.Version() }
func (r *hostRuntime) Devices() []driver.Device { return r.devices }
func (r *hostRuntime) Close() error             { return nil }

type device struct {
	info driver.Info
	used atomic.Uint64 // bytes allocated by all contexts
}

func (d *device) Info() driver.Info { return d.info }

func (d *device) Open() (driver.Context, error) {
	return &hostContext{dev: d, streams: map[*stream]struct{}{}}, nil
}

// take counts n more bytes as allocated, if they are left.
func (d *device) take(n uint64) error {
	for {
		used := d.used.Load()
		if n > d.info.Memory-used {
			return &driver.Error{Kind: driver.ErrOutOfMemory, Op: "allocate",
				Text: fmt.Sprintf("%d bytes are needed, %d of %d are left on the device", n, d.info.Memory-used,
					d.info.Memory), Hint: "close what is not needed, or ask for less"}
		}
		if d.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

func (d *device) give(n uint64) { d.used.Add(-n) }
