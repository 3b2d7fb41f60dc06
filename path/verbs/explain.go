package verbs

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/path"
)

// maxNotes is how many remarks a path keeps: the last ones.
const maxNotes = 8

// note keeps a remark for Explain. It may be called from any goroutine.
func (p *Path) note(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.remarks) == maxNotes {
		p.remarks = append(p.remarks[:0], p.remarks[1:]...)
	}
	p.remarks = append(p.remarks, s)
}

func (p *Path) explain() {
	d := p.dev
	guard := "each export by a memory window (type 2B) for this peer's queue pairs, on a region of exactly its bytes"
	if !p.dom.windows {
		guard = fmt.Sprintf("each export by a region of exactly its bytes, in a protection domain for this peer alone (%s)", d.noMW)
	}
	p.lines = []string{
		fmt.Sprintf("verbs on %s port %d to %s: %d queue pairs; window %d, queues of %d requests, MTU %s, inline up to %d bytes", d.ctx.Name(), d.port.Port,
			p.dev.way(&p.peer).DGID, len(p.data), p.window, p.o.depth(), min(d.port.ActiveMTU, mtuOf(p.peer.mtu)), p.inline),
		"address: " + d.why,
		"peers are let in: " + guard,
		fmt.Sprintf("queue pairs for this peer: %d: 1 for control (RC), %d for puts and gets (RC)", len(p.qps), len(p.data)),
		"copies: none; integrity: the invariant CRC of the adapters; encryption: none",
	}
	if !p.dev.memory.Able() || p.peer.flags&flagDevices == 0 {
		p.lines = append(p.lines, "memory of accelerators: "+p.noDevices())
	}
}

// Explain may be called from any goroutine.
func (p *Path) Explain() []string {
	devices := p.dev.memory.Explain() // reads files
	p.mu.Lock()
	defer p.mu.Unlock()
	out := append([]string(nil), p.lines...)
	out = append(out, "requests: "+p.pub.tuned.String())
	if s := p.dom.local.Stats(); s.Misses > 0 {
		out = append(out, fmt.Sprintf("local memory: %d registrations made (%v in all), %d uses of one that was there", s.Misses, s.Registering.Round(time.Microsecond), s.Hits+s.Shared))
	}
	for _, s := range devices {
		out = append(out, "memory of accelerators: "+s)
	}
	if p.pub.replaced > 0 {
		out = append(out, fmt.Sprintf("queue pairs replaced: %d, operations begun anew: %d; the last because: %v", p.pub.replaced, p.pub.resumed, p.pub.why))
	}
	return append(out, p.remarks...)
}

// costMeter measures a few of the operations that are done anyway, as a path alone can do them.
type costMeter struct {
	cost    path.Cost
	active  bool
	token   uint64
	bytes   uint64
	start   time.Time
	posts   uint
	latency bool
}

const sampleEvery = 64

func (m *costMeter) init(speed uint64) {
	m.cost = path.Cost{Latency: 5 * time.Microsecond, BytesPerSec: 1e9}
	if speed > 0 {
		m.cost.BytesPerSec = float64(speed) / 8
	}
}

func (m *costMeter) posted(p *Path, ops []path.Op) {
	m.posts++
	o := &ops[0]
	if m.active || len(p.freeWorks) != len(p.works)-1 || o.Kind != path.Put && o.Kind != path.Get || len(o.Copies) != 1 {
		return // only what has the path for itself says something about it
	}
	if n := o.Bytes(); n >= 1<<20 || n <= 4096 && m.posts%sampleEvery == 1 {
		m.active, m.token, m.bytes, m.start = true, o.Token, n, time.Now()
	}
}

func (m *costMeter) reported(p *Path, events []path.Event) {
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
		if m.bytes <= 4096 {
			if m.latency {
				d = (7*m.cost.Latency + d) / 8
			}
			m.cost.Latency, m.latency = d, true
			return
		}
		r := float64(m.bytes) / max(d-m.cost.Latency, d/2, 1).Seconds()
		if m.cost.Measured {
			r = (7*m.cost.BytesPerSec + r) / 8
		}
		m.cost.BytesPerSec, m.cost.Measured = r, true
		return
	}
}
