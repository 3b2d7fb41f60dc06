package sim

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/flow"
	"github.com/penstock-io/penstock/packet"
)

// Port is an open port of a network.
type Port struct {
	net   *Network
	at    *station
	name  string
	spec  engine.PortSpec
	limit int // bytes of the longest untagged frame
	rules *rules

	adding sync.Mutex // one at a time adds a queue

	// Guarded by Network.mu.
	closed  bool // no queue may be added
	gone    bool // Close has done its work
	rx      [MaxQueues]*rxQueue
	tx      [MaxQueues]*txQueue
	first   *rxQueue // of the lowest number
	old     []*txQueue
	past    books // of closed receive queues
	changes uint64
	// What was lost on the way to and from the station until the port was opened, and until it was closed.
	before, after engine.Drops

	came, kernel atomic.Uint64
	drops        [engine.NumDrops]atomic.Uint64

	steer steering
	ended chan struct{} // closed when Close has done its work
}

func newPort(s *station, spec engine.PortSpec) *Port {
	p := &Port{net: s.net, at: s, name: spec.Name, spec: spec, limit: spec.MTU + packet.EthernetLen, ended: make(chan struct{})}
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
func (p *Port) Capabilities() engine.Capabilities { return capabilities(p.spec.MTU) }

// Rules implements engine.Port.
func (p *Port) Rules() engine.Rules { return p.rules }

// SetIsolation changes what happens to packets that no rule accepts: PortSpec.Isolated at the beginning.
func (p *Port) SetIsolation(i flow.Isolation) error {
	_, err := p.rules.SetIsolation(i)
	return err
}

// Info implements engine.Port. Up is the state of the link.
func (p *Port) Info() engine.PortInfo {
	p.net.mu.RLock()
	defer p.net.mu.RUnlock()
	return engine.PortInfo{Engine: "sim", Address: p.spec.Address, MAC: p.at.mac, MTU: p.spec.MTU, Up: !p.closed && p.at.out.up.Load(),
		Speed: p.net.opts.Speed, NUMA: -1}
}

// queueID chooses an id.
func queueID[Q any](p *Port, id int, used *[MaxQueues]*Q, what string) (int, error) {
	p.net.mu.RLock()
	defer p.net.mu.RUnlock()
	if p.closed {
		return 0, engine.ErrClosed
	}
	if id == engine.Auto {
		for id = 0; id < MaxQueues && used[id] != nil; id++ {
		}
	}
	switch {
	case id < 0 || id >= MaxQueues:
		return 0, fmt.Errorf("%w: sim: port %q: %s queue %d: expected 0 to %d", engine.ErrInvalid, p.name, what, id, MaxQueues-1)
	case used[id] != nil:
		return 0, fmt.Errorf("%w: sim: port %q: %s queue %d: use engine.Auto for one that is free", engine.ErrExists, p.name, what, id)
	}
	return id, nil
}

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.adding.Lock()
	defer p.adding.Unlock()
	id, err := queueID(p, spec.ID, &p.rx, "receive")
	if err != nil {
		return nil, err
	}
	q, err := newRxQueue(p, id, spec)
	if err != nil {
		return nil, err
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		releaseSources(q.pools)
		return nil, engine.ErrClosed
	}
	p.rx[id] = q
	p.pick()
	return q, nil
}

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.adding.Lock()
	defer p.adding.Unlock()
	id, err := queueID(p, spec.ID, &p.tx, "transmit")
	if err != nil {
		return nil, err
	}
	q, err := newTxQueue(p, id, spec)
	if err != nil {
		return nil, err
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.closed {
		releaseSources(q.pools)
		return nil, engine.ErrClosed
	}
	p.tx[id] = q
	return q, nil
}

// pick finds the first receive queue. The caller holds Network.mu for writing.
func (p *Port) pick() {
	p.first = nil
	for _, q := range p.rx {
		if q != nil {
			p.first = q
			return
		}
	}
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

// carry takes packets from to to-1 of a burst off the wire. The caller holds Network.mu for reading.
func (p *Port) carry(c *cargo, from, to int) {
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

// sort sends packets to their queues.
func (p *Port) sort(c *cargo, from, to int) {
	if s := p.rules.Snapshot(); s.Classifier().Len() > 0 || s.Isolation() != p.rules.open {
		p.steer.carry(c, from, to)
		return
	}
	if p.first == nil {
		p.drop(engine.DropNoQueue, to-from)
		return
	}
	p.first.put(c, from, to, false)
}

// frame takes one frame off the wire, which it does not change. The caller holds Network.mu for reading.
func (p *Port) frame(frame []byte, now int64) {
	p.came.Add(1)
	if len(frame) > p.limit && !p.fits(frame, len(frame)) {
		p.drop(engine.DropTooLong, 1)
		return
	}
	if s := p.rules.Snapshot(); s.Classifier().Len() > 0 || s.Isolation() != p.rules.open {
		p.steer.frame(frame, now)
		return
	}
	if p.first == nil {
		p.drop(engine.DropNoQueue, 1)
		return
	}
	p.first.frame(frame, 0, now)
}

// Stats implements engine.Port. Drops are also those of the wires to and from the port, where they count here.
func (p *Port) Stats(s *engine.PortStats) {
	p.net.mu.RLock()
	*s = engine.PortStats{Rx: p.past.rx, Kernel: p.kernel.Load(), LinkChanges: p.changes}
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
	queues, old := p.rx, p.tx
	senders := append([]*txQueue(nil), p.old...)
	p.net.mu.RUnlock() // a queue that is closed from here on keeps its counts
	var rx engine.RxStats
	var tx engine.TxStats
	for _, q := range queues {
		if q != nil {
			q.Stats(&rx)
			s.Rx.Add(&rx)
		}
	}
	for _, q := range append(senders, old[:]...) {
		if q != nil {
			q.Stats(&tx)
			s.Tx.Add(&tx)
		}
	}
}

// Close implements engine.Port. It waits for the goroutines of the transmit queues.
func (p *Port) Close() error {
	n := p.net
	n.mu.Lock()
	if p.closed {
		n.mu.Unlock()
		<-p.ended
		return nil
	}
	p.closed = true
	rx, tx := p.rx, p.tx
	n.mu.Unlock()
	defer close(p.ended)
	for _, q := range tx {
		if q != nil {
			q.Close()
		}
	}
	for _, q := range rx {
		if q != nil {
			q.Close()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p.steer.counts.Close()
	p.at.lost(&p.after)
	p.gone = true
	p.at.port = nil
	p.at.closed.add(p)
	if p.at.on != nil {
		p.at.on.unlearn(p.at)
	}
	return nil
}
