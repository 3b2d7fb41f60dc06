package rawqp

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// sleeps has the owner of a queue sleep, where another queue's owner has taken the device's event.
func sleeps(t testing.TB, q *rxQueue) *engine.Waker {
	t.Helper()
	w := engine.NewWaker()
	if q.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	engine.Events.Remove(q.fd)
	if err := engine.Events.Add(q.fd); err != nil {
		t.Fatal(err)
	}
	return w
}

func woken(w *engine.Waker) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

// Queues that share a pool which is as large as both are deep together both have their receives.
func TestSharedPool(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	slots := []*mem.Pool{pool(t, 2048, 32)}
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0), Pools: slots}),
		e.rx(engine.RxSpec{ID: engine.Queue(1), Pools: slots})
	if first.recvs.Posted() != 16 || second.recvs.Posted() != 16 {
		t.Fatalf("%d and %d receives are posted, expected 16 each", first.recvs.Posted(), second.recvs.Posted())
	}
	e.apply(flow.Add(rule(t, "udp dst 7 -> queue 1")))
	for range 40 {
		f, g := udp(t, 5, 20), udp(t, 7, 20)
		e.send(f, g)
		e.wants(first, f).Release()
		e.wants(second, g).Release()
	}
	e.wants(first) // the owner that looks posts again for all
	if first.recvs.Posted() != 16 || second.recvs.Posted() != 16 {
		t.Errorf("%d and %d receives are posted, expected 16 each", first.recvs.Posted(), second.recvs.Posted())
	}
}

// A queue whose last receive another queue's owner has taken off the device, and whose pool is
// empty, learns when there are slots again: no frame can wake it.
func TestLastReceive(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	first, second := e.rx(engine.RxSpec{ID: engine.Queue(0), Depth: 4, Pools: []*mem.Pool{pool(t, 2048, 4)}}),
		e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")))
	mine, far := udp(t, 9, 10), udp(t, 9, 72)
	e.send(mine, mine, mine)
	held := e.wants(first, mine, mine, mine)
	w := sleeps(t, first)
	e.send(far)
	other := e.wants(second, far)
	if first.recvs.Posted() != 0 {
		t.Fatalf("%d receives are posted, expected none", first.recvs.Posted())
	}
	until(t, "the owner to be woken", func() bool { return woken(w) })
	if first.Arm(w) {
		t.Fatal("ready, and there are no slots")
	}
	held.Release()
	other.Release()
	until(t, "the owner to be woken again", func() bool { return woken(w) })
	if first.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	if first.recvs.Posted() != 4 {
		t.Errorf("%d receives are posted, expected 4", first.recvs.Posted())
	}
}

// A queue that takes the device's event, and does not get to all frames that it stands for, wakes
// the queues that sleep on it.
func TestEventTaken(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	deep := engine.RxSpec{ID: engine.Queue(0), Depth: 2 * dealAtOnce, Pools: []*mem.Pool{pool(t, 2048, 2*dealAtOnce)}}
	first, second := e.rx(deep), e.rx(engine.RxSpec{ID: engine.Queue(1), Depth: 2 * dealAtOnce})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")))
	w := sleeps(t, first)
	mine, far := udp(t, 9, 10), udp(t, 9, 72)
	for range dealAtOnce + pollAtOnce {
		e.send(far)
	}
	e.send(mine)
	if !second.Arm(engine.NewWaker()) {
		t.Fatal("not ready, and there are frames")
	}
	if !woken(w) {
		t.Error("the owner of the other queue sleeps, its frame is at the device, and the event is gone")
	}
	e.wants(first) // so many frames are for the other queue
	e.wants(first, mine)
	b := burst.New(2 * dealAtOnce)
	if n, err := second.TryRecv(b); n != dealAtOnce+pollAtOnce || err != nil {
		t.Errorf("%d frames, %v", n, err)
	}
	b.Release()
}

