package xdp

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// A sender keeps its number until the kernel has nothing of it, and then another one may have it.
func TestSenders(t *testing.T) {
	g := newQueueRig(t, 2048)
	q := &txQueue{port: g.port, nq: g.n}
	add := func() *sender {
		t.Helper()
		s, err := g.m.addSender(q, g.n)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	send := func(s *sender, state entry) entry {
		s.inFlight++
		g.n.inFlight++
		return entry(5*oneDelivery).sentBy(s, state, true)
	}
	who := func(e entry, n *nicQueue) *sender { return g.m.sender(*g.m.senders.Load(), e, n) }
	a, b := add(), add()
	if a.number == b.number || a.number == 0 || b.number == 0 {
		t.Fatalf("numbers %d and %d", a.number, b.number)
	}
	ea, eb := send(a, sending), send(b, forwarding)
	if who(ea, g.n) != a || who(eb, g.n) != b {
		t.Error("not the one that sends it")
	}
	if who(ea, &nicQueue{}) != nil || who(ea.sent(), g.n) != nil || who(entry(9)*oneSender|sending, g.n) != nil ||
		who(sending, g.n) != nil {
		t.Error("a sender of a chunk that is not sent here")
	}
	g.n.mu.Lock()
	defer g.n.mu.Unlock()
	a.end()
	if c := add(); c.number == a.number {
		t.Error("the number of one whose chunk the kernel still has")
	} else {
		c.end()
	}
	if who(ea, g.n) != a {
		t.Error("it is forgotten although the kernel has a chunk of it")
	}
	a.gone(1)
	if who(ea, g.n) != nil || g.n.inFlight != 1 {
		t.Errorf("it is not forgotten, %d chunks are under way", g.n.inFlight)
	}
	if c := add(); c.number != a.number {
		t.Errorf("number %d is not used again: %d", a.number, c.number)
	}
	b.gone(1)
	if who(eb, g.n) != b {
		t.Error("forgotten before its end")
	}
}

// What takes a chunk back after it was sent: the owner that it was delivered to, or the one that
// sent it.
func TestUnsend(t *testing.T) {
	g := newQueueRig(t, 2048)
	s, err := g.m.addSender(&txQueue{port: g.port, nq: g.n}, g.n)
	if err != nil {
		t.Fatal(err)
	}
	h, err := g.home.Get()
	if err != nil {
		t.Fatal(err)
	}
	at := g.n.fill(h.Handle())
	i := at >> g.m.shift
	carry := g.m.handle(at)
	g.m.table[i] = g.m.table[i].delivered()
	g.n.out--
	before := g.m.table[i]
	g.m.table[i] = before.sentBy(s, forwarding, false)
	if g.m.unused(i, g.m.source, carry) {
		t.Error("a chunk that is sent is unused")
	}
	if c := g.m.unsend(i); c.handle != carry || c.src != g.m.source || g.m.table[i] != before {
		t.Errorf("%x by %p, entry %x; expected %x by %p, %x", c.handle, c.src, g.m.table[i], carry, g.m.source, before)
	}
	own := burst.PoolSource(g.home)
	for _, state := range []entry{sending, sendingLent} {
		was := before
		if state == sending {
			was = before - lent + idle
		}
		g.m.origins[i].handle, g.m.origins[i].src = 77, own
		g.m.table[i] = was.sentBy(s, state, true)
		if c := g.m.unsend(i); c.handle != 77 || c.src != own || g.m.table[i] != was {
			t.Errorf("%x by %p, entry %x; expected %x by %p, %x", c.handle, c.src, g.m.table[i], 77, own, was)
		}
	}
	g.m.table[i] = before
	if other := (i + 1) % uint64(len(g.m.table)); g.m.unused(other, g.m.source, carry) {
		t.Error("the handle of another chunk")
	}
	g.m.source.Reclaim([]mem.Handle{carry})
	g.takeBack()
}

// A packet is passed on only with the handle of the chunk that it lies in: the entry says later
// what takes the chunk back.
func TestPassAnotherHandle(t *testing.T) {
	g := newQueueRig(t, 2048)
	q := &txQueue{port: g.port, nq: g.n, descs: make([]xsk.Desc, 0, 4)}
	var err error
	if q.sender, err = g.m.addSender(q, g.n); err != nil {
		t.Fatal(err)
	}
	var at [2]uint64
	var handles []mem.Handle
	for i := range at {
		h, err := g.home.Get()
		if err != nil {
			t.Fatal(err)
		}
		at[i] = g.n.fill(h.Handle())
		handles = append(handles, g.m.handle(at[i]))
		e := &g.m.table[at[i]>>g.m.shift]
		*e = e.delivered()
		g.n.out--
	}
	b := burst.New(1)
	b.Builder().Add(g.m.source, burst.Segment{Handle: handles[1], Off: at[0], Len: 60})
	if k, n := q.forwardRun(b, 0, 1, 1500); k != 0 || n != 0 || len(q.descs) != 0 {
		t.Errorf("%d packets are passed on", k)
	}
	b.Builder().Forget()
	before := handles[0] - mem.Handle(oneDelivery) // of the delivery before: the packet was released since
	b.Builder().Add(g.m.source, burst.Segment{Handle: before, Off: at[0], Len: 60})
	if k, n := q.forwardRun(b, 0, 1, 1500); k != 0 || n != 0 || len(q.descs) != 0 {
		t.Errorf("%d packets are passed on that were released", k)
	}
	b.Builder().Forget()
	g.m.source.Reclaim(handles)
	g.takeBack()
}

// A piece without bytes is no segment, and its chunk goes back to the kernel.
func TestPlaceEmptyPiece(t *testing.T) {
	g := newQueueRig(t, 2048)
	g.port.o.Ring = 2048
	q := g.port.newRx(engine.RxSpec{Depth: 64, Pools: []*mem.Pool{g.home}})
	q.whole = true
	d, ok := g.arrives(make([]byte, 5000), 256)
	if !ok || len(d) != 3 {
		t.Fatalf("%d chunks", len(d))
	}
	d[1].Len = 0
	b := burst.NewSegmented(1, 8)
	if added, room := q.place(g.n, b, d); added != 1 || !room {
		t.Fatalf("%d packets, room %v", added, room)
	}
	if b.Segments(0) != 2 || len(g.n.back) != 1 || g.n.back[0] != d[1].Addr&^2047 {
		t.Errorf("%d segments, %v goes back", b.Segments(0), g.n.back)
	}
	b.Release()
	g.takeBack()
}

// A packet that finds no spare chunk takes those whose packets have left by then, and does not wait
// for another sender to look.
func TestSpareAgain(t *testing.T) {
	m, err := NewMemory(MemoryOptions{Spare: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	n := hosts(t, netns.LinkSpec{})
	q := addTx(t, lone(t, n.Hosts[0], Options{Memory: m}), engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 4)}})
	b := burst.New(1)
	post := func() int {
		if k, err := q.Alloc(b, 1, 60); k != 1 {
			t.Fatal(err)
		}
		copy(b.Bytes(0, 0), udp(t, 7, 60, 1))
		b.Builder().Unreserve() // as Send does
		q.mu.Lock()
		defer q.mu.Unlock()
		k := q.post(b, 0, 1)
		q.sock.WakeTx() // and no one takes what it completes
		b.Release()
		return k
	}
	if k := post(); k != 1 || m.spare.Stats().InUse != 1 {
		t.Fatalf("%d packets, %d spare chunks in use", k, m.spare.Stats().InUse)
	}
	until(t, "the packet to leave", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.nq.mu.Lock()
		defer q.nq.mu.Unlock()
		return q.nq.queue.Completion().Ready() == 1
	})
	if k := post(); k != 1 {
		t.Fatal("the chunk of a packet that has left was not there for the next one")
	}
	var s engine.TxStats
	until(t, "both to be counted", func() bool {
		q.reap()
		q.Stats(&s)
		return s.Packets == 2
	})
}
