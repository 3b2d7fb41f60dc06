package stream

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// arrivals is what all sinks of one end share in a trial.
type arrivals struct {
	run     uint16
	ledgers []ledger
	size    int    // bytes of a packet in memory
	at      int    // of the Header in it
	pattern []byte // behind the Header
	stream  bool   // packets are pieces of a byte stream
	// want is the number of packets that ends the wait, unknown before the end. tell sends on full
	// when they are there.
	want  atomic.Uint64
	total atomic.Uint64 // different numbers that came, of all streams
	full  chan struct{}
}

func (k *arrivals) came(n uint64) {
	if t := k.total.Add(n); n > 0 && t == k.want.Load() {
		k.tell()
	}
}

func (k *arrivals) tell() {
	select {
	case k.full <- struct{}{}:
	default:
	}
}

// expect says how many packets were sent.
func (k *arrivals) expect(n uint64) {
	k.want.Store(n)
	if k.total.Load() >= n {
		k.tell()
	}
}

// sink is one receiving goroutine, with its queue.
type sink struct {
	rx     *engine.Rx
	b      *burst.Burst
	c      *clock
	in     *arrivals
	work   *worker
	tx     engine.TxQueue // nil, or what packets are sent back through
	frames bool

	counts  Counts
	clean   uint64 // fresh numbers that the sink has not yet reported to in
	latency *metrics.Histogram
	first   int64 // when the first burst of the trial came; 0: none yet
	last    int64 // when the latest one came
	cpu     time.Duration
	refused uint64 // packets that could not be sent back

	locked  *ledger
	scratch []byte // a packet of several segments
	pieces  map[uint32]*piece
}

// piece is the beginning of a packet of a byte stream whose rest has not come.
type piece struct {
	b []byte
}

func newSink(rx engine.RxQueue, c *clock, in *arrivals, w Workload, frames bool, spin time.Duration, packets,
	segments int) *sink {
	return &sink{
		rx: engine.NewRx(rx, engine.Batching{Spin: spin}), b: burst.NewSegmented(packets, packets*segments), c: c,
		in:   in,
		work: newWorker(w, in.size-in.at-HeaderLen, frames), frames: frames, latency: new(metrics.Histogram),
		scratch: make([]byte, 0, in.size),
		pieces:  map[uint32]*piece{},
	}
}

// serve receives until the context ends, and takes what is there at that time. An error is one of
// the queue.
func (s *sink) serve(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := sys.ThreadCPU()
	if err != nil {
		return err
	}
	defer func() {
		after, _ := sys.ThreadCPU()
		s.cpu = after - before
		s.b.Release()
	}()
	for {
		err := s.rx.Recv(ctx, s.b)
		if s.b.Len() > 0 {
			s.burst()
		}
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			return err
		}
		return s.rest()
	}
}

// restTime is how long a sink takes what is there at the end while none of it is the trial's. A
// queue's worth is taken in less.
const restTime = 100 * time.Millisecond

// rest takes what had come before the end. Others may send without a pause: what comes meanwhile
// has no end.
func (s *sink) rest() error {
	for end := s.c.now() + int64(restTime); ; {
		n, err := s.rx.TryRecv(s.b)
		if n == 0 {
			return err
		}
		before := s.counts.Received
		s.burst()
		if s.counts.Received == before && s.c.now() > end {
			return nil
		}
	}
}

// burst takes all packets of the burst, and gives them back or on. It does not allocate.
func (s *sink) burst() {
	now := s.c.now()
	n := s.b.Len()
	if s.in.stream {
		for i := range n {
			s.bytes(i, now)
		}
	} else {
		s.counts.Arrived += uint64(n)
		for i := range n {
			s.packet(s.whole(i), now)
		}
	}
	s.unlock()
	if s.tx == nil {
		s.b.Release()
	} else {
		s.reflect()
	}
	if s.clean > 0 {
		if s.first == 0 {
			s.first = now
		}
		s.last = now
		s.in.came(s.clean)
		s.clean = 0
	}
}

