package cuda

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/dl"
)

// Device is one card, or a part of one (MIG). Any goroutine may use it.
type Device struct {
	d       *Driver
	h       int32 // CUdevice
	ordinal int
}

// Ordinal is the device's number in this process.
func (d *Device) Ordinal() int { return d.ordinal }

// Driver is the driver that the device was found by.
func (d *Device) Driver() *Driver { return d.d }

// Attribute is a property of a device, as the manual numbers them (CUdevice_attribute).
type Attribute int32

// The attributes that Penstock asks for.
const (
	MaxThreadsPerBlock       Attribute = 1
	MaxGridX                 Attribute = 5
	WarpSize                 Attribute = 10
	Multiprocessors          Attribute = 16
	KernelTimeout            Attribute = 17 // the driver ends kernels that run long
	Integrated               Attribute = 18 // its memory is the machine's
	CanMapHostMemory         Attribute = 19
	ComputeMode              Attribute = 20 // 0 default, 2 prohibited, 3 one process
	ConcurrentKernels        Attribute = 31
	ECC                      Attribute = 32
	MemoryClockRate          Attribute = 36 // kHz
	MemoryBusWidth           Attribute = 37 // bits
	L2CacheSize              Attribute = 38 // bytes
	AsyncEngines             Attribute = 40 // copies that go on beside kernels: 1 one way, 2 both
	UnifiedAddressing        Attribute = 41
	ComputeMajor             Attribute = 75
	ComputeMinor             Attribute = 76
	StreamPriorities         Attribute = 78
	HostNativeAtomics        Attribute = 86
	PageableMemoryAccess     Attribute = 88
	CooperativeLaunch        Attribute = 95
	HostRegister             Attribute = 99
	VirtualMemoryManagement  Attribute = 102
	HandleDescriptor         Attribute = 103 // memory of cuMemCreate goes to other processes as a file descriptor
	GPUDirectRDMAWithVirtual Attribute = 110 // network cards reach memory of cuMemCreate too
	GPUDirectRDMA            Attribute = 116
	GPUDirectRDMAFlush       Attribute = 117 // bits: FlushByHost, FlushByStream
	GPUDirectRDMAOrdering    Attribute = 118 // an Ordering
	StreamValues64           Attribute = 122 // streams write and await words of 64 bits
	DMABufExport             Attribute = 124
	IPCEvents                Attribute = 125
	HostNUMANode             Attribute = 134 // of the host's memory nearest to the device; -1: unknown
)

// The ways to order writes that a network card made into a device's memory before work that reads
// them (bits of GPUDirectRDMAFlush).
const (
	FlushByHost   = 1 // [Context.FlushWrites]
	FlushByStream = 2 // an operation of a stream
)

// Ordering says for whom writes by network cards are in order without a flush.
type Ordering int32

// The orderings.
const (
	OrderingNone       Ordering = 0   // for no device: flush
	OrderingOwner      Ordering = 100 // for the device that has the memory
	OrderingAllDevices Ordering = 200
)

// String names the ordering.
func (o Ordering) String() string {
	switch o {
	case OrderingNone:
		return "none"
	case OrderingOwner:
		return "owner"
	case OrderingAllDevices:
		return "all devices"
	}
	return fmt.Sprintf("ordering %d", int32(o))
}

// Attribute is the value of an attribute. One that the driver is too old to know is 0, which means
// for each of them that it is not offered.
func (d *Device) Attribute(a Attribute) (int, error) {
	if err := d.d.alive(); err != nil {
		return 0, err
	}
	v, r := out[int32](d.d.fn[fnDeviceGetAttribute], uintptr(a), uintptr(d.h))
	if Result(int32(r)) == ErrorInvalidValue {
		return 0, nil
	}
	return int(v), about(check(fnDeviceGetAttribute, r), "attribute %d of device %d", a, d.ordinal)
}

// Info is what a device says of itself.
type Info struct {
	Name               string   `json:"name"`
	UUID               string   `json:"uuid"`   // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi -L shows it
	Bus                string   `json:"bus"`    // its PCI address in the form of sysfs: 0000:3b:00.0
	Memory             uint64   `json:"memory"` // bytes
	Major              int      `json:"major"`  // of the compute capability
	Minor              int      `json:"minor"`
	Multiprocessors    int      `json:"multiprocessors"`
	WarpSize           int      `json:"warp_size"`
	MaxThreadsPerBlock int      `json:"max_threads_per_block"`
	AsyncEngines       int      `json:"async_engines"`
	HostNUMANode       int      `json:"host_numa_node"` // -1: the driver does not say
	Integrated         bool     `json:"integrated"`
	ECC                bool     `json:"ecc"`
	UnifiedAddressing  bool     `json:"unified_addressing"`
	MapHostMemory      bool     `json:"map_host_memory"`
	HostRegister       bool     `json:"host_register"`
	VirtualMemory      bool     `json:"virtual_memory"`
	ShareDescriptor    bool     `json:"share_descriptor"`
	DMABuf             bool     `json:"dma_buf"`
	GPUDirectRDMA      bool     `json:"gpudirect_rdma"`
	GPUDirectVirtual   bool     `json:"gpudirect_virtual"`
	FlushByHost        bool     `json:"flush_by_host"`
	FlushByStream      bool     `json:"flush_by_stream"`
	Ordering           Ordering `json:"ordering"`
	CooperativeLaunch  bool     `json:"cooperative_launch"`
	HostNativeAtomics  bool     `json:"host_native_atomics"`
	PageableAccess     bool     `json:"pageable_access"`
	StreamPriorities   bool     `json:"stream_priorities"`
	// compute mode "prohibited": no process may have a context
	ComputeModeExcluded bool `json:"compute_mode_excluded"`
}

