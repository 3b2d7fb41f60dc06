package ibv

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// readable reports whether a descriptor has something, waiting up to a time.
func readable(t testing.TB, fd int, wait time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(wait); ; {
		i, err := sys.PollIn(int(max(time.Until(deadline), 0).Milliseconds()), fd)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			return true
		}
		if time.Now().After(deadline) || wait == 0 {
			return false
		}
	}
}

// takeEvent waits for the channel's next event.
func (e *end) takeEvent(t testing.TB) *CQ {
	t.Helper()
	if !readable(t, e.channel.FD(), long) {
		t.Fatal("no event")
	}
	cq, ok, err := e.channel.Next()
	if !ok || err != nil {
		t.Fatalf("a readable channel has %t, %v", ok, err)
	}
	return cq
}

func testChannel(t *testing.T, w *world) {
	a, b := w.pair(t, options{event: true})
	if _, ok, err := b.channel.Next(); ok || err != nil {
		t.Errorf("an event of nothing: %t, %v", ok, err)
	}
	if err := b.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	b.postRecv(t, 1, b.mr.SGE(0, 8))
	if readable(t, b.channel.FD(), 0) {
		t.Error("an event without a completion")
	}
	a.send.Send(2, Signaled, a.mr.SGE(0, 8))
	a.post(t)
	if cq := b.takeEvent(t); cq != b.cq {
		t.Errorf("the event of %v", cq)
	}
	b.wait(t, 1)
	a.wait(t, 1)

	// Armed once, one event.
	b.postRecv(t, 3, b.mr.SGE(0, 8))
	a.send.Send(4, Signaled, a.mr.SGE(0, 8))
	a.post(t)
	b.wait(t, 1)
	a.wait(t, 1)
	if readable(t, b.channel.FD(), 0) {
		t.Error("a second event of one arming")
	}
	b.cq.Ack()
	b.cq.Ack() // nothing is left

	// Solicited only: the first message is not, the second is.
	if err := b.cq.Arm(true); err != nil {
		t.Fatal(err)
	}
	b.postRecv(t, 5, b.mr.SGE(0, 8))
	b.postRecv(t, 6, b.mr.SGE(0, 8))
	a.send.Send(7, Signaled, a.mr.SGE(0, 8))
	a.post(t)
	b.wait(t, 1)
	if readable(t, b.channel.FD(), 0) {
		t.Error("an event of a message that asked for none")
	}
	a.send.Send(8, Signaled|Solicited, a.mr.SGE(0, 8))
	a.post(t)
	b.takeEvent(t)
	b.wait(t, 1)
	a.wait(t, 2)
	// The last event is not acknowledged: closing the queue does it.
}

// testCloseWithEvents: an event that was not taken does not keep a queue from closing.
func testCloseWithEvents(t *testing.T, w *world) {
	a, b := w.pair(t, options{event: true})
	if err := b.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	b.postRecv(t, 1, b.mr.SGE(0, 8))
	a.send.Send(2, Signaled, a.mr.SGE(0, 8))
	a.post(t)
	a.wait(t, 1)
	if !readable(t, b.channel.FD(), long) {
		t.Fatal("no event")
	}
	if err := b.cq.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("a queue in use: %v", err)
	}
	if err := b.qp.Close(); err != nil {
		t.Error(err)
	}
	if err := b.cq.Close(); err != nil {
		t.Error(err)
	}
	if _, ok, err := b.channel.Next(); ok || err != nil {
		t.Errorf("an event of a closed queue: %t, %v", ok, err)
	}
}

