package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/netif"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
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
	spec   engine.PortSpec
	o      Options
	name   string
	info   engine.PortInfo
	dev    *ibv.Context
	attr   ibv.DeviceAttr
	pd     *ibv.PD
	memory *ibvmem.Adapter
	regs   *ibvmem.Table
	table  *flow.Table
	exact  bool // the card counts frames for which there was no receive
	dry    func() (uint64, bool)
	dry0   uint64 // that count when it was looked at last; under the lock of rx

	up      atomic.Bool
	changes atomic.Uint64
	failed  atomic.Pointer[error] // why nothing goes any more
	bell    engine.LinkBell
	revived atomic.Uint64      // queue pairs that were made ready again
	counts  engine.SteerCounts // of frames that reached no queue

	events *ibv.Channel  // of what was sent
	waker  *engine.Waker // of events
	async  *engine.Waker // of the device
	end    chan struct{}
	done   chan struct{}
	fds    []int // that engine.Events knows

	// The lock of rx guards what follows. It is taken before that of a queue, and that one before the completion queue's.
	rx      engine.RxSet[*rxQueue]
	cq      *rxCQ // nil while there is no receive queue
	steered map[ibv.FlowSpec]steered
	txs     []*txQueue
	gone    []*txQueue // the last that were closed
	past    engine.TxStats
	byCQ    map[*ibv.CQ]*txQueue
}

// open opens a port of an open device, which is closed when that fails.
func open(e *Engine, dev *ibv.Context, netdev string, spec engine.PortSpec, o Options) (_ *Port, err error) {
	p := &Port{spec: spec, o: o, name: spec.Name, dev: dev, waker: engine.NewWaker(), async: engine.NewWaker(), end: make(chan struct{}), done: make(chan struct{}),
		steered: map[ibv.FlowSpec]steered{}, byCQ: map[*ibv.CQ]*txQueue{}}
	close(p.done) // run does not run yet
	defer func() {
		if err != nil {
			err = errors.Join(err, p.shut())
		}
	}()
	if err := able(dev, o.Port); err != nil {
		return nil, err
	}
	if p.attr, err = dev.Attr(); err != nil {
		return nil, unavailable(err)
	}
	if o.Checksum && !p.attr.RawChecksum {
		return nil, fmt.Errorf("verbs: %s does not write checksums: %w", dev.Name(), engine.ErrUnsupported)
	}
	if err := p.learn(netdev); err != nil {
		return nil, err
	}
	p.dry = func() (uint64, bool) { return e.dry(dev.Device(), o.Port) }
	p.dry0, p.exact = p.dry()
	can := e.RuleCapabilities(spec)
	if p.table, err = flow.NewTable(flow.TableOptions{Engine: &can}); err != nil {
		return nil, err
	}
	if p.pd, err = dev.AllocPD(); err != nil {
		return nil, unavailable(err)
	}
	p.memory = ibvmem.New(dev, ibvmem.Options{Tree: e.tree})
	p.regs = p.memory.NewTable(p.pd)
	if p.events, err = dev.CreateChannel(); err != nil {
		return nil, unavailable(err)
	}
	for _, fd := range []int{p.events.FD(), dev.AsyncFD()} {
		if err := engine.Events.Add(fd); err != nil {
			return nil, err
		}
		p.fds = append(p.fds, fd)
	}
	p.done = make(chan struct{})
	go p.run()
	return p, nil
}

