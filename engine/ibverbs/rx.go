package ibverbs

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
)

// rxQueue is a receive queue: a queue pair whose receives are slots of the queue's pools. The lane's lock guards what has no comment.
type rxQueue struct {
	port *Port
	lane *lane
	id   int
	spec engine.RxSpec
	fd   int // a duplicate of the lane's, so that each queue is woken by itself

	qp      *ibv.QP
	chain   *ibv.RecvChain
	places  []place
	free42  bool // headers end where they end, not at a fixed place
	remote  bool // some places are in memory whose accelerator is to be shown what came
	slots   []mem.Handle
	idle    []uint32 // receives that are not posted
	order   []uint32 // of the chain's
	sges    []ibv.SGE
	posted  int
	broken  bool // it has failed, and flushes
	short   bool // fewer receives are posted than could be, for want of slots
	starved bool // it was short at some time since the counts of the port were looked at

	pending *burst.Burst // packets that wait
	one     *burst.Burst
	unseen  []mem.Flusher // of accelerators that may not see yet what was received for this queue
	showing []mem.Flusher // of which those that the owner is about to call
	err     error         // why it has ended
	waker   *engine.Waker
	retry   engine.Retry
	closed  bool

	packets, bytes, polls, empty metrics.Counter
	copied                       atomic.Uint64
	drops                        [engine.NumDrops]atomic.Uint64
}

var _ engine.RxQueue = (*rxQueue)(nil)

// flushing is how long Close waits for the device to give receives back.
const flushing = 2 * time.Second

// AddRxQueue implements engine.Port. The first queue decides whether the device notes the times of frames.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, engine.ErrClosed
	}
	live := *p.live.Load()
	q := &rxQueue{port: p, spec: spec, fd: -1}
	var err error
	if q.id, err = number(live, spec.ID); err != nil {
		return nil, fmt.Errorf("ibverbs: receive queue %d of %s: %w", spec.ID, p.name, err)
	}
	if err := q.check(); err != nil {
		return nil, fmt.Errorf("ibverbs: receive queue %d of %s: %w", q.id, p.name, err)
	}
	fresh := p.lane == nil
	if fresh {
		if p.lane, err = newLane(p, spec.HardwareTime); err != nil {
			p.lane = nil
			return nil, fmt.Errorf("ibverbs: %s: %w", p.name, err)
		}
	}
	q.lane = p.lane
	err = q.open(live)
	if err != nil && fresh {
		p.lane.close()
		p.lane = nil
	}
	if err != nil {
		return nil, fmt.Errorf("ibverbs: receive queue %d of %s: %w", q.id, p.name, err)
	}
	return q, nil
}

