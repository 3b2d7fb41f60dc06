package xdp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/xdp/card"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// kept is a queue in whose inbox wait frames of two segments and one, as they do after a port has
// restarted, and one that sends to it.
func kept(t *testing.T) (q *rxQueue, tx engine.TxQueue, frames [][]byte) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx = addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	home := addRx(t, b, engine.RxSpec{ID: engine.Queue(0), Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	q = addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Depth: 64,
		Pools: []*mem.Pool{newPool(t, 128, 256), newPool(t, 2048, 256)}})
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	frames = [][]byte{udp(t, 7, 200, 1), udp(t, 7, 42, 0)}
	send(t, tx, frames...)
	until(t, "the frames", func() bool { return q.sockets[0].sock.Rx().Ready() == 2 })
	if err := home.Close(); err != nil {
		t.Fatal(err)
	}
	if q.Waiting() != 2 {
		t.Fatalf("%d frames were kept, expected 2", q.Waiting())
	}
	return q, tx, frames
}

// What was kept while the port restarted comes before what came afterwards, also where a burst
// has no room for it.
func TestKeptInOrder(t *testing.T) {
	q, tx, frames := kept(t)
	young := udp(t, 7, 42, 0)
	send(t, tx, young)
	until(t, "the frame", func() bool { return q.sockets[0].sock.Rx().Ready() == 1 })
	b, p := burst.New(2), newPool(t, 2048, 16)
	slot := make([]mem.Handle, 1)
	if p.GetBatch(slot) != 1 {
		t.Fatal("no slot")
	}
	b.Builder().AddSlots(burst.PoolSource(p), p, slot, nil, burst.Segment{Len: 60})
	if n, err := q.TryRecv(b); n != 0 || err != nil {
		t.Errorf("%d frames came before an older one, %v", n, err)
	}
	b.Release()
	var s engine.RxStats
	q.Stats(&s)
	for i, got := range receive(t, q, 3-int(s.Packets), nil) {
		if i < 2 && !bytes.Equal(got, frames[i]) {
			t.Errorf("frame %d has %d bytes, expected %d", i, len(got), len(frames[i]))
		}
	}
}

// A frame that was kept and has more segments than an empty burst has room for does not hold up the
// others.
func TestKeptTooLong(t *testing.T) {
	q, _, frames := kept(t)
	b := burst.New(1)
	defer b.Release()
	if n, err := q.TryRecv(b); n != 1 || err != nil || b.PacketLen(0) != len(frames[1]) {
		t.Fatalf("%d frames, %v", n, err)
	}
	var s engine.RxStats
	if q.Stats(&s); s.Drops[engine.DropTooLong] != 1 {
		n := s.Drops[engine.DropTooLong]
		t.Errorf("%d frames were dropped as too long, expected 1", n)
	}
}

// A receive queue that is refused leaves nothing of its pool with the kernel where transmit queues
// stay, and the next one is received into in place.
func TestRefusedLeavesNothing(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 4})
	f := newFakeDriver()
	f.refuse = ethtool.ErrNotPermitted
	b := open(t, n.Hosts[1], engine.PortSpec{Options: f.options(Options{Queues: []int{2, 3}}, t.TempDir())})
	r, err := mem.Alloc(mem.Options{Name: "all", Size: 3 * 256 * 2048})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var pools [3]*mem.Pool
	for i := range pools {
		pools[i] = carve(t, r, i*256*2048, 2048, 256)
	}
	addTx(t, b, engine.TxSpec{Pools: []*mem.Pool{pools[0]}})
	if _, err := b.AddRxQueue(engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pools[1]}}); !errors.Is(err, card.ErrSpread) {
		t.Fatal(err)
	}
	if s := pools[1].Stats(); s.InUse != 0 {
		t.Errorf("the queue was refused, and %d slots of its pool are out", s.InUse)
	}
	f.refuse = nil
	if q := addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pools[2]}}); !q.whole {
		t.Error("the next queue gets copies")
	}
}

