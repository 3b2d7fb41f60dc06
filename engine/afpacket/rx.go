package afpacket

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
)

// rxQueue is a receive queue. It implements engine.RxQueue.
type rxQueue struct {
	port  *Port
	id    int
	spec  engine.RxSpec
	o     RxOptions
	pools [2]*mem.Pool
	srcs  [2]*burst.Source
	fds   []int // a duplicate of each tap's, so that each queue is woken by itself

	direct placer // for what its owner takes out of the ring

	mu      sync.Mutex   // over what others bring
	placer  placer       // for that
	pending *burst.Burst // packets that wait
	one     *burst.Burst // of one packet, to drop the first that waits
	waiting atomic.Int64 // of them
	waker   *engine.Waker
	retry   *time.Timer
	closed  atomic.Bool

	packets, bytes, polls, empty metrics.Counter
	copied                       atomic.Uint64
	drops                        [engine.NumDrops]atomic.Uint64
}

// AddRxQueue implements engine.Port. spec.Options is an RxOptions, a pointer to one, or nil.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	q, err := p.newRx(spec)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	if p.link.Gone() {
		return nil, ErrRemoved
	}
	live := *p.live.Load()
	used := make([]int, len(live))
	for i, q := range live {
		used[i] = q.id
	}
	if q.id, err = number(used, spec.ID); err != nil {
		return nil, fmt.Errorf("afpacket: receive queue %d of %s: %w", spec.ID, p.name, err)
	}
	if !p.open {
		for _, t := range p.taps {
			if err := t.accept(&p.o, spec.HardwareTime); err != nil {
				return nil, err
			}
		}
		p.open = true
	}
	for _, t := range p.taps {
		t.mu.Lock()
		if len(live) == 0 { // what came while there was no queue
			p.drops[engine.DropNoQueue].Add(uint64(t.discard()))
		}
		t.account()
		t.mu.Unlock()
		fd, err := sys.Dup(t.fd)
		if err == nil {
			q.fds = append(q.fds, fd)
			if err = engine.Events.Add(fd); err != nil {
				sys.Close(fd)
				q.fds = q.fds[:len(q.fds)-1]
			}
		}
		if err != nil {
			q.unwatch()
			return nil, fmt.Errorf("afpacket: %s: %w", p.name, err)
		}
	}
	live = append(slices.Clone(live), q)
	slices.SortFunc(live, func(a, b *rxQueue) int { return a.id - b.id })
	p.live.Store(&live)
	for _, o := range live { // which reads which socket has changed: who sleeps may have to watch another one
		if o != q {
			o.wake()
		}
	}
	return q, nil
}

