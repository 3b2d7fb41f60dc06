package enginetest

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// flaw is a mistake of an engine.
type flaw uint8

const (
	sound flaw = iota
	losesSilently
	losesUncounted
	releasesTwice
	waitsInTryRecv
	forgetsWake
	keepsFirstWaker
	leaksOnClose
	leaksSlots
	reorders
	repeats
	wrongReason
	corrupts
	shortens
	losesReservations
	wrongAllocError
	acceptsDuplicates
	countsWrong
	splitsWrong
	wrongEpoch
	keepsUnreserved
	keepsAfterSend
	forgetsItIsClosed
	allocates
	leaksGoroutine
	leaksDescriptor
	keepsSourceMAC
	ignoresRule
	halfBatch
	forgetsRuleCounts
	oneTooMany
	copiesForwarded
	corruptsSizes
	takesAnything
	ignoresRate
)

// simulated opens two ports of a simulated network.
func simulated(t testing.TB) Pair {
	n, err := sim.NewNetwork(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	l, err := n.Link("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	p := Pair{SetLink: l.SetUp}
	if p.A, err = n.OpenPort(t.Context(), engine.PortSpec{Address: "a"}); err != nil {
		t.Fatal(err)
	}
	if p.B, err = n.OpenPort(t.Context(), engine.PortSpec{Address: "b"}); err != nil {
		t.Fatal(err)
	}
	return p
}

// overTCP opens two ports with one connection between them.
func overTCP(t testing.TB) Pair {
	open := func(address string) *socket.TCPPort {
		p, err := socket.New().OpenPort(t.Context(), engine.PortSpec{Address: address})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p.(*socket.TCPPort)
	}
	server := open("tcp://127.0.0.1:0?listen=1")
	client := open("tcp://" + server.LocalAddr().String())
	if err := server.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := server.Find(client.LocalAddr())
	return Pair{A: client, B: server, Conn: func(from engine.Port) uint32 {
		if from == engine.Port(server) {
			return id
		}
		return 0
	}}
}

// broken is a harness over the ports that open gives, with a flaw between them and the suite.
func broken(f flaw, open func(t testing.TB) Pair) Harness {
	return Harness{Open: func(t testing.TB) Pair {
		p := open(t)
		if conn := p.Conn; conn != nil {
			p.Conn = func(from engine.Port) uint32 { return conn(from.(*brokenPort).Port) }
		}
		p.A, p.B = newBrokenPort(t, p.A, f), newBrokenPort(t, p.B, f)
		return p
	}}
}

// brokenPort is a sound port with a flaw.
type brokenPort struct {
	engine.Port
	flaw   flaw
	rules  brokenRules
	closed atomic.Bool
	// What its receive queues gave to their owners and the port does not know of, or the other way
	// round.
	packets, bytes, leaked atomic.Int64
}

func newBrokenPort(t testing.TB, p engine.Port, f flaw) *brokenPort {
	b := &brokenPort{Port: p, flaw: f}
	b.rules = brokenRules{p.Rules(), b}
	if f == ignoresRule {
		table, err := flow.NewTable(flow.TableOptions{Isolation: flow.Isolation{Unmatched: flow.Deliver}})
		if err != nil {
			t.Fatal(err)
		}
		b.rules.Rules = tableRules{table}
	}
	return b
}

func (p *brokenPort) Rules() engine.Rules {
	if p.Port.Rules() == nil {
		return nil
	}
	return p.rules
}

func (p *brokenPort) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	if p.flaw == splitsWrong && spec.SplitAt > 0 {
		spec.SplitAt--
	}
	q, err := p.Port.AddRxQueue(spec)
	switch {
	case err == nil:
	case p.flaw == takesAnything:
		q, err = p.Port.AddRxQueue(engine.RxSpec{ID: spec.ID, Pools: spec.Pools})
	case p.flaw == acceptsDuplicates && errors.Is(err, engine.ErrExists):
		spec.ID = engine.QueueID{}
		q, err = p.Port.AddRxQueue(spec)
	}
	if err != nil {
		return nil, err
	}
	return &brokenRx{RxQueue: q, port: p, spec: spec, aside: burst.NewSegmented(64, 256)}, nil
}

func (p *brokenPort) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	switch p.flaw {
	case keepsSourceMAC:
		spec.SourceMAC = false
	case ignoresRate:
		spec.Rate = 0
	case oneTooMany:
		spec.Depth++
	}
	q, err := p.Port.AddTxQueue(spec)
	if err != nil && p.flaw == takesAnything {
		q, err = p.Port.AddTxQueue(engine.TxSpec{ID: spec.ID, Pools: spec.Pools})
	}
	if err != nil {
		return nil, err
	}
	return &brokenTx{TxQueue: q, flaw: p.flaw, spec: spec}, nil
}