// Queues whose owners look at nothing fill their rings, and leave chunks for the others.
func TestStalledShallow(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	slots := []*mem.Pool{newPool(t, 2048, 2048)}
	q := addRx(t, b, engine.RxSpec{ID: engine.Queue(0), Depth: 1, Pools: slots})
	for i := range 3 {
		addRx(t, b, engine.RxSpec{ID: engine.Queue(1 + i), Depth: 1, Pools: slots})
	}
	for _, to := range []string{"udp dst 1 -> queue 1", "udp dst 2 -> queue 2", "udp dst 3 -> queue 3"} {
		if _, err := b.Rules().Apply(rule(t, to)); err != nil {
			t.Fatal(err)
		}
	}
	for port := range uint16(3) {
		for i := range 128 {
			send(t, tx, udp(t, 1+port, 100, uint32(i)))
		}
	}
	send(t, tx, udp(t, 7, 100, 1))
	until(t, "the frame", func() bool { return q.sockets[0].sock.Rx().Ready() == 1 })
	var s engine.PortStats
	if b.Stats(&s); s.Rx.Drops[engine.DropNoBuffers] != 0 {
		t.Errorf("drops: %v", &s.Rx.Drops)
	}
}

// onePool is two queues with one pool of 64 slots; what is sent to UDP port 7 comes to the second.
func onePool(t *testing.T) (tx engine.TxQueue, first, second *rxQueue) {
	n := hosts(t, netns.LinkSpec{})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx = addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	slots := []*mem.Pool{newPool(t, 2048, 64)}
	first, second = addRx(t, b, engine.RxSpec{ID: engine.Queue(0), Depth: 64, Pools: slots}),
		addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Depth: 64, Pools: slots})
	if _, err := b.Rules().Apply(rule(t, "udp dst 7 -> queue 1")); err != nil {
		t.Fatal(err)
	}
	return tx, first, second
}

// takeAll has a queue receive until the application holds all slots.
func takeAll(t *testing.T, tx engine.TxQueue, q *rxQueue, x *burst.Burst) {
	for i := 0; x.Len() < 64; i++ {
		send(t, tx, udp(t, 7, 100, uint32(i)))
		if _, err := q.TryRecv(x); err != nil {
			t.Fatal(err)
		}
	}
}

// A queue sleeps while another one takes the last chunk and looks no more: when there are slots
// again, it gives them to the kernel, because no packet can wake it.
func TestLastChunk(t *testing.T) {
	tx, sleeper, taker := onePool(t)
	w := engine.NewWaker()
	if sleeper.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	x := burst.New(128)
	defer x.Release()
	takeAll(t, tx, taker, x)
	x.Release()
	// What comes before the slots are the kernel's again is dropped.
	f := udp(t, 5, 100, 1)
	for range 3000 {
		send(t, tx, f)
		select {
		case <-w.C():
		default:
			continue
		}
		n, err := sleeper.TryRecv(x)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if sleeper.Arm(w) {
			w.Wake()
		}
	}
	t.Error("the queue sleeps, and the kernel has nothing to receive its packets into")
}

// Where all slots are with the application, an owner that looks and takes nothing wakes no other:
// two that sleep would wake each other without end.
func TestFindsNothing(t *testing.T) {
	tx, sleeper, taker := onePool(t)
	x, none := burst.New(128), burst.New(128)
	defer x.Release()
	takeAll(t, tx, taker, x)
	w := engine.NewWaker()
	if sleeper.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	in := sleeper.sockets[0]
	for range 100 {
		if n, err := taker.TryRecv(none); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		in.nq.mu.Lock()
		asleep := in.waker == w
		in.nq.mu.Unlock()
		if !asleep {
			t.Fatal("an owner that found nothing woke another one, which will find nothing either")
		}
	}
}

// The owner of a queue receives while the port restarts: it sees the sockets before, none, or
// all that come then.
func TestRestartWhilePolled(t *testing.T) {
	n := hosts(t, netns.LinkSpec{Queues: 3})
	a, b := open(t, n.Hosts[0], engine.PortSpec{}), open(t, n.Hosts[1], engine.PortSpec{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 256)}})
	home := addRx(t, b, engine.RxSpec{ID: engine.Queue(0), Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 512)}})
	q := addRx(t, b, engine.RxSpec{ID: engine.Queue(1), Depth: 64, Pools: []*mem.Pool{newPool(t, 2048, 512)}})
	before, was := q.sockets[0], q.whole
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		x, w := burst.New(16), engine.NewWaker()
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := q.TryRecv(x); err != nil {
				done <- err
				return
			}
			x.Release()
			q.Arm(w)
		}
	}()
	err := home.Close()
	close(stop)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if was || !q.whole || len(q.sockets) != 3 || q.sockets[0] == before {
		t.Errorf("in place: %v before, %v now; %d sockets", was, q.whole, len(q.sockets))
	}
	send(t, tx, udp(t, 9, 42, 0))
	receive(t, q, 1, nil)
}