// number chooses the number of a queue: that which is asked for, or the lowest that is free.
func number(used []int, ask int) (int, error) {
	if ask < engine.Auto || ask >= maxQueues {
		return 0, fmt.Errorf("expected 0 to %d, or engine.Auto: %w", maxQueues-1, engine.ErrInvalid)
	}
	if ask != engine.Auto {
		if slices.Contains(used, ask) {
			return 0, engine.ErrExists
		}
		return ask, nil
	}
	for id := range maxQueues {
		if !slices.Contains(used, id) {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all %d are in use: %w", maxQueues, engine.ErrExists)
}

func (p *Port) newRx(spec engine.RxSpec) (*rxQueue, error) {
	q := &rxQueue{port: p, spec: spec}
	bad := func(format string, args ...any) (*rxQueue, error) {
		return nil, fmt.Errorf("afpacket: receive queue of %s: %s: %w", p.name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	switch o := spec.Options.(type) {
	case nil:
	case RxOptions:
		q.o = o
	case *RxOptions:
		q.o = *o
	default:
		return bad("options of type %T: expected afpacket.RxOptions", o)
	}
	if spec.Depth == 0 {
		spec.Depth = min(1024, p.o.Frames)
	}
	switch {
	case spec.Depth < 0 || spec.Depth > p.o.Frames:
		return bad("depth of %d packets: expected 1 to %d, the frames of the ring (Options.Frames)", spec.Depth, p.o.Frames)
	case len(spec.Pools) > 2 || slices.Contains(spec.Pools, nil):
		return bad("%d pools: expected none, one, or two for header/data split", len(spec.Pools))
	case spec.SplitAt != 0 && len(spec.Pools) != 2:
		return bad("split at %d with %d pools: expected two", spec.SplitAt, len(spec.Pools))
	case spec.SplitAt < 0 || len(spec.Pools) == 2 && spec.SplitAt > spec.Pools[0].SlotSize():
		return bad("split at %d: expected 0 to %d, the slot of the header pool", spec.SplitAt, spec.Pools[0].SlotSize())
	case spec.Conn != 0:
		return bad("connection %d: frames belong to none", spec.Conn)
	}
	for i, pool := range spec.Pools {
		if pool.Region().All().Bytes() == nil {
			return nil, fmt.Errorf("afpacket: pool %s is in memory that the CPU cannot reach: %w", pool.Name(), engine.ErrUnsupported)
		}
		q.pools[i], q.srcs[i] = pool, burst.PoolSource(pool)
	}
	q.direct.init(q)
	q.placer.init(q)
	q.pending, q.one = burst.NewSegmented(spec.Depth, 2*spec.Depth), burst.NewSegmented(1, 2)
	return q, nil
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.id }

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.polls.Inc()
	n := 0
	if q.waiting.Load() > 0 {
		n = q.takePending(b)
	}
	if !q.closed.Load() && b.Room() > 0 && q.waiting.Load() == 0 {
		for _, t := range q.port.taps {
			if q.reads(t) {
				n += t.pump(q, b)
			}
		}
	}
	if n > 0 {
		q.count(b, n)
		return n, nil
	}
	q.empty.Inc()
	switch {
	case q.waiting.Load() > 0: // came meanwhile
		return 0, nil
	case q.closed.Load():
		return 0, engine.ErrClosed
	case q.port.link.Gone():
		return 0, ErrRemoved
	}
	return 0, nil
}

// reads reports whether q takes packets out of the ring of t: of a port with one, all queues do; of several, one does.
func (q *rxQueue) reads(t *tap) bool {
	if len(q.port.taps) == 1 {
		return true
	}
	live := *q.port.live.Load()
	return len(live) > 0 && live[t.number%len(live)] == q
}

// count counts the last n packets of b as received.
func (q *rxQueue) count(b *burst.Burst, n int) {
	total := 0
	for i := b.Len() - n; i < b.Len(); i++ {
		total += b.PacketLen(i)
	}
	q.packets.Add(uint64(n))
	q.bytes.Add(uint64(total))
}

func (q *rxQueue) takePending(b *burst.Burst) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, dropped := engine.MoveKept(b, q.pending, q.one)
	if dropped > 0 {
		q.drop(engine.DropTooLong, uint64(dropped))
	}
	q.waiting.Store(int64(q.pending.Len()))
	return n
}

// enqueue puts the frame that t looks at where it waits for the owner. The caller holds t.mu.
func (q *rxQueue) enqueue(t *tap, bytes []byte, id uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed.Load() {
		q.drop(engine.DropClosed, 1)
		t.giveBack()
		return
	}
	if got, ok := q.placer.add(q, t, q.pending, bytes, id); !ok {
		q.drop(engine.DropQueueFull, 1)
		t.giveBack()
	} else if got {
		q.waiting.Store(int64(q.pending.Len()))
		q.wakeLocked()
	}
}

func (q *rxQueue) drop(why engine.Drop, n uint64) { q.drops[why].Add(n) }

func (q *rxQueue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

func (q *rxQueue) wakeLocked() {
	if w := q.waker; w != nil {
		q.waker = nil
		w.Wake()
	}
}

// rearm is how long to sleep at most where the kernel cannot tell that there is something new.
const rearm = time.Millisecond / 2

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	q.mu.Lock()
	q.waker = w
	ready = q.pending.Len() > 0 || q.closed.Load() || q.port.link.Gone()
	q.mu.Unlock()
	if ready {
		return true
	}
	for i, t := range q.port.taps {
		if !q.reads(t) {
			continue
		}
		if t.ready() {
			return true
		}
		if t.blocked() {
			q.later()
		} else if !q.watch(i, w) {
			return true
		}
	}
	return false
}

// watch asks for a Wake when tap i is readable. It is false when the queue has been closed meanwhile.
func (q *rxQueue) watch(i int, w *engine.Waker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed.Load() {
		return false
	}
	_ = sys.SocketError(q.fds[i]) // the interface was down: poll would say so for ever
	return engine.Events.Arm(q.fds[i], w) == nil
}

// later wakes the queue after a while.
func (q *rxQueue) later() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.retry == nil {
		q.retry = time.AfterFunc(rearm, q.wake)
	} else {
		q.retry.Reset(rearm)
	}
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	if q.closed.Load() {
		return 0, engine.ErrClosed
	}
	b := burst.NewSegmented(256, 512)
	total := 0
	for range 1 << 10 { // more keeps coming
		n, more := q.takePending(b), false
		for _, t := range q.port.taps {
			if q.reads(t) {
				n += t.pump(q, b)
				more = more || t.ready() // behind so many for others that they were not all dealt out
			}
		}
		b.Release()
		q.drop(engine.DropFlushed, uint64(n))
		if total += n; n == 0 && !more {
			break
		}
	}
	return total, nil
}

// counts fills s with the queue's own counts.
func (q *rxQueue) counts(s *engine.RxStats) {
	*s = engine.RxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Polls: q.polls.Load(), Empty: q.empty.Load(), Copied: q.copied.Load()}
	for i := range q.drops {
		s.Drops[i] = q.drops[i].Load()
	}
}

