package prog

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
)

// Mode says where the program runs.
type Mode uint8

// The modes.
const (
	Auto    Mode = iota // Native where the driver has it, else Generic
	Native              // in the driver, before the kernel makes a packet of its own of the frame
	Generic             // in the kernel behind the driver, on any interface; slower
)

func (m Mode) String() string {
	switch m {
	case Auto:
		return "auto"
	case Native:
		return "native"
	case Generic:
		return "generic"
	}
	return "unknown"
}

// Attach puts the program on the interface of its Spec, in the network namespace of the calling
// thread. Another program that is there stays, and the error is an OccupiedError then.
func (p *Program) Attach(mode Mode) error {
	p.change.Lock()
	defer p.change.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.put(mode)
	if err != nil {
		return err
	}
	if l, err := device(p.spec.Interface); err == nil {
		p.strips = strips(l.Name)
	}
	return nil
}

func (p *Program) put(mode Mode) error {
	switch {
	case p.closed:
		return ErrClosed
	case p.link != nil:
		return fmt.Errorf("prog: %w: the program is attached already", ErrSpec)
	case mode > Generic:
		return fmt.Errorf("prog: %w: mode %d: expected Auto, Native or Generic", ErrSpec, mode)
	}
	if mode != Generic {
		l, err := p.attach(link.XDPDriverMode)
		if err == nil {
			p.link, p.mode, p.why = l, Native, ""
			return nil
		}
		if mode == Native || errors.Is(err, ErrOccupied) || errors.Is(err, ErrPermission) {
			return err
		}
		p.why = err.Error()
	}
	if p.hints != (hints{}) {
		if err := p.unbind(); err != nil {
			return err
		}
	}
	l, err := p.attach(link.XDPGenericMode)
	if err != nil {
		return err
	}
	p.link, p.mode = l, Generic
	return nil
}

// unbind puts a program without hints into the place of one that generic mode does not take.
func (p *Program) unbind() error {
	p.hints = hints{}
	next, err := p.load(p.now.rules, p.now.rest)
	if err != nil {
		return err
	}
	p.now.close()
	p.now = next
	p.counters.keep(next.rules, next.slots)
	p.counters.reclaim() // no program has counted yet
	p.note("no hash and time of the NIC: generic mode has none")
	return nil
}

// A link outlives its owner's Close for a moment, while a process that lists all links (bpftool, or
// another Program that looks for the occupant of its interface), or a child between fork and exec,
// has a descriptor of it. No event says when the last of them closes it: attach tries again, so
// many times, with pauses that begin with a millisecond and double.
const attachAgain = 8

func (p *Program) attach(flag link.XDPAttachFlags) (l link.Link, err error) {
	for try := 0; ; try++ {
		if l, err = link.AttachXDP(link.XDPOptions{Program: p.now.program, Interface: p.spec.Interface,
			Flags: flag}); err == nil {
			return l, nil
		}
		if !taken(err) || try == attachAgain {
			break
		}
		<-time.After(time.Millisecond << try)
	}
	if taken(err) {
		if o := p.occupied(err); o != nil {
			return nil, o
		}
	}
	what := fmt.Sprintf("attach the XDP program to %s", p.name())
	if _, e := device(p.spec.Interface); errors.Is(e, ErrInterface) {
		err = errors.Join(err, sys.ENODEV) // the kernel says that something is invalid
	}
	err = explain(what, err)
	var k *kernelError
	if flag == link.XDPDriverMode && errors.As(err, &k) && !errors.Is(err, ErrPermission) &&
		!errors.Is(err, ErrInterface) {
		k.declared(p.spec.Interface, p.spec.Frags)
	}
	return nil, err
}

// taken reports whether something is on the interface already.
func taken(err error) bool { return errors.Is(err, sys.EBUSY) || errors.Is(err, sys.EEXIST) }

// declared adds to an error about native mode what the driver says that it lacks.
func (e *kernelError) declared(ifindex int, frags bool) {
	x, err := ethtool.XDPOf(ifindex)
	if err != nil {
		return // the kernel cannot tell
	}
	want := ethtool.XDPBasic | ethtool.XDPRedirect
	if frags {
		want |= ethtool.XDPRxChunks
	}
	lacks := x.Lacks(want)
	switch {
	case lacks == "":
	case e.why == "":
		e.kind, e.why = ErrUnavailable, lacks
	default:
		e.why += ": " + lacks
	}
}

func (p *Program) name() string {
	if p.spec.Name != "" {
		return p.spec.Name
	}
	return fmt.Sprintf("interface %d", p.spec.Interface)
}

// Info is what is known of a program.
type Info struct {
	ID           uint32 // of the program in force, as bpftool shows it
	Attached     bool
	Mode         Mode   // Native or Generic, when attached
	Fallback     string // why not Native, when it was asked for with Auto
	Rules        int
	Instructions int      // of 8 bytes
	Tables       int      // bytes of kernel memory that the rules take
	Hash, Time   bool     // the driver is asked for them; whether it has them shows in each Meta
	Notes        []string // why something that was asked for is not there, a line each
}

// Info returns what is known of the program.
func (p *Program) Info() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := Info{Attached: p.link != nil, Mode: p.mode, Fallback: p.why, Hash: p.hints.hash != 0, Time: p.hints.time != 0,
		Notes: slices.Clone(p.notes)}
	if p.closed {
		return i
	}
	if p.strips && p.now.vlans {
		i.Notes = append(i.Notes, takenTags(p.name()))
	}
	i.Rules, i.Instructions, i.Tables = len(p.now.rules), p.now.size, p.now.tables
	if info, err := p.now.program.Info(); err == nil {
		if id, ok := info.ID(); ok {
			i.ID = uint32(id)
		}
	}
	return i
}
