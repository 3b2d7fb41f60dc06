package stream

import (
	"fmt"
	"math/bits"
	"sync"
)

// MaxPackets is the number of packets that one stream of a trial may have: a receiver keeps a bit
// for each.
const MaxPackets = 1 << 28

// MaxStreams is the number of streams of a trial.
const MaxStreams = 1024

// Counts are what a receiver counted in one trial. Arrived = Received + Duplicates + Damaged +
// Foreign + Stale.
type Counts struct {
	Arrived    uint64 `json:"arrived"`    // packets that the engine delivered
	Received   uint64 `json:"received"`   // different numbers of this trial that came whole
	Duplicates uint64 `json:"duplicates"` // whole, of numbers that had come whole before
	Reordered  uint64 `json:"reordered"`  // of Received, those that came after a higher number of their stream
	Damaged    uint64 `json:"damaged"`    // packets of ours with wrong bytes or a wrong length
	Foreign    uint64 `json:"foreign"`    // packets that are not ours, or of no stream of this trial
	Stale      uint64 `json:"stale"`      // packets of ours of another trial
	Checked    uint64 `json:"checked"`    // bytes that were looked at and right
}

func (c *Counts) add(o *Counts) {
	c.Arrived += o.Arrived
	c.Received += o.Received
	c.Duplicates += o.Duplicates
	c.Reordered += o.Reordered
	c.Damaged += o.Damaged
	c.Foreign += o.Foreign
	c.Stale += o.Stale
	c.Checked += o.Checked
}

// check fails for counts that cannot be, of a receiver that was sent so many packets.
func (c *Counts) check(sent uint64) error {
	switch {
	case c.Arrived != c.Received+c.Duplicates+c.Damaged+c.Foreign+c.Stale:
		return fmt.Errorf("stream: the receiver's counts do not add up: %+v", *c)
	case c.Received > sent:
		return fmt.Errorf("stream: %d packets were received of %d that were sent", c.Received, sent)
	}
	return nil
}

// ledger is where the packets of one stream are entered by their numbers. Several queues may bring
// packets of one stream, so it is locked, once for each run of packets of that stream.
type ledger struct {
	mu    sync.Mutex
	seen  [][]uint64 // pages of bits, made when they are needed
	next  uint32     // one above the highest number that came
	count uint64     // different numbers
}

const (
	pageShift = 16 // numbers of a page
	pageWords = 1 << pageShift / 64
)

// outcome is what entering a number says.
type outcome uint8

const (
	fresh outcome = iota
	late          // fresh, and a higher one came before
	twice
	beyond // above MaxPackets
)

// enter notes that number seq came whole. The caller holds mu. It allocates once for 65,536
// numbers, and what it has it keeps.
func (k *ledger) enter(seq uint32) outcome {
	if seq >= MaxPackets {
		return beyond
	}
	p := int(seq >> pageShift)
	for p >= len(k.seen) {
		k.seen = append(k.seen, nil)
	}
	if k.seen[p] == nil {
		k.seen[p] = make([]uint64, pageWords)
	}
	w, bit := &k.seen[p][seq>>6&(pageWords-1)], uint64(1)<<(seq&63)
	if *w&bit != 0 {
		return twice
	}
	*w |= bit
	k.count++
	if seq >= k.next {
		k.next = seq + 1
		return fresh
	}
	return late
}

// reset forgets all numbers and keeps the memory.
func (k *ledger) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.seen {
		clear(p)
	}
	k.next, k.count = 0, 0
}

// check fails when a stream of which so many packets were sent shows a number that was not, or
// counts other than its bits.
func (k *ledger) check(stream int, sent uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := uint64(0)
	for _, p := range k.seen {
		for _, w := range p {
			n += uint64(bits.OnesCount64(w))
		}
	}
	if n != k.count || uint64(k.next) > sent {
		return fmt.Errorf("stream: stream %d: %d numbers below %d came, counted as %d; %d were sent", stream, n, k.next,
			k.count, sent)
	}
	return nil
}