// Stats implements engine.RxQueue. It asks the kernel for what it dropped.
func (q *rxQueue) Stats(s *engine.RxStats) {
	p := q.port
	p.mu.Lock()
	if !p.closed && !q.closed.Load() {
		for _, t := range p.taps {
			t.mu.Lock()
			t.account()
			t.mu.Unlock()
		}
	}
	p.mu.Unlock()
	q.counts(s)
}

// Close implements engine.RxQueue. What is in the ring goes to the other queues of the port; of the last one it is dropped.
func (q *rxQueue) Close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.closed.Load() {
		return nil
	}
	live := *p.live.Load()
	last := len(live) == 1
	for _, t := range p.taps {
		t.mu.Lock()
		t.account() // while it is still there
	}
	rest := slices.DeleteFunc(slices.Clone(live), func(o *rxQueue) bool { return o == q })
	p.live.Store(&rest)
	q.closed.Store(true)
	q.direct.close()
	for _, t := range p.taps {
		if last {
			q.drop(engine.DropClosed, uint64(t.discard()))
		}
		t.mu.Unlock()
	}
	q.mu.Lock()
	q.drop(engine.DropClosed, uint64(q.pending.Len()))
	q.pending.Release()
	q.waiting.Store(0)
	q.placer.close()
	if q.retry != nil {
		q.retry.Stop()
	}
	q.unwatch()
	q.wakeLocked()
	q.mu.Unlock()
	for _, o := range rest { // what q was about to take is theirs
		o.wake()
	}
	var s engine.RxStats
	q.counts(&s)
	p.pastRx.Add(&s)
	return nil
}

func (q *rxQueue) unwatch() {
	for _, fd := range q.fds {
		engine.Events.Remove(fd)
		sys.Close(fd)
	}
	q.fds = nil
}

// placer puts packets into bursts for one queue. It keeps a few free slots of each pool at hand.
type placer struct {
	slots [2][]mem.Handle
	n     [2]int
	pools [2]*mem.Pool
	all   [2][]byte
	size  [2]int
}

// stash is the number of free slots at hand, at most.
const stash = 32

func (s *placer) init(q *rxQueue) {
	for i, pool := range q.pools {
		if pool == nil {
			continue
		}
		s.pools[i], s.all[i], s.size[i] = pool, pool.Region().All().Bytes(), pool.SlotSize()
		s.slots[i] = make([]mem.Handle, max(1, min(stash, pool.Slots()/16)))
	}
}

// slot takes a free slot.
func (s *placer) slot(i int) (h mem.Handle, b []byte, ok bool) {
	if s.n[i] == 0 {
		if s.n[i] = s.pools[i].GetBatch(s.slots[i]); s.n[i] == 0 {
			return 0, nil, false
		}
	}
	s.n[i]--
	h = s.slots[i][s.n[i]]
	off := s.pools[i].Offset(h)
	return h, s.all[i][off : off+uint64(s.size[i]) : off+uint64(s.size[i])], true
}

func (s *placer) close() {
	for i, pool := range s.pools {
		if pool != nil && s.n[i] > 0 {
			pool.PutBatch(s.slots[i][:s.n[i]])
			s.n[i] = 0
		}
	}
}

