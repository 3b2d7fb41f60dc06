package ocl

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"unsafe"
)

// Platforms lists the platforms of the machine. The error wraps ErrUnavailable where there is none.
func (l *Library) Platforms() ([]Platform, error) {
	var n uint32
	code := int32(l.fn[getPlatformIDs].Call3(0, 0, uintptr(unsafe.Pointer(&n))))
	if code == NoPlatform || code == 0 && n == 0 {
		return nil, fmt.Errorf("ocl: %w: the loader knows no platform (/etc/OpenCL/vendors); %s", ErrUnavailable,
			Install)
	}
	if err := getPlatformIDs.check(code); err != nil {
		return nil, err
	}
	ids := make([]Platform, n)
	code = int32(l.fn[getPlatformIDs].Call3(uintptr(n), uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&n))))
	return ids[:min(int(n), len(ids))], getPlatformIDs.check(code)
}

// Devices lists the devices of a platform: none is no error.
func (l *Library) Devices(p Platform) ([]Device, error) {
	const all = 0xffffffff
	var n uint32
	code := int32(l.fn[getDeviceIDs].Call5(uintptr(p), all, 0, 0, uintptr(unsafe.Pointer(&n))))
	if code == noDevice || code == 0 && n == 0 {
		return nil, nil
	}
	if err := getDeviceIDs.check(code); err != nil {
		return nil, err
	}
	ids := make([]Device, n)
	code = int32(l.fn[getDeviceIDs].Call5(uintptr(p), all, uintptr(n), uintptr(unsafe.Pointer(&ids[0])),
		uintptr(unsafe.Pointer(&n))))
	return ids[:min(int(n), len(ids))], getDeviceIDs.check(code)
}

// Param is the number of something that can be asked of a platform or a device.
type Param uintptr

// What is asked.
const (
	PlatformVersion Param = 0x0901
	PlatformName    Param = 0x0902

	DeviceType              Param = 0x1000 // Word
	DeviceUnits             Param = 0x1002
	DeviceMaxGroup          Param = 0x1004
	DeviceMaxAlloc          Param = 0x1010
	DeviceBaseAlign         Param = 0x1019 // bits
	DeviceMemory            Param = 0x101f
	DeviceLittleEndian      Param = 0x1026
	DeviceAvailable         Param = 0x1027
	DeviceCompilerAvailable Param = 0x1028
	DeviceName              Param = 0x102b
	DriverVersion           Param = 0x102d
	DeviceVersion           Param = 0x102f
	DeviceExtensions        Param = 0x1030
	DeviceSVM               Param = 0x1053
	DevicePCIKHR            Param = 0x410f // four words of 32 bits: domain, bus, device, function
	DevicePCIBusNV          Param = 0x4008
	DevicePCISlotNV         Param = 0x4009
	DevicePCIDomainNV       Param = 0x400a
)

// Bits of DeviceType and DeviceSVM.
const (
	TypeCPU         = 1 << 1
	TypeGPU         = 1 << 2
	TypeAccelerator = 1 << 3

	SVMCoarse  = 1 << 0
	SVMFine    = 1 << 1
	SVMSystem  = 1 << 2
	SVMAtomics = 1 << 3
)

// maxInfo is the size at which an answer is refused, in bytes.
const maxInfo = 1 << 20

// info asks for something of any size.
func (l *Library) info(f fn, object uintptr, p Param) ([]byte, error) {
	var n uintptr
	if err := f.check(int32(l.fn[f].Call5(object, uintptr(p), 0, 0, uintptr(unsafe.Pointer(&n))))); err != nil {
		return nil, err
	}
	if n > maxInfo {
		return nil, fmt.Errorf("ocl: %s: an answer of %d bytes to %#x", names[f], n, uintptr(p))
	}
	b := make([]byte, n+8)
	if n == 0 {
		return nil, nil
	}
	err := f.check(int32(l.fn[f].Call5(object, uintptr(p), n, uintptr(unsafe.Pointer(&b[0])), 0)))
	return b[:n], err
}

