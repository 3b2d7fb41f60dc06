package prog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/flow"
)

// xdpHasFrags is BPF_F_XDP_HAS_FRAGS: the program reads frames in several buffers.
const xdpHasFrags = 1 << 5

// Program is an XDP program that is loaded, and attached or not. Its methods may be called from any
// goroutine.
type Program struct {
	spec Spec

	change sync.Mutex // held by the goroutine that changes the rules; taken before mu

	mu       sync.Mutex // over what follows
	closed   bool
	sockets  *ebpf.Map
	counters *counters
	last     Counts // what they were when it was closed
	grace    *grace
	now      *loaded
	link     link.Link
	mode     Mode
	why      string // native mode was not taken
	hints    hints
	told     bool // some version puts a Meta in front of packets
	notes    []string
	strips   bool // the device takes VLAN tags out of frames
}

// loaded is one version of the program.
type loaded struct {
	program *ebpf.Program
	blob    *ebpf.Map
	rules   []flow.Rule
	rest    flow.Isolation // for what no rule accepts
	slots   []uint32       // of the rules' counters
	size    int            // instructions of 8 bytes
	tables  int            // bytes
	vlans   bool           // rules look at VLAN tags
}

func (l *loaded) close() {
	if l == nil {
		return
	}
	l.program.Close()
	l.blob.Close()
}

