package sim

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

// Port is an open port of a network.
type Port struct {
	net   *Network
	at    *endpoint
	name  string
	spec  engine.PortSpec
	limit int // bytes of the longest untagged frame
	rules *rules

	// rx has a lock that comes before Network.mu: one goroutine at a time adds a queue. Queues are
	// added and removed with Network.mu held.
	rx engine.RxSet[*rxQueue]

	// Guarded by Network.mu.
	gone    bool                    // Close has done its work
	tx      []*txQueue              // open ones
	old     []*txQueue              // closed ones
	past    struct{ rxCame uint64 } // of closed receive queues
	changes uint64
	bell    engine.LinkBell
	// What was lost on the way to and from the endpoint until the port was opened, and until it was
	// closed.
	before, after engine.Drops

	came, kernel atomic.Uint64
	drops        [engine.NumDrops]atomic.Uint64

	steer steering
	ended chan struct{} // closed when Close has done its work
}

func newPort(s *endpoint, spec engine.PortSpec) *Port {
	p := &Port{net: s.net, at: s, name: spec.Name, spec: spec, limit: spec.MTU + packet.EthernetLen,
		ended: make(chan struct{})}
	if p.name == "" {
		p.name = spec.Address
	}
	s.lost(&p.before)
	p.rules = newRules(s.net, spec.Isolated)
	p.steer.init(p)
	return p
}

// Name implements engine.Port.
func (p *Port) Name() string { return p.name }

// Capabilities implements engine.Port.
func (p *Port) Capabilities() engine.Capabilities { return p.net.capabilities(p.spec.MTU) }

// Rules implements engine.Port.
func (p *Port) Rules() engine.Rules { return p.rules }

// Info implements engine.Port. Up is the state of the link.
func (p *Port) Info() engine.PortInfo {
	p.rx.Lock()
	defer p.rx.Unlock()
	return engine.PortInfo{Engine: "sim", Address: p.spec.Address, MAC: p.at.mac, MTU: p.spec.MTU, Up: !p.rx.Closed() &&
		p.at.out.up.Load(),
		NUMA: -1}
}

// LinkState implements engine.LinkReporter.
func (p *Port) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	p.net.mu.RLock()
	defer p.net.mu.RUnlock()
	return engine.LinkState{Up: p.at.out.up.Load(), Changes: p.changes}
}

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	can := p.Capabilities()
	if err := p.rx.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("sim: port %q: %w", p.name, err)
	}
	q, err := newRxQueue(p, spec)
	if err != nil {
		return nil, err
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.rx.Add(q)
	return q, nil
}

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	p.net.mu.RLock()
	id, err := engine.TxID(spec.ID, MaxQueues, p.tx)
	p.net.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("sim: port %q: %w", p.name, err)
	}
	q, err := newTxQueue(p, id, spec)
	if err != nil {
		return nil, err
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	p.tx = append(p.tx, q)
	return q, nil
}

// first is the queue of packets that no rule steers, nil where there is none.
func (p *Port) first() *rxQueue {
	if live := p.rx.Live(); len(live) > 0 {
		return live[0]
	}
	return nil
}

// fits reports whether a frame of n bytes is allowed: VLAN tags come on top of the MTU.
func (p *Port) fits(frame []byte, n int) bool {
	limit := p.limit
	for at := 12; n > limit && at <= 16 && len(frame) >= at+2; at += packet.VLANLen {
		switch packet.EtherType(binary.BigEndian.Uint16(frame[at:])) {
		case packet.EtherTypeVLAN, packet.EtherTypeQinQ:
			limit += packet.VLANLen
		default:
			return false
		}
	}
	return n <= limit
}

func (p *Port) drop(why engine.Drop, n int) { p.drops[why].Add(uint64(n)) }

// carry takes packets from to to-1 of a burst off the wire. The caller holds Network.mu for
// reading.
func (p *Port) carry(c *sending, from, to int) {
	p.came.Add(uint64(to - from))
	for i := from; c.longest > p.limit && i < to; i++ {
		if n := c.b.PacketLen(i); n > p.limit && !p.fits(c.b.Bytes(i, 0), n) {
			p.drop(engine.DropTooLong, 1)
			if i > from {
				p.sort(c, from, i)
			}
			from = i + 1
		}
	}
	if from < to {
		p.sort(c, from, to)
	}
}

// steers reports whether the headers of packets have to be read.
func (p *Port) steers() bool {
	s := p.rules.Snapshot()
	return s.Classifier().Len() > 0 || s.Isolation() != p.rules.open || p.net.opts.Hash
}

// sort sends packets to their queues.
func (p *Port) sort(c *sending, from, to int) {
	if p.steers() {
		p.steer.carry(c, from, to)
		return
	}
	q := p.first()
	if q == nil {
		p.drop(engine.DropNoQueue, to-from)
		return
	}
	q.put(c, from, to, false)
}

// frame takes one frame off the wire, which it does not change. The caller holds Network.mu for
// reading.
func (p *Port) frame(frame []byte, now int64) {
	p.came.Add(1)
	if len(frame) > p.limit && !p.fits(frame, len(frame)) {
		p.drop(engine.DropTooLong, 1)
		return
	}
	if p.steers() {
		p.steer.frame(frame, now)
		return
	}
	q := p.first()
	if q == nil {
		p.drop(engine.DropNoQueue, 1)
		return
	}
	q.frame(frame, headers{}, now)
}

// Stats implements engine.Port. Drops are also those of the wires to and from the port, where they
// count here.
func (p *Port) Stats(s *engine.PortStats) {
	p.net.mu.RLock()
	defer p.net.mu.RUnlock()
	*s = engine.PortStats{Kernel: p.kernel.Load(), LinkChanges: p.changes}
	for i := range p.drops {
		s.Drops[i] = p.drops[i].Load()
	}
	after := p.after
	if !p.gone {
		p.at.lost(&after)
	}
	for i, n := range after {
		s.Drops[i] += n - p.before[i]
	}
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.tx, p.old)
}

// Close implements engine.Port. It waits for the goroutines of the transmit queues.
func (p *Port) Close() error {
	n := p.net
	rx, first := p.rx.End()
	if !first {
		<-p.ended
		return nil
	}
	n.mu.Lock()
	tx := slices.Clone(p.tx)
	n.mu.Unlock()
	defer close(p.ended)
	for _, q := range tx {
		q.Close()
	}
	for _, q := range rx {
		q.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.steer.counts.Close()
	p.at.lost(&p.after)
	p.gone = true
	p.at.port = nil
	p.at.closed.add(p)
	return nil
}
