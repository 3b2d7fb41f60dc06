package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
)

// The limits of a Retry, in virtual time.
func TestTries(t *testing.T) {
	errLost := fmt.Errorf("x: %w", transfer.ErrPeerLost)
	type step struct {
		took      time.Duration // of the attempt
		met, lost bool
		progress  bool
	}
	type result struct {
		attempts int
		waited   time.Duration
		err      error
	}
	run := func(r Retry, steps func(n int) (step, bool)) (x result) {
		synctest.Test(t, func(t *testing.T) {
			r, err := r.complete(Retry{})
			if err != nil {
				t.Fatal(err)
			}
			tr := newTries(r)
			for {
				s, more := steps(x.attempts)
				if !more {
					return
				}
				x.attempts++
				pause(t.Context(), s.took)
				if s.progress {
					tr.progressed(time.Now())
				}
				wait, err := tr.again(time.Now(), 0, s.met, s.lost, errLost)
				if err != nil {
					x.err = err
					return
				}
				x.waited += wait
				pause(t.Context(), wait)
			}
		})
		return x
	}
	always := func(s step) func(int) (step, bool) { return func(int) (step, bool) { return s, true } }
	ends := func(what string, x result, attempts int) {
		t.Helper()
		if !errors.Is(x.err, ErrGaveUp) || !errors.Is(x.err, errLost) || attempts > 0 && x.attempts != attempts {
			t.Errorf("%s: %+v", what, x)
		}
	}
	ends("one attempt", run(Retry{Attempts: 1}, always(step{met: true, lost: true})), 1)
	ends("five attempts", run(Retry{Attempts: 5}, always(step{met: true, lost: true})), 5)
	x := run(Retry{Attempts: -1, Total: time.Minute, Max: time.Second}, always(step{met: true, lost: true}))
	ends("a minute", x, 0)
	if x.waited > time.Minute || x.waited < 55*time.Second {
		t.Errorf("waited %v", x.waited)
	}
	// Attempts count against the time as well as the waits, but for the session that was there
	// first.
	ends("slow attempts", run(Retry{Attempts: -1, Total: time.Minute, Max: time.Millisecond, First: time.Millisecond},
		always(step{took: 25 * time.Second, met: true, lost: true})), 4)
	ends("no session", run(Retry{Attempts: -1, Total: time.Minute, Max: time.Millisecond, First: time.Millisecond},
		always(step{took: 25 * time.Second})), 3)
	// A session without a verified piece for long is no reason to give up when it is lost.
	x = run(Retry{Attempts: -1, Total: time.Minute}, func(n int) (step, bool) {
		return step{took: time.Hour, met: true, lost: true}, n < 1
	})
	if x.err != nil || x.waited != 0 {
		t.Errorf("a slow session: %+v", x)
	}
	// Progress sets both back.
	x = run(Retry{Attempts: 2, Total: time.Second}, func(n int) (step, bool) {
		return step{took: 900 * time.Millisecond, met: true, lost: true, progress: true}, n < 50
	})
	if x.err != nil || x.attempts != 50 || x.waited != 0 {
		t.Errorf("slow progress: %+v", x)
	}
}

// heard collects what OnRetry gets.
type heard struct {
	mu  sync.Mutex
	all []LinkFailure
}

func (h *heard) add(f LinkFailure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, f)
}

func (h *heard) count() (dials, losses, others int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.all {
		switch {
		case f.Dial:
			dials++
		case f.Lost:
			losses++
		default:
			others++
		}
	}
	return
}

