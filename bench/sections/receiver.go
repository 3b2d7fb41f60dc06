package sections

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/stream"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
)

// Received is what one receiver saw. For sockets a packet is a message.
type Received struct {
	Receiver string // path of its section
	Name     string // interface/queue
	Packets  uint64 // that came, whatever they were
	Bytes    uint64
	Bursts   uint64
	MaxBurst int // packets
	// Of the packets: Unique + Duplicates + Damaged + Foreign.
	Unique     uint64 // different ones of a sender that we know
	Late       uint64 // of Unique, those behind a later one of the same sender on this queue
	Duplicates uint64 // or further behind than the window
	Damaged    uint64
	Foreign    uint64 // of no sender that we know
	Checked    uint64 // bytes that were compared and right
	Rest       int    // bytes of a message that was cut off
	// Took is from the first burst to the last one.
	Took  time.Duration
	Drops engine.Drops // of its queue and the stages behind it
	// Stages are the counts of the stages: of a reorder plan batches, and Packets are then what was
	// placed in them.
	Stages []engine.Count
}

// ledger is where the packets of one sender are entered; several receivers may bring them.
type ledger struct {
	mu sync.Mutex
	numbers
	plain uint64 // packets without numbers
}

// kind is what receivers know of the packets of one sender.
type kind struct {
	s      *Sender
	wanted []byte   // the payload
	same   [][2]int // parts of the payload that are the same in all packets
	l      *ledger
}

// ledgers are what the receivers of one direction share.
type ledgers struct {
	run   uint16
	kinds []*kind // of known senders; none: all senders are in other processes
	at    []int   // where our header may begin: with and without what tx.flows put in front
	// anyRun says that the packets are of kinds[0], and their sender is in another process.
	anyRun bool

	mu       sync.Mutex
	others   map[[2]uint16]*ledger // of senders of other processes, by run and stream
	unlisted atomic.Uint64         // packets of senders beyond maxOthers
}

// maxOthers is how many senders of other processes have a ledger.
const maxOthers = 1024

func newLedgers(senders []Sender, run uint16) *ledgers {
	o := &ledgers{run: run, others: map[[2]uint16]*ledger{}}
	for i := range senders {
		s := &senders[i]
		k := &kind{s: s, wanted: pattern(s.Payload), l: &ledger{}}
		var free [][2]int
		k.l.beginAt(s.Start)
		if s.Number >= 0 {
			k.l.beginAt(0)
			free = append(free, [2]int{s.Number, s.Number + stream.HeaderLen})
			o.at = append(o.at, s.Header+s.Overhead+s.Number, s.Header+s.Number)
		}
		if s.Sequence >= 0 {
			free = append(free, [2]int{s.Sequence, s.Sequence + sequenceLen})
		}
		slices.SortFunc(free, func(a, b [2]int) int { return a[0] - b[0] })
		at := 0
		for _, f := range append(free, [2]int{s.Payload, s.Payload}) {
			if f[0] > at {
				k.same = append(k.same, [2]int{at, f[0]})
			}
			at = f[1]
		}
		o.kinds = append(o.kinds, k)
	}
	slices.Sort(o.at)
	o.at = slices.Compact(o.at)
	return o
}

// right reports whether a payload is that of this sender, but for its numbers.
func (k *kind) right(payload []byte) bool {
	if len(payload) != k.s.Payload {
		return false
	}
	for _, r := range k.same {
		if !bytes.Equal(payload[r[0]:r[1]], k.wanted[r[0]:r[1]]) {
			return false
		}
	}
	return true
}

// total is how many different packets of senders of this process have come.
func (o *ledgers) total() (n uint64) {
	for _, k := range o.kinds {
		k.l.mu.Lock()
		n += k.l.unique + k.l.plain
		k.l.mu.Unlock()
	}
	return n
}

// gaps is how many numbers of senders of other processes did not come of those below the highest,
// and of how many senders. The receivers have ended.
func (o *ledgers) gaps() (missing uint64, senders int) {
	for _, l := range o.others {
		missing += l.gaps()
	}
	return missing, len(o.others)
}