// check checks the specification and lays out the receives.
func (q *rxQueue) check() error {
	p, spec := q.port, &q.spec
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	if spec.Depth == 0 {
		spec.Depth = 1024
	}
	switch {
	case spec.Options != nil:
		return bad("options of type %T: expected none", spec.Options)
	case len(spec.Pools) < 1 || len(spec.Pools) > 2 || slices.Contains(spec.Pools, nil):
		return bad("%d pools: expected one, or two for header/data split", len(spec.Pools))
	case spec.Depth < 0 || spec.Depth > p.attr.MaxQPWR:
		return bad("depth of %d packets: expected 1 to %d, what the device takes", spec.Depth, p.attr.MaxQPWR)
	case spec.Conn != 0:
		return bad("connection %d: frames belong to none", spec.Conn)
	case spec.SplitAt != 0 && len(spec.Pools) != 2:
		return bad("split at %d with %d pools: expected two", spec.SplitAt, len(spec.Pools))
	case spec.SplitAt < 0 || len(spec.Pools) == 2 && (spec.SplitAt > spec.Pools[0].SlotSize() || spec.Pools[0].SlotSize() < splitAt):
		return bad("split at %d: expected 0 to %d, the slot of the header pool, which has at least %d bytes", spec.SplitAt, spec.Pools[0].SlotSize(), splitAt)
	}
	add := func(pool *mem.Pool, skip, size uint32, role burst.Role, hand *[]mem.Handle) error {
		reg, err := p.registered(pool.Region())
		if err == nil {
			q.remote = q.remote || reg.Flusher() != nil
			q.places = append(q.places, place{pool, burst.PoolSource(pool), reg, pool.Region().All().Bytes(), skip, size, role, hand})
		}
		return err
	}
	if spec.Pools[0].Region().All().Bytes() == nil {
		return fmt.Errorf("pool %q, where headers come, is in memory that the CPU cannot reach: %w", spec.Pools[0].Name(), engine.ErrUnsupported)
	}
	hand := func() *[]mem.Handle { h := make([]mem.Handle, 0, 2*slotsAtHand); return &h }
	if len(spec.Pools) == 2 {
		at, skip := uint32(spec.SplitAt), uint32(0)
		if at == 0 {
			q.free42, at, skip = true, splitAt, splitRoom
			if spec.Pools[1].Region().All().Bytes() == nil {
				return fmt.Errorf("pool %q is in memory that the CPU cannot reach, and the card cuts headers off at a fixed place: expected split_at: %w", spec.Pools[1].Name(), engine.ErrUnsupported)
			}
		}
		body := spec.Pools[1].SlotSize() - int(skip)
		if body+int(at) < p.longest() {
			return bad("headers of %d bytes and payloads of %d: the longest frame has %d", at, body, p.longest())
		}
		if err := add(spec.Pools[0], 0, at, burst.Header, hand()); err != nil {
			return err
		}
		return add(spec.Pools[1], skip, uint32(body), burst.Payload, hand())
	}
	pool := spec.Pools[0]
	n, most := (p.longest()+pool.SlotSize()-1)/pool.SlotSize(), min(p.attr.MaxSGE, burst.MaxSegments)
	if n > most {
		return bad("slots of %d bytes: the longest frame has %d, and at most %d slots make one", pool.SlotSize(), p.longest(), most)
	}
	shared := hand()
	for range n {
		if err := add(pool, 0, uint32(pool.SlotSize()), burst.Frame, shared); err != nil {
			return err
		}
	}
	return nil
}

// open makes the queue pair and begins to receive. p.mu is held.
func (q *rxQueue) open(live []*rxQueue) (err error) {
	p, l, n := q.port, q.lane, q.spec.Depth
	if q.spec.HardwareTime && l.clock.kind == ibv.TimesNone {
		return fmt.Errorf("times of the card: the port's first receive queue did not ask for them: %w", engine.ErrUnsupported)
	}
	if most := l.cq.Entries(); l.posted+n > most {
		return fmt.Errorf("depth of %d packets: %d receives of other queues are posted, and %d are allowed (Options.Receives): %w", n, l.posted, most, engine.ErrInvalid)
	}
	k := len(q.places)
	if q.qp, err = p.pd.CreateQP(ibv.QPSpec{Type: ibv.RawPacket, SendCQ: l.cq, RecvCQ: l.cq, RecvWRs: n, RecvSGEs: k}); err != nil {
		return refusal(p.dev.Name(), err)
	}
	l.posted += n
	defer func() {
		if err != nil {
			q.release()
		}
	}()
	if q.chain, err = ibv.NewRecvChain(min(n, slotsAtHand), min(n, slotsAtHand)*k); err != nil {
		return err
	}
	q.slots, q.idle, q.order, q.sges = make([]mem.Handle, n*k), make([]uint32, n), make([]uint32, slotsAtHand), make([]ibv.SGE, k)
	for i := range q.idle {
		q.idle[i] = uint32(n - 1 - i)
	}
	q.pending, q.one = burst.NewSegmented(n, n*k), burst.NewSegmented(1, burst.MaxSegments)
	if err := p.ready(q.qp); err != nil {
		return err
	}
	if q.fd, err = sys.Dup(l.events.FD()); err != nil {
		return err
	}
	if err = engine.Events.Add(q.fd); err != nil {
		sys.Close(q.fd)
		q.fd = -1
		return err
	}
	old := live
	live = append(slices.Clone(live), q)
	slices.SortFunc(live, func(a, b *rxQueue) int { return a.id - b.id })
	l.mu.Lock()
	l.byQPN[q.qp.Num()] = q
	p.live.Store(&live)
	q.refill()
	l.mu.Unlock()
	want, err := p.wants(p.table.Snapshot().Rules())
	if err == nil {
		err = p.install(want)
	}
	if err != nil {
		l.mu.Lock()
		p.live.Store(&old)
		l.mu.Unlock()
	}
	return err
}

