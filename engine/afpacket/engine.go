package afpacket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/neigh"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// Name is the name of the engine in configurations.
const Name = "packet"

// Errors of this engine, besides those of package engine that they wrap.
var (
	// ErrCapability says that the process may not open packet sockets.
	ErrCapability = fmt.Errorf("afpacket: CAP_NET_RAW is missing: run as root, or \"setcap cap_net_raw+ep\" on the program: %w", engine.ErrUnavailable)
	// ErrRemoved says that the interface of the port is gone.
	ErrRemoved = fmt.Errorf("afpacket: the interface was removed: open the port again when it is back: %w", engine.ErrDown)
)

const (
	maxQueues = 64
	// vlanRoom is what frames may be longer than Ethernet and the MTU: two tags.
	vlanRoom = 8
	// frameOverhead is what the kernel keeps in front of a packet in the ring (struct tpacket2_hdr, sockaddr_ll, alignment), and room
	// for a tag that is put back, and for the headers of a tunnel.
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
		Pacing: true, SendAt: true, SendAtIn: "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge},
		ExactDrops:      true,
		Notes: []string{
			"receiving copies each packet from the ring into the pool (RxStats.Copied); a queue without pools does not: it lends the ring's frames",
			"isolation cannot keep packets from the kernel: a packet socket gets copies",
			"hardware times come where the NIC was told to take them (hwstamp_ctl); burst.HardwareTime marks them",
		},
	}
}

// Port is an open interface. It implements engine.Port.
type Port struct {
	spec  engine.PortSpec
	o     Options
	name  string
	index int
	speed uint64
	numa  int
	ips   []netip.Prefix
	table *flow.Table
	taps  []*tap
	tx    int // socket that sends

	up, removed atomic.Bool
	mtu         atomic.Int64
	mac         atomic.Pointer[packet.MAC]
	changes     atomic.Uint64
	kernel      atomic.Uint64
	drops       [engine.NumDrops]atomic.Uint64 // of packets that reached no queue
	live        atomic.Pointer[[]*rxQueue]     // receive queues by number

	ask      *neigh.Kernel
	watch    *neigh.LinkWatch
	waker    *engine.Waker
	watching sync.WaitGroup
	stop     chan struct{}

	mu      sync.Mutex // over queues that come and go, and the next fields
	open    bool       // the rings are there
	closed  bool
	txs     []*txQueue
	gone    []*txQueue     // the last that were closed
	pastRx  engine.RxStats // of queues that were closed
	pastTx  engine.TxStats
	fanout  uint16
	toClose []int
}

// fanouts numbers the fan-out groups of this process.
var fanouts atomic.Uint32

// OpenPort implements engine.Engine. spec.Address is the name of an interface, and spec.Options an Options or a pointer to one.
// Without CAP_NET_RAW the error is ErrCapability.
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
	p.watching.Add(1)
	go p.watchLink()
	return p, nil
}

func newPort(spec engine.PortSpec) (*Port, error) {
	p := &Port{spec: spec, tx: -1, waker: engine.NewWaker(), stop: make(chan struct{})}
	switch o := spec.Options.(type) {
	case nil:
	case Options:
		p.o = o
	case *Options:
		p.o = *o
	default:
		return nil, fmt.Errorf("afpacket: options of type %T: expected afpacket.Options: %w", o, engine.ErrInvalid)
	}
	if err := p.o.complete(); err != nil {
		return nil, err
	}
	if p.name = spec.Name; p.name == "" {
		p.name = spec.Address
	}
	p.live.Store(new([]*rxQueue))
	can := flow.Software
	can.Engine = "packet sockets"
	can.Queues = maxQueues
	var err error
	p.table, err = flow.NewTable(flow.TableOptions{Engine: &can})
	return p, err
}

// openSockets opens everything that belongs to the calling thread's network namespace.
func (p *Port) openSockets() (err error) {
	if p.watch, err = neigh.WatchLinks(); err != nil { // before the first look, so that no change is missed
		return err
	}
	if p.ask, err = neigh.OpenKernel(); err != nil {
		return err
	}
	l, err := p.ask.Link(p.spec.Address)
	if err != nil {
		return fmt.Errorf("afpacket: %w", err)
	}
	if p.spec.MTU > l.MTU {
		return fmt.Errorf("afpacket: interface %s has an MTU of %d, the port asks for %d: \"ip link set %s mtu %d\": %w", l.Name, l.MTU, p.spec.MTU,
			l.Name, p.spec.MTU, engine.ErrInvalid)
	}
	p.index = l.Index
	p.note(l)
	p.changes.Store(0)
	if p.ips, err = p.ask.Addresses(l.Index); err != nil {
		return err
	}
	p.numa, p.speed = -1, 0
	if n, err := strconv.Atoi(sysfs(l.Name, "device/numa_node")); err == nil {
		p.numa = n
	}
	if mbit, err := strconv.ParseInt(sysfs(l.Name, "speed"), 10, 64); err == nil && mbit > 0 {
		p.speed = uint64(mbit) * 1e6
	}
	if p.o.FrameSize == 0 {
		p.o.FrameSize = (l.MTU + packet.EthernetLen + vlanRoom + frameOverhead + 63) &^ 63
	}
	if p.tx, err = p.socket(); err != nil {
		return err
	}
	if err := sys.BindPacket(p.tx, p.index, false); err != nil {
		return fmt.Errorf("afpacket: %w", err)
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
		if err := sys.PacketPromiscuous(p.tx, p.index); err != nil {
			return fmt.Errorf("afpacket: %w", err)
		}
	}
	p.fanout = uint16(os.Getpid()<<4) + uint16(fanouts.Add(1))
	for i := range p.o.Sockets {
		fd, err := p.socket()
		if err != nil {
			return err
		}
		p.taps = append(p.taps, &tap{port: p, fd: fd, number: i})
	}
	return engine.Events.Add(p.watch.FD())
}

