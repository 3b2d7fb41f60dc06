package tcp

import (
	"time"

	"github.com/penstock-io/penstock/path"
)

// costMeter measures a few of the operations that are done anyway: every large one, if none is being measured, and one
// small one in many, so that a clock is not read for each.
type costMeter struct {
	cost    path.Cost
	active  bool
	token   uint64
	bytes   uint64
	start   time.Time
	posts   uint
	latency bool // cost.Latency was measured
}

const (
	priorRate    = 2e9 // bytes per second, until something was measured
	sampleEvery  = 64
	sampleBlocks = 64 // operations with more blocks are not added up just for this
)

func (m *costMeter) init(rtt time.Duration) {
	m.cost = path.Cost{Latency: rtt, BytesPerSec: priorRate}
	if rtt == 0 {
		m.cost.Latency = 50 * time.Microsecond
	}
}

func (m *costMeter) posted(c *core, ops []path.Op) {
	m.posts++
	if m.active {
		return
	}
	o := &ops[0]
	if o.Kind != path.Put && o.Kind != path.Get || len(o.Copies) > sampleBlocks {
		return
	}
	n := o.Bytes()
	if n < stripeMin && (m.posts%sampleEvery != 1 || n > 4096) || c.open > 1 {
		return // only what has the path for itself says something about it
	}
	m.active, m.token, m.bytes, m.start = true, o.Token, n, time.Now()
}

func (m *costMeter) reported(events []path.Event) {
	if !m.active {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Kind != path.EventDone || e.Token != m.token {
			continue
		}
		m.active = false
		if e.Err != nil {
			return
		}
		d := time.Since(m.start)
		if m.bytes < stripeMin {
			if m.latency {
				d = (7*m.cost.Latency + d) / 8
			}
			m.cost.Latency, m.latency = d, true
			return
		}
		m.rate(float64(m.bytes) / max(d-m.cost.Latency, d/2).Seconds())
		return
	}
}

// rate records a measured bandwidth in bytes per second.
func (m *costMeter) rate(r float64) {
	if m.cost.Measured {
		r = (7*m.cost.BytesPerSec + r) / 8
	}
	m.cost.BytesPerSec, m.cost.Measured = r, true
}
