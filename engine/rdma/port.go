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

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/mem"
)

// Port is a port with a roce:// address: one that connects, or one that accepts. Besides
// engine.Port it knows its connections.
type Port struct {
	connections
	name      string
	a         address
	o         Options
	connector connector

	dev     *rdmadev.Device
	attr    *ibv.DeviceAttr // of dev
	gid     ibv.GID
	why     string // this GID was chosen
	control *driver

	mu       sync.Mutex // taken before those of receive queues, and before those of connections
	conns    conns.Set[*conn, session]
	accepts  listener
	rx       engine.RxSet[*rxQueue]
	draining []*rxQueue // closed ones to which senders may still send
	tx       []*txQueue
	ended    []*txQueue
	old      engine.PortStats
	begun    bool // it listens, by the connection manager
	notes    []string

	scratchOnce   sync.Once // of datagrams' routing headers
	scratchRegion *mem.Region
	scratchErr    error

	counts counters
}

// counters are the counts of a port that are no packets.
type counters struct {
	channels, credits, waits, low, async, broken atomic.Uint64
}

// Counts are counts of a port since it was opened.
type Counts struct {
	conns.Counts
	Broken     uint64 // connections that ended for a fault
	QueuePairs uint64 // that were made
	Credits    uint64 // credits: messages that tell a sender how many more may come
	Waits      uint64 // times that a sender had to wait for such a message: its receiver is too slow
	Low        uint64 // times that a receive queue had fewer than an eighth of its buffers left
	Async      uint64 // events of the device
}

// Counts are the port's counts.
func (p *Port) Counts() Counts {
	c := &p.counts
	return Counts{Counts: p.conns.Counts(), Broken: c.broken.Load(), QueuePairs: c.channels.Load(),
		Credits: c.credits.Load(), Waits: c.waits.Load(), Low: c.low.Load(), Async: c.async.Load()}
}

// open finds the device and makes what all connections of the port share.
func (e *Engine) open(name string, a address, o Options) (_ *Port, err error) {
	p := &Port{name: name, a: a, o: o, connector: overTCP{}}
	p.connections = &p.conns
	p.conns.Open("rdma", (*host)(p), &p.mu, &p.o.Options, a.remote)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.shut())
		}
	}()
	c, err := p.choose(e)
	if err != nil {
		return nil, err
	}
	if p.dev, err = rdmadev.NewDevice(c, o.Port, e.tree); err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	p.attr, p.control = &p.dev.Attr, newDriver(p)
	if most := p.dev.Port.ActiveMTU.Bytes(); p.o.MTU == 0 || p.o.MTU > most {
		p.o.MTU = most
	}
	switch {
	case o.Connect == ByTCP:
		return p, nil
	case o.Transport == UD && p.dev.Port.Link == ibv.LinkInfiniBand:
		return nil, failed(engine.ErrUnsupported,
			"connect=cm with UD on InfiniBand: the side that accepts knows its peer by an IP address, which leads "+
				"nowhere there: connect=tcp has UD, or take RC")
	}
	m, err := newManager(p, e.cm)
	if err == nil {
		p.connector = m
	}
	return p, err
}

// choose finds the device and the GID: those that were named, or those that have the port's IP
// address.
func (p *Port) choose(e *Engine) (*ibv.Context, error) {
	want := p.a.local.Addr()
	if p.a.local.IsValid() && want.IsUnspecified() || !p.a.local.IsValid() {
		want = netip.Addr{}
	}
	if !want.IsValid() && p.a.remote.IsValid() {
		var err error
		if want, err = sourceFor(p.a.remote); err != nil {
			return nil, failed(engine.ErrConnect, "no route to %v: %v", p.a.remote, err)
		}
	}
	c, err := e.lib.Open(p.o.Device, func(c *ibv.Context) error {
		gids, err := c.GIDs(p.o.Port)
		if err == nil {
			p.gid, p.why, err = p.pick(c, gids, want)
		}
		return err
	})
	var none *rdmadev.Misfit
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, rdmadev.ErrNoDevice):
		return nil, failed(engine.ErrNotFound, "%v", err)
	case !errors.As(err, &none) || p.o.Device != "":
		return nil, failed(engine.ErrUnavailable, "%v", err)
	}
	who := "an address"
	if want.IsValid() {
		who = "the address " + want.String()
	}
	return nil, failed(engine.ErrUnavailable, "no RDMA device has %s: %v; name one with device=", who, none)
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
			return ibv.GID{}, "", fmt.Errorf("the port does not have %v", want)
		}
	}
	return c.ChooseGID(p.o.Port, ibv.GIDWant{})
}

