package ibv

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/sys"
)

// DeviceAttr is what a device can do. Limits are those of the device; the memory of the machine may
// set lower ones.
type DeviceAttr struct {
	Ports                       int
	MaxQPWR, MaxSGE, MaxCQE     int
	MaxSRQ, MaxSRQWR, MaxSRQSGE int
	MaxRdAtomic                 int // reads and atomics from a peer that a queue pair serves at once (MaxDestRdAtomic)
	MaxInitRdAtomic             int // reads and atomics to a peer that a queue pair has open at once (MaxRdAtomic)
	Atomics                     AtomicCap
	WindowType2B                bool
	XRC                         bool
	RawPacket                   bool   // raw packet queue pairs, as far as the device tells
	RawChecksum                 bool   // raw packet queue pairs check and write checksums of IP, TCP and UDP
	Extended                    bool   // the device reports the following; otherwise they are zero
	TimestampMask               uint64 // of completion timestamps; 0: none
	ClockKHz                    uint64 // of the device's clock
	DMABuf                      error  // nil: dma-bufs can be registered; otherwise why not
}

// AtomicCap says among whom atomics are atomic.
type AtomicCap uint32

// The capabilities of atomics.
const (
	AtomicNone   AtomicCap = 0
	AtomicHCA    AtomicCap = 1 // among requests of this device
	AtomicGlobal AtomicCap = 2 // among everything that uses the memory
)

func (a AtomicCap) String() string {
	switch a {
	case AtomicNone:
		return "none"
	case AtomicHCA:
		return "within the device"
	case AtomicGlobal:
		return "global"
	}
	return fmt.Sprintf("atomic capability %d", uint32(a))
}

// Bits of device_cap_flags.
const (
	capXRC         = 1 << 20
	capWindow2B    = 1 << 24
	capRawChecksum = 1 << 26
	rawCapChecksum = 1 << 2 // of raw_packet_caps
)

// Attr is what the device can do. It is asked once; DMABuf is found by an attempt that registers
// nothing.
func (c *Context) Attr() (DeviceAttr, error) {
	if err := c.usable("query_device"); err != nil {
		return DeviceAttr{}, err
	}
	c.attrMu.Lock()
	defer c.attrMu.Unlock()
	if c.attr != nil {
		return *c.attr, nil
	}
	a, err := c.queryAttr()
	if err != nil {
		return DeviceAttr{}, err
	}
	c.attr = &a
	return a, nil
}

func (c *Context) queryAttr() (DeviceAttr, error) {
	t, err := newTemp[cDeviceAttrEx]()
	if err != nil {
		return DeviceAttr{}, err
	}
	defer t.free()
	extended := false
	if f := c.x.queryDeviceExFn(); f != 0 {
		errno := result(f.CallErrno(c.h, 0, t.p(), sizeOf[cDeviceAttrEx]()))
		switch errno {
		case 0:
			extended = true
		case sys.EOPNOTSUPP, sys.ENOSYS:
		default:
			return DeviceAttr{}, failed("query_device_ex", c.name, errno)
		}
	}
	if !extended { // the plain attributes are the first field of the extended ones
		if err := c.returned("query_device", c.name, c.lib.f.queryDevice, c.h, t.p()); err != nil {
			return DeviceAttr{}, err
		}
	}
	a := deviceAttr(t.v, extended)
	a.DMABuf, err = c.probeDMABuf()
	return a, err
}

func deviceAttr(x *cDeviceAttrEx, extended bool) DeviceAttr {
	o := &x.orig
	a := DeviceAttr{Ports: int(o.ports), MaxQPWR: int(o.maxQPWR), MaxSGE: int(o.maxSGE), MaxCQE: int(o.maxCQE),
		MaxSRQ: int(o.maxSRQ), MaxSRQWR: int(o.maxSRQWR), MaxSRQSGE: int(o.maxSRQSGE),
		MaxRdAtomic: int(o.maxQPRdAtomic), MaxInitRdAtomic: int(o.maxQPInitRdAtomic),
		Atomics: AtomicCap(o.atomics), WindowType2B: o.flags&capWindow2B != 0, XRC: o.flags&capXRC != 0,
		RawPacket:   o.maxRawPacketQP > 0,
		RawChecksum: o.flags&capRawChecksum != 0}
	if !extended {
		return a
	}
	a.Extended = true
	a.TimestampMask, a.ClockKHz = x.timestampMask, x.coreClock
	a.RawPacket = a.RawPacket || x.raw != 0
	a.RawChecksum = a.RawChecksum || x.raw&rawCapChecksum != 0
	if x.portsEx != 0 {
		a.Ports = int(x.portsEx)
	}
	return a
}

