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

// Received is what one receiver saw.
type Received struct {
	Receiver string `json:"receiver"` // path of its section
	Name     string `json:"name"`     // interface/queue
	Packets  uint64 `json:"packets"`  // that came, whatever they were
	Bytes    uint64 `json:"bytes"`
	Bursts   uint64 `json:"bursts"`
	MaxBurst int    `json:"max_burst"` // packets
	// Of the packets: Unique + Duplicates + Damaged + Foreign.
	Unique     uint64 `json:"unique"`     // different ones of a sender that we know
	Late       uint64 `json:"late"`       // of Unique, those behind a later one of the same sender on this queue
	Duplicates uint64 `json:"duplicates"` // or further behind than the window
	Damaged    uint64 `json:"damaged"`
	Foreign    uint64 `json:"foreign"` // of no sender that we know
	Checked    uint64 `json:"checked"` // bytes that were compared and right
	// Took is from the first burst to the last one.
	Took  time.Duration `json:"took_ns"`
	Drops engine.Drops  `json:"-"` // of its queue and the stages behind it
	// Stages are the counts of the stages: of a reorder plan batches, and Packets are then what was
	// placed in them.
	Stages []engine.Count `json:"stages,omitempty"`
}

// ledger is where the packets of one sender are entered; several receivers may bring them.
type ledger struct {
	mu sync.Mutex
	numbers
	plain uint64 // packets without numbers
}

func (l *ledger) count() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unique + l.plain
}

// kind is what a receiver knows of the packets of one sender.
type kind struct {
	s      *Sender
	wanted []byte   // the payload
	same   [][2]int // parts of the payload that are the same in all packets
	l      *ledger
}

// office is what all receivers of a run share.
type office struct {
	run   uint16
	kinds []*kind
	// at are the places where our header may begin: behind the headers with and without what
	// tx.flows put in front.
	at     []int
	closed bool // only packets of this run's senders are ours

	came chan struct{} // gets a value when packets have come

	mu       sync.Mutex
	strange  map[[2]uint16]*ledger // of senders of other processes, by run and stream
	unlisted atomic.Uint64         // senders beyond maxStrange
}

// maxStrange is how many senders of other processes have a ledger.
const maxStrange = 1024

