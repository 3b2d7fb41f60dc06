package path_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func pair(t *testing.T) (a, b path.Path) {
	t.Helper()
	a, b, err := pathtest.NewMemory(setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)},
		setup.Config{Rights: path.Read | path.Write, Exports: new(path.Exports)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func waiter(t *testing.T) *path.Waiter {
	t.Helper()
	w, err := path.NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// watched tells when its owner is about to sleep, that is, when Arm has returned false.
type watched struct {
	path.Path
	polls int
	armed chan struct{} // receives once per sleep, if it has room
}

func (w *watched) Poll(e []path.Event) int { w.polls++; return w.Path.Poll(e) }

func (w *watched) Arm() bool {
	r := w.Path.Arm()
	if !r {
		select {
		case w.armed <- struct{}{}:
		default:
		}
	}
	return r
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestWaitSleepsAndWakes(t *testing.T) {
	a, b := pair(t)
	p := &watched{Path: a, armed: make(chan struct{}, 1)}
	w := waiter(t)
	go func() {
		<-p.armed
		b.Post([]path.Op{{Kind: path.Notify, Imm: 5}})
	}()
	var events [4]path.Event
	ctx := limit(t)
	n, err := w.Wait(ctx, p, events[:], 0)
	if n != 1 || err != nil || events[0].Imm != 5 {
		t.Fatalf("%d events, %v: %+v", n, err, events[0])
	}
	if ctx.Err() != nil {
		t.Fatal("the notification did not wake it; the end of the context did")
	}
}

// lastMoment brings an event between the last Poll and Arm.
type lastMoment struct {
	path.Path
	before func()
}

func (l *lastMoment) Arm() bool { l.before(); return l.Path.Arm() }

func TestWaitHeedsArm(t *testing.T) {
	a, b := pair(t)
	p := &lastMoment{a, func() { b.Post([]path.Op{{Kind: path.Notify, Imm: 8}}) }}
	var events [4]path.Event
	ctx := limit(t)
	n, err := waiter(t).Wait(ctx, p, events[:], 0)
	if n != 1 || err != nil || events[0].Imm != 8 {
		t.Fatalf("%d events, %v: %+v", n, err, events[0])
	}
	if ctx.Err() != nil {
		t.Fatal("it slept until the context ended although Arm had returned true")
	}
}

func TestWaitReturnsWhatIsThere(t *testing.T) {
	a, b := pair(t)
	w := waiter(t)
	b.Post([]path.Op{{Kind: path.Notify}, {Kind: path.Notify}, {Kind: path.Notify}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Interrupt()
	var events [2]path.Event
	// Events come before an interruption and before the context's error.
	for i, want := range []int{2, 1, 0, 0} {
		n, err := w.Wait(ctx, a, events[:], time.Millisecond)
		if n != want {
			t.Fatalf("wait %d: %d events, expected %d", i, n, want)
		}
		if i < 3 && err != nil {
			t.Fatalf("wait %d: %v", i, err)
		}
		if i == 3 && !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v, expected the context's", err)
		}
	}
	if n, err := w.Wait(t.Context(), a, nil, 0); n != 0 || err != nil {
		t.Errorf("without room for events: %d, %v", n, err)
	}
}

func TestWaitSpinsFirst(t *testing.T) {
	a, b := pair(t)
	w := waiter(t)
	p := &watched{Path: a, armed: make(chan struct{}, 1)}
	var events [1]path.Event
	done := make(chan struct{})
	go func() { // a spin long enough that it must find the event without sleeping
		defer close(done)
		if n, err := w.Wait(limit(t), p, events[:], time.Hour); n != 1 || err != nil {
			t.Errorf("%d events, %v", n, err)
		}
	}()
	b.Post([]path.Op{{Kind: path.Notify}})
	<-done
	if len(p.armed) != 0 {
		t.Error("it slept while it should have spun")
	}
	// A long spin ends at once when it is interrupted or its context ends.
	w.Interrupt()
	if n, err := w.Wait(limit(t), p, events[:], time.Hour); n != 0 || err != nil {
		t.Errorf("interrupted spin: %d, %v", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if n, err := w.Wait(ctx, p, events[:], time.Hour); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("spin beyond the context: %d, %v", n, err)
	}
}

func TestWaitContext(t *testing.T) {
	a, _ := pair(t)
	w := waiter(t)
	var events [1]path.Event
	for range 20 { // each with a context of its own: the last one's end must not be taken for this one's
		p := &watched{Path: a, armed: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-p.armed
			cancel()
		}()
		if n, err := w.Wait(ctx, p, events[:], 0); n != 0 || !errors.Is(err, context.Canceled) {
			t.Fatalf("%d events, %v", n, err)
		}
	}
	// Without a Done channel only Interrupt ends it.
	p := &watched{Path: a, armed: make(chan struct{}, 1)}
	go func() {
		<-p.armed
		w.Interrupt()
	}()
	if n, err := w.Wait(context.Background(), p, events[:], 0); n != 0 || err != nil {
		t.Fatalf("%d events, %v", n, err)
	}
}

func TestInterruptBeforeAndAfter(t *testing.T) {
	a, b := pair(t)
	w := waiter(t)
	var events [1]path.Event
	w.Interrupt()
	w.Interrupt()
	if n, err := w.Wait(limit(t), a, events[:], 0); n != 0 || err != nil {
		t.Fatalf("after Interrupt: %d, %v", n, err)
	}
	// Two Interrupts counted as one, and what they left behind does not keep the next Wait from
	// sleeping and waking.
	p := &watched{Path: a, armed: make(chan struct{}, 1)}
	go func() {
		<-p.armed
		b.Post([]path.Op{{Kind: path.Notify}})
	}()
	if n, err := w.Wait(limit(t), p, events[:], 0); n != 1 || err != nil {
		t.Fatalf("next wait: %d, %v", n, err)
	}
	w.Close()
	w.Interrupt() // must not touch a descriptor number that another file may have by now
	if err := w.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// TestNoLostInterrupt hands a baton to and fro: every Interrupt must end exactly the wait it was
// meant for, at whatever moment it comes. If one were lost, the wait would last until the deadline.
func TestNoLostInterrupt(t *testing.T) {
	const rounds = 20_000
	a, _ := pair(t)
	w := waiter(t)
	ctx := limit(t)
	var asked, served atomic.Int64
	go func() {
		for i := int64(1); i <= rounds; i++ {
			for served.Load() < i-1 && ctx.Err() == nil {
				runtime.Gosched()
			}
			asked.Store(i)
			w.Interrupt()
		}
	}()
	var events [1]path.Event
	for i := int64(1); i <= rounds; i++ {
		spin := time.Duration(i%3) * time.Microsecond
		for asked.Load() < i {
			if n, err := w.Wait(ctx, a, events[:], spin); n != 0 || err != nil {
				t.Fatalf("round %d: %d events, %v", i, n, err)
			}
		}
		served.Store(i)
	}
}

// TestNoLostEvent is the same for the peer's notifications while interruptions rain as well.
func TestNoLostEvent(t *testing.T) {
	const rounds = 3000
	a, b := pair(t)
	wa, wb := waiter(t), waiter(t)
	ctx := limit(t)
	var stop atomic.Bool
	rain := make(chan struct{})
	go func() {
		defer close(rain)
		for !stop.Load() {
			wa.Interrupt()
			wb.Interrupt()
			runtime.Gosched()
		}
	}()
	defer func() { stop.Store(true); <-rain }()
	play := func(p path.Path, w *path.Waiter, serve bool) error {
		var events [4]path.Event
		for i := range rounds {
			if serve || i > 0 {
				for got := false; !got; {
					n, err := w.Wait(ctx, p, events[:], time.Duration(i%4)*time.Microsecond)
					if err != nil {
						return err
					}
					for _, e := range events[:n] {
						got = got || e.Kind == path.EventNotify
					}
				}
			}
			if _, err := p.Post([]path.Op{{Kind: path.Notify}}); err != nil {
				return err
			}
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- play(b, wb, true) }()
	if err := play(a, wa, false); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWaitAllocs(t *testing.T) {
	a, b := pair(t)
	w := waiter(t)
	ctx := limit(t)
	ops := []path.Op{{Kind: path.Notify}}
	events := make([]path.Event, 4)
	n := testing.AllocsPerRun(200, func() {
		b.Post(ops)
		w.Wait(ctx, a, events, 0) // there already
		w.Interrupt()
		w.Wait(ctx, a, events, time.Microsecond) // spins, then arms
		for b.Poll(events) > 0 {
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for two waits", n)
	}
}

// TestWaitAllocsAsleep counts those of a wait that really sleeps.
func TestWaitAllocsAsleep(t *testing.T) {
	a, b := pair(t)
	w := waiter(t)
	ctx := limit(t)
	p := &watched{Path: a, armed: make(chan struct{}, 1)}
	ops := []path.Op{{Kind: path.Notify}}
	go func() {
		var events [4]path.Event
		for {
			select {
			case <-p.armed:
				b.Post(ops)
				b.Poll(events[:])
			case <-ctx.Done():
				return
			case <-t.Context().Done():
				return
			}
		}
	}()
	var events [4]path.Event
	least := 1e9
	for range 5 {
		least = min(least, testing.AllocsPerRun(100, func() {
			for {
				n, err := w.Wait(ctx, p, events[:], 0)
				if n > 0 || err != nil {
					return
				}
			}
		}))
	}
	if least != 0 {
		t.Errorf("%v allocations for a wait that sleeps", least)
	}
}