// Frames that were lost for lack of slots are counted so also where their queue is closed before a
// reader asks for the counts.
func TestDryAndClosed(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{ID: engine.Queue(0), Depth: 4, Pools: []*mem.Pool{pool(t, 2048, 4)}})
	e.rx(engine.RxSpec{ID: engine.Queue(1)})
	f := udp(t, 5, 20)
	e.send(f, f, f, f)
	e.take(q)
	e.send(f)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	var s engine.PortStats
	if e.b.Stats(&s); s.Drops[engine.DropNoBuffers] != 1 || s.Drops.Total() != 1 {
		t.Errorf("drops: %v", &s.Drops)
	}
}

// A frame of two segments whose memories do not fit behind what a burst holds comes with the next
// burst.
func TestManyMemories(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{Pools: []*mem.Pool{pool(t, 128, 64), pool(t, 2048, 64)}})
	b := burst.NewSegmented(64, 256)
	defer b.Release()
	for range burst.MaxSources - 1 {
		other := pool(t, 2048, 1)
		b.Builder().AddSlots(burst.PoolSource(other), other, []mem.Handle{first(t, other)}, nil, burst.Segment{Len: 60})
	}
	f := udp(t, 5, 300)
	e.send(f, f)
	if n, err := q.TryRecv(b); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if !q.Arm(engine.NewWaker()) {
		t.Error("not ready, and there are frames")
	}
	e.wants(q, f, f)
	var s engine.RxStats
	if q.Stats(&s); s.Drops.Total() != 0 {
		t.Errorf("drops: %v", &s.Drops)
	}
}

func first(t testing.TB, p *mem.Pool) mem.Handle {
	t.Helper()
	var h [1]mem.Handle
	if p.GetBatch(h[:]) != 1 {
		t.Fatal("no slot")
	}
	return h[0]
}

// A port that fails in the hands of one queue wakes the owners of the others, and what waits for a
// device that takes no more is given up.
func TestFailureIsTold(t *testing.T) {
	e := newEnds(t, "", Options{SendDepth: 4}, engine.PortSpec{})
	slots := pool(t, 2048, 64)
	q := e.sender(engine.TxSpec{Depth: 16, Pools: []*mem.Pool{slots}}).(*txQueue)
	r, err := e.a.AddRxQueue(engine.RxSpec{Depth: 4, Pools: []*mem.Pool{slots}})
	if err != nil {
		t.Fatal(err)
	}
	w := engine.NewWaker()
	if r.Arm(w) {
		t.Fatal("ready, and nothing has come")
	}
	q.mu.Lock()
	q.depth, q.posts = 8, make([]posted, 8) // more than the queue pair holds: it takes a part of a chain, and fails
	q.mu.Unlock()
	e.f.do(t, "fail ibv_modify_qp * EIO")
	if n, err := q.Alloc(e.out, 6, 60); n != 6 {
		t.Fatal(err)
	}
	if err := q.Send(e.out); err != nil {
		t.Fatal(err)
	}
	until(t, "the receiver to be woken", func() bool { return woken(w) })
	if _, err := r.TryRecv(burst.New(4)); !errors.Is(err, engine.ErrDown) {
		t.Errorf("receiving: %v", err)
	}
}

// A closed queue takes no packets of others, and registers none of their memory at a device that is
// given up.
func TestForwardClosed(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	for _, end := range []func() error{e.tx.Close, e.a.Close} {
		other := pool(t, 2048, 4)
		b := burst.New(1)
		b.Builder().AddSlots(burst.PoolSource(other), other, []mem.Handle{first(t, other)}, nil, burst.Segment{Len: 60})
		if err := end(); err != nil {
			t.Fatal(err)
		}
		before := e.f.count(t, "ibv_reg_mr")
		if n, err := e.tx.Forward(b); n != 0 || !errors.Is(err, engine.ErrClosed) || b.Len() != 0 {
			t.Errorf("%d, %v", n, err)
		}
		if n := e.f.count(t, "ibv_reg_mr") - before; n != 0 {
			t.Errorf("%d regions were registered for it", n)
		}
	}
}