// start begins to accept or to connect.
func (p *Port) start(ctx context.Context) error {
	p.dev.Start(p.control.hear, p.control.work)
	if p.a.listen {
		l, err := p.connector.bind(p.a.local)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.accepts = l
		p.mu.Unlock()
		p.conns.Accept(l.accept)
		return nil
	}
	if !p.a.remote.IsValid() {
		return nil
	}
	p.mu.Lock()
	p.conns.Dial()
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

// LocalAddr is the address that the port accepts at, or that of its connection; without a
// connection it is not valid.
func (p *Port) LocalAddr() netip.AddrPort {
	p.mu.Lock()
	l := p.accepts
	p.mu.Unlock()
	if l != nil {
		return l.addr()
	}
	if c := p.conns.Main(); c != nil {
		return c.Local
	}
	return netip.AddrPort{}
}

// LinkState implements engine.LinkReporter: it is the device's link, by the device's events.
// Options.OnConn reports connections.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.dev.Bell.Set(w)
	return p.dev.Link()
}

// Info implements engine.Port. A port that accepts is up while its device is, one that connects
// while it is connected besides.
func (p *Port) Info() engine.PortInfo {
	i := engine.PortInfo{Engine: "rdma", Address: "roce://" + p.a.remote.String(), Device: p.dev.Name(), MTU: p.o.MTU,
		NUMA: -1, Speed: p.dev.Port.Speed}
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
	i.Up = !p.rx.Closed() && p.dev.Link().Up && (p.a.listen || p.conns.Len() > 0)
	return i
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := p.o.capabilities()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Notes = append(slices.Clone(p.notes), p.GID())
	p.dev.Limit(&c)
	return c
}

// ReachesRegion implements engine.DeviceReacher. The first question about a region registers a page
// of it.
func (p *Port) ReachesRegion(r *mem.Region) error {
	if err := p.dev.Reaches(r); err != nil {
		return fmt.Errorf("rdma: %w", err)
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
	s.LinkChanges = p.dev.Link().Changes
	p.rx.Sum(&s.Rx)
	for _, q := range p.draining {
		q.late.AddTo(&s.Rx.Drops)
	}
	engine.SumTx(&s.Tx, p.tx, p.ended)
}

// Close implements engine.Port. What the device has been given it still sends, for as long as
// Options.Linger.
func (p *Port) Close() error {
	p.mu.Lock()
	rx, first := p.rx.End()
	if !first {
		p.mu.Unlock()
		return nil
	}
	p.conns.Stop()
	var err error
	if p.accepts != nil {
		err = p.accepts.close()
	}
	tx := slices.Clone(p.tx)
	p.mu.Unlock()
	for _, q := range tx {
		err = errors.Join(err, q.Close())
	}
	for _, q := range rx {
		err = errors.Join(err, q.close())
	}
	p.mu.Lock()
	p.conns.EndAll()
	for _, q := range slices.Clone(p.draining) {
		p.retire(q)
	}
	p.mu.Unlock()
	p.dev.Stop()
	p.conns.Wait()
	return errors.Join(err, p.shut())
}

// shut gives up what open has made.
func (p *Port) shut() (err error) {
	if p.dev == nil {
		return nil
	}
	p.dev.Stop()
	if m, ok := p.connector.(*manager); ok {
		err = m.stop()
	}
	err = errors.Join(err, p.dev.Close())
	if p.scratchRegion != nil {
		err = errors.Join(err, p.scratchRegion.Close())
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