// Info asks for everything in [Info].
func (d *Device) Info() (Info, error) {
	if err := d.d.alive(); err != nil {
		return Info{}, err
	}
	var i Info
	var err error
	if i.Name, err = d.text(fnDeviceGetName, 256); err != nil {
		return Info{}, err
	}
	if i.Bus, err = d.text(fnDeviceGetPCIBusID, 32); err != nil {
		return Info{}, err
	}
	i.Bus = strings.ToLower(i.Bus)
	uuid, r := out[[16]byte](d.d.fn[fnDeviceGetUUID], uintptr(d.h))
	if err := check(fnDeviceGetUUID, r); err != nil {
		return Info{}, about(err, "device %d", d.ordinal)
	}
	i.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	i.Memory, r = out[uint64](d.d.fn[fnDeviceTotalMem], uintptr(d.h))
	if err := check(fnDeviceTotalMem, r); err != nil {
		return Info{}, about(err, "device %d", d.ordinal)
	}
	ask := func(a Attribute) int {
		v, e := d.Attribute(a)
		err = errors.Join(err, e)
		return v
	}
	has := func(a Attribute) bool { return ask(a) != 0 }
	i.Major, i.Minor = ask(ComputeMajor), ask(ComputeMinor)
	i.Multiprocessors, i.WarpSize, i.MaxThreadsPerBlock, i.AsyncEngines = ask(Multiprocessors), ask(WarpSize),
		ask(MaxThreadsPerBlock), ask(AsyncEngines)
	i.HostNUMANode = -1
	if d.d.version >= 12020 { // before, the attribute is unknown, and its 0 would be a node
		i.HostNUMANode = ask(HostNUMANode)
	}
	i.Integrated, i.ECC, i.UnifiedAddressing, i.MapHostMemory = has(Integrated), has(ECC), has(UnifiedAddressing),
		has(CanMapHostMemory)
	i.HostRegister, i.VirtualMemory, i.ShareDescriptor = has(HostRegister), has(VirtualMemoryManagement),
		has(HandleDescriptor)
	i.DMABuf, i.GPUDirectRDMA, i.GPUDirectVirtual = has(DMABufExport), has(GPUDirectRDMA), has(GPUDirectRDMAWithVirtual)
	flush := ask(GPUDirectRDMAFlush)
	i.FlushByHost, i.FlushByStream = flush&FlushByHost != 0, flush&FlushByStream != 0
	i.Ordering = Ordering(ask(GPUDirectRDMAOrdering))
	i.CooperativeLaunch, i.HostNativeAtomics = has(CooperativeLaunch), has(HostNativeAtomics)
	i.PageableAccess, i.StreamPriorities = has(PageableMemoryAccess), has(StreamPriorities)
	i.ComputeModeExcluded = ask(ComputeMode) == 2
	if err != nil {
		return Info{}, err
	}
	return i, nil
}

// text is what a function of the form f(char *, int, CUdevice) writes.
func (d *Device) text(op fn, room int) (string, error) {
	var l lent
	defer l.free()
	b, err := l.bytes(room)
	if err != nil {
		return "", err
	}
	if err := check(op, d.d.fn[op].Call3(dl.Address(b), uintptr(room), uintptr(d.h))); err != nil {
		return "", about(err, "device %d", d.ordinal)
	}
	b[room-1] = 0
	return dl.GoString(dl.Address(b)), nil
}

// CanAccess reports whether kernels and copies of d reach the memory of peer (see
// [Context.EnablePeer]).
func (d *Device) CanAccess(peer *Device) (bool, error) {
	if err := d.d.Has(Peer); err != nil {
		return false, err
	}
	v, r := out[int32](d.d.fn[fnDeviceCanAccessPeer], uintptr(d.h), uintptr(peer.h))
	return v != 0, about(check(fnDeviceCanAccessPeer, r), "device %d to device %d", d.ordinal, peer.ordinal)
}

// Link is how two devices reach each other.
type Link struct {
	Access  bool
	Rank    int // relative performance of the link, as the driver ranks them: lower is better
	Atomics bool
}

// Link asks how d reaches peer.
func (d *Device) Link(peer *Device) (Link, error) {
	if err := d.d.Has(Peer); err != nil {
		return Link{}, err
	}
	var v [3]int
	for i := range v {
		n, r := out[int32](d.d.fn[fnDeviceGetP2PAttribute], uintptr(i+1), uintptr(d.h), uintptr(peer.h))
		if err := check(fnDeviceGetP2PAttribute, r); err != nil {
			return Link{}, about(err, "device %d to device %d", d.ordinal, peer.ordinal)
		}
		v[i] = int(n)
	}
	return Link{Rank: v[0], Access: v[1] != 0, Atomics: v[2] != 0}, nil
}
