package fault

import (
	"sync"
	"time"
)

// gate is where a direction waits while it is stalled.
type gate struct {
	mu     sync.Mutex
	shut   bool
	change chan struct{} // closed and replaced when shut changes
	timer  *time.Timer   // opens it
}

func newGate() *gate { return &gate{change: make(chan struct{})} }

// close shuts the gate, for a while if there is a duration.
func (g *gate) close(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(true)
	if d > 0 {
		var t *time.Timer
		t = time.AfterFunc(d, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.timer == t { // otherwise the gate was opened or closed since
				g.set(false)
			}
		})
		g.timer = t
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.set(false)
}

func (g *gate) set(shut bool) {
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if g.shut != shut {
		g.shut = shut
		close(g.change)
		g.change = make(chan struct{})
	}
}

func (g *gate) state() (shut bool, change <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut, g.change
}

// wait waits until the gate is open; it returns false when stop is closed first.
func (g *gate) wait(stop <-chan struct{}) bool {
	for {
		shut, change := g.state()
		if !shut {
			return true
		}
		select {
		case <-change:
		case <-stop:
			return false
		}
	}
}
