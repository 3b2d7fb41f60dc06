package afpacket

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Name is the name of the engine in configurations.
const Name = "afpacket"

// Errors of this engine, besides those of package engine that they wrap.
var (
	// ErrCapability says that the process may not open packet sockets.
	ErrCapability = fmt.Errorf("afpacket: CAP_NET_RAW is missing: run as root, or \"setcap cap_net_raw+ep\" on the "+
		"program: %w", engine.ErrUnavailable)
	// ErrRemoved says that the interface of the port is gone.
	ErrRemoved = fmt.Errorf("afpacket: the interface was removed: open the port again when it is back: %w",
		engine.ErrDown)
)

const (
	maxQueues = 64
	// vlanRoom is what frames may be longer than Ethernet and the MTU: two tags.
	vlanRoom = 8
	// maxFilter is the kernel's limit of a program (BPF_MAXINSNS), less what outgoingOnly adds.
	maxFilter = 4096 - 3
	// frameOverhead is what the kernel keeps in front of a packet in the ring (struct tpacket2_hdr,
	// sockaddr_ll, alignment), and room for a tag that is put back, and for the headers of a
	// tunnel.
	frameOverhead = 192
)

// Engine opens packet sockets. It has no state.
type Engine struct{}

// New makes the engine.
func New() *Engine { return &Engine{} }

// Name implements engine.Engine.
func (*Engine) Name() string { return Name }

// Available implements engine.Engine: it opens a packet socket.
func (*Engine) Available() error {
	fd, err := packetSocket()
	if err == nil {
		sys.Close(fd)
	}
	return err
}

func packetSocket() (int, error) {
	fd, err := sys.PacketSocket()
	switch {
	case errors.Is(err, sys.EPERM):
		return -1, fmt.Errorf("%w (%w)", ErrCapability, err)
	case err != nil:
		return -1, fmt.Errorf("afpacket: %w: %w", err, engine.ErrUnavailable)
	}
	return fd, nil
}

// Capabilities implements engine.Engine.
func (*Engine) Capabilities() engine.Capabilities {
	return engine.Capabilities{
		Frames: true, RxQueues: maxQueues, TxQueues: maxQueues,
		Rules: true, RulesIn: "software",
		Split: true, Timestamps: true,
		HardwareTime: true,
		Pacing:       true, SendAt: true, SendAtIn: "software", TxChecksum: "software", TxSegmentation: "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge},
		MemoryUse:       engine.UseCopied,
		Pools:           engine.PoolsOptional,
		PoolsWhy:        "a queue without pools lends the frames of the kernel's ring",
		ExactDrops:      true,
		Notes: []string{
			"receiving copies each packet from the ring into the pool (RxStats.Copied); a queue without pools does " +
				"not: it lends the ring's frames",
			"isolation cannot keep packets from the kernel: a packet socket gets copies",
			"HardwareTime needs an interface whose driver takes times of all packets",
		},
	}
}

// Port is an open interface. It implements engine.Port.
type Port struct {
	spec   engine.PortSpec
	device string // name of the interface
	o      Options
	name   string
	link   *netif.Interface
	table  *flow.Table
	tx     int // socket that sends

	hardwareTime bool // the driver takes receive times of all packets

	counts engine.SteerCounts
	bell   engine.LinkBell

	// rx are the receive queues. Its lock also guards the next fields.
	rx      engine.RxSet[*rxQueue]
	sockets []*socket // set by OpenPort
	open    bool      // the rings are there
	txs     []*txQueue
	gone    []*txQueue // the last that were closed
	pastTx  engine.TxStats
	fanout  uint16 // the fan-out group, if grouped: the kernel chose a free one for the first socket
	grouped bool
	toClose []int
}

// OpenPort implements engine.Engine. spec.Address is the name of an interface, and spec.Options an
// Options or a pointer to one. Without CAP_NET_RAW the error is ErrCapability.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p, err := newPort(spec)
	if err != nil {
		return nil, err
	}
	if err := p.openSockets(); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func newPort(spec engine.PortSpec) (*Port, error) {
	p := &Port{spec: spec, tx: -1}
	a, o, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	p.o, p.device = o, a.Where
	if p.name = spec.Name; p.name == "" {
		p.name = spec.Address
	}
	p.table, err = flow.NewTable(flow.TableOptions{Engine: p.o.capabilities().Steering})
	return p, err
}

