package shm

import (
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/internal/sys"
)

// Views are released by any goroutine, which rings for the path's owner. If that happens just while
// the owner empties its bell, the bell must not stay silent for good: whatever the owner posted
// later while asleep would then wait until the peer says something.
func TestRingWhileWaking(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	p := u.p
	var over atomic.Bool
	rang := make(chan struct{})
	go func() { // releases views
		defer close(rang)
		for !over.Load() {
			p.ringSelf()
		}
	}()
	for i := range 20_000 {
		p.armed = true
		p.wake()
		p.mu.Lock() // no goroutine is in the middle of a ring
		rung := p.rung.Load()
		ready, _ := sys.PollIn(0, p.bell)
		p.mu.Unlock()
		if rung != (ready == 0) {
			t.Errorf("after %d times: rung %v, but the bell is readable: %v", i, rung, ready == 0)
			break
		}
	}
	over.Store(true)
	<-rang
}
