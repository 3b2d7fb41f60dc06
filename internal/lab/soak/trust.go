package soak

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/sched"
)

// rights is the policy of a host: the same for all peers, whatever they are called. The zero value
// gives all rights.
type rights struct {
	taken atomic.Uint32
	times atomic.Uint32
}

// Rights makes it an identity.Policy.
func (r *rights) Rights(string) identity.Rights {
	return identity.All &^ identity.Rights(r.taken.Load())
}

// take takes rights away: by turns those to read, to write, and to do anything.
func (r *rights) take() {
	r.taken.Store(uint32([]identity.Rights{identity.Read, identity.Write, identity.All}[r.times.Add(1)%3]))
}

func (r *rights) give() { r.taken.Store(0) }

// deny keeps another worker out by its certificate, by turns each of them.
func (h *host) deny() {
	n := len(h.w.c.Peers)
	h.w.denials++
	other := (h.w.c.Index + 1 + h.w.denials%(n-1)) % n
	rules, err := identity.ParseRules([]byte("default all\ndeny name " + workerName(other) + "\n"))
	if err != nil {
		h.complain("rules: %v", err)
		return
	}
	h.id.SetRules(rules)
}

// limits are so small that some of what the movers begin is refused.
func (w *worker) limits() transfer.Limits {
	most := w.c.MaxBytes
	return transfer.Limits{
		Node: transfer.Quota{Out: sched.Limits{Transfers: 3 * moverCount, Bytes: 2 * most},
			In: sched.Limits{Bytes: most + most/2}},
		Peer: transfer.Quota{Out: sched.Limits{Largest: most - most/16},
			In: sched.Limits{Transfers: 3, Largest: most - most/8}},
	}
}

// legKey names the part of a fan-out that goes to one worker.
func legKey(key string, index int) string { return fmt.Sprintf("%s@%d", key, index) }
