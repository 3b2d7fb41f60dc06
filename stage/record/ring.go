package record

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/input"
)

// A Ring says what is kept in memory: packets of the last Time, in Bytes at most. Zero: no ring.
type Ring struct {
	Time  time.Duration
	Bytes int64 // 0: ringBytes
}

// Bounds of Ring.Bytes. A ring of a time has ringBytes at most.
const (
	ringBytes           = 1 << 30
	minRing, maxRing    = chunkSize, 1 << 40
	maxTime, ringPieces = time.Hour, 8 // a chunk has at most this part of Ring.Time
)

// ParseRing reads a time or a size, such as 30s or 1GiB.
func ParseRing(s string) (o Ring, err error) {
	if n, err := input.Quantity(s, input.Times, 0); err == nil {
		o.Time = time.Duration(n)
	} else if o.Bytes, err = input.Quantity(s, input.Sizes, 0); err != nil {
		return o, fmt.Errorf("%q: expected a time or a size, such as 30s or 1GiB", s)
	}
	return o, o.check(&Options{})
}

// String is what ParseRing reads.
func (o Ring) String() string {
	switch {
	case o.zero():
		return "0s"
	case o.Time > 0:
		return input.Exact(int64(o.Time), input.Times, 6)
	}
	return input.Exact(o.Bytes, input.Sizes, len(input.Sizes))
}

func (o Ring) zero() bool { return o == Ring{} }

func (o Ring) check(of *Options) error {
	switch {
	case o.Bytes != 0 && (o.Bytes < minRing || o.Bytes > maxRing) || o.Time < 0 || o.Time > maxTime || of.After < 0:
		return fmt.Errorf("a ring of %v and %d bytes: expected 0s to %v, and 1MiB to 1TiB", o.Time, o.Bytes, maxTime)
	case !o.zero() && (of.MaxBytes > 0 || of.MaxPackets > 0 || of.Every > 0):
		return errors.New("a ring, which is one file each time that it is written, and a rotation: remove one of them")
	}
	return nil
}

// chunks is how many a ring has.
func (o Ring) chunks() int {
	if o.zero() {
		return 0
	}
	if o.Bytes == 0 {
		o.Bytes = ringBytes
	}
	return int(o.Bytes / chunkSize)
}

// ring are the last chunks, which are not written yet.
type ring struct {
	chunks []*chunk  // oldest first
	spare  []*chunk  // the last one is taken first, so that a ring that is nearly empty needs no more memory
	until  time.Time // what comes until then is written; zero: nothing
	starts bool      // the next chunk begins a file
	lost   bool      // a loss of the interface has had it written
}

// idle reports whether packets go to the ring alone.
func (r *Recorder) idle() bool { return !r.o.Ring.zero() && r.ring.until.IsZero() }

// over reports whether the time After is over.
func (r *Recorder) over() bool { return !r.ring.until.IsZero() && !r.now.Before(r.ring.until) }

// stale reports whether the chunk has its part of the time.
func (r *Recorder) stale() bool {
	return r.cur != nil && r.o.Ring.Time > 0 && r.now.Sub(r.cur.at) >= r.o.Ring.Time/ringPieces
}

// evict frees chunks that are beyond the ring's size or time.
func (r *Recorder) evict() {
	g, o := &r.ring, r.o.Ring
	for len(g.chunks) > o.chunks() || len(g.chunks) > 0 && o.Time > 0 && r.now.Sub(g.chunks[0].last) > o.Time {
		r.drop()
	}
}

// drop frees the oldest chunk of the ring.
func (r *Recorder) drop() {
	g, c := &r.ring, r.ring.chunks[0]
	g.chunks = slices.Delete(g.chunks, 0, 1)
	r.stats.Held -= uint64(c.packets)
	c.reset()
	g.spare = append(g.spare, c)
}

// trigger hands the ring to the writer, and has written what comes in the time After.
func (r *Recorder) trigger() {
	g, after := &r.ring, r.o.After
	switch {
	case !r.idle(): // it goes on
	case r.begin(): // copies into the chunk are over: it is between two bursts
		r.cur.last, r.cur.end = r.now, after == 0
		g.chunks, r.cur = append(g.chunks, r.cur), nil
		g.chunks[0].starts = true
		for _, c := range g.chunks {
			r.queued += uint64(c.packets)
			r.full <- c
		}
		clear(g.chunks)
		g.chunks, r.stats.Held = g.chunks[:0], 0
	default: // the writer has all chunks, and so all packets
		g.starts = after > 0
	}
	if after > 0 {
		g.until = r.now.Add(after)
	}
}
