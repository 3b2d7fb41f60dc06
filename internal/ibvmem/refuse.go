package ibvmem

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/mem"
)

// peerModule reports whether a module for peer memory is loaded.
func (a *Adapter) peerModule() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := time.Now(); a.looked.IsZero() || now.Sub(a.looked) > lookAgain {
		a.peer, a.looked = host.PeerMemory(a.tree), now
	}
	return a.peer
}

// refuse makes the refusal of a region: why each way is closed, and what the machine's files say is
// missing. It reads some hundred of them.
func (a *Adapter) refuse(r *mem.Region, noBuf, noPeer error) error {
	var more []string
	d := r.Direct()
	if d.Bus != "" {
		f := host.ReadDirect(context.Background(), a.tree)
		if g := f.GPU(d.Bus); g != nil {
			p := f.Pair(g, f.Device(a.card()), "")
			if noPeer == errNoModule && len(p.Peer) > 0 { // said better
				noPeer = nil
			}
			if s := p.String(); s != "" {
				more = append(more, s)
			}
			if l := f.LacksWindow(g, r.Len()); l != nil {
				more = append(more, l.String())
			}
		}
	}
	text := []string{"by dma-buf: " + noBuf.Error()}
	if noPeer != nil {
		text = append(text, "by peer memory: "+noPeer.Error())
	}
	return &refusal{fmt.Sprintf("region %q of kind %s at device %s: %v: %s", r.Name(), r.Kind(), a.ctx.Name(), ErrNoWay,
		strings.Join(append(text, more...), "; ")), noBuf, noPeer}
}

// refusal is ErrNoWay with the errors of both ways.
type refusal struct {
	text          string
	noBuf, noPeer error
}

func (e *refusal) Error() string { return e.text }

// Unwrap gives ErrNoWay, and what each way said.
func (e *refusal) Unwrap() []error {
	out := []error{ErrNoWay, e.noBuf}
	if e.noPeer != nil {
		out = append(out, e.noPeer)
	}
	return out
}

// detours is what lies between the device and an accelerator, "" where nothing is known. It is read
// once.
func (a *Adapter) detours(bus string) string {
	if bus == "" {
		return ""
	}
	a.mu.Lock()
	s, ok := a.between[bus]
	a.mu.Unlock()
	if ok {
		return s
	}
	if card := a.card(); card != "" {
		f := host.ReadDirect(context.Background(), a.tree)
		var all []string
		for _, l := range f.Detours(f.Device(bus), f.Device(card)) {
			all = append(all, l.String())
		}
		s = strings.Join(all, "; ")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.between[bus] = s
	return s
}
