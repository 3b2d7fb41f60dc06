package afpacket

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// edge is a port at which frames arrive, and a queue that sends them.
type edge struct {
	t    *testing.T
	p    *Port
	tx   engine.TxQueue
	pool *mem.Pool
}

func newEdge(t *testing.T, o Options) *edge {
	n := hosts(t, netns.LinkSpec{})
	o.Filter = noIPv6
	e := &edge{t: t, p: open(t, n.Hosts[1], "eth0", o), pool: newPool(t, 2048, 1024)}
	e.tx = addTx(t, open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), engine.TxSpec{Pools: []*mem.Pool{e.pool}})
	return e
}

func (e *edge) rx(spec engine.RxSpec) *rxQueue { return addRx(e.t, e.p, spec).(*rxQueue) }

// frames is how many frames lie in the first ring and were not looked at.
func (e *edge) frames() (n int) {
	t := e.p.sockets[0]
	for i := range t.ring.Frames() {
		if t.ring.Status(i)&sys.FrameReady != 0 && t.out[i].Load() == inRing {
			n++
		}
	}
	return n
}

// arrive sends frames, and waits until they are in the first ring.
func (e *edge) arrive(frames ...[]byte) {
	e.t.Helper()
	before := e.frames()
	send(e.t, e.tx, frames...)
	until(e.t, "the frames", func() bool { return e.frames() == before+len(frames) })
}

// A ring of which the application has all frames gives none of them twice while they are released.
func TestReleasedWhileRead(t *testing.T) {
	e := newEdge(t, Options{Frames: 16})
	q := e.rx(engine.RxSpec{Depth: 4})
	x := e.p.sockets[0]
	n := int(x.ring.Frames())
	b, none := burst.New(n), burst.New(n)
	for range n {
		e.arrive(udp(t, 1, 50, 0))
	}
	back, done := make(chan []burst.Handle), make(chan struct{})
	defer close(back)
	go func() {
		for hs := range back {
			x.Reclaim(hs)
			done <- struct{}{}
		}
	}()
	handles := make([]burst.Handle, 0, n)
	for trial := range 30000 {
		if k, err := q.TryRecv(b); k != n || err != nil {
			t.Fatalf("trial %d: %d frames of %d, %v", trial, k, n, err)
		}
		handles = handles[:0]
		for i := range n {
			handles = append(handles, b.Builder().Part(i, 0).Handle)
		}
		b.Builder().Forget()
		back <- handles
		for looks, over := 1, false; !over; looks++ {
			select {
			case <-done:
				over = true
			default:
				if looks%64 == 0 { // there may be one processor only
					runtime.Gosched()
				}
			}
			if k, _ := q.TryRecv(none); k > 0 {
				<-done
				t.Fatalf("trial %d: %d frames came twice", trial, k)
			}
		}
		for i := range uint32(n) { // as the kernel does that fills them again
			from, _ := x.ring.Room(i)
			x.bytes[from-64] = sys.FrameReady
		}
	}
	for i := range uint32(n) {
		x.ring.Return(i)
	}
}

// What another queue's owner has taken out of the ring is older than what still lies there, and
// comes first.
func TestInOrder(t *testing.T) {
	e := newEdge(t, Options{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{e.pool}}),
		e.rx(engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{newPool(t, 128, 64), e.pool}})
	if _, err := e.p.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	old, young := udp(t, 7, 100, 0), udp(t, 7, 0, 0)
	e.arrive(old)
	b := burst.NewSegmented(4, 4)
	if n, err := first.TryRecv(b); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	e.arrive(young)
	// It saw nothing there before the other brought it.
	if second.Collect(b); b.Len() != 0 {
		t.Errorf("%d younger frames came first", b.Len())
	}
	if n, err := second.TryRecv(b); n != 2 || err != nil || b.PacketLen(0) != len(old) || b.PacketLen(1) != len(young) {
		t.Errorf("%d frames, the first of %d bytes", b.Len(), b.PacketLen(0))
	}
	b.Release()
	// And where there is no room for it the younger one waits as well.
	e.arrive(old)
	first.TryRecv(b)
	e.arrive(young, young)
	small := burst.NewSegmented(2, 2)
	small.Builder().AddSlots(burst.PoolSource(e.pool), e.pool, take(t, e.pool), nil, burst.Segment{Len: 60})
	if n, err := second.TryRecv(small); n != 0 || err != nil {
		t.Errorf("%d frames, %v", n, err)
	}
	small.Release()
	got := receive(t, second, 3, nil)
	if !bytes.Equal(got[0], old) {
		t.Errorf("the first has %d bytes, expected %d", len(got[0]), len(old))
	}
}

