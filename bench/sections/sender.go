package sections

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
)

// stuckFor is how long a transmit queue may take nothing before that is an error.
const stuckFor = 30 * time.Second

// now is CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
func now() int64 { return sys.ClockNow(sys.ClockMonotonic) }

// stay keeps the calling goroutine on a core of the machine, -1 for any, until it ends: its thread
// ends with it.
func stay(core int) error {
	if core < 0 {
		return nil
	}
	runtime.LockOSThread()
	for i := range runtime.NumCPU() {
		n, err := sys.Processor(i)
		if err != nil {
			return err
		}
		if n == core {
			return sys.PinThread(i)
		}
	}
	return fmt.Errorf("this process cannot run on core %d", core)
}

// Sent is what one sender did.
type Sent struct {
	Sender  string        `json:"sender"` // path of its section
	Name    string        `json:"name"`   // interface/queue
	Packets uint64        `json:"packets"`
	Bytes   uint64        `json:"bytes"`
	Bursts  uint64        `json:"bursts"`
	Took    time.Duration `json:"took_ns"` // until everything had left
	Left    uint64        `json:"left"`    // packets that the queue says have left
}

// sender sends the packets of one section.
type sender struct {
	s    *Sender
	tx   engine.TxQueue
	t    *template
	b    *burst.Burst
	run  uint16
	id   uint16
	sent uint64
	out  Sent
}

func newSender(s *Sender, tx engine.TxQueue, t *template, run, id uint16) *sender {
	segments := max(2, (len(t.frame)+1023)/1024)
	return &sender{s: s, tx: tx, t: t, b: burst.NewSegmented(s.Batch, s.Batch*segments), run: run, id: id,
		out: Sent{Sender: s.Path, Name: s.name()}}
}

// send sends so many packets, or with 0 of them for that long, or with neither until the context
// ends, which is no error.
func (x *sender) send(ctx context.Context, packets uint64, d time.Duration) error {
	if err := stay(x.s.Core); err != nil {
		return fmt.Errorf("sections: %s: %w", x.s.At, err)
	}
	var before, after engine.TxStats
	x.tx.Stats(&before)
	began := now()
	length := len(x.t.frame)
	w := &patience{}
	for t := began; ; t = now() {
		if d > 0 && t-began >= int64(d) || packets > 0 && x.sent >= packets || ctx.Err() != nil {
			break
		}
		n := x.s.Batch
		if packets > 0 {
			n = int(min(uint64(n), packets-x.sent))
		}
		k, err := x.tx.Alloc(x.b, n, x.payload(length))
		if k == 0 {
			if !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
				return fmt.Errorf("sections: %s: %w", x.s.At, err)
			}
			if !w.pause(ctx, t) {
				return fmt.Errorf("sections: %s: the queue %s took no packet for %v: %w", x.s.At, x.s.name(), stuckFor,
					err)
			}
			continue
		}
		w.reset()
		h := stream.Header{Run: x.run, Stream: x.id, Due: uint64(t) & (1<<48 - 1)}
		for i := range k {
			n := x.sent + uint64(i)
			h.Seq = uint32(n)
			x.t.write(x.b, i, n, &h)
		}
		// What Send refuses it has counted under its reason: it is missed at the other end.
		err = x.tx.Send(x.b)
		x.sent += uint64(k)
		x.out.Bursts++
		if errors.Is(err, engine.ErrClosed) {
			return fmt.Errorf("sections: %s: %w", x.s.At, err)
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuckFor)
	defer cancel()
	err := x.tx.Drain(drain)
	x.tx.Stats(&after)
	x.out.Packets, x.out.Bytes, x.out.Took = x.sent, x.sent*uint64(length), time.Duration(now()-began)
	x.out.Left = after.Packets - before.Packets
	if err != nil {
		return fmt.Errorf("sections: %s: packets have not left after %v: %w", x.s.At, stuckFor, err)
	}
	return nil
}

// payload is the length that Alloc is asked for: with two regions that of the second part.
func (x *sender) payload(length int) int {
	if x.s.split {
		return length - x.t.head
	}
	return length
}

// patience waits for room in a queue: a moment, then longer.
type patience struct {
	looks int
	since int64
	timer *time.Timer
}

func (w *patience) reset() { w.looks, w.since = 0, 0 }

// pause waits a little, and reports false when that has been in vain for too long. It ends with the
// context.
func (w *patience) pause(ctx context.Context, t int64) bool {
	if w.looks++; w.looks < 32 {
		runtime.Gosched()
		return true
	}
	if w.since == 0 {
		w.since = t
	}
	if t-w.since > int64(stuckFor) {
		return false
	}
	const moment = 50 * time.Microsecond
	if w.timer == nil {
		w.timer = time.NewTimer(moment)
	} else {
		w.timer.Reset(moment)
	}
	select {
	case <-w.timer.C:
	case <-ctx.Done():
	}
	return true
}