// sleeper receives n messages as users do: poll until there is nothing, arm, poll once more, sleep.
// A wake-up that is missed makes it sleep for ever.
func sleeper(t testing.TB, b *end, n int, posted func(id uint64)) {
	wc := make([]WC, 8)
	got := 0
	take := func() bool {
		k, err := b.cq.Poll(wc)
		if err != nil {
			t.Error(err)
			return false
		}
		for i := range wc[:k] {
			if wc[i].Status() != Success {
				t.Error(wc[i].Err())
			}
			posted(wc[i].ID())
		}
		got += k
		return k > 0
	}
	for got < n && !t.Failed() {
		for take() {
		}
		if err := b.cq.Arm(false); err != nil {
			t.Error(err)
			return
		}
		if take() || got >= n {
			continue
		}
		if !readable(t, b.channel.FD(), long) {
			t.Errorf("asleep after %d of %d messages", got, n)
			return
		}
		for {
			cq, ok, err := b.channel.Next()
			if err != nil {
				t.Error(err)
				return
			}
			if !ok {
				break
			}
			if cq != b.cq {
				t.Error("another queue's event")
			}
		}
		if rand.IntN(4) == 0 {
			b.cq.Ack()
		}
	}
}

// testWakeUps: a sender that comes at all moments, and a receiver that sleeps whenever it can.
func testWakeUps(t *testing.T, w *world) {
	n := 3000
	if !w.fake {
		n = 400
	}
	a, b := w.pair(t, options{event: true})
	for i := range 16 {
		b.postRecv(t, uint64(i), b.mr.SGE(uint64(i)*64, 64))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		sent := 0
		for sent < n && !t.Failed() {
			k := min(1+rand.IntN(4), n-sent)
			for range k {
				a.send.Send(uint64(sent), Signaled, a.mr.SGE(0, 64))
			}
			if posted, err := a.qp.PostSend(a.send); posted != k || err != nil {
				t.Errorf("posted %d of %d: %v", posted, k, err)
				return
			}
			a.send.Reset()
			for got := 0; got < k; {
				wc := make([]WC, k)
				m, err := a.cq.Poll(wc[:k-got])
				if err != nil {
					t.Error(err)
					return
				}
				for i := range wc[:m] {
					if err := wc[i].Err(); err != nil {
						t.Error(err)
						return
					}
				}
				if got += m; m == 0 {
					runtime.Gosched()
				}
			}
			sent += k
			for range rand.IntN(200) {
				runtime.Gosched()
			}
		}
	}()
	again := must(NewRecvChain(1, 1))(t)
	defer again.Close()
	sleeper(t, b, n, func(id uint64) {
		again.Reset()
		again.Recv(id, b.mr.SGE(id*64, 64))
		if _, err := b.qp.PostRecv(again); err != nil {
			t.Error(err)
		}
	})
	<-done
}

// TestAsyncEvents: what the device tells, about which object.
func TestAsyncEvents(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{})
	for {
		ev, ok, err := a.ctx.NextAsync()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if ev.Type != EventCommEst {
			t.Errorf("before anything happened: %v", ev)
		}
	}
	w.script(t, "port 0 down")
	if ev := nextAsync(t, a.ctx); ev.Type != EventPortErr || ev.Port != 1 || ev.String() != "port 1: port down" {
		t.Errorf("%v", ev)
	}
	if p := must(a.ctx.Port(1))(t); p.State != PortDown {
		t.Errorf("the port is %v", p.State)
	}
	w.script(t, "port 0 up; event 0 DEVICE_FATAL; event 0 LID_CHANGE; gid 0 5 2001:db8::7 v2")
	var types []EventType
	for range 4 {
		types = append(types, nextAsync(t, a.ctx).Type)
	}
	if !slices.Equal(types, []EventType{EventPortActive, EventDeviceFatal, EventLIDChange, EventGIDChange}) {
		t.Errorf("%v", types)
	}
	a.send.Write(1, Signaled, b.mr.Addr(), b.mr.RKey()+1, a.mr.SGE(0, 8))
	a.post(t)
	a.wait(t, 1)
	if ev := nextAsync(t, b.ctx); ev.QP != b.qp || ev.Type != EventQPAccessErr || ev.CQ != nil {
		t.Errorf("%v", ev)
	}
	noAsync(t, a.ctx)
}