func take(t testing.TB, p *mem.Pool) []mem.Handle {
	t.Helper()
	h := make([]mem.Handle, 1)
	if p.GetBatch(h) != 1 {
		t.Fatal("no slot")
	}
	return h
}

// A frame of more segments than an empty burst has room for does not hold up the others, wherever
// it waits.
func TestTooManySegments(t *testing.T) {
	e := newEdge(t, Options{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{e.pool}}),
		e.rx(engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{newPool(t, 128, 64), e.pool}})
	if _, err := e.p.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	two, one := udp(t, 7, 100, 0), udp(t, 7, 0, 0)
	b := burst.New(1)
	for _, dealt := range []bool{false, true} {
		e.arrive(two, one)
		if dealt {
			first.TryRecv(b)
		}
		if n, err := second.TryRecv(b); n != 1 || err != nil || b.PacketLen(0) != len(one) {
			t.Fatalf("dealt out before: %v: %d frames, %v", dealt, n, err)
		}
		b.Release()
	}
	var s engine.RxStats
	if second.Stats(&s); s.Drops[engine.DropTooLong] != 2 || s.Packets != 2 {
		t.Errorf("%d frames, drops: %v", s.Packets, &s.Drops)
	}
}

// A frame that waits for room is counted once by its rule.
func TestCountedOnce(t *testing.T) {
	e := newEdge(t, Options{})
	q := e.rx(engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{newPool(t, 128, 64), e.pool}})
	if _, err := e.p.Rules().Apply(rule(t, "udp dst 7 -> queue 0")); err != nil {
		t.Fatal(err)
	}
	f := udp(t, 7, 100, 0)
	e.arrive(f, f, f, f)
	b := burst.New(3) // one frame of two segments, and half of the next
	for range 4 {
		if n, err := q.TryRecv(b); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		b.Release()
	}
	if c := e.p.Rules().Stats().Rules[0].Count; c.Packets != 4 {
		t.Errorf("the rule has counted %d frames of 4", c.Packets)
	}
}

// Discard gets to what waits behind more frames of others than are dealt out at once.
func TestDiscardBehindOthers(t *testing.T) {
	e := newEdge(t, Options{Frames: 1024})
	first := e.rx(engine.RxSpec{ID: engine.Queue(0), Pools: []*mem.Pool{e.pool}})
	e.rx(engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{newPool(t, 2048, 1024)}})
	if _, err := e.p.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	f := udp(t, 7, 100, 0)
	for range pumpOthers + 1 {
		send(t, e.tx, f)
	}
	send(t, e.tx, udp(t, 5, 100, 0))
	until(t, "the frames", func() bool { return e.frames() == pumpOthers+2 })
	if n, err := first.Discard(); n != 1 || err != nil {
		t.Errorf("%d frames were discarded, expected 1; %v", n, err)
	}
}