func (p *Port) socket() (int, error) {
	fd, err := packetSocket()
	if err == nil {
		p.toClose = append(p.toClose, fd)
	}
	return fd, err
}

func sysfs(device, file string) string {
	b, _ := os.ReadFile("/sys/class/net/" + device + "/" + file)
	return strings.TrimSpace(string(b))
}

// note takes over what the kernel says of the interface.
func (p *Port) note(l neigh.Link) {
	if l.Index != p.index {
		return
	}
	up := l.Up && !l.Gone
	if p.up.Swap(up) != up {
		p.changes.Add(1)
	}
	if l.Gone {
		p.removed.Store(true)
		return
	}
	p.mtu.Store(int64(l.MTU))
	p.mac.Store(&l.MAC)
}

// watchLink notices changes of the interface until the port is closed.
func (p *Port) watchLink() {
	defer p.watching.Done()
	for {
		if p.watch.Read(p.note) { // some changes were lost
			l, err := p.ask.Link(p.spec.Address)
			if errors.Is(err, engine.ErrNotFound) || err == nil && l.Index != p.index {
				l, err = neigh.Link{Index: p.index, Gone: true}, nil
			}
			if err == nil {
				p.note(l)
			}
		}
		if p.removed.Load() {
			for _, q := range *p.live.Load() {
				q.wake()
			}
		}
		for _, q := range p.senders() {
			q.out.Kick()
		}
		if engine.Events.Arm(p.watch.FD(), p.waker) != nil {
			return
		}
		select {
		case <-p.waker.C():
		case <-p.stop:
			return
		}
	}
}

func (p *Port) senders() []*txQueue {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.txs)
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	return engine.PortInfo{Engine: Name, Address: p.spec.Address, Device: p.spec.Address, MAC: *p.mac.Load(), IPs: slices.Clone(p.ips),
		MTU: int(p.mtu.Load()), Up: p.up.Load(), Speed: p.speed, NUMA: p.numa}
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := (&Engine{}).Capabilities()
	c.MaxPacket = int(p.mtu.Load()) + packet.EthernetLen
	return c
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p.table} }

// Rules are the steering rules of a port.
type Rules struct{ table *flow.Table }

// List implements engine.Rules.
func (r *Rules) List() []flow.Rule {
	rules := r.table.Snapshot().Rules()
	slices.SortStableFunc(rules, func(a, b flow.Rule) int { return int(min(max(int64(b.Priority)-int64(a.Priority), -1), 1)) })
	return rules
}

// Apply makes all changes or none; see flow.Table. They are in force for every packet that is taken out of the ring afterwards.
func (r *Rules) Apply(changes ...flow.Change) (flow.Result, error) { return r.table.Apply(changes...) }

// Stats are the packets that each rule matched.
func (r *Rules) Stats() flow.Stats { return r.table.Stats() }

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := *p.live.Load()
	for _, t := range p.taps {
		t.mu.Lock()
		t.account()
		if len(live) == 0 && p.open && !p.closed {
			n := t.discard()
			p.drops[engine.DropNoQueue].Add(uint64(n))
		}
		t.mu.Unlock()
	}
	*s = engine.PortStats{Rx: p.pastRx, Tx: p.pastTx, Kernel: p.kernel.Load(), LinkChanges: p.changes.Load()}
	for i := range p.drops {
		s.Drops[i] = p.drops[i].Load()
	}
	for _, q := range live {
		var one engine.RxStats
		q.counts(&one)
		s.Rx.Add(&one)
	}
	for _, qs := range [][]*txQueue{p.txs, p.gone} {
		for _, q := range qs {
			var one engine.TxStats
			q.Stats(&one)
			s.Tx.Add(&one)
		}
	}
}

// Close implements engine.Port. Packets that were borrowed from the ring keep it mapped until they are released.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	rxs, txs := slices.Clone(*p.live.Load()), slices.Clone(p.txs)
	p.mu.Unlock()
	close(p.stop)
	p.watching.Wait()
	for _, q := range rxs {
		q.Close()
	}
	for _, q := range txs {
		q.Close()
	}
	engine.Events.Remove(p.watch.FD())
	return p.release()
}

// release closes what is open.
func (p *Port) release() error {
	var errs []error
	for _, t := range p.taps {
		errs = append(errs, t.close())
	}
	for _, fd := range p.toClose {
		errs = append(errs, sys.Close(fd))
	}
	if p.watch != nil {
		errs = append(errs, p.watch.Close())
	}
	if p.ask != nil {
		errs = append(errs, p.ask.Close())
	}
	return errors.Join(errs...)
}
