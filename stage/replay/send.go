package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	burstSize, chain = 64, 4 // packets, and their segments on average
	// stuckFor is how long a transmit queue may take nothing before that is an error.
	stuckFor = 5 * time.Second
)

// Options say what is sent and through which queue.
type Options struct {
	Source
	Queue engine.TxQueue
	Slot  int      // bytes of the queue's slots
	Check *Checker // nil: none
}

// Result is what Run has done. Packets and Bytes are what left.
type Result struct {
	Packets uint64            `json:"packets"`
	Bytes   uint64            `json:"bytes"`
	Seconds float64           `json:"seconds"`
	Late    float64           `json:"late_us"` // of the latest packet, when the queue got it
	Skipped map[string]uint64 `json:"skipped,omitempty"`
	Dropped map[string]uint64 `json:"dropped,omitempty"` // by the queue
	// Unread is the number of packets that were not rewritten, since their headers cannot be read.
	Unread uint64  `json:"not_rewritten,omitempty"`
	Check  *Report `json:"check,omitempty"`
}

// sender sends what the source has read.
type sender struct {
	o     *Options
	s     *source
	b     *burst.Burst
	start time.Time
	room  pace.Patience
	wait  *pace.Waiter
	late  int64
}

// Run sends packets until their end, an error, or the end of the context. The result is also there
// with an error. Of a file that cannot be read as a whole, it sends nothing if the error is in the
// first 16 MiB of packets.
func Run(ctx context.Context, o Options) (Result, error) {
	var before, after engine.TxStats
	o.Queue.Stats(&before)
	x := &sender{o: &o, s: newSource(o.Source, o.Check != nil), b: burst.NewSegmented(burstSize, burstSize*chain)}
	x.wait = pace.NewWaiter(x.now)
	reading, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		x.s.run(reading)
	}()
	err := x.run(ctx)
	took := x.now()
	cancel()
	if !o.Live || err == nil { // what reads a pipe may wait for ever
		<-over
	}
	o.Queue.Stats(&after)
	for i := range after.Drops {
		after.Drops[i] -= before.Drops[i]
	}
	r := Result{Packets: after.Packets - before.Packets, Bytes: after.Bytes - before.Bytes,
		Seconds: float64(took) / 1e9, Late: float64(x.late) / 1e3, Dropped: DropsOf(&after.Drops)}
	select {
	case <-over:
		r.Skipped, r.Unread = x.s.skipped, x.s.unread
	default:
	}
	return r, err
}

// DropsOf are the packets that were lost, by reason.
func DropsOf(d *engine.Drops) map[string]uint64 {
	out := map[string]uint64{}
	for i, n := range d {
		if n > 0 {
			out[engine.Drop(i).String()] = n
		}
	}
	return out
}

// now is the time since the start.
func (x *sender) now() int64 { return int64(time.Since(x.start)) }

func (x *sender) run(ctx context.Context) error {
	x.start = time.Now()
	select {
	case <-x.s.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := x.s.failed
	for begun := false; err == nil; begun = true {
		select {
		case c := <-x.s.full:
			if !begun {
				x.start = time.Now()
			}
			if err = x.chunk(ctx, c); err == nil {
				err = c.err
			}
			x.s.free <- c
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuckFor)
	defer cancel()
	if e := x.o.Queue.Drain(drain); e != nil {
		e = fmt.Errorf("packets that were given to the port have not left after %v: %w", stuckFor, e)
		return errors.Join(e, err)
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// chunk sends the packets of a chunk, each when it is due.
func (x *sender) chunk(ctx context.Context, c *chunk) (err error) {
	paced := x.o.paced()
	for i := 0; i < len(c.recs); {
		now := x.now()
		if paced && c.recs[i].due > now {
			if now, err = x.wait.Until(ctx, c.recs[i].due); err != nil {
				return err
			}
		} else if err := ctx.Err(); err != nil {
			return err
		}
		// The packets of a burst are all in one slot, or all of one length.
		n, length, most := 0, c.recs[i].len, burstSize
		if length > x.o.Slot {
			most = min(burstSize, max(burstSize*chain/(length/x.o.Slot+1), 1))
		}
		for ; n < most && i+n < len(c.recs) && (!paced || c.recs[i+n].due <= now); n++ {
			k := c.recs[i+n].len
			if max(k, length) > x.o.Slot && k != length {
				break
			}
			length = max(length, k)
		}
		n, err := x.room.Alloc(ctx, x.o.Queue, x.b, n, length, stuckFor)
		if n == 0 {
			if err == nil {
				err = ctx.Err()
			}
			return err
		}
		recs := c.recs[i : i+n]
		for k := range recs {
			r := &recs[k]
			rest := c.b[r.off : r.off+r.len]
			if x.b.Segments(k) == 1 {
				x.b.SetLen(k, 0, r.len)
			}
			for g := range x.b.Segments(k) {
				rest = rest[copy(x.b.Bytes(k, g), rest):]
			}
		}
		if paced {
			x.late = max(x.late, x.now()-recs[0].due)
		}
		if x.o.Check != nil {
			x.o.Check.expect(recs, x.start, now, paced)
		}
		// What Send refuses it has counted under its reason.
		if err := x.o.Queue.Send(x.b); errors.Is(err, engine.ErrClosed) {
			return err
		}
		i += n
	}
	return nil
}
