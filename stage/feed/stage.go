package feed

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/filewatch"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// entryState is where the packet of a place in the window is.
type entryState uint8

const (
	entryFree    entryState = iota
	entryOut                // with the kernel
	entryDone               // it has a result, and waits for those before it
	entryDropped            // it has ended, and its place is not yet free because an older packet is out
)

// entry is a place in the window: packet number q is in place q mod the window's size, from its
// publication until its result was given.
type entry struct {
	state  entryState
	in     *ring.Descriptors // the ring of the packet
	b      *burst.Burst      // the packet, alone
	number uint64
	d      ring.Desc // its result
	row    burst.Handle
}

// Stage is a stage; see the package comment. Beside SetWeights its methods are engine.Stage's and
// engine.StageCounter's.
type Stage struct {
	from  engine.Receiver
	queue string
	o     Options
	room  *memory

	in, pick *burst.Burst // received and not published; one packet of it
	ended    error        // what it reads from has nothing more
	failed   error        // from then on
	closed   bool

	window    []entry
	low, next uint64 // numbers: the oldest in the window, and of the next packet
	turn      uint32 // the ring whose results are looked at first
	descs     []ring.Desc

	mu      sync.Mutex // one SetWeights at a time
	version uint64
	watch   *filewatch.Watcher // of the file of weights; nil without
	follows sync.WaitGroup     // the goroutine that reads it

	published, results, void       metrics.Counter
	packets, bytes, newest, oldest metrics.Counter
	taken, refused                 metrics.Counter // weights
	abandoned                      metrics.Counter // with the kernel when it ended
	drops                          engine.DropCounters
	out, high                      atomic.Int64 // packets with the kernel now, and at most
}

var _ engine.StageCounter = (*Stage)(nil)

const batch = 64 // packets that are received or got at once

// New makes a stage on from: the kernel is loaded and started. Errors wrap engine.ErrInvalid and
// ErrUnsupported, or are those of the device.
func New(from engine.Receiver, spec engine.StageSpec) (engine.Stage, error) {
	s, err := open(from, spec)
	if err != nil {
		return nil, fmt.Errorf("feed: queue %q: %w", spec.Queue, err)
	}
	return s, nil
}

