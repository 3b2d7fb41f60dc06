package tune

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of this package; match them with errors.Is.
var (
	// ErrGoal: a goal that this interface or host cannot have.
	ErrGoal = errors.New("tune: the goal cannot be reached")
	// ErrInterface: there is no interface of this name.
	ErrInterface = errors.New("tune: no such interface")
	// ErrRights: something that a step needs is missing; nothing was changed.
	ErrRights = errors.New("tune: rights are missing")
	// ErrBusy: another Apply or Undo is at work.
	ErrBusy = errors.New("tune: another one is at work")
	// ErrNothing: there is nothing to undo.
	ErrNothing = errors.New("tune: there is nothing to undo")
	// ErrState: the record of what was changed cannot be written, read or trusted.
	ErrState = errors.New("tune: the record of changes")
	// ErrNotSo: a value was set without an error, and is another one when it is read.
	ErrNotSo = errors.New("tune: the setting has another value after it was set")
)

// Goals says what the caller wants. The zero value asks for what is right nearly always.
type Goals struct {
	Queues    int  // receive queues, each served by a socket and a core of its own; 0: as many as there are
	Ring      int  // descriptors of each receive and transmit ring; 0: at least 2048, if the device can have as many
	MTU       int  // bytes; 0: as it is
	HugePages Huge // memory to have free in huge pages; zero: none
	BusyPoll  bool // the application polls (SO_PREFER_BUSY_POLL): interrupts wait for it
	// RPS are the processors to which the kernel hands on what a receive queue gets, by flow; XPS
	// those that send, each by a queue of its own as far as there are queues. nil: as it is; empty
	// and not nil: none.
	RPS, XPS []int
	// Skip names steps to leave out: gro, irq ... The names are in Step.Name.
	Skip []string
}

// Huge is memory in huge pages.
type Huge struct {
	Bytes uint64
	Page  int // bytes of a page; 0: 2 MiB
}

// Names are the names of steps, for Goals.Skip, in the order in which they are done.
var Names = []string{"lro", "gro-hw", "gro", "mtu", "rss", "channels", "rings", "udp-hash", "ntuple", "adaptive-rx",
	"adaptive-tx", "defer-irqs", "flush-timeout",
	"irq", "rps", "xps", "hugepages", "xdp-program", "xdp-mode", "irqbalance", "memlock", "governor", "isolation"}

// Bounds of goals, beyond which a number is a slip of the keyboard.
const (
	mostQueues = 4096
	mostRing   = 1 << 20
	mostMTU    = 65535
	mostHuge   = 1 << 46
	mostCPU    = 1 << 14
)

func (g *Goals) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrGoal, fmt.Sprintf(format, args...))
	}
	switch {
	case g.Queues < 0 || g.Queues > mostQueues:
		return bad("%d queues: expected 1 to %d, or 0 for as many as there are", g.Queues, mostQueues)
	case g.Ring < 0 || g.Ring > mostRing:
		return bad("rings of %d descriptors: expected 1 to %d, or 0", g.Ring, mostRing)
	case g.MTU < 0 || g.MTU > mostMTU:
		return bad("MTU %d: expected 68 to %d, or 0 for what it is", g.MTU, mostMTU)
	case g.HugePages.Bytes > mostHuge:
		return bad("%d bytes in huge pages: expected at most %d", g.HugePages.Bytes, uint64(mostHuge))
	case g.HugePages.Page < 0 || g.HugePages.Page&(g.HugePages.Page-1) != 0:
		return bad("huge pages of %d bytes: expected a power of two, such as %d", g.HugePages.Page, 2<<20)
	}
	for name, l := range map[string][]int{"RPS": g.RPS, "XPS": g.XPS} {
		for _, c := range l {
			if c < 0 || c >= mostCPU {
				return bad("%s to processor %d: expected 0 to %d", name, c, mostCPU-1)
			}
		}
	}
	for _, s := range g.Skip {
		if !slices.Contains(Names, s) {
			return bad("no step is called %q: expected some of %s", s, strings.Join(Names, ", "))
		}
	}
	return nil
}