// learn finds out what Info tells.
func (p *Port) learn(netdev string) error {
	a, err := p.dev.Port(p.o.Port)
	if err != nil {
		return unavailable(err)
	}
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
	p.info.Engine, p.info.Address, p.info.Speed = Name, p.spec.Address, a.Speed
	if p.info.Device == "" {
		p.info.Device = p.dev.Name()
	}
	if p.info.MAC == (packet.MAC{}) {
		if gids, err := p.dev.GIDs(p.o.Port); err == nil && len(gids) > 0 {
			p.info.MAC = macOf(gids[0].Addr)
		}
	}
	p.up.Store(a.State == ibv.PortActive)
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

// run hears of what was sent and of what happens to the device.
func (p *Port) run() {
	defer close(p.done)
	for {
		_ = engine.Events.Arm(p.fds[0], p.waker) // they stay until the goroutine has ended
		_ = engine.Events.Arm(p.fds[1], p.async)
		select {
		case <-p.end:
			return
		case <-p.async.C():
			if p.listen(); p.failed.Load() != nil {
				p.wake()
			}
			p.bell.Ring()
			continue
		case <-p.waker.C():
		}
		for {
			cq, ok, err := p.events.Next()
			if !ok || err != nil {
				break
			}
			cq.Ack()
			p.rx.Lock()
			q := p.byCQ[cq]
			p.rx.Unlock()
			if q != nil {
				q.event()
			}
		}
	}
}

// listen takes what the device has told.
func (p *Port) listen() {
	for {
		ev, ok, err := p.dev.NextAsync()
		if !ok || err != nil {
			return
		}
		p.happened(ev)
	}
}

// happened deals with an event of the device. A queue pair that failed flushes what it has, and the queue that sees that makes it ready again.
func (p *Port) happened(ev ibv.AsyncEvent) {
	switch ev.Type {
	case ibv.EventPortActive, ibv.EventPortErr:
		if up := ev.Type == ibv.EventPortActive; ev.Port == p.o.Port && p.up.Swap(up) != up {
			p.changes.Add(1)
		}
	case ibv.EventDeviceFatal, ibv.EventCQErr:
		p.fail(fmt.Errorf("verbs: %s: %v: close the port and open it again: %w", p.name, ev, engine.ErrDown))
	}
	p.wake()
}

// fail says that nothing goes any more, and why. run wakes the owners: the caller may hold the lock of a queue.
func (p *Port) fail(err error) {
	if p.failed.CompareAndSwap(nil, &err) {
		p.async.Wake()
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

// Revived is how often a queue pair that had failed was made ready again.
func (p *Port) Revived() uint64 { return p.revived.Load() }

// LinkState implements engine.LinkTeller: as the device tells by its events. A device that has failed is gone.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	gone := p.failed.Load() != nil
	return engine.LinkState{Up: p.up.Load() && !gone, Gone: gone, Changes: p.changes.Load()}
}

// Info implements engine.Port.
func (p *Port) Info() engine.PortInfo {
	i := p.info
	i.IPs, i.Up = slices.Clone(i.IPs), p.up.Load() && p.failed.Load() == nil
	return i
}

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities {
	c := (&Engine{}).Capabilities()
	c.MaxPacket, c.ExactDrops = p.info.MTU+packet.EthernetLen, p.exact
	c.HardwareTime = p.attr.TimestampMask != 0
	if p.attr.RawChecksum {
		c.TxChecksum = "device"
	}
	if !p.exact {
		c.Notes = append(c.Notes, "the card does not count frames for which there was no receive (hw_counters/out_of_buffer)")
	}
	if !p.memory.Able() {
		c.Memory = slices.DeleteFunc(c.Memory, func(k mem.Kind) bool { return k == mem.Device })
		c.Notes = append(c.Notes, ibvmem.Unable)
	}
	return c
}

// ReachesRegion implements engine.DeviceReacher. The first question about a region registers a page of it.
func (p *Port) ReachesRegion(r *mem.Region) error {
	if err := p.memory.Reaches(p.pd, r); err != nil {
		return refused(err)
	}
	return nil
}

// Rules implements engine.Port: it is a *Rules.
func (p *Port) Rules() engine.Rules { return &Rules{p} }

// Stats implements engine.Port. What the card lost for want of a receive is DropNIC, or DropNoBuffers if a queue had fewer
// receives posted than its depth for want of slots, be they all in the card or not; the card counts it for all users of the device.
func (p *Port) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	p.account()
	*s = engine.PortStats{Tx: p.past, LinkChanges: p.changes.Load()}
	p.counts.AddTo(s)
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.txs, p.gone)
}

// account counts what the card has lost since it was asked last: for want of memory, if the pools of a queue had none meanwhile. The caller holds
// the set's lock.
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
	return errors.Join(append(errs, p.shut())...)
}

// shut gives up what open has made.
func (p *Port) shut() (err error) {
	close(p.end)
	<-p.done
	for _, fd := range p.fds {
		engine.Events.Remove(fd)
	}
	if p.events != nil {
		err = p.events.Close()
	}
	if p.pd != nil {
		err = errors.Join(err, p.regs.Close(), p.pd.Close())
	}
	return errors.Join(err, p.dev.Close())
}

// ready brings a new queue pair, or one that has failed and flushed, to work.
func (p *Port) ready(q *ibv.QP) error {
	if s, err := q.State(); err != nil {
		return err
	} else if s != ibv.QPReset {
		if err := q.Reset(); err != nil {
			return err
		}
		p.revived.Add(1)
	}
	if err := q.Init(ibv.InitAttr{Port: uint8(p.o.Port)}); err != nil {
		return err
	}
	if err := q.ReadyToReceive(ibv.RTRAttr{}); err != nil {
		return err
	}
	return q.ReadyToSend(ibv.RTSAttr{})
}