func open(from engine.Receiver, spec engine.StageSpec) (*Stage, error) {
	o, err := engine.Given[Options](spec.Options)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return nil, err
	}
	if o.WeightsFile != "" {
		w, err := readWeights(o.WeightsFile, o.Weights)
		if err != nil {
			return nil, err
		}
		o.Weights = len(w)
	}
	s := &Stage{from: from, queue: spec.Queue, o: o, in: burst.NewSegmented(batch, batch+burst.MaxSegments),
		pick: burst.NewSegmented(1, burst.MaxSegments), descs: make([]ring.Desc, batch)}
	if s.room, err = newMemory(&s.o, spec); err != nil {
		return nil, err
	}
	s.window = make([]entry, s.o.Slots*s.o.Rings)
	for i := range s.window {
		s.window[i].b = burst.NewSegmented(1, 2)
	}
	if s.o.WeightsFile != "" {
		if err := s.follow(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// TryRecv implements engine.Receiver.
func (s *Stage) TryRecv(b *burst.Burst) (int, error) {
	switch {
	case b == nil:
		return 0, engine.ErrNil
	case s.closed:
		return 0, engine.ErrClosed
	}
	if s.failed == nil {
		if err := s.room.resident.Err(); err != nil {
			s.fail(err)
		}
	}
	if s.failed == nil {
		s.pull()
		s.collect()
	}
	n := s.give(b)
	if n == 0 && s.low == s.next {
		if s.failed != nil {
			return 0, s.failed
		}
		if s.in.Len() == 0 && s.ended != nil {
			return 0, s.ended
		}
	}
	return n, nil
}

// pull receives packets and publishes them.
func (s *Stage) pull() {
	some := false
	for range 4 { // bursts at once: the kernel's results must not wait for a flood
		if s.in.Len() == 0 {
			if s.ended != nil {
				break
			}
			if s.o.Policy == Block && s.next-s.low == uint64(len(s.window)) {
				break // nothing is received that has no place
			}
			n, err := s.from.TryRecv(s.in)
			if s.ended = err; n == 0 {
				break
			}
		}
		n := s.in.Len()
		s.publish()
		some = some || s.in.Len() < n
		if s.in.Len() > 0 {
			break
		}
	}
	if some {
		s.room.resident.Ring()
	}
}

// publish publishes the packets of in, as many as have a place; what is to become of the others is
// the policy's.
func (s *Stage) publish() {
	n := s.in.Len()
	for i := range n {
		d, ok := s.describe(i)
		if !ok {
			continue
		}
		r := s.room.in[s.ringOf(i)]
		for !s.put(r, d, i) {
			switch {
			case s.o.Policy == DropOld && s.dropOldest(r):
				continue
			case s.o.Policy == Block:
				s.keep(i)
				return
			}
			r.Refuse(1)
			s.newest.Inc()
			s.discard(i, engine.DropQueueFull)
			break
		}
		if s.failed != nil {
			break
		}
	}
	s.in.Release()
}

// keep leaves the packets from i on in in.
func (s *Stage) keep(i int) {
	if i > 0 {
		rest := burst.NewSegmented(batch, batch+burst.MaxSegments)
		for k := i; k < s.in.Len(); k++ {
			s.in.Take(rest, k)
		}
		s.in.Release()
		s.in = rest
	}
}

// discard drops packet i of in.
func (s *Stage) discard(i int, why engine.Drop) {
	s.drops.Inc(why)
	s.in.Take(s.pick, i)
	s.pick.Release()
}

// describe is the descriptor of packet i of in. A packet that kernels do not reach is dropped.
func (s *Stage) describe(i int) (d ring.Desc, ok bool) {
	b := s.in
	if b.Segments(i) != 1 || b.Segment(i, 0).Region != s.room.pool.Region() {
		s.discard(i, engine.DropRefused)
		return d, false
	}
	g := b.Segment(i, 0)
	d = ring.Desc{Off: g.Off, Len: g.Len, Tag: s.next, Flow: b.Flow(i), Source: b.Conn(i)}
	d.Hash, _ = b.Hash(i)
	d.Time, _ = b.Time(i)
	if b.WireLen(i) > int(g.Len) {
		d.Flags |= ring.DescTruncated
	}
	return d, true
}

// ringOf is the ring of packet i: one flow always has the same.
func (s *Stage) ringOf(i int) uint32 {
	b := s.in
	if s.o.Rings == 1 {
		return 0
	}
	h, ok := b.Hash(i)
	if !ok {
		h = b.Flow(i) ^ b.Conn(i)
	}
	return h * 2654435761 >> 16 % uint32(s.o.Rings)
}

// put takes packet i into the window and publishes it, unless there is no place.
func (s *Stage) put(r *ring.Descriptors, d ring.Desc, i int) bool {
	e := &s.window[d.Tag%uint64(len(s.window))]
	if s.next-s.low == uint64(len(s.window)) {
		return false
	}
	one := [1]ring.Desc{d}
	n, err := r.Publish(one[:])
	if err != nil {
		s.fail(err)
		return true
	}
	if n == 0 {
		return false
	}
	s.in.Take(e.b, i)
	e.state, e.in, e.number, e.row = entryOut, r, d.Tag, burst.NoHandle
	s.next++
	s.published.Inc()
	if now := s.out.Add(1); now > s.high.Load() {
		s.high.Store(now)
	}
	return true
}

// dropOldest drops the ring's oldest, and reports whether that made room. It makes none, and drops
// nothing, where the kernel has claimed the oldest or where the window is full and begins with
// another packet.
func (s *Stage) dropOldest(r *ring.Descriptors) bool {
	if first := &s.window[s.low%uint64(len(s.window))]; r.Len() < r.Cap() || s.next-s.low == uint64(len(s.window)) &&
		(first.state != entryOut || first.in != r) {
		return false
	}
	n, err := r.DropOldest(s.descs[:1])
	if err != nil {
		s.fail(err)
	}
	for _, d := range s.descs[:n] {
		e := s.entry(d.Tag)
		if e == nil {
			s.fail(ring.ErrCorrupt)
			return false
		}
		s.oldest.Inc()
		s.out.Add(-1)
		s.drop(e, engine.DropQueueFull)
	}
	s.slide()
	return n > 0 && s.failed == nil
}

// entry is the place of a packet that is with the kernel, nil for a number that is not.
func (s *Stage) entry(number uint64) *entry {
	if e := &s.window[number%uint64(len(s.window))]; e.state == entryOut && e.number == number {
		return e
	}
	return nil
}

func (s *Stage) drop(e *entry, why engine.Drop) {
	s.drops.Inc(why)
	e.b.Release()
	e.state = entryDropped
}

// slide frees the places of the oldest packets that have ended.
func (s *Stage) slide() {
	for ; s.low != s.next; s.low++ {
		e := &s.window[s.low%uint64(len(s.window))]
		if e.state != entryDropped {
			break
		}
		e.state = entryFree
	}
}

// collect takes the results that are there.
func (s *Stage) collect() {
	for range s.room.out {
		s.turn = (s.turn + 1) % uint32(len(s.room.out))
		r := s.room.out[s.turn]
		ticket, n, err := r.Claim(s.descs)
		if err != nil && n == 0 {
			s.fail(err)
			return
		}
		for i, d := range s.descs[:n] {
			row := s.room.row(s.turn, ticket+uint64(i))
			if !s.result(d, row) {
				s.room.release(row)
			}
			if s.failed != nil {
				return
			}
		}
		if s.o.Row == 0 && n > 0 {
			r.Release(ticket, n)
		}
	}
	s.slide()
}

// result notes a result, and reports whether its row is used.
func (s *Stage) result(d ring.Desc, row burst.Handle) bool {
	e := s.entry(d.Tag)
	if e == nil {
		s.fail(fmt.Errorf("the kernel answered packet %d, which it does not have: %w", d.Tag, ring.ErrCorrupt))
		return false
	}
	g := e.b.Segment(0, 0)
	if ends := d.Flags&(ring.DescVoid|kernels.FeedDrop) != 0; !ends &&
		(d.Off < g.Off || d.Off-g.Off > g.Len || d.Len > uint64(e.b.SegmentCap(0, 0))-(d.Off-g.Off)) {
		s.fail(fmt.Errorf("the kernel answered packet %d with offset %d + %d bytes, outside its slot: %w", d.Tag, d.Off,
			d.Len, ring.ErrCorrupt))
		return false
	}
	s.results.Inc()
	s.out.Add(-1)
	switch {
	case d.Flags&ring.DescVoid != 0:
		s.void.Inc()
		s.drop(e, engine.DropBadFrame)
		return false
	case d.Flags&kernels.FeedDrop != 0:
		s.drop(e, engine.DropRule)
		return false
	}
	e.d, e.row, e.state = d, row, entryDone
	return s.o.Row > 0
}

// give moves packets that have results to b.
func (s *Stage) give(b *burst.Burst) (n int) {
	for q := s.low; q != s.next && b.Room() > 0 && (s.o.Row == 0 || b.SegmentRoom() > 1 || b.Len() == 0); q++ {
		e := &s.window[q%uint64(len(s.window))]
		if e.state != entryDone {
			if s.o.Ordered && e.state == entryOut {
				break
			}
			continue
		}
		if !s.deliver(b, e) {
			break
		}
		n++
	}
	s.slide()
	s.packets.Add(uint64(n))
	return n
}

// deliver moves one packet with its result; false means that b takes no more.
func (s *Stage) deliver(b *burst.Burst, e *entry) bool {
	if e.b.MoveTo(b) == 0 {
		return false
	}
	i := b.Len() - 1
	if skip := int(e.d.Off - b.Segment(i, 0).Off); skip > 0 {
		b.TrimFront(i, skip)
	}
	b.SetLen(i, 0, int(e.d.Len))
	b.Builder().SetFlow(i, e.d.Flow)
	if h, ok := b.Hash(i); !ok && e.d.Hash != 0 || ok && h != e.d.Hash {
		b.Builder().SetHash(i, e.d.Hash)
	}
	s.bytes.Add(e.d.Len)
	if e.row != burst.NoHandle && s.o.Row > 0 {
		if !b.Builder().AddSegment(s.room.rows, s.room.rowSegment(e.row)) {
			s.room.release(e.row) // b has memory of too many regions
		}
	}
	e.state = entryDropped
	return true
}

// Arm implements engine.Receiver. While packets are with the kernel its owner polls.
func (s *Stage) Arm(w *engine.Waker) (ready bool) {
	if s.closed || s.failed != nil || s.ended != nil && s.low == s.next {
		return true
	}
	if s.from.Arm(w) || s.low != s.next || s.in.Len() > 0 {
		w.Wake()
	}
	return false
}

// SetWeights replaces the weights, len(w) as Options.Weights says, while the kernel runs: each
// packet is processed with the old or the new ones, never with a mixture. A peer that puts weights
// into an export of this node replaces them with the notification of its put. Any goroutine may
// call it until Close.
func (s *Stage) SetWeights(w []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(w) != s.o.Weights || len(w) == 0 {
		return fmt.Errorf("feed: queue %q: %d bytes of weights: expected %d, as its options say: %w", s.queue, len(w),
			s.o.Weights, engine.ErrInvalid)
	}
	if !s.room.setWeights(w, s.version+1) {
		return fmt.Errorf("feed: queue %q: weights: %w", s.queue, engine.ErrClosed)
	}
	s.version++
	s.taken.Inc()
	return nil
}

// Stats implements engine.Stage.
func (s *Stage) Stats(out *engine.RxStats) {
	*out = engine.RxStats{Packets: s.packets.Load(), Bytes: s.bytes.Load()}
	s.drops.AddTo(&out.Drops)
}

// Counts implements engine.StageCounter.
func (s *Stage) Counts() []engine.Count {
	var retries, empty uint64
	for _, x := range s.room.stats() {
		retries += x.GetRetries
		empty += x.Empty
	}
	st := s.room.resident.Stats()
	return []engine.Count{{Name: "published", N: s.published.Load()}, {Name: "results", N: s.results.Load()},
		{Name: "in_ring", N: uint64(s.out.Load()), Gauge: true},
		{Name: "high_water", N: uint64(s.high.Load()), Gauge: true}, {Name: "dropped_new", N: s.newest.Load()},
		{Name: "dropped_old", N: s.oldest.Load()}, {Name: "abandoned", N: s.abandoned.Load()},
		{Name: "void", N: s.void.Load()}, {Name: "weights", N: s.taken.Load()}, {Name: "weights_refused", N: s.refused.Load()},
		{Name: "claim_retries", N: retries}, {Name: "empty_polls", N: empty}, {Name: "heartbeat", N: st.Heartbeat},
		{Name: "launches", N: st.Launches}}
}