// release gives up the queue pair and all memory. The queue is not among those that live. p.mu is held.
func (q *rxQueue) release() {
	l := q.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	q.closed = true
	if q.posted > 0 && q.qp.Err() == nil {
		for end := time.Now().Add(flushing); q.posted > 0 && time.Now().Before(end) && q.port.failed.Load() == nil; {
			if _, empty := l.pump(nil, nil); empty {
				runtime.Gosched()
			}
		}
	}
	if err := q.qp.Close(); err != nil {
		q.port.fail(fmt.Errorf("ibverbs: %s: closing receive queue %d: %w", q.port.name, q.id, err))
		return // the device may still write: its memory stays where it is
	}
	delete(l.byQPN, q.qp.Num())
	if l.last == q {
		l.last = nil
	}
	l.posted -= q.spec.Depth
	idle := make([]bool, q.spec.Depth)
	for _, id := range q.idle {
		idle[id] = true
	}
	for id := range idle {
		if !idle[id] && q.slots != nil {
			q.free(uint32(id))
		}
	}
	for i := range q.places {
		h := q.places[i].hand
		q.places[i].pool.PutBatch(*h)
		*h = (*h)[:0]
	}
	if q.chain != nil {
		q.chain.Close()
	}
	if q.pending != nil {
		q.drop(engine.DropClosed, uint64(q.pending.Len()))
		q.pending.Release()
	}
	q.retry.Stop()
	if q.fd >= 0 {
		engine.Events.Remove(q.fd)
		sys.Close(q.fd)
	}
}

// ID implements engine.RxQueue.
func (q *rxQueue) ID() int { return q.id }

func (q *rxQueue) drop(why engine.Drop, n uint64) { q.drops[why].Add(n) }

func (q *rxQueue) wake() {
	q.lane.mu.Lock()
	defer q.lane.mu.Unlock()
	q.wakeLocked()
}

func (q *rxQueue) wakeLocked() {
	if w := q.waker; w != nil {
		q.waker = nil
		w.Wake()
	}
}

// TryRecv implements engine.RxQueue.
func (q *rxQueue) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	q.polls.Inc()
	n, err := q.collect(b)
	if n > 0 && len(q.showing) > 0 {
		n, err = q.show(b, n)
	}
	if n > 0 {
		total := 0
		for i := b.Len() - n; i < b.Len(); i++ {
			total += b.PacketLen(i)
		}
		q.packets.Add(uint64(n))
		q.bytes.Add(uint64(total))
		return n, nil
	}
	q.empty.Inc()
	return 0, err
}

// collect adds what is there to b, and notes who is to be shown it.
func (q *rxQueue) collect(b *burst.Burst) (n int, err error) {
	q.lane.mu.Lock()
	defer q.lane.mu.Unlock()
	n = q.waiting(b)
	if !q.closed && b.Room() > 0 && q.pending.Len() == 0 {
		k, _ := q.lane.pump(q, b)
		if n += k; n == 0 {
			n = q.waiting(b) // those that b had no room for
		}
	}
	if n > 0 {
		q.unseen, q.showing = q.showing, q.unseen // with what still waits
		return n, nil
	}
	switch failed := q.port.failed.Load(); {
	case q.closed:
		return 0, engine.ErrClosed
	case q.err != nil:
		return 0, q.err
	case failed != nil && q.pending.Len() == 0:
		return 0, *failed
	}
	return 0, nil
}

// show makes the last n packets of b visible to the accelerators whose memory they are in, by one flush of each, without the lane's lock: others
// go on meanwhile. An accelerator that does not take what came for it is lost: the packets are dropped, with what waits, and the queue ends.
func (q *rxQueue) show(b *burst.Burst, n int) (int, error) {
	for _, f := range q.showing {
		if err := f.Flush(); err != nil {
			q.showing = q.showing[:0]
			b.Truncate(b.Len() - n)
			return 0, q.end(n, fmt.Errorf("ibverbs: receive queue %d of %s: an accelerator does not take what was received into its memory: %w: %w", q.id, q.port.name, engine.ErrDown, err))
		}
	}
	q.showing = q.showing[:0]
	return n, nil
}