// whole is packet i in one piece.
func (s *sink) whole(i int) []byte {
	if s.b.Segments(i) == 1 {
		return s.b.Bytes(i, 0)
	}
	if n := s.b.PacketLen(i); n > s.in.size {
		return nil // not ours, whatever it is
	}
	s.scratch = s.scratch[:s.in.size]
	return s.scratch[:s.b.CopyTo(s.scratch, i)]
}

// packet enters one packet.
func (s *sink) packet(p []byte, now int64) {
	in := s.in
	if len(p) < in.at+HeaderLen {
		s.counts.Foreign++
		return
	}
	var h Header
	switch h.Parse(p[in.at:]) {
	case Foreign:
		s.counts.Foreign++
		return
	case Damaged:
		s.counts.Damaged++
		return
	}
	switch {
	case h.Run != in.run:
		s.counts.Stale++
		return
	case int(h.Stream) >= len(in.ledgers):
		s.counts.Foreign++
		return
	case len(p) != in.size || !bytes.Equal(p[in.at+HeaderLen:], in.pattern):
		s.counts.Damaged++
		return
	}
	s.counts.Checked += uint64(len(p) - in.at)
	k := &in.ledgers[h.Stream]
	if k != s.locked {
		s.unlock()
		k.mu.Lock()
		s.locked = k
	}
	switch k.enter(h.Seq) {
	case fresh:
		s.counts.Received++
	case late:
		s.counts.Received++
		s.counts.Reordered++
	case twice:
		s.counts.Duplicates++
		return
	case beyond:
		s.counts.Foreign++
		return
	}
	s.clean++
	if t := h.Since(now); t >= 0 {
		s.latency.Record(uint64(t))
	} else {
		s.latency.Record(0) // clocks of two processes differ by less than a microsecond
	}
	s.work.do(p, p[in.at+HeaderLen:])
}

func (s *sink) unlock() {
	if s.locked != nil {
		s.locked.mu.Unlock()
		s.locked = nil
	}
}

// bytes takes a piece of a connection's stream: packets follow each other without a gap.
func (s *sink) bytes(i int, now int64) {
	p := s.pieces[s.b.Conn(i)]
	if p == nil {
		p = &piece{b: make([]byte, 0, s.in.size)}
		s.pieces[s.b.Conn(i)] = p
	}
	for k := range s.b.Segments(i) {
		rest := s.b.Bytes(i, k)
		for len(rest) > 0 {
			if len(p.b) == 0 && len(rest) >= s.in.size {
				s.counts.Arrived++
				s.packet(rest[:s.in.size], now)
				rest = rest[s.in.size:]
				continue
			}
			n := min(s.in.size-len(p.b), len(rest))
			p.b = append(p.b, rest[:n]...)
			rest = rest[n:]
			if len(p.b) == s.in.size {
				s.counts.Arrived++
				s.packet(p.b, now)
				p.b = p.b[:0]
			}
		}
	}
}

// reflect sends the burst back as it is, but for the addresses and the mark in the Header.
func (s *sink) reflect() {
	n := s.b.Len()
	for i := range n {
		turn(s.b.Bytes(i, 0), s.in.at, s.frames)
	}
	k, err := s.tx.Forward(s.b)
	if err != nil && !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
		s.refused += uint64(n)
		s.b.Release()
		return
	}
	s.refused += uint64(n - k)
	s.tx.Send(s.b) // what it refuses is missed at the other end
}

// turn makes a packet one that goes back. Foreign ones stay as they are, but for their addresses.
func turn(p []byte, at int, frames bool) {
	if len(p) < at {
		return
	}
	if frames {
		var mac [6]byte
		copy(mac[:], p[:6])
		copy(p[:6], p[6:12])
		copy(p[6:12], mac[:])
		// Swapping IPv4 addresses and UDP ports leaves their checksums right.
		var four [4]byte
		copy(four[:], p[26:30])
		copy(p[26:30], p[30:34])
		copy(p[30:34], four[:])
		copy(four[:2], p[34:36])
		copy(p[34:36], p[36:38])
		copy(p[36:38], four[:2])
	}
	var h Header
	if h.Parse(p[at:]) == Intact {
		h.Reflected = true
		h.Put(p[at:])
	}
}