// Do goes on over another session when one is lost, and OnRetry gets each loss once.
func TestDo(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	n := open(t, transfer.Options{})
	var h heard
	l := link(t, n, s.addr(), LinkOptions{Min: -1, Retry: Retry{First: time.Millisecond, Max: 2 * time.Millisecond},
		OnRetry: h.add})
	if _, err := l.Connect(ctx(t)); err != nil {
		t.Fatal(err)
	}
	// Several at a time on one session that goes; each gets another one.
	var all, cut sync.WaitGroup
	cut.Add(3)
	var once sync.Once
	for range 3 {
		all.Go(func() {
			calls := 0
			err := l.Do(ctx(t), DoOptions{}, func(ctx context.Context, p *transfer.Peer) error {
				if calls++; calls == 1 {
					cut.Done()
					cut.Wait() // all have the first session
					once.Do(s.proxy.Cut)
					<-p.Gone()
				}
				_, err := p.Lookup(ctx, "x")
				return err
			})
			if err != nil || calls != 2 {
				t.Errorf("%d calls: %v", calls, err)
			}
		})
	}
	all.Wait()
	if dials, losses, others := h.count(); dials != 0 || losses != 1 || others != 0 ||
		!errors.Is(h.all[0].Err, transfer.ErrPeerLost) {
		t.Errorf("told: %v", h.all)
	}
	// An error that does not pass ends it at once; Again decides.
	calls := 0
	missing := func(ctx context.Context, p *transfer.Peer) error {
		calls++
		_, err := p.Lookup(ctx, "y")
		return err
	}
	if err := l.Do(ctx(t), DoOptions{}, missing); !errors.Is(err, control.NotFound) || calls != 1 {
		t.Errorf("%d calls: %v", calls, err)
	}
	calls = 0
	err := l.Do(ctx(t), DoOptions{Retry: Retry{Attempts: 4}, Again: func(err error) bool {
		return errors.Is(err, control.NotFound)
	}}, missing)
	if !errors.Is(err, ErrGaveUp) || !errors.Is(err, control.NotFound) || calls != 4 {
		t.Errorf("%d calls: %v", calls, err)
	}
	if _, _, others := h.count(); others != 3 { // the fourth is the end
		t.Errorf("told: %v", h.all)
	}
	// Progress sets the limits back.
	calls = 0
	err = l.Do(ctx(t), DoOptions{Retry: Retry{Attempts: 2}, Progress: func() uint64 {
		return uint64(calls)
	}}, func(context.Context, *transfer.Peer) error {
		if calls++; calls < 10 {
			return control.Busy
		}
		return nil
	})
	if err != nil || calls != 10 {
		t.Errorf("%d calls: %v", calls, err)
	}
	// A context that ends is the end, with the last error.
	short, cancel := context.WithCancel(ctx(t))
	err = l.Do(short, DoOptions{Retry: Retry{Attempts: -1}}, func(context.Context, *transfer.Peer) error {
		cancel()
		return control.Busy
	})
	if !errors.Is(err, control.Busy) {
		t.Error(err)
	}
}

// The address answers no dial: Connect fails at the first one, Do as Retry says, and OnRetry gets
// each dial.
func TestConnectToNobody(t *testing.T) {
	s := newServer(t, 4096, transfer.ExportOptions{})
	s.proxy.Refuse(true)
	var h heard
	l := link(t, open(t, transfer.Options{}), s.addr(),
		LinkOptions{Min: -1, Retry: Retry{First: time.Millisecond, Max: 2 * time.Millisecond, Attempts: 3},
			OnRetry: h.add})
	if p, err := l.Connect(ctx(t)); err == nil || p != nil || errors.Is(err, ErrGaveUp) {
		t.Errorf("%v, %v", p, err)
	}
	dials := l.Snapshot().Sessions.DialsFailed
	if dials != 1 {
		t.Errorf("%d dials", dials)
	}
	called := false
	err := l.Do(ctx(t), DoOptions{}, func(context.Context, *transfer.Peer) error { called = true; return nil })
	if !errors.Is(err, ErrGaveUp) || called {
		t.Errorf("%v", err)
	}
	if dials, losses, others := h.count(); dials != 4 || losses != 0 || others != 0 {
		t.Errorf("told: %v", h.all)
	}
	s.proxy.Refuse(false)
	if _, err := l.Connect(ctx(t)); err != nil {
		t.Error(err)
	}
	l.Close()
	if err := l.Do(ctx(t), DoOptions{}, func(context.Context, *transfer.Peer) error {
		return nil
	}); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := l.Connect(ctx(t)); !errors.Is(err, transfer.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
