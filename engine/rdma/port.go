package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/internal/rdma"
	"github.com/penstock-io/penstock/mem"
)

// Port is a port with a roce:// address: one that connects, or one that accepts. Besides engine.Port it knows its connections, and
// the memory that their peers expose.
type Port struct {
	name      string
	a         address
	o         Options
	connector connector

	dev     *ibv.Context
	attr    ibv.DeviceAttr
	port    ibv.PortAttr
	gid     ibv.GID
	why     string // this GID was chosen
	pd      *ibv.PD
	memory  *ibvmem.Adapter
	regs    *ibvmem.Table // of the pools
	events  *ibv.Channel  // of what is sent
	control *driver

	active  atomic.Bool // the device's port is up
	opened  time.Time
	primary atomic.Pointer[conn] // the connection of a port that connects to one peer
	gone    atomic.Bool          // there will be no connection any more
	life    context.Context      // ends with the port: what waits for others ends with it
	die     context.CancelFunc

	mu       sync.Mutex // taken before those of receive queues, and before those of connections
	closed   bool
	accepts  listener
	dialing  context.CancelFunc // ends the attempt that is under way; nil while there is none
	again    *time.Timer
	backoff  engine.Backoff
	cause    error // why the last attempt or connection failed
	rx       engine.RxSet[*rxQueue]
	draining []*rxQueue // closed ones to which senders may still send
	tx       []*txQueue
	ended    []*txQueue
	old      engine.PortStats
	change   chan struct{} // closed and replaced when a connection comes or goes
	last     uint32        // id given last
	begun    bool          // it listens, by the connection manager
	notes    []string
	bell     engine.LinkBell

	table  sync.RWMutex // besides mu for writing
	conns  map[uint32]*conn
	byAddr map[netip.AddrPort]uint32

	scratchOnce   sync.Once // of datagrams' routing headers
	scratchRegion *mem.Region
	scratchErr    error

	running sync.WaitGroup // goroutines of the port, and those in Connect
	counts  counters
}

// counters are the counts of a port that are no packets.
type counters struct {
	accepted, connected, refused, attempts, failures atomic.Uint64
	channels, credits, waits, low, async             atomic.Uint64
	broken                                           atomic.Uint64
}

// Counts are counts of a port since it was opened.
type Counts struct {
	Accepted, Connected uint64 // connections
	Refused             uint64 // beyond MaxConns
	Attempts, Failures  uint64 // to connect
	Broken              uint64 // connections that ended for a fault
	QueuePairs          uint64 // that were made
	Credits             uint64 // messages that told a sender how many more may come
	Waits               uint64 // times that a sender had to wait for such a message: its receiver is too slow
	Low                 uint64 // times that a receive queue had fewer than an eighth of its buffers left
	Async               uint64 // events of the device
}

// Counts are the port's counts.
func (p *Port) Counts() Counts {
	c := &p.counts
	return Counts{Accepted: c.accepted.Load(), Connected: c.connected.Load(), Refused: c.refused.Load(), Attempts: c.attempts.Load(), Failures: c.failures.Load(),
		Broken: c.broken.Load(), QueuePairs: c.channels.Load(), Credits: c.credits.Load(), Waits: c.waits.Load(), Low: c.low.Load(), Async: c.async.Load()}
}

// open finds the device and makes what all connections of the port share.
func (e *Engine) open(name string, a address, o Options) (_ *Port, err error) {
	p := &Port{name: name, a: a, o: o, connector: overTCP{}, opened: time.Now(), change: make(chan struct{}), conns: map[uint32]*conn{}, byAddr: map[netip.AddrPort]uint32{},
		backoff: engine.Backoff{Least: o.BackoffMin, Most: o.BackoffMax}}
	p.life, p.die = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, p.shut())
		}
	}()
	if err := p.choose(e); err != nil {
		return nil, err
	}
	if p.attr, err = p.dev.Attr(); err != nil {
		return nil, failed(engine.ErrUnavailable, "device %s: %v", p.dev.Name(), err)
	}
	if p.port, err = p.dev.Port(o.Port); err != nil {
		return nil, failed(engine.ErrUnavailable, "device %s: %v", p.dev.Name(), err)
	}
	p.active.Store(p.port.State == ibv.PortActive)
	if most := p.port.ActiveMTU.Bytes(); p.o.MTU == 0 || p.o.MTU > most {
		p.o.MTU = most
	}
	if o.Connect == ByCM && o.Transport == UD && p.port.Link == ibv.LinkInfiniBand {
		return nil, failed(engine.ErrUnsupported, "connect=cm with UD on InfiniBand: who accepts knows its peer by an IP address, which leads nowhere there: connect=tcp has UD, or take RC")
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return nil, failed(engine.ErrUnavailable, "device %s: %v", p.dev.Name(), err)
	}
	p.memory = ibvmem.New(p.dev, ibvmem.Options{Tree: e.tree})
	p.regs = p.memory.NewTable(p.pd)
	if p.events, err = p.dev.CreateChannel(); err != nil {
		return nil, failed(engine.ErrUnavailable, "device %s: %v", p.dev.Name(), err)
	}
	if p.control, err = newDriver(p); err != nil || p.o.Connect == ByTCP {
		return p, err
	}
	m, err := newManager(p, e.cm)
	if err == nil {
		p.connector = m
	}
	return p, err
}

