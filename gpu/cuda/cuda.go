package cuda

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/cuda"
)

// Options say which driver is meant.
type Options struct {
	// Library is the driver's file; "" means libcuda.so.1 as the loader finds it.
	Library string
}

// Open loads the driver and finds its devices. Without a driver or a device the error wraps
// [gpu.ErrUnavailable] and says what to install. The driver stays loaded after Close, until the
// process ends.
func Open(o Options) (*gpu.Runtime, error) {
	r, err := load(o)
	if err != nil {
		return nil, err
	}
	return gpu.New(r)
}

// load is the runtime without what package gpu puts around it.
func load(o Options) (*cudaRuntime, error) {
	d, err := cuda.Load(o.Library)
	if err != nil {
		return nil, fmt.Errorf("gpu/cuda: %w", translate(err))
	}
	found, err := d.Devices()
	if err != nil {
		return nil, fmt.Errorf("gpu/cuda: %w", translate(err))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("gpu/cuda: %w: the driver sees no device: see nvidia-smi and CUDA_VISIBLE_DEVICES",
			gpu.ErrUnavailable)
	}
	r := &cudaRuntime{d: d}
	for _, dev := range found {
		info, err := describe(dev, found)
		if err != nil {
			return nil, fmt.Errorf("gpu/cuda: device %d: %w", dev.Ordinal(), translate(err))
		}
		r.devices = append(r.devices, &device{dev, info})
	}
	return r, nil
}

type cudaRuntime struct {
	d       *cuda.Driver
	devices []driver.Device
}

func (r *cudaRuntime) Name() string             { return "cuda" }
func (r *cudaRuntime) Version() string          { return "CUDA " + cuda.Version(r.d.Version()) }
func (r *cudaRuntime) Devices() []driver.Device { return r.devices }
func (r *cudaRuntime) Close() error             { return nil }

type device struct {
	d    *cuda.Device
	info driver.Info
}

func (d *device) Info() driver.Info { return d.info }

// Open takes a reference to the primary context.
func (d *device) Open() (driver.Context, error) {
	c, err := d.d.Retain()
	if err != nil {
		return nil, translate(err)
	}
	least, greatest, err := c.Priorities()
	if err != nil {
		return nil, translate(errors.Join(err, c.Release()))
	}
	return &cudaContext{c: c, info: &d.info, least: least, greatest: greatest}, nil
}

const (
	// align of memory: what cuMemAlloc promises. Host memory begins at pages.
	align = 256
	// argAlign of what kernels are given: the widest access of one work-item. A misaligned one
	// would lose the device.
	argAlign = 16
)