// add adds the frame that t looks at to b, and takes it out of the ring. got is false when it was dropped, which is counted; ok
// when there is no room in b, and nothing has happened.
func (s *placer) add(q *rxQueue, t *tap, b *burst.Burst, bytes []byte, id uint32) (got, ok bool) {
	if b.Room() < 1 {
		return false, false
	}
	f := &t.frame
	var flags burst.Flags
	if int(f.Len) < int(f.Wire) {
		flags |= burst.Truncated
	}
	if f.Status&(sys.FrameChecksumGood|sys.FrameChecksumLater) != 0 {
		flags |= burst.ChecksumGood
	}
	if q.spec.Timestamps || q.spec.HardwareTime {
		flags |= burst.HasTime
		if f.Status&sys.FrameHardwareTime != 0 {
			flags |= burst.HardwareTime
		}
	}
	i := -1
	switch {
	case flags&burst.Truncated != 0 && !q.o.KeepTruncated:
	case s.pools[0] == nil: // borrowed
		i = b.Add(t.src, burst.Segment{Handle: burst.Handle(t.head), Off: f.Off, Len: f.Len})
		if i < 0 {
			return false, false
		}
		t.held.Add(1)
		t.out[t.head].Store(lent)
		s.note(b, i, f, flags, id)
		t.pass()
		return true, true
	case s.pools[1] != nil:
		return s.split(q, t, b, bytes, flags, id)
	case len(bytes) > s.size[0] && !q.o.KeepTruncated:
	default:
		h, slot, found := s.slot(0)
		if !found {
			q.drop(engine.DropNoBuffers, 1)
			t.giveBack()
			return false, true
		}
		n := copy(slot, bytes)
		if n < len(bytes) {
			flags |= burst.Truncated
		}
		i = b.Add(q.srcs[0], burst.Segment{Handle: h, Off: s.pools[0].Offset(h), Len: uint32(n), Cap: uint32(len(slot))})
		if i < 0 {
			s.slots[0][s.n[0]] = h
			s.n[0]++
			return false, false
		}
		q.copied.Add(uint64(n))
		s.note(b, i, f, flags, id)
		t.giveBack()
		return true, true
	}
	q.drop(engine.DropTooLong, 1)
	t.giveBack()
	return false, true
}

func (s *placer) note(b *burst.Burst, i int, f *sys.PacketFrame, flags burst.Flags, id uint32) {
	b.SetReceived(i, int(f.Wire), flags, f.Time)
	if id != 0 {
		b.SetFlow(i, id)
	}
}

// split copies header and payload into slots of their own.
func (s *placer) split(q *rxQueue, t *tap, b *burst.Burst, bytes []byte, flags burst.Flags, id uint32) (got, ok bool) {
	at := q.spec.SplitAt
	if at == 0 {
		var l packet.Layers
		packet.Parse(bytes, &l)
		at = int(l.Payload)
	}
	at = min(at, len(bytes))
	if (at > s.size[0] || len(bytes)-at > s.size[1]) && !q.o.KeepTruncated {
		q.drop(engine.DropTooLong, 1)
		t.giveBack()
		return false, true
	}
	h, head, found := s.slot(0)
	if !found {
		q.drop(engine.DropNoBuffers, 1)
		t.giveBack()
		return false, true
	}
	var d mem.Handle
	var data []byte
	if at < len(bytes) {
		if d, data, found = s.slot(1); !found {
			s.slots[0][s.n[0]] = h
			s.n[0]++
			q.drop(engine.DropNoBuffers, 1)
			t.giveBack()
			return false, true
		}
	}
	n := copy(head, bytes[:at])
	k := copy(data, bytes[at:])
	if n+k < len(bytes) {
		flags |= burst.Truncated
	}
	i := b.Add(q.srcs[0], burst.Segment{Handle: h, Off: s.pools[0].Offset(h), Len: uint32(n), Cap: uint32(len(head)), Role: burst.Header})
	if i < 0 || data != nil && !b.AddSegment(q.srcs[1], burst.Segment{Handle: d, Off: s.pools[1].Offset(d), Len: uint32(k), Cap: uint32(len(data)), Role: burst.Payload}) {
		if data != nil {
			s.slots[1][s.n[1]] = d
			s.n[1]++
		}
		if i < 0 {
			s.slots[0][s.n[0]] = h
			s.n[0]++
		} else {
			b.Truncate(i) // with its header's slot
		}
		return false, false
	}
	q.copied.Add(uint64(n + k))
	s.note(b, i, &t.frame, flags, id)
	t.giveBack()
	return true, true
}
