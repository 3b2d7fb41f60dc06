package observe

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/metrics"
)

// Durations are histograms by kind and path.
type Durations struct {
	kinds []string
	paths []cells
}

// cells are the histograms of one path. Most stay empty, and one takes 15 KiB: they are made when
// they are needed.
type cells struct {
	path string
	of   []atomic.Pointer[cell] // by kind
}

// cell is a histogram that several goroutines write, one after the other.
type cell struct {
	mu sync.Mutex // held by the writer
	h  metrics.Histogram
}

// NewDurations makes histograms for the kinds and paths of these names.
func NewDurations(kinds []string, paths ...string) *Durations {
	d := &Durations{kinds, make([]cells, len(paths))}
	for i, path := range paths {
		d.paths[i] = cells{path, make([]atomic.Pointer[cell], len(kinds))}
	}
	return d
}

// Record enters a duration of the kind with this index. One of another path is left out.
func (d *Durations) Record(kind int, path string, took time.Duration) {
	for i := range d.paths {
		if d.paths[i].path != path {
			continue
		}
		at := &d.paths[i].of[kind]
		c := at.Load()
		if c == nil {
			at.CompareAndSwap(nil, new(cell))
			c = at.Load()
		}
		c.mu.Lock()
		c.h.Record(uint64(max(took, 0)))
		c.mu.Unlock()
		return
	}
}

// Latencies are the histograms that have durations, in order of kind and path.
func (d *Durations) Latencies() []Latency {
	out := []Latency{}
	for i := range d.paths {
		for k := range d.paths[i].of {
			c := d.paths[i].of[k].Load()
			if c == nil {
				continue
			}
			h := new(metrics.HistogramSnapshot)
			c.h.Snapshot(h)
			sec := func(ns uint64) float64 { return float64(ns) / 1e9 }
			out = append(out, Latency{Kind: d.kinds[k], Path: d.paths[i].path, Count: h.Count, Mean: h.Mean() / 1e9,
				Min: sec(h.Min), P50: sec(h.Quantile(0.5)),
				P90: sec(h.Quantile(0.9)), P99: sec(h.Quantile(0.99)), P999: sec(h.Quantile(0.999)), Max: sec(h.Max),
				Histogram: h})
		}
	}
	slices.SortFunc(out, func(a, b Latency) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Path, b.Path))
	})
	return out
}
