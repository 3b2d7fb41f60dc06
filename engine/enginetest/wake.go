package enginetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
)

// unexpected is an answer that should have been 0 and nil.
type unexpected struct {
	n   int
	err error
}

func (u *unexpected) Error() string { return fmt.Sprintf("%d and %v, expected 0 and nil", u.n, u.err) }

// ends waits for what runs in another goroutine, and fails the test with its error.
func (r *rig) ends(what string, done <-chan error) {
	r.t.Helper()
	limit := time.NewTimer(r.h.Patience)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
	case <-limit.C:
		r.t.Fatalf("%s has not returned for %v: a queue never waits", what, r.h.Patience)
	}
}

// woken waits for a Wake of w and reports whether it came.
func (r *rig) woken(w *engine.Waker) bool {
	limit := time.NewTimer(r.h.Patience)
	defer limit.Stop()
	select {
	case <-w.C():
		return true
	case <-limit.C:
		return false
	}
}

// checkWake looks at Arm: ready when packets are there, one Wake when they come, to the Waker that
// was given last.
func checkWake(t testing.TB, h Harness) {
	if h.Lossy || h.Noise {
		t.Log("not asked: others' packets wake too, and lost ones do not")
		return
	}
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	size := r.minRecord()
	first, last := engine.NewWaker(), engine.NewWaker()
	const rounds = 20
	late := 0 // rounds in which first was woken after last had replaced it
	for range rounds {
		for range 1000 { // a look that finds nothing may be due
			if !v.q.Arm(first) {
				break
			}
			v.quiet()
		}
		if v.q.Arm(last) {
			t.Fatal("Arm says that there is something where nothing is")
		}
		select { // a device may announce packets after TryRecv has returned them
		case <-first.C():
		default:
		}
		s.burstOf(3, size)
		if !r.woken(last) {
			t.Fatalf("no Wake within %v after packets were sent", h.Patience)
		}
		select {
		case <-first.C():
			late++
		default:
		}
		v.want(v.n + 3)
	}
	// A Wake that begins before the second Arm may end after it, once in a while.
	if late > rounds/2 {
		t.Fatalf("the Waker of an Arm that was replaced was woken in %d of %d rounds", late, rounds)
	}
	// What is there already makes Arm ready, and then no Wake comes.
	s.burstOf(2, size)
	r.eventually("Arm to see packets that are there (Watch answers ArmedReady then)", func() error {
		if v.q.Arm(first) {
			return nil
		}
		if r.woken(first) {
			return engine.ErrNotReady
		}
		return nil
	})
	v.want(v.n + 2)
	// The end of the queue wakes as well. The queue has one owner: Close comes from the same
	// goroutine, as the port's Close need not.
	for range 1000 {
		if !v.q.Arm(last) {
			break
		}
		v.quiet()
	}
	if err := r.B.Close(); err != nil {
		t.Fatalf("closing the port: %v", err)
	}
	if !r.woken(last) {
		t.Fatalf("no Wake within %v after the port was closed", h.Patience)
	}
	if n, err := v.q.TryRecv(v.b); n != 0 || err == nil {
		t.Fatalf("TryRecv after the port was closed: %d, %v", n, err)
	}
}

// checkPingPong passes one packet back and forth. Each side sleeps after an Arm that found nothing:
// a Wake that is lost once stops both.
func checkPingPong(t testing.TB, h Harness) {
	if h.Lossy {
		t.Log("not asked: a packet that is lost stops it too")
		return
	}
	r := newRig(t, h)
	sa, vb := r.line(r.A, r.B, 16)
	sb, va := r.line(r.B, r.A, 16)
	size := r.minRecord()
	play := func(rounds int) {
		done := make(chan error, 1)
		go func() {
			defer close(done)
			for range rounds {
				vb.want(vb.n + 1)
				sb.burstOf(1, size)
			}
		}()
		for range rounds {
			sa.burstOf(1, size)
			va.want(va.n + 1)
		}
		r.ends("the other side of the ping-pong", done)
	}
	start := time.Now()
	play(50)
	rounds := h.rounds
	if time.Since(start) > 50*time.Millisecond { // a link with a delay, or a busy machine: fewer will do
		rounds /= 5
	}
	play(rounds)
}