// openSockets opens everything that belongs to the calling thread's network namespace.
func (p *Port) openSockets() (err error) {
	if p.link, err = netif.Open(p.device, p.spec.MTU); err != nil {
		return fmt.Errorf("afpacket: %w", err)
	}
	if p.o.FrameSize == 0 {
		p.o.FrameSize = (p.link.MTU() + packet.EthernetLen + vlanRoom + frameOverhead + 63) &^ 63
	}
	if p.tx, err = p.openSocket(); err != nil {
		return err
	}
	if err := sys.BindPacket(p.tx, p.link.Index(), false); err != nil {
		return fmt.Errorf("afpacket: %w", err)
	}
	if p.hardwareTime, err = sys.HardwareReceiveTimes(p.tx, p.link.Info().Device); err != nil {
		p.hardwareTime = false // the driver has no ethtool operations
	}
	if p.o.QdiscBypass {
		if err := sys.SetOption(p.tx, sys.SolPacket, sys.PacketQdiscBypass, 1); err != nil {
			return fmt.Errorf("afpacket: %w", err)
		}
	}
	if p.o.SendBuffer > 0 {
		if err := sys.SetOption(p.tx, sys.SolSocket, sys.SoSndBuf, p.o.SendBuffer); err != nil {
			return fmt.Errorf("afpacket: %w", err)
		}
	}
	if p.o.Promiscuous {
		if err := sys.PacketPromiscuous(p.tx, p.link.Index()); err != nil {
			return fmt.Errorf("afpacket: %w", err)
		}
	}
	for i := range p.o.Sockets {
		fd, err := p.openSocket()
		if err != nil {
			return err
		}
		p.sockets = append(p.sockets, &socket{port: p, fd: fd, number: i})
	}
	return p.link.Watch(p.linkChanged)
}

// join makes a bound socket a member of the port's fan-out group. The caller holds mu.
func (p *Port) join(fd int) (err error) {
	if p.grouped {
		return sys.PacketFanout(fd, p.fanout, p.o.Fanout.mode())
	}
	p.fanout, err = sys.NewPacketFanout(fd, p.o.Fanout.mode())
	p.grouped = err == nil
	return err
}

func (p *Port) openSocket() (int, error) {
	fd, err := packetSocket()
	if err == nil {
		p.toClose = append(p.toClose, fd)
	}
	return fd, err
}

// linkChanged wakes the queues that wait for the interface.
func (p *Port) linkChanged() {
	if p.link.Gone() {
		p.wakeAll()
	}
	for _, q := range p.senders() {
		q.out.Kick()
	}
	p.bell.Ring()
}

// LinkState implements engine.LinkReporter.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	return p.link.State()
}

func (p *Port) senders() []*txQueue {
	p.rx.Lock()
	defer p.rx.Unlock()
	return slices.Clone(p.txs)
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	i := p.link.Info()
	i.Engine, i.Address = Name, p.spec.Address
	return i
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := p.o.capabilities()
	c.MaxPacket, c.HardwareTime = p.link.MTU()+packet.EthernetLen, p.hardwareTime
	return c
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p} }

// Rules are the steering rules of a port.
type Rules struct{ port *Port }

// List implements engine.Rules.
func (r *Rules) List() []flow.Rule { return r.port.table.List() }

// Apply makes all changes or none; see flow.Table. They are in force for every packet that is taken
// out of the ring afterwards.
func (r *Rules) Apply(changes ...flow.Change) (flow.Result, error) {
	res, err := r.port.table.Apply(changes...)
	if err == nil {
		for _, s := range r.port.sockets {
			s.barrier()
		}
	}
	return res, err
}

// Check implements engine.RuleChecker.
func (r *Rules) Check(changes ...flow.Change) error { return r.port.table.Check(changes...) }

// Stats are the packets that each rule matched.
func (r *Rules) Stats() flow.Stats { return r.port.table.Stats() }

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	for _, x := range p.sockets {
		x.mu.Lock()
		x.account()
		if len(p.rx.Live()) == 0 && p.open && !p.rx.Closed() {
			p.counts.Drop(engine.DropNoQueue, x.discard())
		}
		x.mu.Unlock()
	}
	*s = engine.PortStats{Tx: p.pastTx, LinkChanges: p.link.Changes()}
	p.rx.Sum(&s.Rx)
	p.counts.AddTo(s)
	engine.SumTx(&s.Tx, p.txs, p.gone)
}

// Close implements engine.Port. The rings of which packets are lent stay mapped until those are
// released.
func (p *Port) Close() error {
	rxs, first := p.rx.End()
	if !first {
		return nil
	}
	err := p.link.Close()
	for _, q := range rxs {
		q.Close()
	}
	for _, q := range p.senders() {
		q.Close()
	}
	return errors.Join(err, p.release())
}

// release closes what is open.
func (p *Port) release() error {
	var errs []error
	for _, s := range p.sockets {
		errs = append(errs, s.close())
	}
	for _, fd := range p.toClose {
		errs = append(errs, sys.Close(fd))
	}
	if p.link != nil {
		errs = append(errs, p.link.Close())
	}
	return errors.Join(errs...)
}
