package replay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// window is the number of packets that a Checker looks back.
const window = 1 << 20

// Report is what a Checker has found.
type Report struct {
	Came      uint64            `json:"came"` // of the packets that were sent
	Missing   uint64            `json:"missing"`
	Changed   uint64            `json:"changed"`
	Repeated  uint64            `json:"repeated"`
	Reordered uint64            `json:"reordered"`
	Extra     uint64            `json:"extra"`
	Dropped   map[string]uint64 `json:"dropped,omitempty"` // by the port that receives
	// By how many microseconds packets came later than expected.
	ErrorP50 float64 `json:"error_p50_us"`
	ErrorP99 float64 `json:"error_p99_us"`
	ErrorMax float64 `json:"error_max_us"`
}

// A Checker compares what a queue receives with what Run sends.
type Checker struct {
	mu    sync.Mutex
	sent  []wanted         // the last ones, by their number modulo window
	known map[uint64]group // by hash
	next  uint64           // number of the next packet that is sent
	last  uint64           // number behind the latest one that came
	came  uint64
	// Packets by their length: those that have left the window and did not come, and those whose
	// bytes were never sent.
	missing, strange map[int]uint64
	r                Report
	errors           metrics.Histogram

	wake    chan struct{}
	scratch []byte
}

// wanted is a packet that was sent.
type wanted struct {
	hash uint64
	due  int64 // nanoseconds since 1970
	len  int
	next uint64 // number of the next one with this hash that has not come, and 1; 0: none
	came bool
}

// group is the packets of one hash in the window.
type group struct {
	first, last uint64 // numbers of those that have not come, and 1; 0: none
	all         int
}

// NewChecker makes a Checker.
func NewChecker() *Checker {
	return &Checker{sent: make([]wanted, window), known: map[uint64]group{}, missing: map[int]uint64{},
		strange: map[int]uint64{}, wake: make(chan struct{}, 1)}
}

// expect notes packets that are about to be sent.
func (c *Checker) expect(recs []rec, start time.Time, now int64, paced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range recs {
		r := &recs[i]
		w := &c.sent[c.next%window]
		if c.next >= window {
			c.forget(w)
		}
		due := now
		if paced {
			due = r.due
		}
		*w = wanted{hash: r.hash, due: start.UnixNano() + due, len: max(r.len, least)}
		c.next++
		g := c.known[r.hash]
		if g.first == 0 {
			g.first = c.next
		} else {
			c.sent[(g.last-1)%window].next = c.next
		}
		g.last = c.next
		g.all++
		c.known[r.hash] = g
	}
}

// forget takes the oldest packet out of the window.
func (c *Checker) forget(w *wanted) {
	g := c.known[w.hash]
	if !w.came {
		c.missing[w.len]++
		g.first = w.next // the oldest of all is the oldest of its hash
	}
	if g.all--; g.all == 0 {
		delete(c.known, w.hash)
		return
	}
	c.known[w.hash] = g
}

// Receive takes packets from a queue until the context ends or the queue fails.
func (c *Checker) Receive(ctx context.Context, rx *engine.Rx) error {
	b := burst.NewSegmented(burstSize, burstSize*chain)
	defer b.Release()
	for {
		if err := rx.Recv(ctx, b); err != nil {
			if ctx.Err() != nil || errors.Is(err, engine.ErrClosed) {
				return nil
			}
			return err
		}
		b.Fetch()
		now := time.Now().UnixNano()
		c.mu.Lock()
		for i := range b.Len() {
			at, ok := b.Time(i)
			if !ok {
				at = now
			}
			c.take(c.whole(b, i), at)
		}
		done := c.came == c.next
		c.mu.Unlock()
		b.Release()
		if done {
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
	}
}

// whole is a packet in one piece.
func (c *Checker) whole(b *burst.Burst, i int) []byte {
	if b.Segments(i) == 1 {
		return b.Bytes(i, 0)
	}
	if n := b.PacketLen(i); n > len(c.scratch) {
		c.scratch = make([]byte, n)
	}
	return c.scratch[:b.CopyTo(c.scratch, i)]
}

// take takes a packet that came.
func (c *Checker) take(p []byte, at int64) {
	hash := hashOf(p)
	g, ok := c.known[hash]
	switch {
	case !ok:
		c.strange[max(len(p), least)]++
	case g.first == 0:
		c.r.Repeated++
	default:
		n := g.first
		w := &c.sent[(n-1)%window]
		w.came, g.first = true, w.next
		c.known[hash] = g
		if n < c.last {
			c.r.Reordered++
		}
		c.last = max(c.last, n)
		c.came++
		c.errors.Record(uint64(max(at-w.due, 0)))
	}
}

// Wait waits until all that was sent has come, or nothing came for that long.
func (c *Checker) Wait(ctx context.Context, settle time.Duration) {
	t := time.NewTimer(settle)
	defer t.Stop()
	for seen := uint64(0); ; {
		c.mu.Lock()
		came, done := c.came, c.came == c.next
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-c.wake:
		case <-t.C:
			if came == seen {
				return
			}
			seen = came
			t.Reset(settle)
		case <-ctx.Done():
			return
		}
	}
}

// Report is what was found, when nothing is sent and received any more.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.r
	r.Came = c.came
	missing := map[int]uint64{}
	for n, k := range c.missing {
		missing[n] += k
	}
	for n := c.next - min(c.next, window); n < c.next; n++ {
		if w := &c.sent[n%window]; !w.came {
			missing[w.len]++
		}
	}
	for n, k := range c.strange {
		changed := min(k, missing[n])
		r.Changed += changed
		r.Extra += k - changed
		missing[n] -= changed
	}
	for _, k := range missing {
		r.Missing += k
	}
	var e metrics.HistogramSnapshot
	c.errors.Snapshot(&e)
	r.ErrorP50, r.ErrorP99, r.ErrorMax = float64(e.Quantile(0.5))/1e3, float64(e.Quantile(0.99))/1e3, float64(e.Max)/1e3
	return r
}
