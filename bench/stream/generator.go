package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/bucket"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// outStream is one stream of packets on its way out.
type outStream struct {
	tx     engine.TxQueue
	stream uint16
	frame  []byte // headers, room for a Header at its place, pattern
	at     int    // of the Header
	seq    uint32 // of the next packet
}

// generator is one sending goroutine. It sends bursts on its streams in turn.
type generator struct {
	streams []*outStream
	b       *burst.Burst
	c       *clock
	w       *pace.Waiter
	turn    int
	room    pace.Patience
}

// load is what one generator is to send in one trial.
type load struct {
	run      uint16
	burst    int     // packets that are sent back to back
	rate     float64 // packets per second of this generator; 0: as fast as it can
	packets  uint64  // 0: until the duration is over
	duration time.Duration
	start    int64 // by the clock
	wire     int   // bytes that a packet takes on the wire
}

// emitted is what one generator did.
type emitted struct {
	sent        uint64
	first, last int64 // when it began, and when everything had left
	cpu         time.Duration
	behind      time.Duration // how late the latest burst was sent
}

const (
	// maxRate is the highest packet rate of a schedule.
	maxRate = 1e9
	// stuckFor is how long a transmit queue may take nothing before that is an error.
	stuckFor = 5 * time.Second
	// grace is how long a generator that is behind its schedule goes on after the end, besides a
	// tenth of the trial.
	grace = 20 * time.Millisecond
)

// send does one trial. It is locked to its thread, so that its processor time is its own. It does
// not allocate for packets.
func (g *generator) send(ctx context.Context, l load) (out emitted, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pace bucket.Bucket
	if l.rate > 0 {
		// Bursts come at equal distances: the bucket holds one, and is spent at the times that the
		// schedule says.
		bits := uint64(math.Round(l.rate * 8 * float64(l.wire)))
		if pace, err = bucket.New(max(bits, 1), l.burst*l.wire, 0); err != nil {
			return out, err
		}
	}
	for _, x := range g.streams {
		x.seq = 0
	}
	if _, err := g.w.Until(ctx, l.start); err != nil {
		return out, err
	}
	before, err := sys.ThreadCPU()
	if err != nil {
		return out, err
	}
	end := l.start + int64(l.duration)
	out.first = g.c.now()
	if l.rate == 0 {
		end = out.first + int64(l.duration) // there is no schedule to keep
	}
	for now := out.first; ; {
		n := l.burst
		if l.packets > 0 {
			n = int(min(uint64(n), l.packets-out.sent))
		}
		x := g.streams[g.turn]
		if left := MaxPackets - x.seq; uint32(n) > left {
			n = int(left)
		}
		if n == 0 {
			break
		}
		due := now
		if l.rate > 0 {
			at := pace.Earliest(n * l.wire)
			at = max(at, 0)
			pace.Spend(at, n*l.wire)
			if due = l.start + at; due >= end {
				break
			}
			if now, err = g.w.Until(ctx, due); err != nil {
				break
			}
			out.behind = max(out.behind, time.Duration(now-due))
			if out.sent > 0 && now > end+int64(grace+l.duration/10) { // one burst is sent in any case
				break
			}
		} else if l.packets == 0 && now >= end {
			break
		}
		k, e := g.one(ctx, x, l.run, n, due)
		out.sent += uint64(k)
		if err = e; err != nil {
			break
		}
		if g.turn++; g.turn == len(g.streams) {
			g.turn = 0
		}
		if l.rate == 0 {
			now = g.c.now()
			if out.sent&0xfff < uint64(n) && ctx.Err() != nil {
				err = ctx.Err()
				break
			}
		}
	}
	// Nothing is on its way inside this end when it says that it has sent.
	drain, cancel := context.WithTimeout(ctx, stuckFor)
	defer cancel()
	for _, x := range g.streams {
		if e := x.tx.Drain(drain); e != nil && err == nil {
			err = fmt.Errorf("stream: stream %d: packets that were given to the engine have not left after %v: %w",
				x.stream, stuckFor, e)
		}
	}
	out.last = g.c.now()
	after, e := sys.ThreadCPU()
	out.cpu = after - before
	return out, errors.Join(err, e)
}

// one sends n packets of a stream, back to back, and returns how many the engine took.
func (g *generator) one(ctx context.Context, x *outStream, run uint16, n int, due int64) (sent int, err error) {
	for sent < n {
		k, err := g.room.Alloc(ctx, x.tx, g.b, min(n-sent, g.b.Cap()), len(x.frame), stuckFor)
		if k == 0 {
			if err == nil {
				return sent, ctx.Err()
			}
			return sent, fmt.Errorf("stream: stream %d: %w", x.stream, err)
		}
		for i := range k {
			x.write(g.b, i, Header{Run: run, Stream: x.stream, Seq: x.seq, Due: uint64(due) & timeMask})
			x.seq++
		}
		sent += k
		// What Send refuses it has counted under its reason; here it is a packet that was sent, and
		// is missed at the other end.
		if err := x.tx.Send(g.b); err != nil && errors.Is(err, engine.ErrClosed) {
			return sent, fmt.Errorf("stream: stream %d: %w", x.stream, err)
		}
	}
	return sent, nil
}

// write writes packet i of b.
func (x *outStream) write(b *burst.Burst, i int, h Header) {
	h.Put(x.frame[x.at:])
	rest := x.frame
	for k := range b.Segments(i) {
		rest = rest[copy(b.Bytes(i, k), rest):]
	}
}
