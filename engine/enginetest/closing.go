package enginetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// checkBurstsOut closes queues and ports while the application holds bursts: they stay valid and go
// back later.
func checkBurstsOut(t testing.TB, h Harness) {
	for _, whole := range []bool{false, true} {
		r := newRig(t, h)
		s, v := r.line(r.A, r.B, 16)
		const n = 8
		s.burstOf(n, r.minRecord()+100)
		received, allocated, late := r.burst(64), r.burst(8), r.burst(8)
		for received.Len() == 0 || !r.caps.Stream && !h.Lossy && received.Len() < n {
			if _, err := v.someOr(received, r.arrived(n, received)); err != nil {
				t.Fatalf("TryRecv: %v", err)
			}
			if h.Lossy && r.arrived(n, received)() == nil {
				break
			}
		}
		s.wantAlloc(allocated, 4, 4, nil)
		s.wantAlloc(late, 4, 4, nil)
		if whole {
			for _, p := range []engine.Port{r.A, r.B} {
				if err := p.Close(); err != nil {
					t.Fatalf("closing a port with bursts out: %v", err)
				}
			}
		} else {
			if err := v.q.Close(); err != nil {
				t.Fatalf("closing a receive queue with bursts out: %v", err)
			}
			if err := s.q.Close(); err != nil {
				t.Fatalf("closing a transmit queue with bursts out: %v", err)
			}
		}
		for i := range allocated.Len() {
			s.write(allocated, i, r.minRecord())
		}
		v.take(received) // every byte is still there
		if err := s.q.Send(allocated); !errors.Is(err, engine.ErrClosed) || allocated.Len() != 0 {
			t.Errorf("Send after Close: %v, with %d packets in the burst; expected engine.ErrClosed and 0", err,
				allocated.Len())
		}
		received.Release()
		late.Release()
		r.end()
	}
}

// arrived says nil when n packets are in b or counted as lost.
func (r *rig) arrived(n int, b *burst.Burst) func() error {
	return func() error {
		if b.Len() >= n || r.h.Lossy && uint64(n-b.Len()) <= r.lost() {
			return nil
		}
		return engine.ErrNotReady
	}
}

// checkCloseWaiting closes a receive queue for which packets wait.
func checkCloseWaiting(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	for range h.Window / 4 {
		s.burstOf(4, r.minRecord())
	}
	sent := h.Window / 4 * 4
	if err := s.q.Drain(t.Context()); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	r.eventually("packets to wait", func() error {
		if w := engine.NewWaker(); v.q.Arm(w) || r.woken(w) || r.lost() > 0 {
			return nil
		}
		return engine.ErrNotReady
	})
	if err := v.q.Close(); err != nil {
		t.Fatalf("closing a receive queue for which packets wait: %v", err)
	}
	if r.caps.Stream || h.Noise {
		return
	}
	if r.caps.ExactDrops {
		r.eventually("what waited to be counted", func() error {
			if n := r.lost(); n < uint64(sent) {
				return fmt.Errorf("%d packets were sent and not received, %d are counted", sent, n)
			}
			return nil
		})
		r.only(true, engine.DropClosed, engine.DropNoQueue) // some may have come later
	}
	if d := r.dropped(); d[engine.DropClosed] == 0 && !h.Lossy {
		t.Errorf("packets waited when their queue was closed, and none is counted as DropClosed: %v", &d)
	}
}

// checkAfterClose uses queues and ports that are closed.
func checkAfterClose(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 16)
	echo, back := r.line(r.B, r.A, 16)
	s.burstOf(4, r.minRecord())
	v.want(4)
	s.burstOf(4, r.minRecord())
	held := r.burst(8)
	if _, err := v.someOr(held, r.arrived(4, held)); err != nil {
		t.Fatalf("TryRecv: %v", err)
	}
	sent := r.burst(4)
	s.wantAlloc(sent, 4, 4, nil)
	for range 2 { // the second Close does nothing
		for _, c := range []func() error{s.q.Close, v.q.Close, echo.q.Close} {
			if err := c(); err != nil {
				t.Fatalf("Close: %v", err)
			}
		}
	}
	closed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("%s after Close: %v, expected engine.ErrClosed", what, err)
		}
	}
	w := engine.NewWaker()
	if !v.q.Arm(w) && !r.woken(w) {
		t.Error("Arm after Close says that there is nothing, and no Wake comes")
	}
	for range 3 {
		n, err := v.q.TryRecv(v.b)
		for err == nil && n > 0 { // the rest of what was received before
			v.b.Release()
			n, err = v.q.TryRecv(v.b)
		}
		closed("TryRecv", err)
		_, err = s.q.Alloc(v.b, 1, r.minRecord())
		closed("Alloc", err)
	}
	live := held.Live()
	n, err := echo.q.Forward(held)
	if live > 0 {
		closed("Forward", err)
	}
	if n != 0 || held.Len() != 0 {
		t.Errorf("Forward after Close: %d, with %d packets in the burst, expected none", n, held.Len())
		held.Release()
	}
	var before, after engine.TxStats
	s.q.Stats(&before)
	closed("Send", s.q.Send(sent))
	s.q.Stats(&after)
	if k := after.Drops[engine.DropClosed] - before.Drops[engine.DropClosed]; k != 4 {
		t.Errorf("Send of 4 packets after Close counted %d of them as DropClosed", k)
	}
	if err := s.q.Drain(t.Context()); err != nil && !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Drain after Close: %v", err)
	}
	back.quiet()
	for _, p := range []engine.Port{r.A, r.B, r.A} {
		if err := p.Close(); err != nil {
			t.Fatalf("closing port %s: %v", p.Name(), err)
		}
	}
	var st engine.PortStats
	r.A.Stats(&st)
	if got := st.Tx.Packets + st.Tx.Drops.Total(); got != 12 {
		t.Errorf("the port's sums count %d packets given to queues that are closed, expected 12", got)
	}
	_, err = r.tryRx(r.A, engine.RxSpec{}, 64)
	closed("AddRxQueue", err)
	_, err = r.tryTx(r.A, engine.TxSpec{}, 64)
	closed("AddTxQueue", err)
	// What was closed can be opened again.
	r.end()
	again := newRig(t, h)
	s, v = again.line(again.A, again.B, 16)
	s.burstOf(4, again.minRecord())
	v.want(4)
}

