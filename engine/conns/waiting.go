package conns

import (
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// Waiting are packets that wait for a connection, in order; Q is the type of the transmit queues
// that they came by.
type Waiting[Q comparable] struct {
	held  []Held[Q]
	spare []*burst.Burst
}

// Held are packets of one transmit queue that wait. Those before From have left, and Off bytes of
// that one.
type Held[Q comparable] struct {
	Burst     *burst.Burst
	From, Off int
	Queue     Q
}

// live is the number of packets.
func (h *Held[Q]) live() int { return h.Burst.Builder().LivePart(h.From, h.Burst.Len()) }

// heldBurst is the room of a burst of packets that wait, in packets and in segments; spareBursts is
// how many empty ones are kept.
const heldBurst, spareBursts = 64, 4

// Keep moves a packet of b to what waits. off bytes of it have left.
func (w *Waiting[Q]) Keep(q Q, b *burst.Burst, i, off int) {
	if n := len(w.held); n > 0 && off == 0 && w.held[n-1].Queue == q && b.Take(w.held[n-1].Burst, i) {
		return
	}
	var to *burst.Burst
	if n := len(w.spare); n > 0 && b.Segments(i) <= w.spare[n-1].SegmentRoom() {
		to, w.spare = w.spare[n-1], w.spare[:n-1]
	} else {
		to = burst.NewSegmented(heldBurst, max(heldBurst, b.Segments(i)))
	}
	b.Take(to, i)
	w.held = append(w.held, Held[Q]{Burst: to, Off: off, Queue: q})
}

// First is what leaves next, nil if nothing waits.
func (w *Waiting[Q]) First() *Held[Q] {
	if len(w.held) == 0 {
		return nil
	}
	return &w.held[0]
}

// Pop ends First: all of it has left.
func (w *Waiting[Q]) Pop() {
	w.empty(w.held[0].Burst)
	w.held = w.held[:copy(w.held, w.held[1:])]
}

// Len is the number of packets.
func (w *Waiting[Q]) Len() (n int) {
	for i := range w.held {
		n += w.held[i].live()
	}
	return n
}

// empty gives a burst's packets back and keeps it.
func (w *Waiting[Q]) empty(b *burst.Burst) {
	b.Release()
	if len(w.spare) < spareBursts {
		w.spare = append(w.spare, b)
	}
}

// Drop gives up what waits of queue q, of all queues if it is the zero Q. It calls lose with the
// number of packets of each queue.
func (w *Waiting[Q]) Drop(q Q, why engine.Drop, lose func(q Q, why engine.Drop, n int)) {
	var all Q
	n := 0
	for _, h := range w.held {
		if q != all && h.Queue != q {
			w.held[n] = h
			n++
			continue
		}
		k := h.live()
		w.empty(h.Burst) // memory first: an Alloc that sees the descriptors free may look for it
		lose(h.Queue, why, k)
	}
	clear(w.held[n:])
	w.held = w.held[:n]
}
