package sections

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
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
	Sender  string // path of its section
	Name    string // interface/queue
	Packets uint64
	Bytes   uint64
	Bursts  uint64
	Took    time.Duration // until everything had left
	Left    uint64        // packets that the queue says have left
}

// sender sends the packets, or the messages, of one section.
type sender struct {
	s       *Sender
	tx      engine.TxQueue
	t       *template
	b       *burst.Burst
	w       pace.Patience
	run, id uint16
	most    uint64 // packets; 0: no limit
	piece   int    // bytes of a slot, for messages that take several; 0: they take one
	// partner waits for the connection or the peer to send to; nil: the queue has only one.
	partner func(context.Context) (uint32, error)
	to      uint32
	all     bool // a packet that the queue drops is an error
	sent    atomic.Uint64
	running atomic.Bool
	out     Sent
}

func newSender(s *Sender, tx engine.TxQueue, t *template, run, id uint16) *sender {
	segments := 1
	if t.head > 0 {
		segments = max(2, (len(t.frame)+1023)/1024)
	}
	return &sender{s: s, tx: tx, t: t, b: burst.NewSegmented(s.Batch, s.Batch*segments), run: run, id: id,
		out: Sent{Sender: s.Path, Name: s.name()}}
}

// send sends until there are as many packets as it may send, or the time is over, or the context
// ends, which is no error.
func (x *sender) send(ctx context.Context, d time.Duration) (err error) {
	defer x.running.Store(false)
	if err := stay(x.s.Core); err != nil {
		return x.s.err(err)
	}
	if x.partner != nil {
		if x.to, err = x.partner(ctx); ctx.Err() != nil || err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			return err
		}
	}
	var before, after engine.TxStats
	x.tx.Stats(&before)
	began := now()
	for t := began; ctx.Err() == nil && (d <= 0 || t-began < int64(d)); t = now() {
		n := x.s.Batch
		if x.most > 0 {
			n = int(min(uint64(n), x.most-x.sent.Load()))
		}
		if n == 0 {
			break
		}
		if err := x.give(ctx, n, t); err != nil {
			return err
		}
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), stuckFor)
	defer cancel()
	err = x.tx.Drain(drain)
	x.tx.Stats(&after)
	sent := x.sent.Load()
	x.out.Packets, x.out.Bytes = sent, sent*uint64(len(x.t.frame))
	x.out.Took, x.out.Left = time.Duration(now()-began), after.Packets-before.Packets
	switch dropped := after.Drops.Total(); {
	case err != nil:
		err = fmt.Errorf("packets have not left after %v: %w", stuckFor, err)
	case x.all && dropped > 0:
		err = fmt.Errorf("%d of %d messages were dropped (%s): %w", dropped, sent, after.Drops.String(), engine.ErrDown)
	}
	return x.s.err(err)
}

// give gives the queue up to n packets that are due at t.
func (x *sender) give(ctx context.Context, n int, t int64) error {
	first := x.sent.Load()
	h := stream.Header{Run: x.run, Stream: x.id, Seq: uint32(first), Due: uint64(t) & (1<<48 - 1)}
	if x.piece > 0 { // one message, which is sent to its end unless the context ends
		x.t.fill(first, &h)
		for rest := x.t.frame; len(rest) > 0; {
			part := rest[:min(x.piece, len(rest))]
			if k, err := x.alloc(ctx, 1, len(part)); k == 0 {
				return err
			}
			x.b.SetConn(0, x.to)
			put(x.b, 0, part)
			if err := x.flush(); err != nil {
				return err
			}
			rest = rest[len(part):]
		}
		x.sent.Add(1)
		return nil
	}
	length := len(x.t.frame)
	if x.s.split { // headers have a region of their own
		length -= x.t.head
	}
	k, err := x.alloc(ctx, n, length)
	if k == 0 {
		return err
	}
	for i := range k {
		h.Seq = uint32(first) + uint32(i)
		x.t.write(x.b, i, first+uint64(i), &h)
		if x.to > 0 {
			x.b.SetConn(i, x.to)
		}
	}
	err = x.flush()
	x.sent.Add(uint64(k))
	return err
}

// alloc takes room for up to n packets. None without an error: the context has ended.
func (x *sender) alloc(ctx context.Context, n, length int) (int, error) {
	k, err := x.w.Alloc(ctx, x.tx, x.b, n, length, stuckFor)
	if err != nil {
		err = x.s.err(fmt.Errorf("queue %s: %w", x.s.name(), err))
	}
	return k, err
}

// flush sends the burst. What Send refuses it has counted under its reason: it is missed at the
// other end.
func (x *sender) flush() error {
	x.out.Bursts++
	if err := x.tx.Send(x.b); errors.Is(err, engine.ErrClosed) {
		return x.s.err(err)
	}
	return nil
}

// put writes packet i of b.
func put(b *burst.Burst, i int, p []byte) {
	for k := range b.Segments(i) {
		p = p[copy(b.Bytes(i, k), p):]
	}
}
