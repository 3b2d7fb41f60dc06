package xdp

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/internal/xsk"
)

// Attach says where in the kernel the XDP program runs.
type Attach = prog.Mode

// The ways to attach.
const (
	AttachAuto    = prog.Auto    // native where the driver can, else generic
	AttachNative  = prog.Native  // in the driver, or an error
	AttachGeneric = prog.Generic // in the kernel's receive path, for any interface; slower
)

// Bind says how packets get between the interface and the chunks.
type Bind = xsk.Mode

// The ways to bind.
const (
	BindAuto     = xsk.Auto     // zero-copy where the driver has it, else copy
	BindZeroCopy = xsk.ZeroCopy // or an error
	BindCopy     = xsk.Copy     // the kernel copies each packet once
)

// Options are the options of a port, given as engine.PortSpec.Options. The zero value is right for
// most.
type Options struct {
	// Queues are the queues of the interface that the port uses, nil for all its receive queues.
	// Packets that come on another one are left to the kernel.
	Queues []int
	Attach Attach
	Bind   Bind
	// Memory is memory that several ports share, so that packets are forwarded between them without
	// a copy; see NewMemory. nil: the port makes its own around the memory of its first queue.
	Memory *Memory
	// Ring is the number of entries of the fill and the completion ring of each queue of the
	// interface, a power of two; 0 for 2048. No receive queue may have a greater Depth.
	Ring int
	// Spare is the number of chunks of the port's own, through which packets go that are not in the
	// port's memory; 0 for 2048. With less than 0 there are none, and all queues must use the
	// port's memory. Unused with Memory.
	Spare int
	// BusyPoll makes TryRecv and Send do the card's work in their own thread for up to this long
	// (SO_BUSY_POLL), BusyBudget packets at once at most; 0 leaves that to interrupts.
	BusyPoll   time.Duration
	BusyBudget int
	// NoChains says that no packet takes more than one chunk: some drivers have zero-copy only
	// then. The MTU must allow it.
	NoChains bool
	// HardwareTime asks the NIC for the time at which it received each packet, for receive queues
	// with RxSpec.HardwareTime. The program is bound to the interface then, and runs in native mode
	// only.
	HardwareTime bool
	// LeaveCard changes nothing on the card itself. Otherwise the port gives it rules as n-tuple
	// rules, and sets its table of RSS where packets would miss the port's Queues; both end with
	// the port. See package card.
	LeaveCard bool
	// Wait is how long to wait for a queue of the interface that another process has, or had until
	// just now: the kernel frees it some time after its last socket is closed. 0 for 5 seconds.
	Wait time.Duration

	driver  func(name string) (driver, error) // of a test
	records string                            // where to note what is changed on the card; empty: card.DefaultDir
}

const (
	defaultRing  = 2048
	defaultSpare = 2048
	defaultWait  = 5 * time.Second
	maxRing      = 1 << 20
)

func (o *Options) complete() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("xdp: %s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	if o.Ring == 0 {
		o.Ring = defaultRing
	}
	if o.Spare == 0 {
		o.Spare = defaultSpare
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	o.Queues = slices.Clone(o.Queues)
	slices.Sort(o.Queues)
	switch {
	case o.Ring < 64 || o.Ring > maxRing || o.Ring&(o.Ring-1) != 0:
		return bad("rings of %d entries: expected a power of two from 64 to %d", o.Ring, maxRing)
	case o.Spare > 1<<20:
		return bad("%d spare chunks: expected at most %d", o.Spare, 1<<20)
	case o.Bind > BindCopy:
		return bad("bind %d: expected auto, zero-copy or copy", o.Bind)
	case len(slices.Compact(slices.Clone(o.Queues))) != len(o.Queues):
		return bad("queues %v: expected each once", o.Queues)
	case len(o.Queues) > 0 && o.Queues[0] < 0:
		return bad("queue %d: expected 0 or more", o.Queues[0])
	case o.BusyPoll < 0 || o.BusyPoll > time.Second || o.BusyBudget < 0 || o.BusyBudget > 1<<16-1:
		return bad("busy polling for %v, %d packets at once: expected 0 to 1s, and 0 to %d", o.BusyPoll, o.BusyBudget,
			1<<16-1)
	case o.Wait < 0:
		return bad("wait of %v: expected 0 or more", o.Wait)
	}
	return nil
}

func (o *Options) busyPoll() xsk.BusyPoll {
	if o.BusyPoll == 0 {
		return xsk.BusyPoll{}
	}
	return xsk.BusyPoll{Prefer: true, Microseconds: max(1, int(o.BusyPoll/time.Microsecond)), Budget: o.BusyBudget}
}
