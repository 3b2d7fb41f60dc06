package xdp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/engine/xdp/card"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Name is the name of the engine in configurations.
const Name = "xdp"

// Errors of this engine, besides those of package engine that they wrap.
var (
	// ErrOccupied says that another XDP program is on the interface. The text names it.
	ErrOccupied = fmt.Errorf("xdp: another XDP program is on the interface: %w", engine.ErrInUse)
	// ErrRemoved says that the interface of the port is gone.
	ErrRemoved = fmt.Errorf("xdp: the interface was removed: open the port again when it is back: %w", engine.ErrDown)
)

const (
	// maxQueues is the number of queues in each direction: a logical queue costs a socket on every
	// queue of the interface.
	maxQueues = 32
	// vlanRoom is what frames may be longer than Ethernet and the MTU: two tags.
	vlanRoom = 2 * packet.VLANLen
	noTimes  = "no receive times in software: the kernel takes none for packets that go past it; " +
		"Options.HardwareTime asks the NIC"
)

var is = errors.Is

// Engine opens interfaces by AF_XDP. It has no state.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

// Name implements engine.Engine.
func (*Engine) Name() string { return Name }

// Available implements engine.Engine: it opens an AF_XDP socket.
func (*Engine) Available() error {
	fd, err := sys.XDPSocket()
	switch {
	case err == nil:
		sys.Close(fd)
		return nil
	case is(err, sys.EPERM):
		return fmt.Errorf("xdp: CAP_NET_RAW is missing: run as root, or \"setcap "+
			"cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep\" on the program: %w: %w", err, engine.ErrUnavailable)
	case is(err, sys.EAFNOSUPPORT):
		return fmt.Errorf("xdp: the kernel has no AF_XDP (CONFIG_XDP_SOCKETS): %w: %w", err, engine.ErrUnavailable)
	}
	return fmt.Errorf("xdp: %w: %w", err, engine.ErrUnavailable)
}

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues,
		Rules: true, RulesIn: "XDP program",
		Split: true, Chains: true,
		Pacing: true, SendAt: true, SendAtIn: "software", TxChecksum: "software", TxSegmentation: "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge, mem.Foreign},
		MemoryUse:       engine.UseParts,
		ExactDrops:      true,
		Notes:           []string{noTimes},
	}
}

// Port is an open interface. It implements engine.Port.
type Port struct {
	spec   engine.PortSpec
	device string // name of the interface
	o      Options
	name   string
	link   *netif.Interface
	bell   engine.LinkBell
	ns     *netif.Namespace
	table  *flow.Table
	prog   *prog.Program

	driver driver     // of the card; nil where there is none to ask
	card   *card.Card // what it does of the rules; under rules
	report atomic.Pointer[card.Report]

	frags atomic.Bool // packets may take several chunks
	times bool        // the NIC is asked for receive times; the program is bound to the interface then
	notes []string
	meta  atomic.Bool // there may be something in front of a packet: there are, or were, rules, or the NIC tells times

	broken atomic.Pointer[error] // why the port could not restart; its queues have no sockets then

	rules   sync.Mutex     // over changes of the table and of what the program does; taken after the lock of rxs
	applied flow.Isolation // what the program does with packets that no rule accepts

	rxs engine.RxSet[*rxQueue] // its lock is over queues of both directions that come and go, and the next fields

	memory *Memory     // nil while no queue needs it
	feed   feed        // of the receive queues; none while there are none
	nqs    []*nicQueue // by place in o.Queues; nil where none is open
	txs    []*txQueue
	gone   []*txQueue // the last that were closed
	had    int        // id of the first receive queue, or the one that was it; -1 before there was one
	pastTx engine.TxStats
	counts prog.Counts // the last
}

// OpenPort implements engine.Engine. spec.Address is the name of an interface, and spec.Options an
// Options or a pointer to one.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := newPort(spec)
	if err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
}

func newPort(spec engine.PortSpec) (*Port, error) {
	p := &Port{spec: spec, had: -1}
	a, o, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	p.o, p.device = o, a.Where
	if p.name = spec.Name; p.name == "" {
		p.name = spec.Address
	}
	if p.o.Memory != nil {
		if err := p.o.Memory.hold(); err != nil {
			return nil, err
		}
	}
	if p.table, err = flow.NewTable(flow.TableOptions{Engine: p.o.capabilities().Steering}); err != nil {
		return nil, errors.Join(err, p.release())
	}
	return p, nil
}