// A queue that is added changes which queue reads which socket: those that sleep look again.
func TestAddedWakes(t *testing.T) {
	e := newEdge(t, Options{Fanout: FanoutHash, Sockets: 4})
	var qs []*rxQueue
	for range 2 {
		qs = append(qs, e.rx(engine.RxSpec{Pools: []*mem.Pool{e.pool}}))
	}
	last := e.p.sockets[3]
	w := engine.NewWaker()
	if qs[0].reads(last) || qs[0].Arm(w) {
		t.Fatal("queue 0 reads the last socket, or is ready")
	}
	e.rx(engine.RxSpec{Pools: []*mem.Pool{e.pool}})
	if !qs[0].reads(last) {
		t.Fatal("queue 0 does not read the last socket")
	}
	select {
	case <-w.C():
	default:
		t.Error("queue 0 has the last socket now, does not watch it, and was not woken")
	}
}

// A socket that could not be made ready for receiving does not keep those that were from it for
// ever: the next queue tries again.
func TestAcceptedAgain(t *testing.T) {
	e := newEdge(t, Options{Fanout: FanoutHash, Sockets: 2})
	x := e.p.sockets[1]
	fd := x.fd
	x.fd = -1 // as where there is no memory for its ring
	if _, err := e.p.AddRxQueue(engine.RxSpec{}); err == nil {
		t.Fatal("a queue without one of its sockets")
	}
	x.fd = fd
	q := e.rx(engine.RxSpec{})
	send(t, e.tx, udp(t, 1, 50, 0))
	receive(t, q, 1, nil)
}

// Each of two ports with several sockets on one interface, as of two processes, gets every packet:
// their fan-out groups are not one.
func TestFanoutGroupsOfPorts(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	pool := newPool(t, 2048, 1024)
	tx := addTx(t, open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), engine.TxSpec{Pools: []*mem.Pool{pool}})
	var qs []engine.RxQueue
	for range 2 {
		p := open(t, n.Hosts[1], "eth0", Options{Filter: noIPv6, Fanout: FanoutHash, Sockets: 2})
		qs = append(qs, addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool}}))
	}
	for i := range 64 {
		send(t, tx, udp(t, uint16(1+i), 100, 0))
	}
	for _, q := range qs {
		receive(t, q, 64, nil)
	}
}

// A frame that the ring cuts off, as one of segments that the kernel has merged, goes by its
// headers: it is a drop of the queue that a rule says, and the kernel's only if no rule matches.
func TestIsolatedCutOff(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	pool := newPool(t, 2048, 64)
	tx := addTx(t, open(t, n.Hosts[0], "eth0", Options{Filter: noIPv6}), engine.TxSpec{Pools: []*mem.Pool{pool}})
	var p *Port
	if err := n.Hosts[1].Do(func() error {
		x, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0", Isolated: true,
			Options: Options{Filter: noIPv6, FrameSize: 1024}})
		p, _ = x.(*Port)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	q, kept := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool}}),
		addRx(t, p, engine.RxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{pool},
			Options: RxOptions{KeepTruncated: true}})
	if _, err := p.Rules().Apply(rule(t, "udp dst 7 -> queue 0"),
		rule(t, "ip len 1328 udp dst 8 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []uint16{0, 5} {
		send(t, tx, udp(t, 7, 1300, tag), udp(t, 8, 1300, tag), udp(t, 9, 1300, tag), udp(t, 7, 100, tag))
	}
	for i, got := range receive(t, kept, 2, nil) { // in order, cut off, and nothing in them is changed
		if whole := udp(t, 8, 1300, uint16(5*i)); len(got) < 500 || len(got) >= len(whole) ||
			!bytes.Equal(got, whole[:len(got)]) {
			t.Errorf("%d of %d bytes came, % x: expected % x", len(got), len(whole), got[:min(len(got), 64)],
				whole[:64])
		}
	}
	receive(t, q, 2, nil)
	var s engine.PortStats
	p.Stats(&s)
	if s.Kernel != 2 || s.Rx.Drops[engine.DropTooLong] != 2 {
		t.Errorf("%d of the kernel, %d too long; expected 2 and 2; %+v", s.Kernel, s.Rx.Drops[engine.DropTooLong], s)
	}
}