// end ends the queue for a reason that no packet mends, after n packets were dropped for it.
func (q *rxQueue) end(n int, err error) error {
	q.lane.mu.Lock()
	defer q.lane.mu.Unlock()
	q.err = err
	q.drop(engine.DropDown, uint64(n+q.pending.Len()))
	q.pending.Release()
	return err
}

// hides notes which accelerators have to be shown a frame that is for q and that src received.
func (q *rxQueue) hides(src *rxQueue, length int) {
	for i := range src.places {
		p := &src.places[i]
		if f := p.reg.Flusher(); f != nil && !slices.Contains(q.unseen, f) {
			q.unseen = append(q.unseen, f)
		}
		if length -= int(p.size); length <= 0 {
			return
		}
	}
}

// waiting moves packets that wait to b.
func (q *rxQueue) waiting(b *burst.Burst) int {
	n, dropped := engine.MoveKept(b, q.pending, q.one)
	if dropped > 0 {
		q.drop(engine.DropTooLong, uint64(dropped))
	}
	return n
}

// Arm implements engine.RxQueue.
func (q *rxQueue) Arm(w *engine.Waker) (ready bool) {
	l := q.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	said := func() bool { return q.pending.Len() > 0 || q.closed || q.err != nil || q.port.failed.Load() != nil }
	if said() {
		return true
	}
	q.waker = w
	more := func() bool { // the event is taken, and not all that it stands for: the others look as well
		for _, x := range *q.port.live.Load() {
			if x != q {
				x.wakeLocked()
			}
		}
		return true
	}
	for { // whoever takes an event looks for all queues, since others may sleep on it
		cq, ok, err := l.events.Next()
		if err != nil {
			return more()
		}
		if !ok {
			break
		}
		cq.Ack()
	}
	if l.cq.Arm(false) != nil {
		return more()
	}
	if _, empty := l.pump(q, nil); !empty {
		return more()
	}
	if said() {
		return true
	}
	return engine.Events.Arm(q.fd, w) != nil
}

// Discard implements engine.RxQueue.
func (q *rxQueue) Discard() (int, error) {
	l := q.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.closed {
		return 0, engine.ErrClosed
	}
	total := 0
	for range 1 << 8 { // more keeps coming
		_, empty := l.pump(q, nil)
		total += q.pending.Len()
		q.drop(engine.DropFlushed, uint64(q.pending.Len()))
		q.pending.Release()
		if empty {
			break
		}
	}
	q.unseen = q.unseen[:0]
	return total, nil
}

// Stats implements engine.RxQueue.
func (q *rxQueue) Stats(s *engine.RxStats) {
	*s = engine.RxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Polls: q.polls.Load(), Empty: q.empty.Load(), Copied: q.copied.Load()}
	for i := range q.drops {
		s.Drops[i] = q.drops[i].Load()
	}
}

// Close implements engine.RxQueue. What the device has received for other queues goes to them.
func (q *rxQueue) Close() error {
	p := q.port
	p.mu.Lock()
	defer p.mu.Unlock()
	live := *p.live.Load()
	if !slices.Contains(live, q) {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(live), func(o *rxQueue) bool { return o == q })
	l := q.lane
	l.mu.Lock()
	for range 1 << 8 { // what came while it was there
		if _, empty := l.pump(q, nil); empty {
			break
		}
	}
	l.mu.Unlock()
	p.account() // while it is there to say that it found no slots
	// From here on it has no rules; what it still gets, others are given.
	p.live.Store(&rest)
	want, err := p.wants(p.table.Snapshot().Rules())
	if err == nil {
		err = p.install(want)
	}
	if err != nil { // its rules must go whatever becomes of the others
		for s, x := range p.steered {
			if x.to == q && (x.flow == nil || x.flow.Close() == nil) {
				delete(p.steered, s)
			}
		}
	}
	q.release()
	l.mu.Lock()
	q.wakeLocked()
	l.mu.Unlock()
	var s engine.RxStats
	q.Stats(&s)
	p.past.Rx.Add(&s)
	if len(rest) == 0 {
		if e := l.close(); err == nil {
			err = e
		}
		p.lane = nil
	}
	return err
}
