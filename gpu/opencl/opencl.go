// Package opencl is the runtime of package gpu for OpenCL platforms. libOpenCL.so.1 is found at run
// time; where it or a platform is missing, Open says what to install.
//
// Programs are built from their OpenCL C as it is. DeviceMemory is a buffer of OpenCL, PinnedMemory
// one that the host has mapped as long as it lives, MappedMemory and SharedMemory are shared
// virtual memory, where the device has it in its fine-grained form. OpenCL gives no addresses of
// buffers, so that the offset of a span that a kernel gets must fit Info.ArgAlign, or be an
// argument of its own.
//
// A stream is a queue in order with profiling. A gpu.Context has an OpenCL context of its own,
// which is why there are no copies between two.
package opencl

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/internal/ocl"
)

// Options change what the runtime offers. The zero value is right for most.
type Options struct {
	Library  string // the library's file; "" means libOpenCL.so.1, as the loader finds it
	Platform string // only platforms whose name has this in it
	NoSVM    bool   // does without shared virtual memory, as if no device had it
}

// Open loads the library and finds the devices: GPUs and accelerators before CPUs, otherwise in the
// order of the platforms. The caller closes it. Errors wrap gpu.ErrUnavailable where there is no
// library, platform or device.
func Open(o Options) (*gpu.Runtime, error) {
	l, err := ocl.Load(o.Library)
	if err != nil {
		return nil, unavailable(err)
	}
	r := &openclRuntime{l: l}
	if err := r.find(o); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return gpu.New(r)
}

func unavailable(err error) error {
	return fmt.Errorf("gpu/opencl: %w: %w", gpu.ErrUnavailable, err)
}

type openclRuntime struct {
	l       *ocl.Library
	version string
	devices []driver.Device
}

func (r *openclRuntime) Name() string             { return "opencl" }
func (r *openclRuntime) Version() string          { return r.version }
func (r *openclRuntime) Devices() []driver.Device { return r.devices }
func (r *openclRuntime) Close() error             { return r.l.Close() }

// find describes the devices.
func (r *openclRuntime) find(o Options) error {
	platforms, err := r.l.Platforms()
	if err != nil {
		if errors.Is(err, ocl.ErrUnavailable) {
			return unavailable(err)
		}
		return fmt.Errorf("gpu/opencl: %w", wrap(err, "list platforms"))
	}
	var first, last []*device
	var seen, skipped []string
	for _, p := range platforms {
		name, err := r.l.PlatformText(p, ocl.PlatformName)
		if err != nil {
			return fmt.Errorf("gpu/opencl: %w", wrap(err, "name a platform"))
		}
		seen = append(seen, name)
		if !strings.Contains(name, o.Platform) {
			continue
		}
		ids, err := r.l.Devices(p)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("platform %s: %v", name, err))
			continue
		}
		for _, id := range ids {
			d := &device{r: r, id: id, svm: !o.NoSVM && r.l.HasSVM()}
			if err := d.describe(); err != nil {
				skipped = append(skipped, fmt.Sprintf("platform %s: %v", name, err))
				continue
			}
			if r.version == "" {
				r.version, _ = r.l.PlatformText(p, ocl.PlatformVersion)
			}
			if d.kind&ocl.TypeCPU == 0 {
				first = append(first, d)
			} else {
				last = append(last, d)
			}
		}
	}
	for i, d := range append(first, last...) {
		d.info.Index = i
		r.devices = append(r.devices, d)
	}
	if len(r.devices) == 0 {
		return unavailable(fmt.Errorf("no device on platforms %q: %s; %s", seen,
			strings.Join(append(skipped, "none is usable"), "; "), ocl.Install))
	}
	return nil
}

// device is a device of a platform.
type device struct {
	r       *openclRuntime
	id      ocl.Device
	kind    uint64 // ocl.TypeCPU ...
	version float64
	svm     bool // shared virtual memory, fine-grained
	atomics bool // on it
	info    driver.Info
	used    atomic.Uint64 // bytes allocated by all contexts
}