// The memory of frames stays where it is when the device does not give up the queue pair that reads
// it.
func TestCloseRefused(t *testing.T) {
	e := newEnds(t, "mode pump", Options{}, engine.PortSpec{})
	slots := pool(t, 2048, 64)
	q := e.sender(engine.TxSpec{Depth: 16, Pools: []*mem.Pool{slots}}).(*txQueue)
	if n, err := q.Alloc(e.out, 5, 60); n != 5 {
		t.Fatal(err)
	}
	if err := q.Send(e.out); err != nil {
		t.Fatal(err)
	}
	e.a.fail(errors.New("the test wants no wait"))
	e.f.do(t, "fail ibv_destroy_qp 1 EBUSY")
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if n := slots.Stats().InUse; n != 5 {
		t.Errorf("%d slots are out, expected 5, which the device may read", n)
	}
	if err := q.Drain(t.Context()); err != nil || q.out.Free() != 16 {
		t.Errorf("%v, %d descriptors are free", err, q.out.Free())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.give()
	for i := range 5 {
		x := &q.posts[i]
		x.parts[0].src.Reclaim([]burst.Handle{x.parts[0].h})
	}
}

// A frame in memory that the device refused to learn of a moment ago, and then takes, has a
// completion as any other.
func TestRegisteredLate(t *testing.T) {
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q := e.rx(engine.RxSpec{})
	f, other := udp(t, 5, 100), pool(t, 2048, 4)
	if n, err := e.tx.Alloc(e.out, 1, 42); n != 1 {
		t.Fatal(err)
	}
	copy(e.out.Bytes(0, 0), f[:42])
	h := first(t, other)
	e.out.Builder().AddSegment(burst.PoolSource(other),
		burst.Segment{Handle: h, Off: other.Offset(h), Len: uint32(len(f) - 42)})
	copy(e.out.Bytes(0, 1), f[42:])
	e.f.do(t, "fail ibv_reg_mr 1 ENOMEM")
	if err := e.tx.Send(e.out); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := e.tx.Drain(ctx); err != nil {
		t.Fatalf("the queue never hears that it was sent: %v", err)
	}
	var s engine.TxStats
	if e.tx.Stats(&s); s.Packets+s.Drops[engine.DropRefused] != 1 {
		t.Errorf("%+v", s)
	}
	e.take(q).Release()
}

// A frame that cannot be sent is dropped once, also where one in front of it has to be given to the
// device again.
func TestRefusedOnce(t *testing.T) {
	t.Run("none taken", func(t *testing.T) { refusedOnce(t, 16, "fail ibv_post_send 1 EIO") })
	t.Run("some taken", func(t *testing.T) { refusedOnce(t, 2, "") })
}

func refusedOnce(t *testing.T, holds int, script string) {
	e := newEnds(t, "", Options{SendDepth: holds}, engine.PortSpec{})
	e.rx(engine.RxSpec{})
	q := e.sender(engine.TxSpec{Depth: 16, Pools: []*mem.Pool{pool(t, 2048, 64)}}).(*txQueue)
	q.mu.Lock()
	// it may be more than the queue pair holds, which takes a part of a chain then
	q.depth, q.posts = 16, make([]posted, 16)
	q.mu.Unlock()
	if n, err := q.Alloc(e.out, 6, 60); n != 6 {
		t.Fatal(err)
	}
	for _, i := range []int{1, 4} {
		e.out.SetLen(i, 0, 5) // shorter than an Ethernet header
	}
	e.f.do(t, script)
	if err := q.Send(e.out); err != nil {
		t.Fatal(err)
	}
	if err := q.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	var s engine.TxStats
	if q.Stats(&s); s.Drops[engine.DropBadFrame] != 2 || s.Packets+s.Drops.Total() != 6 || s.Queued != 0 ||
		q.out.Free() != 16 {
		t.Errorf("%d sent, drops: %v, %d queued, %d of 16 descriptors are free", s.Packets, &s.Drops, s.Queued,
			q.out.Free())
	}
}