// checkCloseUnderLoad closes a queue or a port while several goroutines send and one receives.
func checkCloseUnderLoad(t testing.TB, h Harness) {
	for _, what := range []string{"the receive queue", "the transmit queue", "the sender's port",
		"the receiver's port"} {
		for range 5 {
			closeUnderLoad(t, h, what)
		}
	}
}

func closeUnderLoad(t testing.TB, h Harness, what string) {
	r := newRig(t, h)
	defer r.end()
	first, v := r.line(r.A, r.B, 64)
	v.gaps = true
	var given atomic.Int64
	var wg sync.WaitGroup
	stop, running := make(chan struct{}), make(chan struct{})
	done := make(chan error, 3)
	const senders = 2
	for i := range senders {
		s := first.as(uint16(i), 0)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, err := s.q.Alloc(s.b, 8, r.minRecord())
				for k := range n {
					s.write(s.b, k, r.minRecord())
				}
				if n > 0 {
					given.Add(int64(n))
					err = s.q.Send(s.b) // counts them, whatever it says
				}
				if s.b.Len() != 0 {
					t.Errorf("%d packets are in the burst after Send or a failed Alloc: %v", s.b.Len(), err)
					s.b.Release()
					return
				}
				if errors.Is(err, engine.ErrClosed) {
					return
				}
				r.breathe()
			}
		}()
	}
	close1 := make(chan struct{})
	go func() { // the owner of the receive queue
		for seen := false; ; {
			select {
			case <-close1:
				done <- v.q.Close()
				return
			default:
			}
			n, err := v.q.TryRecv(v.b)
			if n > 0 {
				v.take(v.b)
				v.b.Release()
				if !seen && v.total > 50 {
					seen = true
					close(running)
				}
			}
			if err != nil {
				if !errors.Is(err, engine.ErrClosed) {
					t.Errorf("TryRecv when %s was closed: %v", what, err)
				}
				done <- nil
				return
			}
			if n == 0 {
				if v.q.Arm(v.w) {
					continue
				}
				select {
				case <-v.w.C():
				case <-close1:
					done <- v.q.Close()
					return
				}
			}
		}
	}()
	<-running
	switch what {
	case "the receive queue":
		close(close1)
	case "the transmit queue":
		done <- first.q.Close()
	case "the sender's port":
		done <- r.A.Close()
	case "the receiver's port":
		done <- r.B.Close()
	}
	r.ends("closing "+what+" under load", done)
	close(stop)
	wg.Wait()
	if what == "the transmit queue" || what == "the sender's port" {
		close(close1)
	}
	if what != "the receive queue" {
		r.ends("the receiver", done)
	}
	// Whatever became of them, the sender's queue has counted each packet that it was given. Where
	// nothing is lost, they wait for a receiver.
	if !r.caps.Lossless || what != "the receive queue" {
		ctx, cancel := context.WithTimeout(t.Context(), h.Patience)
		defer cancel()
		if err := first.q.Drain(ctx); err != nil && !errors.Is(err, engine.ErrClosed) && !r.caps.Stream {
			t.Fatalf("Drain: %v", err)
		}
	}
	first.q.Close()
	var s engine.TxStats
	first.q.Stats(&s)
	if n := s.Packets + s.Drops.Total(); n != uint64(given.Load()) || s.Queued != 0 {
		t.Errorf("%s was closed under load: %d packets were given to Send, %d left, %d are queued, and these were "+
			"dropped: %v", what,
			given.Load(), s.Packets, s.Queued, &s.Drops)
	}
}