func (p *brokenPort) Stats(s *engine.PortStats) {
	p.Port.Stats(s)
	p.amend(&s.Rx)
}

// amend makes of true counts what this port says.
func (p *brokenPort) amend(s *engine.RxStats) {
	s.Packets += uint64(p.packets.Load())
	s.Bytes += uint64(p.bytes.Load())
	switch p.flaw {
	case losesUncounted:
		s.Drops = engine.Drops{}
	case wrongReason:
		s.Drops[engine.DropUnattributed] += s.Drops[engine.DropFlushed]
		s.Drops[engine.DropFlushed] = 0
	case leaksOnClose:
		s.Drops[engine.DropClosed] += uint64(p.leaked.Load())
	case countsWrong:
		s.Packets -= min(s.Packets, 1)
	}
}

func (p *brokenPort) Close() error {
	p.closed.Store(true)
	switch p.flaw {
	case leaksGoroutine:
		stop := make(chan struct{})
		go func() { <-stop }()
		leaked.add(func() { close(stop) })
	case leaksDescriptor:
		if f, err := os.Open(os.DevNull); err == nil {
			leaked.add(func() { f.Close() })
		}
	}
	return p.Port.Close()
}

// tableRules are rules that steer nothing.
type tableRules struct{ *flow.Table }

func (r tableRules) List() []flow.Rule { return r.Snapshot().Rules() }

type brokenRules struct {
	engine.Rules
	port *brokenPort
}

func (r brokenRules) Stats() flow.Stats {
	s := r.Rules.Stats()
	if r.port.closed.Load() && r.port.flaw == forgetsRuleCounts {
		s.Rules = nil
	}
	return s
}

func (r brokenRules) Apply(changes ...flow.Change) (flow.Result, error) {
	if r.port.flaw != halfBatch || len(changes) == 1 {
		return r.Rules.Apply(changes...)
	}
	var all flow.Result
	for _, c := range changes { // one by one, not all or nothing
		res, err := r.Rules.Apply(c)
		if err != nil {
			return all, err
		}
		all.Version, all.IDs = res.Version, append(all.IDs, res.IDs...)
	}
	return all, nil
}

// brokenRx is a sound receive queue with a flaw.
type brokenRx struct {
	engine.RxQueue
	port  *brokenPort
	spec  engine.RxSpec
	aside *burst.Burst
	first *engine.Waker // of keepsFirstWaker
	count int
	slots [1]burst.Handle
}

// every reports whether n more of something make another k of them.
func (q *brokenRx) every(k, n int) bool {
	q.count += n
	return q.count/k != (q.count-n)/k
}

func (q *brokenRx) Stats(s *engine.RxStats) {
	q.RxQueue.Stats(s)
	q.port.amend(s)
}

func (q *brokenRx) Arm(w *engine.Waker) bool {
	switch q.port.flaw {
	case forgetsWake:
		if q.every(50, 1) {
			w = engine.NewWaker()
		}
	case keepsFirstWaker:
		if q.first == nil {
			q.first = w
		}
		w = q.first
	}
	return q.RxQueue.Arm(w)
}

func (q *brokenRx) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return q.RxQueue.TryRecv(b)
	}
	before := b.Len()
	n, err := q.RxQueue.TryRecv(b)
	switch q.port.flaw {
	case waitsInTryRecv:
		for w := engine.NewWaker(); n == 0 && err == nil; n, err = q.RxQueue.TryRecv(b) {
			if !q.RxQueue.Arm(w) {
				<-w.C()
			}
		}
	case allocates:
		garbage.Store(new([64]byte))
	case forgetsItIsClosed:
		if errors.Is(err, engine.ErrClosed) {
			err = nil
		}
	}
	if n > 0 {
		n += q.spoil(b, before, n)
	}
	return n, err
}