// TestEventsOfClosed: closing a queue pair drops the events that no caller has taken.
func TestEventsOfClosed(t *testing.T) {
	w := fakeWorld(t, "")
	ctx := w.open(t)
	e := w.newEnd(t, ctx, options{})
	w.script(t, "kill 0 "+hex(uintptr(e.qp.Num())))
	if !readable(t, ctx.AsyncFD(), long) {
		t.Fatal("no event")
	}
	if err := e.qp.Close(); err != nil {
		t.Fatal(err)
	}
	noAsync(t, ctx)
	noAsync(t, ctx)
}

// TestOverrun: more completions than fit are an event, and from then on an error of Poll. Those
// that fitted are there.
func TestOverrun(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{cqe: 4})
	for i := range 6 {
		a.send.Write(uint64(i), Signaled, b.mr.Addr(), b.mr.RKey(), a.mr.SGE(0, 8))
	}
	a.post(t)
	for ev := nextAsync(t, a.ctx); ev.CQ != a.cq; ev = nextAsync(t, a.ctx) {
	}
	for i, wc := range a.wait(t, 4) {
		one(t, wc, uint64(i), Success)
	}
	wc := make([]WC, 8)
	if n, err := a.cq.Poll(wc); n != 0 || !errors.Is(err, ErrOverrun) ||
		!strings.Contains(err.Error(), "its 4 entries") {
		t.Errorf("poll: %d, %v", n, err)
	}
	w.script(t, "fail ibv_poll_cq 1 EIO")
	if n, err := b.cq.Poll(wc); n != 0 || !errors.Is(err, ErrOverrun) || !errors.Is(err, sys.EIO) {
		t.Errorf("poll that fails: %d, %v", n, err)
	}
}

// TestCloseUnderEvents: one goroutine takes the events of a channel while another closes queues
// that use it. No event keeps a queue from closing, and none is of a queue that is gone.
func TestCloseUnderEvents(t *testing.T) {
	w := fakeWorld(t, "")
	a, b := w.pair(t, options{})
	ch := must(a.ctx.CreateChannel())(t)
	closing(t, ch)
	stop := must(sys.Eventfd())(t)
	defer sys.Close(stop)
	var taken atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if i, err := sys.PollIn(-1, stop, ch.FD()); i == 0 || err != nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for {
				cq, ok, err := ch.Next()
				if err != nil {
					t.Error(err)
					return
				}
				if !ok {
					break
				}
				taken.Add(1)
				cq.Ack()
			}
		}
	}()
	for i := range 300 {
		cq := must(a.ctx.CreateCQ(CQSpec{Entries: 4, Channel: ch}))(t)
		e := *a
		e.cq = cq
		e.qp = must(a.pd.CreateQP(QPSpec{Type: RC, SendCQ: cq, RecvCQ: cq, SendWRs: 4, SendSGEs: 1}))(t)
		if err := e.qp.Init(InitAttr{}); err != nil {
			t.Fatal(err)
		}
		e.connect(t, b, options{})
		if err := cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		if err := e.qp.Err(); err != nil { // what is posted now is flushed at once
			t.Fatal(err)
		}
		e.send.Send(uint64(i), Signaled)
		e.post(t)
		if i%2 == 0 {
			e.wait(t, 1)
		}
		if err := e.qp.Close(); err != nil {
			t.Fatal(err)
		}
		if err := cq.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := sys.Ring(stop); err != 0 {
		t.Fatal(err)
	}
	<-done
	t.Logf("%d of 300 events were taken before their queue was gone", taken.Load())
}

// noAsync is that the device has nothing to tell.
func noAsync(t testing.TB, c *Context) {
	t.Helper()
	if ev, ok, err := c.NextAsync(); ok || err != nil {
		t.Errorf("event %v, %v", ev, err)
	}
}