// other is the ledger of a sender of another process, nil if there are too many.
func (o *ledgers) other(h *stream.Header) *ledger {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := [2]uint16{h.Run, h.Stream}
	l := o.others[key]
	if l == nil && len(o.others) < maxOthers {
		l = &ledger{}
		o.others[key] = l
	}
	if l == nil {
		o.unlisted.Add(1)
	}
	return l
}

// receiver receives on one queue.
type receiver struct {
	r           *Receiver
	in          *engine.Rx
	l           *ledgers
	b           *burst.Burst
	out         Received
	latency     metrics.Histogram
	scratch     []byte
	first, last atomic.Int64 // when bursts came; 0: never
	// highs are the highest numbers of each sender that came here: several queues have no order
	// among them.
	highs    map[*ledger]uint32
	seen     atomic.Uint64       // packets
	checkers map[string]*checker // of the reorder plans of its interface, by name
	found    int                 // where our header was in the last packet of another process; 0: nowhere yet

	message int               // bytes of the messages of a byte stream; 0: packets have borders
	pieces  map[uint32][]byte // of such messages, by connection
	ended   atomic.Int64      // connections that ended
	wrote   chan uint32       // gets the connection or peer of the first packet
}

func newReceiver(r *Receiver, in *engine.Rx, l *ledgers) *receiver {
	return &receiver{r: r, in: in, l: l, b: burst.NewSegmented(r.Batch, 4*r.Batch+burst.MaxSegments),
		out:   Received{Receiver: r.Path, Name: r.name()},
		highs: map[*ledger]uint32{}, pieces: map[uint32][]byte{}, wrote: make(chan uint32, 1)}
}

// serve receives until the context ends, and takes what is there then.
func (x *receiver) serve(ctx context.Context) error {
	if err := stay(x.r.Core); err != nil {
		return x.r.err(err)
	}
	defer x.b.Release()
	defer func() {
		x.out.Took = time.Duration(x.last.Load() - x.first.Load())
		for _, p := range x.pieces {
			x.out.Rest += len(p)
		}
	}()
	for {
		err := x.in.Recv(ctx, x.b)
		x.burst()
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			return x.r.err(fmt.Errorf("queue %s: %w", x.r.name(), err))
		}
		for {
			n, err := x.in.TryRecv(x.b)
			if n == 0 {
				if errors.Is(err, engine.ErrClosed) {
					err = nil
				}
				return err
			}
			x.burst()
		}
	}
}

// burst counts a burst and gives it back.
func (x *receiver) burst() {
	n := x.b.Len()
	if n == 0 {
		return
	}
	t := now()
	x.first.CompareAndSwap(0, t)
	x.last.Store(t)
	x.out.Bursts++
	x.out.MaxBurst = max(x.out.MaxBurst, n)
	x.out.Bytes += uint64(x.b.TotalLen())
	select {
	case x.wrote <- x.b.Conn(0): // the first one counts
	default:
	}
	for i := range n {
		switch b := reorder.Of(x.b, i); {
		case b != nil:
			x.batch(b, x.whole(i))
		case x.message > 0:
			x.bytes(i, t)
		default:
			x.packet(x.whole(i), t)
		}
	}
	x.b.Release()
	x.seen.Store(x.out.Packets)
}

// whole is packet i in one piece.
func (x *receiver) whole(i int) []byte {
	if x.b.Segments(i) == 1 {
		return x.b.Bytes(i, 0)
	}
	x.scratch = slices.Grow(x.scratch[:0], x.b.PacketLen(i))[:x.b.PacketLen(i)]
	return x.scratch[:x.b.CopyTo(x.scratch, i)]
}

// bytes takes a piece of a connection's byte stream, in which messages follow each other without a
// gap.
func (x *receiver) bytes(i int, t int64) {
	conn := x.b.Conn(i)
	have := x.pieces[conn]
	for k := range x.b.Segments(i) {
		for p := x.b.Bytes(i, k); len(p) > 0; {
			if len(have) == 0 && len(p) >= x.message {
				x.packet(p[:x.message], t)
				p = p[x.message:]
				continue
			}
			n := min(x.message-len(have), len(p))
			have = append(have, p[:n]...)
			if p = p[n:]; len(have) == x.message {
				x.packet(have, t)
				have = have[:0]
			}
		}
	}
	x.pieces[conn] = have
	if x.b.Flags(i)&burst.Last != 0 {
		x.out.Rest += len(have)
		delete(x.pieces, conn)
		x.ended.Add(1)
	}
}

