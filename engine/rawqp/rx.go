package rawqp

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	// splitAt is where the card cuts frames whose headers are to end where they end: behind
	// Ethernet, IPv4 and UDP. Of others bytes are moved.
	splitAt = 42
	// splitRoom is what stays free in front of a payload then, for bytes that were cut off with the
	// header.
	splitRoom = 32
	// minCut is the shortest header of a frame that is split so.
	minCut = splitAt - splitRoom
	// flushing is how long Close waits for the device to give receives back.
	flushing = 2 * time.Second
)

// rxQueue is a receive queue: a queue pair whose receives are slots of the queue's pools. It
// implements engine.RxDevice.
type rxQueue struct {
	engine.RxFront
	port *Port
	cq   *rxCQ
	fd   int // a duplicate of the completion channel's, so that each queue is woken by itself

	// The lock of cq guards what follows.
	qp      *ibv.QP
	recvs   *rdmadev.Receives
	parsed  bool          // headers end where they end, not at a fixed place
	remote  bool          // some places are in memory of an accelerator that takes a flush
	broken  bool          // the queue pair has failed, and flushes
	dry     bool          // no receive is posted, and the owner knows
	starved bool          // the pools had too few slots at some time since the counts of the port were looked at
	unseen  []mem.Flusher // of accelerators that may not see yet what was received for this queue
	showing []mem.Flusher // of which those that Finish calls
	err     error         // why the queue has ended
}

var (
	_ engine.RxQueue    = (*rxQueue)(nil)
	_ engine.RxDevice   = (*rxQueue)(nil)
	_ engine.RxFinisher = (*rxQueue)(nil)
)

// AddRxQueue implements engine.Port. The first queue decides whether the device notes the times of
// frames.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	can := p.Capabilities()
	if err := p.rx.Admit(&spec, &can); err != nil {
		return nil, fmt.Errorf("verbs: %s: %w", p.name, err)
	}
	q, err := p.addRx(spec)
	if err != nil {
		return nil, fmt.Errorf("verbs: %s: receive queue %v: %w", p.name, spec.ID, err)
	}
	return q, nil
}

func (p *Port) addRx(spec engine.RxSpec) (_ *rxQueue, err error) {
	q := &rxQueue{port: p, fd: -1}
	pools, places, err := q.arrange(&spec)
	if err != nil {
		return nil, err
	}
	if p.cq == nil {
		c, err := newRxCQ(p, spec.HardwareTime)
		if err != nil {
			return nil, err
		}
		p.cq = c
	}
	q.cq = p.cq
	q.Start(spec, q)
	q.Inbox(spec.Depth, spec.Depth*max(len(places), 2))
	if err = q.open(pools, places); err == nil {
		p.rx.Add(q)
		if err = p.steer(); err == nil {
			return q, nil
		}
		_, _ = p.rx.Remove(q) // which counts nothing
	} else {
		_ = q.Shut()
	}
	return nil, errors.Join(err, p.unused())
}