// describe is what is known of a device among others.
func describe(d *cuda.Device, all []*cuda.Device) (driver.Info, error) {
	in, err := d.Info()
	if err != nil {
		return driver.Info{}, err
	}
	groups, err := d.Attribute(cuda.MaxGridX)
	if err != nil {
		return driver.Info{}, err
	}
	concurrent, err := d.Attribute(cuda.ConcurrentKernels)
	if err != nil {
		return driver.Info{}, err
	}
	watchdog, err := d.Attribute(cuda.KernelTimeout)
	if err != nil {
		return driver.Info{}, err
	}
	f := driver.Info{
		Runtime: "cuda", Index: d.Ordinal(), Name: in.Name, Driver: "CUDA " + cuda.Version(d.Driver().Version()),
		Arch: fmt.Sprintf("sm_%d%d", in.Major, in.Minor), Bus: in.Bus, NUMANode: node(in),
		Memory: in.Memory, MaxAlloc: in.Memory, Align: align, ArgAlign: argAlign,
		Units: in.Multiprocessors, MaxGroup: uint32(in.MaxThreadsPerBlock), MaxGroups: uint32(groups),
		Watchdog: watchdog != 0,
	}
	peers, err := reaches(d, all)
	if err != nil {
		return driver.Info{}, err
	}
	c := &f.Capabilities
	c.Set(driver.CapAddresses, driver.CapElapsed, driver.CapPTX)
	offer := func(x driver.Capability, ok bool, why string) {
		if ok {
			c.Set(x)
		} else {
			c.Missing(x, why)
		}
	}
	mapped := in.MapHostMemory && in.UnifiedAddressing
	offer(driver.CapMapped, mapped, "the device does not map host memory")
	offer(driver.CapShared, mapped, "host and device have no addresses in common")
	offer(driver.CapSharedAtomics, mapped && in.Major >= 7,
		"operations of the system's scope need mapped host memory and an architecture of sm_70 or later")
	c.Missing(driver.CapDeviceBytes,
		"device memory is not mapped for the CPU (that takes the module gdrdrv of GDRCopy): copy")
	offer(driver.CapPriorities, in.StreamPriorities, "the device knows no priorities")
	c.Missing(driver.CapSource, "the driver compiles PTX, not OpenCL C: use the program's PTX, or the runtime opencl")
	c.Missing(driver.CapGoKernels, "kernels in Go run on the runtime host")
	switch {
	case concurrent == 0:
		c.Missing(driver.CapResident, "the device runs one kernel at a time")
	case !c.Has(driver.CapSharedAtomics):
		c.Missing(driver.CapResident, "a persistent kernel does not see what the CPU does: "+
			c[driver.CapSharedAtomics].Why)
	default:
		c.Set(driver.CapResident)
	}
	offer(driver.CapAdopt, in.HostRegister, "the driver cannot pin memory that exists already on this device")
	offer(driver.CapPeer, peers == "", peers)
	offer(driver.CapIPC, d.Driver().Has(cuda.IPC) == nil && in.UnifiedAddressing,
		missing(d.Driver().Has(cuda.IPC), "the device shares no memory between processes"))
	offer(driver.CapDMABuf, d.Driver().Has(cuda.DMABuf) == nil && in.DMABuf,
		missing(d.Driver().Has(cuda.DMABuf),
			"the driver exports no dma-buf for this device: it takes NVIDIA's open kernel modules and Linux 5.12 "+
				"or later"))
	// Where the device does not order what network cards write, users of the context must flush it:
	// else kernels may see less than was written.
	f.FlushWrites = in.Ordering < cuda.OrderingOwner
	flushable := in.FlushByHost && d.Driver().Has(cuda.FlushWrites) == nil
	switch {
	case !in.GPUDirectRDMA:
		c.Missing(driver.CapGPUDirect,
			"the device or its driver has no GPUDirect RDMA: it takes a card for data centres or workstations")
	case f.FlushWrites && !flushable:
		f.FlushWrites = false
		c.Missing(driver.CapGPUDirect, missing(d.Driver().Has(cuda.FlushWrites),
			"the device does not order what network cards write, and the driver cannot flush it for the CPU"))
	default:
		c.Set(driver.CapGPUDirect)
	}
	f.FlushWrites = f.FlushWrites && in.GPUDirectRDMA
	offer(driver.CapAdoptAddress, in.UnifiedAddressing,
		"host and device have no addresses in common, so that the driver knows none of them")
	return f, nil
}

// missing is err's text, or that of a driver that has the functions.
func missing(err error, why string) string {
	if err != nil {
		return err.Error()
	}
	return why
}

// reaches is "" where d copies to and from all others directly, else why not.
func reaches(d *cuda.Device, all []*cuda.Device) (string, error) {
	if len(all) < 2 {
		return "there is one device only", nil
	}
	if err := d.Driver().Has(cuda.Peer); err != nil {
		return err.Error(), nil
	}
	for _, p := range all {
		if p.Ordinal() == d.Ordinal() {
			continue
		}
		ok, err := d.CanAccess(p)
		if err != nil {
			return "", err
		}
		if !ok {
			return fmt.Sprintf("device %d does not reach device %d: see nvidia-smi topo -p2p r, and IOMMU and ACS of "+
				"the bus", d.Ordinal(), p.Ordinal()), nil
		}
	}
	return "", nil
}

// node is the NUMA node of a device: the kernel's word, else the driver's, else -1.
func node(in cuda.Info) int {
	if b, err := os.ReadFile("/sys/bus/pci/devices/" + in.Bus + "/numa_node"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n >= 0 {
			return n
		}
	}
	return max(in.HostNUMANode, -1)
}
