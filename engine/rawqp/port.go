package rawqp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

const (
	maxQueues = 64
	// defaultMTU is that of a port without an interface.
	defaultMTU = 1500
	// frameRoom is what frames may be longer than the MTU: the Ethernet header and two VLAN tags.
	frameRoom = packet.EthernetLen + 8
)

// Port is an open port of a card. It implements engine.Port.
type Port struct {
	spec  engine.PortSpec
	o     Options
	name  string
	info  engine.PortInfo
	dev   *rdmadev.Device
	table *flow.Table
	exact bool // the card counts frames for which there was no receive
	dry   func() (uint64, bool)
	dry0  uint64 // that count when it was looked at last; under the lock of rx

	failed atomic.Pointer[error] // why nothing goes any more
	counts engine.SteerCounts    // of frames that reached no queue

	// The lock of rx guards what follows. It is taken before that of a queue, and that one before
	// the completion queue's.
	rx      engine.RxSet[*rxQueue]
	cq      *rxCQ // nil while there is no receive queue
	steered map[ibv.FlowSpec]steered
	txs     []*txQueue
	gone    []*txQueue // the last that were closed
	past    engine.TxStats
}

// open opens a port of an open device, which is closed when that fails.
func open(e *Engine, c *ibv.Context, netdev string, spec engine.PortSpec, o Options) (_ *Port, err error) {
	if err := able(c, o.Port); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	dev, err := rdmadev.NewDevice(c, o.Port, e.tree)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	p := &Port{spec: spec, o: o, name: spec.Name, dev: dev, steered: map[ibv.FlowSpec]steered{}}
	if err := p.open(e, netdev); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	dev.Start(p.hear, p.work)
	return p, nil
}

func (p *Port) open(e *Engine, netdev string) (err error) {
	if p.o.Checksum && !p.dev.Attr.RawChecksum {
		return fmt.Errorf("verbs: %s does not write checksums: %w", p.dev.Name(), engine.ErrUnsupported)
	}
	if err := p.learn(netdev); err != nil {
		return err
	}
	p.dry = func() (uint64, bool) { return e.dry(p.dev.Device(), p.o.Port) }
	p.dry0, p.exact = p.dry()
	p.table, err = flow.NewTable(flow.TableOptions{Engine: capabilities(&p.spec).Steering})
	return err
}

// learn finds out what Info tells.
func (p *Port) learn(netdev string) error {
	p.info = engine.PortInfo{MTU: defaultMTU, NUMA: -1}
	if netdev != "" {
		i, err := netif.Open(netdev, p.spec.MTU)
		if err != nil {
			return fmt.Errorf("verbs: %w", err)
		}
		p.info = i.Info()
		if err := i.Close(); err != nil {
			return err
		}
	}
	if netdev == "" && p.spec.MTU > 0 {
		p.info.MTU = p.spec.MTU
	}
	p.info.Engine, p.info.Address, p.info.Speed = Name, p.spec.Address, p.dev.Port.Speed
	if p.info.Device == "" {
		p.info.Device = p.dev.Name()
	}
	if p.info.MAC == (packet.MAC{}) {
		if gids, err := p.dev.GIDs(p.o.Port); err == nil && len(gids) > 0 {
			p.info.MAC = macOf(gids[0].Addr)
		}
	}
	return nil
}

// macOf is the Ethernet address that a link-local address was made of (RFC 4291, appendix A).
func macOf(a netip.Addr) (m packet.MAC) {
	if b := a.As16(); a.Is6() && a.IsLinkLocalUnicast() && b[11] == 0xff && b[12] == 0xfe {
		m = packet.MAC{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]}
	}
	return m
}

// longest is the longest frame in bytes.
func (p *Port) longest() int { return p.info.MTU + frameRoom }

// hear takes the events of the device. A queue pair that failed flushes what it has, and the queue
// that sees that makes it ready again.
func (p *Port) hear() {
	for e := range p.dev.News() {
		if e.Type == ibv.EventDeviceFatal || e.Type == ibv.EventCQErr {
			p.fail(fmt.Errorf("verbs: %s: %v: close the port and open it again: %w", p.name, e, engine.ErrDown))
		}
	}
	p.wake()
}