// arrange lays out the receives of a specification.
func (q *rxQueue) arrange(spec *engine.RxSpec) (pools []rdmadev.Pool, places []rdmadev.Place, err error) {
	p := q.port
	bad := func(format string, args ...any) ([]rdmadev.Pool, []rdmadev.Place, error) {
		return nil, nil, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	first := spec.Pools[0]
	split := len(spec.Pools) == 2
	switch {
	case split && first.SlotSize() < splitAt:
		return bad("pool %q has slots of %d bytes: headers take at least %d", first.Name(), first.SlotSize(), splitAt)
	case first.Region().All().Bytes() == nil:
		return nil, nil, fmt.Errorf("pool %q, where headers come, is in memory that the CPU cannot reach: %w",
			first.Name(), engine.ErrUnsupported)
	case split && spec.SplitAt == 0 && spec.Pools[1].Region().All().Bytes() == nil:
		return nil, nil, fmt.Errorf("pool %q is in memory that the CPU cannot reach, and the card cuts headers off "+
			"at a fixed place: expected split_at: %w", spec.Pools[1].Name(), engine.ErrUnsupported)
	}
	if split {
		at, skip := uint32(spec.SplitAt), uint32(0)
		if at == 0 {
			q.parsed, at, skip = true, splitAt, splitRoom
		}
		body := spec.Pools[1].SlotSize() - int(skip)
		if body+int(at) < p.longest() {
			return bad("headers of %d bytes and payloads of %d: the longest frame has %d", at, body, p.longest())
		}
		places = []rdmadev.Place{{Pool: 0, Size: at, Role: burst.Header},
			{Pool: 1, Skip: skip, Size: uint32(body), Role: burst.Payload}}
	} else {
		n, most := (p.longest()+first.SlotSize()-1)/first.SlotSize(), min(p.dev.Attr.MaxSGE, burst.MaxSegments)
		if n > most {
			return bad("slots of %d bytes: the longest frame has %d, and at most %d slots make one", first.SlotSize(),
				p.longest(), most)
		}
		places = slices.Repeat([]rdmadev.Place{{Size: uint32(first.SlotSize()), Role: burst.Frame}}, n)
	}
	pools, flushers, err := p.dev.Pools(spec.Pools)
	q.remote = len(flushers) > 0
	return pools, places, err
}

// open makes the queue pair. The caller holds the set's lock.
func (q *rxQueue) open(pools []rdmadev.Pool, places []rdmadev.Place) (err error) {
	p, c, n := q.port, q.cq, q.Spec().Depth
	if q.Spec().HardwareTime && c.clock.kind == ibv.TimesNone {
		return fmt.Errorf("times of the card: the port's first receive queue did not ask for them: %w",
			engine.ErrUnsupported)
	}
	if most := c.cq.Entries(); c.receives+n > most {
		return fmt.Errorf("depth of %d packets: %d receives of other queues are posted, and %d are allowed "+
			"(Options.Receives): %w", n, c.receives, most, engine.ErrInvalid)
	}
	qp, err := p.dev.PD.CreateQP(ibv.QPSpec{Type: ibv.RawPacket, SendCQ: c.cq, RecvCQ: c.cq, RecvWRs: n,
		RecvSGEs: len(places)})
	if err != nil {
		return refusal(p.dev.Name(), err)
	}
	q.qp = qp
	c.mu.Lock()
	c.byQPN[qp.Num()] = q
	c.receives += n
	c.mu.Unlock()
	if q.recvs, err = rdmadev.NewReceives(n, pools, places); err != nil {
		return err
	}
	if err := p.ready(q.qp); err != nil {
		return err
	}
	fd, err := sys.Dup(c.events.FD())
	if err != nil {
		return err
	}
	if err := engine.Events.Add(fd); err != nil {
		sys.Close(fd)
		return err
	}
	q.fd = fd
	c.mu.Lock()
	defer c.mu.Unlock()
	q.refill()
	return nil
}

// refill posts receives, as many as there are slots and room for. The caller holds the completion
// queue's lock.
func (q *rxQueue) refill() {
	if q.broken {
		if q.recvs.Posted() > 0 {
			return // what it had is still being flushed
		}
		if err := q.port.ready(q.qp); err != nil {
			q.port.fail(err)
			return
		}
		q.broken = false
	}
	_ = q.recvs.Post(q.qp) // a queue pair that has failed says so by what it flushes
	q.starved = q.starved || q.recvs.Short()
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	c := q.cq
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deal(q, b)
	if q.err != nil {
		return q.err
	}
	if failed := q.port.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// Finish implements engine.RxFinisher: it makes packets visible to the accelerators whose memory
// they are in, by one flush of each. Others use the completion queue meanwhile.
func (q *rxQueue) Finish(*burst.Burst, int) error {
	q.cq.mu.Lock()
	q.unseen, q.showing = q.showing[:0], q.unseen // with what still waits
	q.cq.mu.Unlock()
	for _, f := range q.showing {
		if err := f.Flush(); err != nil {
			err = fmt.Errorf("verbs: %s: receive queue %d: an accelerator does not take what was received into its "+
				"memory: %w: %w", q.port.name, q.ID(), engine.ErrDown, err)
			q.cq.mu.Lock()
			defer q.cq.mu.Unlock()
			q.err = err
			return err
		}
	}
	return nil
}

// hides notes which accelerators need a flush for a frame of that many bytes that is for q and that
// src received.
func (q *rxQueue) hides(src *rxQueue, length int) {
	for i, p := range src.recvs.Places() {
		if f := src.recvs.Flusher(i); f != nil && !slices.Contains(q.unseen, f) {
			q.unseen = append(q.unseen, f)
		}
		if length -= int(p.Size); length <= 0 {
			return
		}
	}
}

// Watch implements engine.RxDevice.
func (q *rxQueue) Watch(w *engine.Waker) engine.Armed {
	c := q.cq
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.err != nil || q.port.failed.Load() != nil {
		return engine.ArmedReady
	}
	if c.arm() { // the event is taken, and there is more: the other owners look as well
		for _, x := range q.port.rx.Live() {
			if x != q {
				x.Wake()
			}
		}
		return engine.ArmedReady
	}
	q.refill()
	q.dry = q.recvs.Posted() == 0
	switch {
	case engine.Events.Arm(q.fd, w) != nil:
		return engine.ArmedReady
	case q.dry: // no frame can come
		return engine.ArmedPoll
	}
	return engine.ArmedWake
}

// Close implements engine.RxQueue. What the device has received for other queues goes to them.
func (q *rxQueue) Close() error {
	p := q.port
	p.rx.Lock()
	defer p.rx.Unlock()
	if !slices.Contains(p.rx.Live(), q) {
		return nil
	}
	p.account() // while the queue can say that its pools had no slots
	q.cq.mu.Lock()
	for range 1 << 8 { // what came while it was there
		if q.cq.deal(nil, nil) {
			break
		}
	}
	q.cq.mu.Unlock()
	_, err := p.rx.Remove(q)
	return errors.Join(err, p.unused())
}

// unused gives up the completion queue where no receive queue is left. The caller holds the set's
// lock.
func (p *Port) unused() error {
	if len(p.rx.Live()) > 0 {
		return nil
	}
	c := p.cq
	p.cq = nil
	return c.close()
}

// Stop implements engine.RxDevice. The queue is not live any more: what its queue pair still gets
// is for others.
func (q *rxQueue) Stop(engine.Drop) error {
	p, c := q.port, q.cq
	err := p.steer()
	if err != nil { // its rules must go whatever becomes of the others
		for s, x := range p.steered {
			if x.to == q && (x.flow == nil || x.flow.Close() == nil) {
				delete(p.steered, s)
			}
		}
	}
	if q.fd >= 0 {
		engine.Events.Remove(q.fd)
		sys.Close(q.fd)
	}
	if q.qp == nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.recvs != nil && q.qp.Err() == nil {
		for end := time.Now().Add(flushing); q.recvs.Posted() > 0 && time.Now().Before(end) && p.failed.Load() == nil; {
			if c.deal(nil, nil) {
				runtime.Gosched()
			}
		}
	}
	if err := q.qp.Close(); err != nil {
		p.fail(fmt.Errorf("verbs: %s: receive queue %d: closing: %w", p.name, q.ID(), err))
		return err // the device may still write: its memory stays where it is
	}
	c.forget(q)
	if q.recvs != nil {
		q.recvs.Close()
	}
	return err
}