func text(b []byte, err error) (string, error) {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.TrimSpace(s), err
}

// word is a number of 1 to 8 bytes, or the first 8 of more.
func word(b []byte, err error) (uint64, error) {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:]), err
}

// PlatformText is something that a platform says of itself.
func (l *Library) PlatformText(p Platform, what Param) (string, error) {
	return text(l.info(getPlatformInfo, uintptr(p), what))
}

// DeviceText is something that a device says of itself.
func (l *Library) DeviceText(d Device, what Param) (string, error) {
	return text(l.info(getDeviceInfo, uintptr(d), what))
}

// DeviceWord is a number that a device says of itself.
func (l *Library) DeviceWord(d Device, what Param) (uint64, error) {
	return word(l.info(getDeviceInfo, uintptr(d), what))
}

// DeviceBytes is something else that a device says of itself.
func (l *Library) DeviceBytes(d Device, what Param) ([]byte, error) {
	return l.info(getDeviceInfo, uintptr(d), what)
}

// BuildLog is what the compiler said of a program.
func (l *Library) BuildLog(p Program, d Device) string {
	const log = 0x1183
	var n uintptr
	if int32(l.fn[getBuildInfo].Call6(uintptr(p), uintptr(d), log, 0, 0, uintptr(unsafe.Pointer(&n)))) != 0 || n == 0 ||
		n > maxInfo {
		return ""
	}
	b := make([]byte, n)
	if int32(l.fn[getBuildInfo].Call6(uintptr(p), uintptr(d), log, n, uintptr(unsafe.Pointer(&b[0])), 0)) != 0 {
		return ""
	}
	s, _ := text(b, nil)
	return s
}

// KernelArgs is the number of arguments of a kernel.
func (l *Library) KernelArgs(k Kernel) (int, error) {
	const numArgs = 0x1191
	n, err := word(l.info(getKernelInfo, uintptr(k), numArgs))
	return int(uint32(n)), err
}

// KernelMaxGroup is the largest group that the kernel can run with on the device.
func (l *Library) KernelMaxGroup(k Kernel, d Device) (uint64, error) {
	const groupSize = 0x11b0
	var n uint64
	code := int32(l.fn[getKernelGroupInfo].Call6(uintptr(k), uintptr(d), groupSize, 8, uintptr(unsafe.Pointer(&n)), 0))
	return n, getKernelGroupInfo.check(code)
}

// words is what short calls point at. They come from a pool, so that a wait allocates nothing.
type words struct {
	event  Event
	status int32
	number uint64
}

var pool = sync.Pool{New: func() any { return new(words) }}

// Done reports whether the command of the event has ended. A command that failed is an error.
func (l *Library) Done(e Event) (bool, error) {
	const status = 0x11d3
	w := pool.Get().(*words)
	defer pool.Put(w)
	if err := getEventInfo.check(int32(l.fn[getEventInfo].Call5(uintptr(e), status, 4,
		uintptr(unsafe.Pointer(&w.status)), 0))); err != nil {
		return false, err
	}
	if w.status < 0 {
		return false, &Error{"the command of an event", int(w.status)}
	}
	return w.status == 0, nil
}

// Wait waits for the command of an event. A command that failed is an error.
func (l *Library) Wait(e Event) error {
	w := pool.Get().(*words)
	defer pool.Put(w)
	w.event = e
	return waitForEvents.check(int32(l.fn[waitForEvents].Call2(1, uintptr(unsafe.Pointer(&w.event)))))
}

// End is the time in nanoseconds, on the device's clock, at which the command of the event ended.
// Its queue has profiling.
func (l *Library) End(e Event) (uint64, error) {
	const end = 0x1283
	w := pool.Get().(*words)
	defer pool.Put(w)
	code := int32(l.fn[getProfilingInfo].Call5(uintptr(e), end, 8, uintptr(unsafe.Pointer(&w.number)), 0))
	return w.number, getProfilingInfo.check(code)
}