// choose finds the device and the GID: those that were named, or those that have the port's IP address.
func (p *Port) choose(e *Engine) error {
	want := p.a.local.Addr()
	if p.a.local.IsValid() && want.IsUnspecified() || !p.a.local.IsValid() {
		want = netip.Addr{}
	}
	if !want.IsValid() && p.a.remote.IsValid() {
		var err error
		if want, err = sourceFor(p.a.remote); err != nil {
			return failed(engine.ErrConnect, "no route to %v: %v", p.a.remote, err)
		}
	}
	c, err := e.lib.Open(p.o.Device, func(c *ibv.Context) error {
		gids, err := c.GIDs(p.o.Port)
		if err == nil {
			p.gid, p.why, err = p.pick(c, gids, want)
		}
		return err
	})
	var none *rdma.Misfit
	switch {
	case err == nil:
		p.dev = c
		return nil
	case errors.Is(err, rdma.ErrNoDevice):
		return failed(engine.ErrNotFound, "%v", err)
	case !errors.As(err, &none) || p.o.Device != "":
		return failed(engine.ErrUnavailable, "%v", err)
	}
	who := "an address"
	if want.IsValid() {
		who = "the address " + want.String()
	}
	return failed(engine.ErrUnavailable, "no RDMA device has %s: %v; name one with device=", who, none)
}

// pick chooses a GID of a device. A device that is named may have any address.
func (p *Port) pick(c *ibv.Context, gids []ibv.GID, want netip.Addr) (ibv.GID, string, error) {
	if p.o.GID != nil {
		for _, g := range gids {
			if g.Index == *p.o.GID {
				return g, "it was asked for", nil
			}
		}
		return ibv.GID{}, "", fmt.Errorf("port %d has no GID at place %d", p.o.Port, *p.o.GID)
	}
	if want.IsValid() {
		var best *ibv.GID
		for i := range gids {
			if g := &gids[i]; g.Addr.Unmap() == want && (best == nil || g.Type == ibv.GIDRoCEv2) {
				best = g
			}
		}
		if best != nil {
			return *best, "it is " + want.String(), nil
		}
		if p.o.Device == "" {
			return ibv.GID{}, "", fmt.Errorf("it does not have %v", want)
		}
	}
	return c.ChooseGID(p.o.Port, ibv.GIDWant{})
}

// start begins to accept or to connect.
func (p *Port) start(ctx context.Context) error {
	p.control.start()
	if p.a.listen {
		l, err := p.connector.bind(p.a.local)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.accepts = l
		p.mu.Unlock()
		p.running.Add(1)
		go p.acceptAll(l)
		return nil
	}
	if !p.a.remote.IsValid() {
		return nil
	}
	p.mu.Lock()
	p.dial()
	p.mu.Unlock()
	if p.o.Background || p.o.Connect == ByCM {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, p.o.ConnectTimeout)
	defer cancel()
	return p.WaitConnected(bounded)
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Device is the name of the RDMA device, GID its address there and why that one was chosen.
func (p *Port) Device() string { return p.dev.Name() }

// GID is the device's address that the port uses, in words, and why that one was chosen.
func (p *Port) GID() string {
	return fmt.Sprintf("GID %d, %v, %v: %s", p.gid.Index, p.gid.Type, p.gid.Addr, p.why)
}

// LocalAddr is the address that the port accepts at, or that of its connection; one that is not valid while there is none.
func (p *Port) LocalAddr() netip.AddrPort {
	p.mu.Lock()
	l := p.accepts
	p.mu.Unlock()
	if l != nil {
		return l.addr()
	}
	if c := p.primary.Load(); c != nil {
		return c.local
	}
	return netip.AddrPort{}
}

// LinkState implements engine.LinkTeller: it is the device's link, as its events tell. Options.OnConn tells of connections.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	p.mu.Lock()
	defer p.mu.Unlock()
	return engine.LinkState{Up: p.active.Load(), Changes: p.old.LinkChanges}
}