// fail ends everything that the port does, and says why. The device's goroutine wakes the owners of
// queues: the caller may hold the lock of one.
func (p *Port) fail(err error) {
	if p.failed.CompareAndSwap(nil, &err) {
		p.dev.Bell.Ring()
		p.dev.Waker.Wake()
	}
}

func (p *Port) work() {
	if p.failed.Load() != nil {
		p.wake()
	}
}

// wake has all queues look again.
func (p *Port) wake() {
	for _, q := range p.rx.Live() {
		q.Wake()
	}
	p.rx.Lock()
	txs := slices.Clone(p.txs)
	p.rx.Unlock()
	for _, q := range txs {
		q.event()
	}
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// LinkState implements engine.LinkReporter: as the device tells by its events. A device that has
// failed is gone.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.dev.Bell.Set(w)
	s := p.dev.Link()
	s.Gone = p.failed.Load() != nil
	s.Up = s.Up && !s.Gone
	return s
}

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	i := p.info
	i.IPs, i.Up = slices.Clone(i.IPs), p.dev.Link().Up && p.failed.Load() == nil
	return i
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := capabilities(&p.spec)
	c.RxDepth, c.RxDepthHint = p.dev.Attr.MaxQPWR, "the device has no more"
	c.MaxPacket, c.ExactDrops = p.info.MTU+packet.EthernetLen, p.exact
	c.HardwareTime = p.dev.Attr.TimestampMask != 0
	if p.dev.Attr.RawChecksum {
		c.TxChecksum = "device"
	}
	if !p.exact {
		c.Notes = append(c.Notes,
			"the card does not count frames for which there was no receive (hw_counters/out_of_buffer)")
	}
	p.dev.Limit(&c)
	return c
}

// ReachesRegion implements engine.DeviceReacher. The first question about a region registers a page
// of it.
func (p *Port) ReachesRegion(r *mem.Region) error {
	if err := p.dev.Reaches(r); err != nil {
		return fmt.Errorf("verbs: %w", err)
	}
	return nil
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p} }

// Stats implements engine.Port. What the card lost for lack of a receive is DropNIC, or
// DropNoBuffers if a queue had fewer receives posted than its depth for lack of slots, be they all
// in the card or not; the card counts it for all users of the device.
func (p *Port) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	p.account()
	*s = engine.PortStats{Tx: p.past, LinkChanges: p.dev.Link().Changes}
	p.counts.AddTo(s)
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.txs, p.gone)
}

// account counts what the card has lost since it was asked last: for lack of memory, if the pools
// of a queue had none meanwhile. The caller holds the set's lock.
func (p *Port) account() {
	n, ok := p.dry()
	if !ok || n <= p.dry0 {
		return
	}
	why := engine.DropNIC
	if c := p.cq; c != nil {
		c.mu.Lock()
		for _, q := range p.rx.Live() {
			if q.starved {
				why, q.starved = engine.DropNoBuffers, q.recvs.Short()
			}
		}
		c.mu.Unlock()
	}
	p.counts.Drop(why, int(n-p.dry0))
	p.dry0 = n
}

// Close implements engine.Port.
func (p *Port) Close() error {
	rxs, first := p.rx.End()
	if !first {
		return nil
	}
	p.rx.Lock()
	txs := slices.Clone(p.txs)
	p.rx.Unlock()
	var errs []error
	for _, q := range rxs {
		errs = append(errs, q.Close())
	}
	for _, q := range txs {
		errs = append(errs, q.Close())
	}
	return errors.Join(append(errs, p.dev.Close())...)
}

// ready brings a new queue pair, or one that has failed and flushed, to work.
func (p *Port) ready(q *ibv.QP) error {
	if s, err := q.State(); err != nil {
		return err
	} else if s != ibv.QPReset {
		if err := q.Reset(); err != nil {
			return err
		}
	}
	if err := q.Init(ibv.InitAttr{Port: uint8(p.o.Port)}); err != nil {
		return err
	}
	if err := q.ReadyToReceive(ibv.RTRAttr{}); err != nil {
		return err
	}
	return q.ReadyToSend(ibv.RTSAttr{})
}
