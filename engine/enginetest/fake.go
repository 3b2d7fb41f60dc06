package enginetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Shape is what the memory of a Fake is like.
type Shape uint8

// The shapes of fakes.
const (
	Plain Shape = iota // one slot of the user's pool for each packet, or two with header/data split
	// received packets share blocks of the engine, which are free again when the last of them is
	// released
	Blocks
	Chunks  // a packet is a chain of slots of the user's pool, each with its own handle
	Foreign // the engine refuses the user's pools and has buffers of its own, so that forwarding copies
	Stream  // a byte stream that is merged and cut anywhere, and waits for its consumer
	numShapes
)

var shapeNames = [numShapes]string{"plain", "blocks", "chunks", "foreign", "stream"}

func (s Shape) String() string {
	if s < numShapes {
		return shapeNames[s]
	}
	return fmt.Sprintf("shape %d", uint8(s))
}

// maxFake is the largest packet of a fake in bytes.
const maxFake = 9216

// Fake is an engine in memory with two ports, "a" and "b", joined by a link. It is for tests:
// sound, exact, not fast.
type Fake struct {
	shape Shape
	flaw  flaw
	held  atomic.Int64 // buffers of the engine's own that are out

	mu    sync.Mutex
	ports [2]*fakePort
	down  atomic.Bool
}

// NewFake makes a fake with no port open. Each has a network of its own.
func NewFake(s Shape) *Fake { return &Fake{shape: s} }

// FakeHarness is the harness of a fake, for comparison with other engines: see Same.
func FakeHarness(s Shape) Harness { return harnessOf(s, sound) }

