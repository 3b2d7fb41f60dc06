package nvml

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/dl"
)

// Device is a card. It is good until the library is closed.
type Device struct {
	l *Library
	h uintptr
}

// Device finds a card by its PCI address, as sysfs writes it: 0000:3b:00.0.
func (l *Library) Device(bus string) (*Device, error) {
	if strings.ContainsRune(bus, 0) || bus == "" {
		return nil, fmt.Errorf("nvml: PCI address %q: expected the form 0000:3b:00.0", bus)
	}
	b, err := dl.Alloc(8 + len(bus) + 1)
	if err != nil {
		return nil, err
	}
	defer dl.Free(b)
	copy(b[8:], bus)
	if err := l.check(fnByBus, l.fn[fnByBus].Call2(dl.Address(b[8:]), dl.Address(b))); err != nil {
		return nil, fmt.Errorf("%w: PCI address %s", err, bus)
	}
	return &Device{l, *dl.At[uintptr](dl.Address(b))}, nil
}

// Status is what a card says of itself now. A field that is a pointer is nil where the card, its
// driver or this user's rights do not tell it.
type Status struct {
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	Bus         string `json:"bus"`          // as sysfs writes it
	MemoryTotal uint64 `json:"memory_total"` // bytes
	MemoryFree  uint64 `json:"memory_free"`  // bytes
	// bytes of the window through which the CPU and other cards reach the memory
	BAR1Total   *uint64  `json:"bar1_total,omitempty"`
	BAR1Free    *uint64  `json:"bar1_free,omitempty"`    // bytes
	SMClock     *int     `json:"sm_clock,omitempty"`     // MHz, now
	MemoryClock *int     `json:"memory_clock,omitempty"` // MHz, now
	MaxSMClock  *int     `json:"max_sm_clock,omitempty"` // MHz
	Temperature *int     `json:"temperature,omitempty"`  // °C
	Power       *float64 `json:"power,omitempty"`        // W
	// why clocks are low: nil where they are not, or it is not known
	Throttle    []string `json:"throttle,omitempty"`
	Persistence *bool    `json:"persistence,omitempty"` // the driver stays ready without users
	Link        *PCIe    `json:"link,omitempty"`        // now; idle cards lower it
	Max         *PCIe    `json:"max,omitempty"`         // what card and slot can do
	GPUUse      *int     `json:"gpu_use,omitempty"`     // percent of the last sample in which a kernel ran
	// percent of the last sample in which memory was read or written
	MemoryUse *int `json:"memory_use,omitempty"`
}

// PCIe is a link of PCI Express.
type PCIe struct {
	Generation int `json:"generation"` // 4: 16 GT/s
	Lanes      int `json:"lanes"`
}

// pciInfo is nvmlPciInfo_t.
type pciInfo struct {
	_                   [16]byte // the address in an old form
	domain, bus, device uint32
	_, _                uint32   // identifiers of device and subsystem
	_                   [32]byte // the address as text
}

// memoryInfo is nvmlMemory_t and nvmlBAR1Memory_t.
type memoryInfo struct{ total, free, _ uint64 }

// utilization is nvmlUtilization_t.
type utilization struct{ gpu, memory uint32 }

// Values of the library's enumerations: nvmlClockType_t, nvmlTemperatureSensors_t.
const (
	clockSM        = 1
	clockMemory    = 2
	temperatureGPU = 0
)

// throttles are the bits of nvmlClocksThrottleReasons, of which idleness is none.
var throttles = []struct {
	bit  uint64
	name string
}{
	{0x2, "application clocks are set"}, {0x4, "power cap"}, {0x8, "hardware slowdown"}, {0x10, "clocks in step with others"},
	{0x20, "heat (software)"}, {0x40, "heat (hardware)"}, {0x80, "power brake"}, {0x100, "display clocks"},
}

// ask calls a function that writes a T, behind leading arguments: f(device, leading..., T *). The
// value is nil where the card does not tell it.
func ask[T any](d *Device, f fn, leading ...uintptr) (*T, error) {
	if d.l.fn[f] == 0 {
		return nil, nil
	}
	b, err := dl.Alloc(256) // more than any structure here has
	if err != nil {
		return nil, err
	}
	defer dl.Free(b)
	args := append(append([]uintptr{d.h}, leading...), dl.Address(b))
	err = d.l.check(f, d.l.fn[f].Call(args...))
	var e *Error
	if errors.As(err, &e) && (e.Code == resultNotSupported || e.Code == resultNoPermission ||
		e.Code == resultFunctionNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	v := *dl.At[T](dl.Address(b))
	return &v, nil
}

// Status asks for everything in [Status]. It fails where the card does not answer at all.
func (d *Device) Status() (Status, error) {
	var s Status
	var err error
	keep := func(e error) { err = errors.Join(err, e) }
	number := func(f fn, leading ...uintptr) *int {
		v, e := ask[uint32](d, f, leading...)
		keep(e)
		if v == nil {
			return nil
		}
		n := int(*v)
		return &n
	}
	link := func(generation, width fn) *PCIe {
		g, w := number(generation), number(width)
		if g == nil || w == nil {
			return nil
		}
		return &PCIe{*g, *w}
	}
	var e error
	s.Name, e = d.l.text(fnName, 96, func(p uintptr) uintptr { return d.l.fn[fnName].Call3(d.h, p, 96) })
	keep(e)
	s.UUID, e = d.l.text(fnUUID, 96, func(p uintptr) uintptr { return d.l.fn[fnUUID].Call3(d.h, p, 96) })
	keep(e)
	pci, e := ask[pciInfo](d, fnPCI)
	keep(e)
	if pci != nil {
		s.Bus = fmt.Sprintf("%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device)
	}
	m, e := ask[memoryInfo](d, fnMemory)
	keep(e)
	if m != nil {
		s.MemoryTotal, s.MemoryFree = m.total, m.free
	}
	bar, e := ask[memoryInfo](d, fnBAR1)
	keep(e)
	if bar != nil {
		s.BAR1Total, s.BAR1Free = &bar.total, &bar.free
	}
	s.SMClock, s.MemoryClock, s.MaxSMClock = number(fnClock, clockSM), number(fnClock, clockMemory),
		number(fnMaxClock, clockSM)
	s.Temperature = number(fnTemperature, temperatureGPU)
	if mw := number(fnPower); mw != nil {
		w := float64(*mw) / 1000
		s.Power = &w
	}
	why, e := ask[uint64](d, fnThrottle)
	keep(e)
	if why != nil {
		for _, t := range throttles {
			if *why&t.bit != 0 {
				s.Throttle = append(s.Throttle, t.name)
			}
		}
	}
	if p := number(fnPersistence); p != nil {
		on := *p != 0
		s.Persistence = &on
	}
	s.Link, s.Max = link(fnLinkGeneration, fnLinkWidth), link(fnMaxGeneration, fnMaxWidth)
	use, e := ask[utilization](d, fnUtilization)
	keep(e)
	if use != nil {
		g, m := int(use.gpu), int(use.memory)
		s.GPUUse, s.MemoryUse = &g, &m
	}
	if err != nil {
		return Status{}, err
	}
	return s, nil
}