// Info implements engine.Port. A port that accepts is up while its device is, one that connects while it is connected besides.
func (p *Port) Info() engine.PortInfo {
	i := engine.PortInfo{Engine: "rdma", Address: "roce://" + p.a.remote.String(), Device: p.dev.Name(), MTU: p.o.MTU, NUMA: -1, Speed: p.port.Speed}
	local := p.LocalAddr()
	if p.a.listen {
		i.Address = "roce://" + local.String() + "?listen=1"
	} else if !p.a.remote.IsValid() {
		i.Address = "roce://" + p.a.local.Addr().String()
	}
	if p.gid.Netdev != "" {
		i.Device = p.gid.Netdev
	}
	if local.IsValid() {
		i.IPs = []netip.Prefix{netip.PrefixFrom(local.Addr(), local.Addr().BitLen())}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i.Up = !p.closed && p.active.Load() && (p.a.listen || len(p.conns) > 0)
	return i
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := capabilities()
	c.ExactDrops = p.o.Transport == RC
	if p.o.Connect == ByCM && p.o.Transport != RC { // no credits
		c.Lossless = false
	}
	if p.o.Transport == UD {
		c.MaxPacket = p.o.MTU
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Notes = append(slices.Clone(p.notes), p.GID())
	if !p.memory.Able() {
		c.Memory = slices.DeleteFunc(c.Memory, func(k mem.Kind) bool { return k == mem.Device })
		c.Notes = append(c.Notes, ibvmem.Unable)
	}
	return c
}

// ReachesRegion implements engine.DeviceReacher. The first question about a region registers a page of it.
func (p *Port) ReachesRegion(r *mem.Region) error {
	if err := p.memory.Reaches(p.pd, r); err != nil {
		return fmt.Errorf("rdma: %w: %w", refused(err), err)
	}
	return nil
}

// Rules implements engine.Port: there are none.
func (p *Port) Rules() engine.Rules { return nil }

// Stats implements engine.Port.
func (p *Port) Stats(s *engine.PortStats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*s = p.old
	p.rx.Sum(&s.Rx)
	for _, q := range p.draining {
		q.late.AddTo(&s.Rx.Drops)
	}
	engine.SumTx(&s.Tx, p.tx, p.ended)
}

// Close implements engine.Port. What the device has been given it still sends, for as long as Options.Linger.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.die()
	p.stopDialing()
	var err error
	if p.accepts != nil {
		err = p.accepts.close()
	}
	rx, _ := p.rx.End()
	tx := slices.Clone(p.tx)
	p.mu.Unlock()
	for _, q := range tx {
		err = errors.Join(err, q.Close())
	}
	for _, q := range rx {
		err = errors.Join(err, q.close())
	}
	p.mu.Lock()
	all := make([]*conn, 0, len(p.conns))
	for _, c := range p.conns {
		all = append(all, c)
	}
	for _, c := range all {
		p.end(c, engine.ErrClosed)
	}
	for _, q := range slices.Clone(p.draining) {
		p.retire(q)
	}
	p.changed()
	p.mu.Unlock()
	p.control.stop()
	p.running.Wait()
	return errors.Join(err, p.shut())
}

// shut gives up what open has made.
func (p *Port) shut() (err error) {
	if p.control != nil {
		p.control.stop()
	}
	if m, ok := p.connector.(*manager); ok {
		err = m.stop()
	}
	if p.regs != nil {
		err = errors.Join(err, p.regs.Close())
	}
	if p.scratchRegion != nil {
		err = errors.Join(err, p.scratchRegion.Close())
	}
	if p.events != nil {
		err = errors.Join(err, p.events.Close())
	}
	if p.pd != nil {
		err = errors.Join(err, p.pd.Close())
	}
	if p.dev != nil {
		err = errors.Join(err, p.dev.Close())
	}
	return err
}

// sourceFor is the address from which this machine would send to another one.
func sourceFor(to netip.AddrPort) (netip.Addr, error) {
	c, err := net.Dial("udp", to.String()) // which sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