func harnessOf(s Shape, f flaw) Harness {
	h := Harness{OwnRx: s == Foreign || s == Blocks, OwnTx: s == Foreign}
	h.Open = func(t testing.TB) Pair {
		t.Helper()
		e := &Fake{shape: s, flaw: f}
		p := Pair{SetLink: e.SetLink, Held: e.Held}
		if s == Stream {
			p.Conn = func(engine.Port) uint32 { return streamConn }
		}
		var err error
		if p.A, err = e.OpenPort(t.Context(), engine.PortSpec{Address: "a"}); err != nil {
			t.Fatal(err)
		}
		if p.B, err = e.OpenPort(t.Context(), engine.PortSpec{Address: "b"}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	return h
}

// Name implements engine.Engine.
func (f *Fake) Name() string { return "fake-" + f.shape.String() }

// Available implements engine.Engine: it always is.
func (f *Fake) Available() error { return nil }

// SetLink takes the link between the two ports down or up.
func (f *Fake) SetLink(up bool) { f.down.Store(!up) }

// Held is the number of packets whose memory is the engine's and has not come back.
func (f *Fake) Held() int { return int(f.held.Load()) }

// Capabilities implements engine.Engine.
func (f *Fake) Capabilities() engine.Capabilities {
	c := engine.Capabilities{
		Frames:          f.shape != Stream,
		Stream:          f.shape == Stream,
		Connections:     f.shape == Stream,
		RxQueues:        16,
		TxQueues:        16,
		Rules:           f.shape != Stream,
		RulesIn:         "software",
		Split:           f.shape == Plain,
		Chains:          f.shape == Chunks,
		Timestamps:      f.shape != Stream,
		ZeroCopyForward: f.shape == Plain || f.shape == Chunks,
		Memory:          []mem.Kind{mem.Host, mem.Huge},
		ExactDrops:      true,
		MaxPacket:       maxFake,
		Pacing:          f.flaw == ignoresRate,
	}
	switch f.shape {
	case Foreign:
		c.Memory, c.Pools, c.PoolsWhy = nil, engine.PoolsRefused, "its packets are in memory of its own"
	case Blocks:
		c.Pools, c.PoolsWhy = engine.PoolsRefused, "its packets are in memory of its own"
	}
	return c
}

// OpenPort implements engine.Engine; the address is "a" or "b".
func (f *Fake) OpenPort(_ context.Context, spec engine.PortSpec) (engine.Port, error) {
	i := slices.Index([]string{"a", "b"}, spec.Address)
	if i < 0 {
		return nil, fmt.Errorf("%w: fake: no port %q: expected a or b", engine.ErrInvalid, spec.Address)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports[i] != nil {
		return nil, fmt.Errorf("%w: fake: port %s", engine.ErrInUse, spec.Address)
	}
	p := &fakePort{eng: f, index: i, name: spec.Name, rx: map[int]*fakeRx{}, tx: map[int]*fakeTx{}}
	if p.name == "" {
		p.name = spec.Address
	}
	var err error
	if p.table, err = flow.NewTable(flow.TableOptions{Isolation: flow.Isolation{Unmatched: flow.Deliver}}); err != nil {
		return nil, err
	}
	p.counters = p.table.NewCounters()
	f.ports[i] = p
	return p, nil
}

// peer is the port at the other end, nil if it is not open.
func (f *Fake) peer(p *fakePort) *fakePort {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ports[1-p.index]
}

// fakePort is one end.
type fakePort struct {
	eng   *Fake
	index int
	name  string

	mu     sync.RWMutex
	closed bool
	rx     map[int]*fakeRx
	tx     map[int]*fakeTx
	table  *flow.Table

	countMu  sync.Mutex
	counters *flow.Counters // of the table
	first    *fakeRx        // of the lowest id, which gets what comes
	allRx    []*fakeRx      // also those that were closed, for the sums
	allTx    []*fakeTx
	lost     [engine.NumDrops]atomic.Uint64
}

func (p *fakePort) Name() string                      { return p.name }
func (p *fakePort) Capabilities() engine.Capabilities { return p.eng.Capabilities() }

// Rules implements engine.Port.
func (p *fakePort) Rules() engine.Rules {
	if p.eng.shape == Stream {
		return nil
	}
	return fakeRules{p.table, p}
}

// fakeRules are the rules of a port, those of a table.
type fakeRules struct {
	*flow.Table
	port *fakePort
}

// Stats implements engine.Rules.
func (r fakeRules) Stats() flow.Stats {
	r.port.mu.RLock()
	defer r.port.mu.RUnlock()
	s := r.Table.Stats()
	if r.port.closed && r.port.eng.flaw == forgetsRuleCounts {
		s.Rules = nil
	}
	return s
}

// Apply implements engine.Rules.
func (r fakeRules) Apply(changes ...flow.Change) (flow.Result, error) {
	if r.port.eng.flaw != halfBatch || len(changes) == 1 {
		return r.Table.Apply(changes...)
	}
	var all flow.Result
	for _, c := range changes { // one by one, not all or nothing
		res, err := r.Table.Apply(c)
		if err != nil {
			return all, err
		}
		all.Version, all.IDs = res.Version, append(all.IDs, res.IDs...)
	}
	return all, nil
}

// List implements engine.Rules.
func (r fakeRules) List() []flow.Rule { return r.Snapshot().Rules() }

func (p *fakePort) Info() engine.PortInfo {
	return engine.PortInfo{
		Engine: p.eng.Name(), Address: string(rune('a' + p.index)), MAC: packet.MAC{2, 0, 0, 0, 0, byte(1 + p.index)},
		MTU: maxFake - packet.EthernetLen, Up: !p.eng.down.Load(), NUMA: -1,
	}
}

// queueID chooses an id among those in use.
func queueID[Q any](id int, used map[int]Q, what string) (int, error) {
	if id == next {
		if len(used) == 16 {
			return 0, fmt.Errorf("%w: fake: all 16 %s queues", engine.ErrInUse, what)
		}
		for id = 0; ; id++ {
			if _, ok := used[id]; !ok {
				break
			}
		}
	}
	if id < 0 || id >= 16 {
		return 0, fmt.Errorf("%w: fake: %s queue %d: expected 0 to 15", engine.ErrInvalid, what, id)
	}
	if _, ok := used[id]; ok {
		return 0, fmt.Errorf("%w: fake: %s queue %d", engine.ErrExists, what, id)
	}
	return id, nil
}

func (p *fakePort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	id, err := queueID(spec.ID.Number(), p.rx, "receive")
	if err != nil {
		if p.eng.flaw != acceptsDuplicates {
			return nil, err
		}
		id = 15
	}
	q, err := newFakeRx(p, id, spec)
	if err != nil {
		return nil, err
	}
	p.rx[id] = q
	p.allRx = append(p.allRx, q)
	p.pick()
	return q, nil
}

// pick finds the first receive queue.
func (p *fakePort) pick() {
	p.first = nil
	if len(p.rx) > 0 {
		p.first = p.rx[slices.Min(slices.Collect(maps.Keys(p.rx)))]
	}
}

func (p *fakePort) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	id, err := queueID(spec.ID.Number(), p.tx, "transmit")
	if err != nil {
		return nil, err
	}
	q, err := newFakeTx(p, id, spec)
	if err != nil {
		return nil, err
	}
	p.tx[id] = q
	p.allTx = append(p.allTx, q)
	return q, nil
}

func (p *fakePort) Stats(s *engine.PortStats) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	*s = engine.PortStats{}
	engine.SumRx(&s.Rx, p.allRx)
	engine.SumTx(&s.Tx, p.allTx)
	for i := range p.lost {
		s.Drops[i] += p.lost[i].Load()
	}
}

func (p *fakePort) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	rx, tx := slices.Collect(maps.Values(p.rx)), slices.Collect(maps.Values(p.tx))
	p.mu.Unlock()
	for _, q := range tx {
		q.Close()
	}
	for _, q := range rx {
		q.Close()
	}
	p.eng.mu.Lock()
	p.eng.ports[p.index] = nil
	p.eng.mu.Unlock()
	return nil
}

// deliver takes the bytes of a packet from the link. It is false when the consumer of a stream has
// no room: how far it came is in done.
func (p *fakePort) deliver(data []byte, done *int) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	q, rule := p.first, uint32(0)
	if p.eng.shape != Stream {
		var drop engine.Drop
		if q, rule, drop = p.steer(data); q == nil {
			p.lost[drop].Add(1)
			return true
		}
	}
	if q == nil {
		p.lost[engine.DropNoQueue].Add(1)
		return true
	}
	return q.deliver(data, rule, done)
}

// steer finds the queue of a frame, and the rule that said so; without a queue it says why. The
// caller holds mu.
func (p *fakePort) steer(data []byte) (*fakeRx, uint32, engine.Drop) {
	var l packet.Layers
	var d flow.Decision
	if packet.Parse(data, &l) == packet.OK {
		now := p.table.Snapshot()
		d = now.Classify(data, &l)
		p.countMu.Lock()
		p.counters.Count(now, d, len(data))
		p.countMu.Unlock()
	}
	if p.eng.flaw == ignoresRule {
		d = flow.Decision{}
	}
	switch {
	case d.Verdict == flow.Discard:
		return nil, 0, engine.DropRule
	case d.ID == 0:
		return p.first, 0, engine.DropNoQueue
	}
	return p.rx[int(d.Queue)], d.ID, engine.DropNoQueue
}
