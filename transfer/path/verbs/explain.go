package verbs

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
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
		guard = fmt.Sprintf("each export by a region of exactly its bytes, in a protection domain for this peer "+
			"alone (%s)", d.noMW)
	}
	p.lines = []string{
		fmt.Sprintf("verbs on %s port %d to %s: %d queue pairs; window %d, queues of %d requests, MTU %s, inline up "+
			"to %d bytes", d.ctx.Name(), d.port.Port,
			p.dev.way(&p.peer).DGID, len(p.data), p.window, p.o.depth(), min(d.port.ActiveMTU, ibv.MTU(p.peer.mtu)),
			p.inline),
		"address: " + d.why,
		"peers are let in: " + guard,
		fmt.Sprintf("queue pairs for this peer: %d: 1 for control (RC), %d for puts and gets (RC)", len(p.qps),
			len(p.data)),
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
	out = append(out, "requests: "+p.pub.found.String())
	if s := p.dom.local.Stats(); s.Misses > 0 {
		out = append(out, fmt.Sprintf("local memory: %d registrations made (%v in all), %d uses of one that was there",
			s.Misses, s.Registering.Round(time.Microsecond), s.Hits+s.Shared))
	}
	for _, s := range devices {
		out = append(out, "memory of accelerators: "+s)
	}
	if p.pub.replaced > 0 {
		out = append(out, fmt.Sprintf("queue pairs replaced: %d, operations restarted: %d; the last because: %v",
			p.pub.replaced, p.pub.resumed, p.pub.why))
	}
	return append(out, p.remarks...)
}
