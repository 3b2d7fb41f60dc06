package metrics

import (
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/word"
)

// metricSize is the size in bytes of a Counter and of a Gauge: two cache lines,
// because processors fetch lines in pairs.
const metricSize = 128

// before puts the word of a metric where, wherever in memory the struct starts
// (8-byte alignment is all that Go promises), its whole cache line of 64 bytes
// lies inside the struct. Neighbours therefore never slow the writer down.
const before = 56

// secondWriter is what a broken rule of one writer says under -tags invariants.
const secondWriter = "metrics: two goroutines write one metric at once: give each its own and add them up when reading"

// Counter counts events or bytes; it only grows, and wraps at 2^64. It has one
// writer and any number of readers.
type Counter struct {
	_ [before]byte
	n atomic.Uint64
	_ [metricSize - before - 8]byte
}

// Add adds n. Only the one writer may call it.
func (c *Counter) Add(n uint64) {
	old := c.n.Load()
	if invariants.Enabled {
		if !c.n.CompareAndSwap(old, old+n) {
			panic(secondWriter)
		}
		return
	}
	word.Store(&c.n, old+n)
}

// Inc adds 1. Only the one writer may call it.
func (c *Counter) Inc() { c.Add(1) }

// Load returns the count. Anyone may call it.
func (c *Counter) Load() uint64 { return c.n.Load() }

// Gauge is a level that goes up and down: items in a queue, bytes in use. It has
// one writer and any number of readers.
type Gauge struct {
	_ [before]byte
	n atomic.Int64
	_ [metricSize - before - 8]byte
}

// Set makes n the level. Only the one writer may call it.
func (g *Gauge) Set(n int64) { g.n.Store(n) }

// Add changes the level by n, which may be negative. Only the one writer may call it.
func (g *Gauge) Add(n int64) {
	old := g.n.Load()
	if invariants.Enabled {
		if !g.n.CompareAndSwap(old, old+n) {
			panic(secondWriter)
		}
		return
	}
	g.n.Store(old + n)
}

// Load returns the level. Anyone may call it.
func (g *Gauge) Load() int64 { return g.n.Load() }
