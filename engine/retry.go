package engine

import (
	"sync"
	"time"
)

// Retry wakes a receive queue that found no free slot after a millisecond: no event says when there
// is one. It is for implementations of engines; the zero value is ready. Its methods may be called
// from any goroutine.
type Retry struct {
	mu    sync.Mutex
	timer *time.Timer
	waker *Waker
}

// retryAfter is the pause.
const retryAfter = time.Millisecond

// Arm wakes w once, after the pause; an earlier Arm counts no more.
func (r *Retry) Arm(w *Waker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waker = w
	if r.timer == nil {
		r.timer = time.AfterFunc(retryAfter, r.fire)
		return
	}
	r.timer.Reset(retryAfter)
}

func (r *Retry) fire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waker != nil {
		r.waker.Wake()
		r.waker = nil
	}
}

// Stop ends it: no Waker is woken any more.
func (r *Retry) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waker = nil
	if r.timer != nil {
		r.timer.Stop()
	}
}