func (d *device) Info() driver.Info { return d.info }

// describe asks the device what it is.
func (d *device) describe() error {
	var errs []error
	word := func(p ocl.Param) uint64 {
		n, err := d.r.l.DeviceWord(d.id, p)
		if err != nil {
			errs = append(errs, err)
		}
		return n
	}
	text := func(p ocl.Param) string {
		s, err := d.r.l.DeviceText(d.id, p)
		if err != nil {
			errs = append(errs, err)
		}
		return s
	}
	version := text(ocl.DeviceVersion) // "OpenCL 3.0 ..."
	d.kind = word(ocl.DeviceType)
	align := max(word(ocl.DeviceBaseAlign)/8, 1)
	d.info = driver.Info{
		Runtime: "opencl", Name: text(ocl.DeviceName), Driver: text(ocl.DriverVersion), NUMANode: -1,
		Processor: d.kind&ocl.TypeCPU != 0,
		Memory:    word(ocl.DeviceMemory), MaxAlloc: word(ocl.DeviceMaxAlloc), Align: align, ArgAlign: align,
		Units:    int(word(ocl.DeviceUnits)),
		MaxGroup: uint32(min(word(ocl.DeviceMaxGroup), math.MaxInt32)), MaxGroups: math.MaxInt32,
	}
	if word(ocl.DeviceAvailable) == 0 {
		errs = append(errs, errors.New("the device is not available"))
	}
	if word(ocl.DeviceLittleEndian) == 0 {
		errs = append(errs, errors.New("the device is big-endian, which no kernel of ours is made for"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("device %q: %w", d.info.Name, err)
	}
	d.info.MaxAlloc = min(d.info.MaxAlloc, d.info.Memory)
	number, _, _ := strings.Cut(strings.TrimPrefix(version, "OpenCL "), " ")
	d.version, _ = strconv.ParseFloat(number, 64)
	d.info.Arch = "opencl " + number
	d.info.Bus = d.bus()
	if d.info.Bus != "" {
		d.info.NUMANode = numaNode(d.info.Bus)
	}
	d.capabilities(word(ocl.DeviceCompilerAvailable) != 0)
	return nil
}

func (d *device) capabilities(compiler bool) {
	c := &d.info.Capabilities
	c.Set(driver.CapElapsed)
	var svm uint64
	why := "shared virtual memory is switched off or not known to the OpenCL loader"
	if d.svm {
		why = "the device has no fine-grained shared virtual memory (OpenCL 2.0)"
		svm, _ = d.r.l.DeviceWord(d.id, ocl.DeviceSVM) // an error where the device is older
	}
	d.svm = svm&ocl.SVMFine != 0
	d.atomics = d.svm && svm&ocl.SVMAtomics != 0
	if d.svm {
		c.Set(driver.CapMapped, driver.CapShared)
	} else {
		c.Missing(driver.CapMapped, why)
		c.Missing(driver.CapShared, why)
	}
	switch {
	case !d.svm:
		c.Missing(driver.CapSharedAtomics, why)
	case !d.atomics || d.version < 3:
		c.Missing(driver.CapSharedAtomics,
			"the device has no atomics on shared virtual memory, or its OpenCL C is older than 3.0")
	default:
		c.Set(driver.CapSharedAtomics)
	}
	switch {
	case d.kind&ocl.TypeCPU == 0 || d.info.Units < 2:
		c.Missing(driver.CapResident,
			"OpenCL does not promise that two queues go on side by side; CPUs with two cores do")
	case !c.Has(driver.CapSharedAtomics):
		c.Missing(driver.CapResident, "a persistent kernel does not see what the CPU does: "+
			c[driver.CapSharedAtomics].Why)
	default:
		c.Set(driver.CapResident)
	}
	if svm&ocl.SVMSystem != 0 && d.svm {
		c.Set(driver.CapAdopt)
	} else {
		c.Missing(driver.CapAdopt,
			"the device has no fine-grained system memory: OpenCL registers no memory of others for it")
	}
	if compiler {
		c.Set(driver.CapSource)
	} else {
		c.Missing(driver.CapSource, "the platform has no compiler")
	}
	c.Missing(driver.CapDeviceBytes, "OpenCL maps buffers for a while only: use PinnedMemory, MappedMemory or copies")
	c.Missing(driver.CapAddresses, "OpenCL gives buffers no addresses")
	c.Missing(driver.CapPriorities, "the runtime does not use cl_khr_priority_hints")
	c.Missing(driver.CapPTX, "it builds OpenCL C: PTX needs the runtime cuda")
	c.Missing(driver.CapGoKernels, "it builds OpenCL C: kernels in Go need the runtime host")
	c.Missing(driver.CapPeer, "each context has an OpenCL context of its own, and there are no copies between two: "+
		"copy by way of the host")
	c.Missing(driver.CapIPC, "OpenCL shares no memory with other processes")
	c.Missing(driver.CapDMABuf, "OpenCL exports no memory as dma-buf")
	c.Missing(driver.CapGPUDirect, "OpenCL exports no memory to network cards")
	c.Missing(driver.CapAdoptAddress, "buffers of OpenCL have no addresses")
}

// bus is the PCI address of the device, "" where it does not say.
func (d *device) bus() string {
	if b, err := d.r.l.DeviceBytes(d.id, ocl.DevicePCIKHR); err == nil && len(b) == 16 {
		return fmt.Sprintf("%02x%02x:%02x:%02x.%x", b[1], b[0], b[4], b[8], b[12]&7)
	}
	bus, err := d.r.l.DeviceWord(d.id, ocl.DevicePCIBusNV)
	if err != nil {
		return ""
	}
	slot, err := d.r.l.DeviceWord(d.id, ocl.DevicePCISlotNV)
	if err != nil {
		return ""
	}
	domain, _ := d.r.l.DeviceWord(d.id, ocl.DevicePCIDomainNV) // older drivers do not know it: 0
	return fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus&0xff, slot>>3&0x1f, slot&7)
}

// numaNode is the node of a PCI device, -1 where it is not known.
func numaNode(bus string) int {
	b, err := os.ReadFile("/sys/bus/pci/devices/" + bus + "/numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return max(n, -1)
}

// lost says that an error of a queue means that the device is gone, not that it is full.
func lost(err error, op string) error {
	if err == nil {
		return nil
	}
	var e *ocl.Error
	if errors.As(err, &e) && (e.Code == ocl.OutOfResources || e.Code == ocl.FailedEventInList ||
		e.Code == ocl.InvalidQueue || e.Op == "the command of an event") {
		return &driver.Error{Kind: driver.ErrDeviceLost, Op: e.Op, Code: e.Code, Name: e.Name(), Text: op,
			Hint: "a kernel touched memory that is not its own, or the device was reset: open a new context"}
	}
	return wrap(err, op)
}

// wrap gives an error of the library its type.
func wrap(err error, op string) error {
	if err == nil {
		return nil
	}
	var e *ocl.Error
	if !errors.As(err, &e) {
		return err
	}
	w := &driver.Error{Kind: driver.ErrDriver, Op: e.Op, Code: e.Code, Name: e.Name(), Text: op}
	switch e.Code {
	case ocl.DeviceNotAvailable:
		w.Kind = driver.ErrDeviceLost
	case ocl.AllocationFailure, ocl.OutOfResources, ocl.OutOfHostMemory, ocl.InvalidBufferSize:
		w.Kind, w.Hint = driver.ErrOutOfMemory, "close what is not needed, or ask for less"
	case ocl.CompilerMissing:
		w.Kind, w.Hint = driver.ErrUnsupported, "install a platform with a compiler"
	}
	return w
}