// probeDMABuf asks for a region over a descriptor that is none. A driver that registers dma-bufs
// looks at the descriptor first. The second error is of the attempt itself.
func (c *Context) probeDMABuf() (answer, err error) {
	if c.lib.f.regDMABufMR == 0 {
		return unsupported("reg_dmabuf_mr", c.name,
			"libibverbs is older than 34: it needs rdma-core 34 and Linux 5.12"), nil
	}
	if c.probe != nil { // an attempt before could not end
		err = c.probe.Close()
	}
	if err == nil {
		c.probe, err = c.AllocPD()
	}
	if err != nil {
		return nil, err
	}
	mr, e := made("reg_dmabuf_mr", c.name, c.lib.f.regDMABufMR, c.probe.h, 0, uintptr(sys.PageSize), 0, ^uintptr(0), 0)
	switch {
	case e == nil:
		err = c.returned("dereg_mr", c.name, c.lib.f.deregMR, mr)
	case e.Errno == sys.EBADF:
	case e.Errno == sys.EOPNOTSUPP || e.Errno == sys.ENOSYS:
		e.Kind, e.Hint = ErrUnsupported, noDMABufs
		answer = e
	default:
		answer = e
	}
	return answer, errors.Join(err, c.probe.Close()) // what does not close now is tried again with the device
}

// MTU is the largest payload of a packet, as the constants of the specification.
type MTU uint32

// The values of MTU.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes is the payload in bytes, 0 for an unknown value.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// MTUOf is the largest MTU that is not above n bytes; 0 where n is below 256.
func MTUOf(n int) MTU {
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes() <= n {
			return m
		}
	}
	return 0
}

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// PortState is the logical state of a port.
type PortState uint32

// The states.
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	return oneOf(uint32(s), "no change", "down", "initializing", "armed", "active", "active, deferred")
}

// LinkLayer is what a port is a port of.
type LinkLayer uint8

// The link layers. A port of Ethernet speaks RoCE (or iWARP), and has no LIDs.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string {
	return oneOf(uint32(l), "unspecified", "InfiniBand", "Ethernet")
}

// PortAttr is the state of one port.
type PortAttr struct {
	Port              int
	State             PortState
	MaxMTU, ActiveMTU MTU
	Link              LinkLayer
	Width             int // lanes
	// bits per second of all lanes together, as they are marketed (an EDR lane is 25 Gb/s); 0:
	// unknown
	Speed      uint64
	MaxMessage uint64 // bytes
	LID        uint16 // InfiniBand only
	GIDs       int    // size of the table
}

// Port asks for the state of a port, which are counted from 1.
func (c *Context) Port(n int) (PortAttr, error) {
	if err := c.usable("query_port"); err != nil {
		return PortAttr{}, err
	}
	if n < 1 || n > 255 {
		return PortAttr{}, invalid("query_port", c.name, "port %d: ports are counted from 1", n)
	}
	t, err := newTemp[cPortAttr]()
	if err != nil {
		return PortAttr{}, err
	}
	defer t.free()
	if f := c.x.queryPortFn(); f != 0 {
		err = c.returned("query_port", c.name, f, c.h, uintptr(n), t.p(), sizeOf[cPortAttr]())
	} else {
		err = c.returned("query_port", c.name, c.lib.f.queryPort, c.h, uintptr(n), t.p())
	}
	if err != nil {
		e := err.(*Error)
		if e.Errno == sys.EINVAL {
			e.Hint = fmt.Sprintf("the device may have no port %d", n)
		}
		return PortAttr{}, e
	}
	return portAttr(n, t.v), nil
}

func portAttr(n int, p *cPortAttr) PortAttr {
	a := PortAttr{Port: n, State: PortState(p.state), MaxMTU: MTU(p.maxMTU), ActiveMTU: MTU(p.activeMTU),
		Link:       LinkLayer(p.link),
		MaxMessage: uint64(p.maxMessage), LID: p.lid, GIDs: int(p.gids)}
	a.Width = map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[p.width]
	// Mb/s
	lane := map[uint8]uint64{1: 2_500, 2: 5_000, 4: 10_000, 8: 10_000, 16: 14_000, 32: 25_000, 64: 50_000,
		128: 100_000}[p.speed]
	a.Speed = lane * 1_000_000 * uint64(a.Width)
	return a
}

func oneOf(v uint32, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("unknown (%d)", v)
}