// Load builds the program of s and loads it into the kernel. It attaches nothing. The errors wrap
// ErrSpec, ErrTooLarge, ErrPermission, ErrUnavailable, or are flow.Problems.
func Load(s Spec) (*Program, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	p := &Program{spec: s}
	p.spec.Rules = nil
	if err := p.open(s.Rules, s.Isolation); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Program) open(rules []flow.Rule, isolation flow.Isolation) (err error) {
	p.sockets, err = ebpf.NewMap(&ebpf.MapSpec{Name: "penstock_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(p.spec.Queues * p.spec.Slots)})
	if err != nil {
		return explain("make the map of sockets", err)
	}
	if p.counters, err = newCounters(); err != nil {
		return err
	}
	if p.grace, err = newGrace(); err != nil {
		return err
	}
	if p.hints, err = hintsOf(&p.spec); err != nil {
		p.note("no hash and time of the NIC: %v", err)
	}
	p.now, err = p.load(rules, isolation)
	if err != nil && p.hints != (hints{}) {
		p.hints = hints{}
		bound := err
		if p.now, err = p.load(rules, isolation); err == nil {
			p.note("no hash and time of the NIC: %v", bound)
		}
	}
	if err != nil {
		return err
	}
	p.counters.keep(p.now.rules, p.now.slots)
	return nil
}

func (p *Program) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// tells reports whether a version with so many rules has anything to say of a packet. One that
// comes after such a version goes on: memory may still hold what that said of the packet before.
func (p *Program) tells(rules int) bool {
	p.told = p.told || !p.spec.Sparse || rules > 0 || p.hints != (hints{})
	return p.told
}

// load makes one version of the program. The caller holds mu, or owns p.
func (p *Program) load(rules []flow.Rule, isolation flow.Isolation) (*loaded, error) {
	if err := checkRules(rules, isolation); err != nil {
		return nil, err
	}
	if len(rules) > 0 && !canCompute() {
		// The verifier would follow what a processor might do speculatively, past any limit.
		return nil, fmt.Errorf("prog: load the XDP program: %w: CAP_PERFMON is missing, which programs with rules "+
			"need: run as root, or \"%s\" the program", ErrPermission, setcap)
	}
	l := &loaded{rules: make([]flow.Rule, len(rules)), rest: isolation}
	for i := range rules {
		l.rules[i] = rules[i].Clone()
	}
	var err error
	if l.slots, err = p.counters.slots(l.rules); err != nil {
		return nil, err
	}
	t := compile(l.rules, isolation, func(i int) uint32 { return l.slots[i] }, slotUnmatched)
	l.tables = len(t.blob)
	l.vlans = t.asks(flow.FieldVLAN, flow.FieldInnerVLAN)
	l.blob, err = ebpf.NewMap(&ebpf.MapSpec{Name: "penstock_rules", Type: ebpf.Array, KeySize: 4,
		ValueSize: uint32(len(t.blob)), MaxEntries: 1})
	if err != nil {
		return nil, explain("make the tables of the rules", err)
	}
	if err = l.blob.Put(uint32(0), t.blob); err != nil {
		l.blob.Close()
		return nil, explain("fill the tables of the rules", err)
	}
	e := emitter{t: t, o: options{
		blob: l.blob.FD(), counters: p.counters.m.FD(), sockets: p.sockets.FD(),
		queues: p.spec.Queues, slots: p.spec.Slots, counts: maxCounters, metadata: p.spec.Metadata &&
			p.tells(len(l.rules)), frags: p.spec.Frags, subtract: canCompute(), hints: p.hints,
	}}
	if p.spec.Uncounted && !e.o.metadata && len(l.rules) == 0 && isolation.Unmatched == flow.Deliver &&
		int(isolation.Queue) < p.spec.Slots {
		e.direct(int(isolation.Queue))
	} else {
		e.parse()
		e.match()
		e.finish()
	}
	l.size = int(e.ins.Size()) / asm.InstructionSize
	if l.size > maxSize {
		l.blob.Close()
		return nil, fmt.Errorf("prog: %w: %d instructions, and jumps reach %d: use fewer different flex words",
			ErrTooLarge, l.size, maxSize)
	}
	spec := &ebpf.ProgramSpec{Name: "penstock", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0",
		Instructions: e.ins}
	if p.spec.Frags {
		spec.Flags |= xdpHasFrags
	}
	if p.hints != (hints{}) {
		spec.Flags |= xdpDevBound
		spec.Ifindex = uint32(p.spec.Interface)
		spec.License = "Dual MIT/GPL" // those functions are for no others
	}
	l.program, err = ebpf.NewProgram(spec)
	if err != nil {
		l.blob.Close()
		return nil, explain("load the XDP program", err)
	}
	return l, nil
}

// maxSize is how many instructions a jump can pass over.
const maxSize = 1<<15 - 1

func checkRules(rules []flow.Rule, isolation flow.Isolation) error {
	if len(rules) > MaxRules {
		return fmt.Errorf("prog: %w: %d rules: expected at most %d: join rules into ranges and prefixes", ErrTooLarge,
			len(rules), MaxRules)
	}
	if isolation.Unmatched > flow.Kernel || isolation.Queue != 0 && isolation.Unmatched != flow.Deliver {
		return fmt.Errorf("prog: %w: isolation %v with queue %d: expected kernel, discard, or deliver with a queue",
			ErrSpec, isolation.Unmatched, isolation.Queue)
	}
	if _, err := flow.Compile(rules); err != nil {
		return err
	}
	return flow.Check(rules, &Capabilities).Err()
}

// Apply puts other rules in force, all of them between one packet and the next. When it returns no
// packet is steered by the rules before any more, which takes the kernel some milliseconds to be
// sure of. When it fails nothing has changed. The errors are those of Load.
func (p *Program) Apply(rules []flow.Rule, isolation flow.Isolation) error {
	p.change.Lock()
	defer p.change.Unlock()
	old, err := p.replace(rules, isolation)
	if err != nil {
		return err
	}
	// Meanwhile other goroutines may read the counters and change the sockets.
	if p.attached() {
		err = p.grace.wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old.close()
	if err != nil {
		// The rules are in force all the same. Slots of counters stay taken until a wait succeeds.
		p.note("cannot wait for packets that are steered by the rules before: %v", err)
		return nil
	}
	p.counters.reclaim()
	return nil
}

func (p *Program) attached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link != nil
}

// replace puts other rules in force and returns the version before, which some CPU may still run.
func (p *Program) replace(rules []flow.Rule, isolation flow.Isolation) (old *loaded, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	next, err := p.load(rules, isolation)
	if err != nil {
		return nil, err
	}
	if p.link != nil {
		if err := p.link.Update(next.program); err != nil {
			next.close()
			return nil, explain("change the XDP program", err)
		}
	}
	old, p.now = p.now, next
	p.counters.keep(next.rules, next.slots)
	return old, nil
}

// Set gives the packets of a NIC queue that are for a logical queue to an AF_XDP socket, which must
// be bound to that NIC queue.
func (p *Program) Set(queue, slot, fd int) error {
	key, err := p.key(queue, slot)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	return explain("enter the AF_XDP socket", p.sockets.Put(key, uint32(fd)))
}

// Unset takes the socket of a NIC queue and a logical queue away; packets for it are dropped from
// then on, and counted as NoSocket. There need not be one. A packet that is under way may still get
// there: see Wait.
func (p *Program) Unset(queue, slot int) error {
	key, err := p.key(queue, slot)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if err := p.sockets.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return explain("take the AF_XDP socket away", err)
	}
	return nil
}

// Wait returns when no CPU runs the program any more on a packet that came before the call: after
// Unset, nothing is put into the socket any more then. It takes some milliseconds.
func (p *Program) Wait() error {
	p.change.Lock()
	defer p.change.Unlock()
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return p.grace.wait()
}

func (p *Program) key(queue, slot int) (uint32, error) {
	if queue < 0 || queue >= p.spec.Queues || slot < 0 || slot >= p.spec.Slots {
		return 0, fmt.Errorf("prog: %w: NIC queue %d, logical queue %d: expected 0 to %d and 0 to %d", ErrSpec, queue,
			slot, p.spec.Queues-1, p.spec.Slots-1)
	}
	return uint32(queue*p.spec.Slots + slot), nil
}

// Close takes the program off the interface and frees everything. Closing again does nothing.
func (p *Program) Close() error {
	p.change.Lock()
	defer p.change.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	if p.link != nil {
		err = p.link.Close()
		p.link = nil
	}
	p.now.close()
	if p.grace != nil {
		p.grace.close()
	}
	if p.counters != nil {
		err = errors.Join(err, p.counters.read(&p.last))
		p.counters.close()
	}
	if p.sockets != nil {
		p.sockets.Close()
	}
	return err
}

// canCompute reports whether the verifier lets programs of this thread compute pointers.
func canCompute() bool {
	for _, c := range []int{sys.CapPerfmon, sys.CapSysAdmin} {
		if has, err := sys.HasCapability(c); err != nil || has {
			return true
		}
	}
	return false
}