// open opens what belongs to the calling thread's network namespace, and attaches the program.
func (p *Port) open() (err error) {
	if err := (&Engine{}).Available(); err != nil {
		return err
	}
	if p.ns, err = netif.OpenNamespace(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if p.link, err = netif.Open(p.device, p.spec.MTU); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if p.o.Queues, err = p.o.queuesOf(p.link); err != nil {
		return err
	}
	p.nqs = make([]*nicQueue, len(p.o.Queues))
	if err := p.attach(); err != nil {
		return err
	}
	p.openCard()
	return p.link.Watch(p.changed)
}

// attach loads the program and puts it on the interface.
func (p *Port) attach() error {
	s := prog.Spec{Name: p.device, Interface: p.link.Index(), Queues: p.o.Queues[len(p.o.Queues)-1] + 1,
		Slots: maxQueues, Frags: !p.o.NoChains, Metadata: true, Sparse: true, Uncounted: true,
		Time: p.o.HardwareTime, Isolation: p.isolation(nil)}
	p.applied = s.Isolation
	p.frags.Store(s.Frags)
	load := func() (err error) {
		if p.prog, err = prog.Load(s); err != nil {
			return p.refusal(err)
		}
		if err = p.prog.Attach(p.o.Attach); err != nil {
			return errors.Join(p.refusal(err), p.prog.Close())
		}
		return nil
	}
	if err := load(); err != nil {
		if !s.Frags || is(err, ErrOccupied) || is(err, prog.ErrPermission) {
			return err
		}
		s.Frags = false // perhaps the driver takes no program for frames in several buffers
		p.frags.Store(false)
		if load() != nil {
			return err
		}
		p.notes = append(p.notes, "no packets of several chunks: "+err.Error())
	}
	i := p.prog.Info()
	p.times = i.Time
	p.meta.Store(i.Time)
	if i.Fallback != "" {
		p.notes = append(p.notes, "the XDP program runs in generic mode: "+i.Fallback)
	}
	return nil
}

// refusal makes an error of the engine of one of the program.
func (p *Port) refusal(err error) error {
	switch {
	case is(err, prog.ErrOccupied):
		return fmt.Errorf("%w: %w", ErrOccupied, err)
	case is(err, prog.ErrInterface):
		return fmt.Errorf("xdp: %s: %w: %w", p.name, err, ErrRemoved)
	case is(err, prog.ErrPermission):
		return fmt.Errorf("xdp: %s: %w: %w", p.name, err, engine.ErrUnavailable)
	case is(err, prog.ErrTooLarge), is(err, prog.ErrUnavailable):
		return fmt.Errorf("xdp: %s: %w: %w", p.name, err, engine.ErrUnsupported)
	}
	return fmt.Errorf("xdp: %s: %w", p.name, err)
}

// changed has the queues look at the interface again.
func (p *Port) changed() {
	p.rxs.Lock()
	defer p.rxs.Unlock()
	for _, q := range p.txs {
		if p.link.Gone() {
			q.shut(engine.DropDown) // what is in the ring is not sent any more
		}
		q.out.Kick()
	}
	if p.link.Gone() {
		for _, q := range p.rxs.Live() {
			q.Wake()
		}
	}
	p.bell.Ring()
}

// LinkState implements engine.LinkReporter.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	return p.link.State()
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	i := p.link.Info()
	i.Engine, i.Address = Name, p.spec.Address
	return i
}

// Capabilities implements engine.Port. Notes say what the interface refused, and why; what depends
// on its queues is known when there is one.
func (p *Port) Capabilities() engine.Capabilities {
	p.rxs.Lock()
	defer p.rxs.Unlock()
	return p.capabilities()
}

func (p *Port) capabilities() engine.Capabilities {
	c := p.o.capabilities()
	c.MaxPacket = p.link.MTU() + packet.EthernetLen
	c.Chains, c.HardwareTime = p.frags.Load(), p.times
	c.Notes = append(c.Notes, p.notes...)
	c.Notes = append(c.Notes, p.prog.Info().Notes...) // some are of the rules in force
	if r := p.report.Load(); r != nil {
		c.Notes = append(c.Notes, r.Lines()...)
		if r.Steered > 0 {
			c.RulesIn += ", and the card"
		}
	}
	if p.memory != nil && p.memory.note != "" {
		c.Notes = append(c.Notes, p.memory.note)
	}
	for _, n := range p.nqs {
		if n == nil {
			continue
		}
		yes, why := n.queue.ZeroCopy()
		if yes { // the card does not say what it drops when sending
			c.ExactDrops = false
		} else if why != nil {
			c.Notes = append(c.Notes, "the kernel copies each packet once: "+why.Error())
		}
		break
	}
	return c
}

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.rxs.Lock()
	defer p.rxs.Unlock()
	_ = p.prog.Counters(&p.counts) // once it is closed they stay as they are
	*s = engine.PortStats{Tx: p.pastTx, Kernel: p.counts.Kernel.Packets, LinkChanges: p.link.Changes()}
	s.Drops[engine.DropNoQueue] = p.counts.NoSocket.Packets
	s.Drops[engine.DropRule] = p.counts.Discarded.Packets
	s.Drops[engine.DropUnattributed] = p.counts.Faults.Packets
	p.rxs.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.txs, p.gone)
}

// Close implements engine.Port. The interface is as it was before when it returns.
func (p *Port) Close() error {
	if _, first := p.rxs.End(); !first {
		return nil
	}
	p.rxs.Lock()
	txs := slices.Clone(p.txs)
	p.rxs.Unlock()
	err := p.link.Close()
	for _, q := range txs {
		q.Shut()
	}
	p.rxs.Lock()
	defer p.rxs.Unlock()
	return errors.Join(err, p.ns.Do(p.quit), p.release())
}

// release gives back what does not depend on queues.
func (p *Port) release() error {
	var errs []error
	errs = append(errs, p.closeCard()) // while the program says that it is this port's
	if p.prog != nil {
		errs = append(errs, p.prog.Close())
	}
	if p.link != nil {
		errs = append(errs, p.link.Close())
	}
	if p.ns != nil {
		errs = append(errs, p.ns.Close())
	}
	if p.o.Memory != nil {
		errs = append(errs, p.o.Memory.release())
	}
	return errors.Join(errs...)
}