func newOffice(p *Plan, run uint16) *office {
	o := &office{run: run, came: make(chan struct{}, 1), strange: map[[2]uint16]*ledger{}, closed: len(p.Senders) > 0}
	place := func(n int) {
		if !slices.Contains(o.at, n) {
			o.at = append(o.at, n)
		}
	}
	for i := range p.Senders {
		s := &p.Senders[i]
		k := &kind{s: s, wanted: pattern(s.Payload), l: &ledger{}}
		free := [][2]int{}
		if s.Number >= 0 {
			free = append(free, [2]int{s.Number, s.Number + stream.HeaderLen})
			place(s.Header + s.Overhead + s.Number)
			place(s.Header + s.Number)
			k.l.beginAt(0)
		} else {
			k.l.beginAt(s.Start)
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
func (o *office) total() (n uint64) {
	for _, k := range o.kinds {
		n += k.l.count()
	}
	return n
}

// gaps is how many numbers did not come of those below the highest, and of how many senders. The
// ledgers are quiet.
func (o *office) gaps() (missing uint64, senders int) {
	for _, l := range o.strange {
		missing += l.gaps()
	}
	return missing, len(o.strange)
}

func (o *office) tell() {
	select {
	case o.came <- struct{}{}:
	default:
	}
}

// stranger is the ledger of a sender of another process, nil if there are too many.
func (o *office) stranger(h *stream.Header) *ledger {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := [2]uint16{h.Run, h.Stream}
	l := o.strange[key]
	if l == nil && len(o.strange) < maxStrange {
		l = &ledger{}
		o.strange[key] = l
	}
	return l
}

// receiver receives on one queue.
type receiver struct {
	r       *Receiver
	in      *engine.Rx
	o       *office
	b       *burst.Burst
	out     Received
	latency metrics.Histogram
	scratch []byte
	first   int64
	last    int64
	// highs are the highest numbers of each sender that came here: several queues have no order
	// among them.
	highs    map[*ledger]uint32
	seen     atomic.Uint64       // packets, for the runner
	checkers map[string]*checker // of the reorder plans of its interface, by name
	found    int                 // where our header was in the last packet of another process; 0: nowhere yet
}

func newReceiver(r *Receiver, in *engine.Rx, o *office) *receiver {
	return &receiver{r: r, in: in, o: o, b: burst.NewSegmented(r.Batch, 4*r.Batch+burst.MaxSegments),
		out:   Received{Receiver: r.Path, Name: r.name()},
		highs: map[*ledger]uint32{}}
}

// serve receives until the context ends, and takes what is there then.
func (x *receiver) serve(ctx context.Context) error {
	if err := stay(x.r.Core); err != nil {
		return fmt.Errorf("sections: %s: %w", x.r.At, err)
	}
	defer x.b.Release()
	defer func() { x.out.Took = time.Duration(x.last - x.first) }()
	for {
		err := x.in.Recv(ctx, x.b)
		x.burst()
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			return fmt.Errorf("sections: %s: queue %s: %w", x.r.At, x.r.name(), err)
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
	if x.first == 0 {
		x.first = t
	}
	x.last = t
	x.out.Bursts++
	x.out.MaxBurst = max(x.out.MaxBurst, n)
	x.out.Bytes += uint64(x.b.TotalLen())
	for i := range n {
		if b := reorder.Of(x.b, i); b != nil {
			x.batch(b, x.whole(i))
			continue
		}
		x.out.Packets++
		x.packet(x.whole(i), t)
	}
	x.b.Release()
	x.seen.Store(x.out.Packets)
	x.o.tell()
}

// whole is packet i in one piece.
func (x *receiver) whole(i int) []byte {
	if x.b.Segments(i) == 1 {
		return x.b.Bytes(i, 0)
	}
	n := x.b.PacketLen(i)
	if cap(x.scratch) < n {
		x.scratch = make([]byte, n)
	}
	x.scratch = x.scratch[:n]
	return x.scratch[:x.b.CopyTo(x.scratch, i)]
}

// packet says whose packet it is, and enters it there.
func (x *receiver) packet(p []byte, t int64) {
	var h stream.Header
	if !x.o.closed {
		if at := x.find(p, &h); at >= 0 {
			x.strange(&h)
		} else {
			x.out.Foreign++
		}
		return
	}
	damaged := false
	for _, at := range x.o.at {
		if len(p) < at+stream.HeaderLen {
			continue
		}
		switch h.Parse(p[at:]) {
		case stream.Intact:
			x.ours(p, at, &h, t)
			return
		case stream.Damaged:
			damaged = true
		}
	}
	if x.bare(p) {
		return
	}
	if damaged {
		x.out.Damaged++
	} else {
		x.out.Foreign++
	}
}

// ours enters a packet with our header at that place.
func (x *receiver) ours(p []byte, at int, h *stream.Header, t int64) {
	if h.Run != x.o.run || int(h.Stream) >= len(x.o.kinds) {
		x.out.Foreign++
		return
	}
	k := x.o.kinds[h.Stream]
	payload := p[max(0, at-k.s.Number):]
	if !k.right(payload) || k.s.Sequence >= 0 && binary.BigEndian.Uint32(payload[k.s.Sequence:]) != k.s.Start+h.Seq {
		x.out.Damaged++
		return
	}
	if x.enter(k.l, h.Seq) {
		x.out.Checked += uint64(len(payload))
		x.latency.Record(uint64(max(0, h.Since(t))))
	}
}

// scanned is how much of a packet of another process is searched for our header: this process does
// not know what is in front of it.
const scanned = 512

// find looks for our header in a packet of another process, where it was last or anywhere near the
// front, and says where it is; -1 if it is nowhere. That other bytes look like one happens once in
// 2^28 places.
func (x *receiver) find(p []byte, h *stream.Header) int {
	if at := x.found; at > 0 && at < len(p) && h.Parse(p[at:]) == stream.Intact {
		return at
	}
	front := p[:min(len(p), scanned)]
	for at := 0; ; at++ {
		n := bytes.IndexByte(front[at:], p0)
		if n < 0 {
			return -1
		}
		if at += n; h.Parse(p[at:]) == stream.Intact {
			x.found = at
			return at
		}
	}
}

// p0 is the first byte of our header.
var p0 = func() byte {
	var b [stream.HeaderLen]byte
	(&stream.Header{}).Put(b[:])
	return b[0]
}()

// strange enters a packet of a sender of another process.
func (x *receiver) strange(h *stream.Header) {
	l := x.o.stranger(h)
	if l == nil {
		x.o.unlisted.Add(1)
		x.out.Foreign++
		return
	}
	x.enter(l, h.Seq)
}

// bare enters a packet without our header, if it can only be of one of our senders whose packets
// have none.
func (x *receiver) bare(p []byte) bool {
	for _, k := range x.o.kinds {
		if k.s.Number >= 0 || len(p) < k.s.Payload {
			continue
		}
		payload := p[len(p)-k.s.Payload:]
		if !k.right(payload) {
			continue
		}
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