// spoil changes what was received, n packets from number before on, and returns how many packets
// more there are then.
func (q *brokenRx) spoil(b *burst.Burst, before, n int) int {
	p, last := q.port, b.Len()-1
	tail := b.Bytes(last, b.Segments(last)-1)
	switch p.flaw {
	case keepsFirstWaker:
		q.first = nil
	case losesSilently:
		if n > 1 && n < q.aside.Room() && q.every(10, 1) {
			more := q.came(-1, -b.PacketLen(before))
			for i := before + 1; i <= last; i++ {
				b.Take(q.aside, i)
			}
			b.Truncate(before)
			q.aside.MoveTo(b)
			return more
		}
	case repeats:
		if q.every(100, n) {
			add(b, q.spec.Pools[0], b, last)
			return q.came(1, b.PacketLen(last))
		}
	case reorders:
		if n > 1 && q.every(10, 1) {
			b.Take(q.aside, last)
			b.Take(q.aside, last-1)
			b.Truncate(last - 1)
			q.aside.MoveTo(b)
		}
	case leaksSlots:
		if q.every(50, n) {
			q.spec.Pools[0].GetBatch(q.slots[:])
		}
	case releasesTwice:
		if q.every(20, 1) {
			part := b.Builder().Part(before, 0)
			part.Reclaim()
		}
	case corrupts:
		if q.every(20, 1) && len(tail) > 0 {
			tail[len(tail)-1] ^= 0x10
		}
	case shortens:
		if q.every(20, 1) {
			b.SetLen(last, 0, max(0, b.PacketLen(last)-1))
		}
	case corruptsSizes:
		for i := before; i <= last; i++ {
			if data := b.Bytes(i, 0); len(data)%23 == 5 {
				data[len(data)-1] ^= 1
			}
		}
	case wrongEpoch:
		for i := before; i <= last; i++ {
			if at, ok := b.Time(i); ok {
				b.SetTime(i, at-1<<60)
			}
		}
	}
	return 0
}

// came counts packets that the owner got more than the port knows of, and returns their number.
func (q *brokenRx) came(packets, bytes int) int {
	q.port.packets.Add(int64(packets))
	q.port.bytes.Add(int64(bytes))
	return packets
}

func (q *brokenRx) Close() error {
	if q.port.flaw == leaksOnClose {
		b := burst.NewSegmented(4096, 8192)
		if n, err := q.RxQueue.TryRecv(b); err == nil {
			q.port.leaked.Add(int64(n))
			q.came(-n, -b.TotalLen())
		}
		b.Builder().Forget()
	}
	return q.RxQueue.Close()
}

// brokenTx is a sound transmit queue with a flaw.
type brokenTx struct {
	engine.TxQueue
	flaw   flaw
	spec   engine.TxSpec
	lost   atomic.Int64 // descriptors
	copied atomic.Uint64
}

func (q *brokenTx) Alloc(b *burst.Burst, n, length int) (int, error) {
	less := min(int(q.lost.Load()), n)
	got, err := q.TxQueue.Alloc(b, n-less, length)
	switch {
	case q.flaw == losesReservations && errors.Is(err, engine.ErrNoBuffers):
		q.lost.Add(int64(n - less - got))
	case q.flaw == wrongAllocError && errors.Is(err, engine.ErrFull):
		err = engine.ErrNoBuffers
	case err == nil && got < n:
		err = engine.ErrFull
	}
	return got, err
}

func (q *brokenTx) Forward(b *burst.Burst) (int, error) {
	if b != nil && q.flaw == copiesForwarded {
		copies := burst.NewSegmented(b.Cap(), b.Cap())
		for i := range b.Len() {
			add(copies, q.spec.Pools[0], b, i)
			q.copied.Add(uint64(b.PacketLen(i)))
		}
		b.Release()
		copies.MoveTo(b)
	}
	return q.TxQueue.Forward(b)
}

// add adds a copy of packet i of from, which has one segment, to b, in a slot of pool.
func add(b *burst.Burst, pool *mem.Pool, from *burst.Burst, i int) {
	if from.Segments(i) == 0 {
		return
	}
	slot, err := pool.Get()
	if err != nil {
		return
	}
	data, span := from.Bytes(i, 0), slot.Span()
	copy(span.Bytes(), data)
	b.Builder().Add(burst.PoolSource(pool), burst.Segment{Handle: slot.Handle(), Off: span.Off, Len: uint32(len(data)),
		Cap: uint32(span.Len)})
	b.SetConn(b.Len()-1, from.Conn(i))
}

func (q *brokenTx) Send(b *burst.Burst) error {
	if q.flaw == keepsAfterSend && b != nil && b.Len() > 1 {
		rest := burst.New(b.Cap())
		b.Take(rest, 0)
		return q.TxQueue.Send(rest)
	}
	err := q.TxQueue.Send(b)
	if q.flaw == keepsUnreserved && errors.Is(err, engine.ErrUnreserved) {
		err = nil
	}
	return err
}

func (q *brokenTx) Stats(s *engine.TxStats) {
	q.TxQueue.Stats(s)
	s.Copied += q.copied.Load()
}

// garbage keeps what a flaw allocates from being optimized away.
var garbage atomic.Pointer[[64]byte]

// leaked is what flaws have left, so that the tests of the suite can end it.
var leaked leftovers

type leftovers struct {
	mu  sync.Mutex
	end []func()
}

func (l *leftovers) add(end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = append(l.end, end)
}

// stop ends what was left.
func (l *leftovers) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.end {
		end()
	}
	l.end = nil
}