// packet says whose packet it is, and enters it there.
func (x *receiver) packet(p []byte, t int64) {
	x.out.Packets++
	var h stream.Header
	if len(x.l.kinds) == 0 {
		if x.find(p, &h) {
			x.enter(x.l.other(&h), h.Seq)
		} else {
			x.out.Foreign++
		}
		return
	}
	damaged := false
	for _, at := range x.l.at {
		if len(p) < at+stream.HeaderLen {
			continue
		}
		switch h.Parse(p[at:]) {
		case stream.Intact:
			x.known(p, at, &h, t)
			return
		case stream.Damaged:
			damaged = true
		}
	}
	switch {
	case x.bare(p):
	case damaged:
		x.out.Damaged++
	default:
		x.out.Foreign++
	}
}

// known enters a packet with our header at that place.
func (x *receiver) known(p []byte, at int, h *stream.Header, t int64) {
	var k *kind
	switch {
	case x.l.anyRun:
		k = x.l.kinds[0]
	case h.Run == x.l.run && int(h.Stream) < len(x.l.kinds):
		k = x.l.kinds[h.Stream]
	default:
		x.out.Foreign++
		return
	}
	payload := p[max(0, at-k.s.Number):]
	if !k.right(payload) || k.s.Sequence >= 0 && binary.BigEndian.Uint32(payload[k.s.Sequence:]) != k.s.Start+h.Seq {
		x.out.Damaged++
		return
	}
	l := k.l
	if x.l.anyRun {
		l = x.l.other(h)
	}
	if x.enter(l, h.Seq) {
		x.out.Checked += uint64(len(payload))
		if h.Run == x.l.run {
			x.latency.Record(uint64(max(0, h.Since(t))))
		}
	}
}

// scanned is how much of a packet of another process is searched for our header: this process does
// not know what is in front of it.
const scanned = 512

// find looks for our header in a packet of another process, where it was last or anywhere near the
// front. That other bytes look like one happens once in 2^28 places.
func (x *receiver) find(p []byte, h *stream.Header) bool {
	if at := x.found; at > 0 && at < len(p) && h.Parse(p[at:]) == stream.Intact {
		return true
	}
	for at := range p[:min(len(p), scanned)] {
		if p[at] == p0 && h.Parse(p[at:]) == stream.Intact {
			x.found = at
			return true
		}
	}
	return false
}

// p0 is the first byte of our header.
var p0 = func() byte {
	var b [stream.HeaderLen]byte
	(&stream.Header{}).Put(b[:])
	return b[0]
}()

// bare enters a packet without our header, if it can only be of one of our senders whose packets
// have none.
func (x *receiver) bare(p []byte) bool {
	for _, k := range x.l.kinds {
		if k.s.Number >= 0 || len(p) < k.s.Payload || !k.right(p[len(p)-k.s.Payload:]) {
			continue
		}
		payload := p[len(p)-k.s.Payload:]
		if k.s.Sequence >= 0 {
			if !x.enter(k.l, binary.BigEndian.Uint32(payload[k.s.Sequence:])) {
				return true
			}
		} else {
			k.l.mu.Lock()
			k.l.plain++
			k.l.mu.Unlock()
			x.out.Unique++
		}
		x.out.Checked += uint64(len(payload))
		return true
	}
	return false
}

// enter notes a number and reports whether it is a new one.
func (x *receiver) enter(l *ledger, seq uint32) bool {
	if l == nil {
		x.out.Foreign++
		return false
	}
	l.mu.Lock()
	a := l.enter(seq)
	l.mu.Unlock()
	if a == twice || a == beyond {
		x.out.Duplicates++
		return false
	}
	if high, ok := x.highs[l]; ok && int32(seq-high) < 0 {
		x.out.Late++
	} else {
		x.highs[l] = seq
	}
	x.out.Unique++
	return true
}
