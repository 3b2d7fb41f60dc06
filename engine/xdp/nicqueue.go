package xdp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ethtool"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
)

// nicQueue is a queue of the interface: the fill and the completion ring, which all sockets on it
// share.
//
// Each caller does the work for all: the owner of any receive queue refills, each sender takes
// completions. They agree by one mutex, taken once for a batch and held for the microsecond that it
// takes to move some entries between rings, never during a system call. One that finds the work
// done finds nothing to do. A single owner that others must ask would need to be awake when they
// are.
type nicQueue struct {
	port    *Port
	number  int
	memory  *Memory
	queue   *xsk.Queue
	tag     entry   // its number in the memory, in the place of an entry's
	returns returns // chunks that were released

	short   atomic.Bool // more chunks than the slack are missing since packets came; written under mu
	starved atomic.Bool // the pool had no more when the kernel was to have chunks; written under mu

	mu       sync.Mutex // over everything below
	feed     feed
	target   int      // chunks that the kernel is to have for receiving, those that wait in receive rings included
	slack    int      // of which so many may be missing until the pool is asked for them: others come back
	out      int      // that it has
	back     []uint64 // chunks that came and go back to the fill ring
	inFlight int      // chunks that are given to the kernel to send
	faults   uint64   // addresses that the kernel cannot have got from us
	closed   bool
	txs      []*txQueue
	sleepers []*rxSocket // whose owners sleep, as far as is known
	timer    *time.Timer
	armed    bool
	pause    time.Duration
	visits   uint64              // of senders
	visited  uint64              // visits when the timer looked last
	handles  [rxBatch]mem.Handle // for reap
	addrs    [rxBatch]uint64     // for reap
}

// feed is where the chunks come from that the kernel receives into.
type feed struct {
	pool *mem.Pool
	base uint64 // address of the pool's region
}

const (
	// rxBatch is the number of descriptors that are taken from a ring at once.
	rxBatch = 64
	// The pauses between two looks at what is being sent while no queue sends.
	firstLook, lastLook = 50 * time.Microsecond, 2 * time.Millisecond
	// busyLook is the pause while one sends.
	busyLook = 500 * time.Microsecond
	// lowFill is the number of chunks below which the kernel may be short of them: one packet can
	// take so many.
	lowFill = 20
)

// openQueue takes the queue of the interface. The caller is in the port's namespace.
func (p *Port) openQueue(number int) (*nicQueue, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.o.Wait)
	defer cancel()
	n := &nicQueue{port: p, number: number, memory: p.memory, feed: p.feed}
	c := xsk.QueueConfig{Interface: p.link.Index(), Queue: number, FillSize: p.o.Ring, CompletionSize: p.o.Ring,
		Mode: p.o.Bind, NeedWakeup: true, MultiBuffer: p.frags.Load()}
	var err error
	if c.MultiBuffer && p.betterOne() {
		c.MultiBuffer = false
		p.frags.Store(false)
		p.notes = append(p.notes,
			"no packets of several chunks: the driver has zero-copy only without them, and no frame of this MTU "+
				"needs them")
	}
	if n.queue, err = p.memory.umem.OpenQueue(ctx, c); c.MultiBuffer && is(err, xsk.ErrUnsupported) {
		why := err
		c.MultiBuffer = false
		if n.queue, err = p.memory.umem.OpenQueue(ctx, c); err == nil {
			p.frags.Store(false)
			p.notes = append(p.notes, "no packets of several chunks: "+why.Error())
		}
	}
	if err != nil {
		return nil, p.explain(err)
	}
	n.back = make([]uint64, 0, p.o.Ring)
	n.returns.list, n.returns.other = make([]mem.Handle, 0, p.o.Ring), make([]mem.Handle, 0, p.o.Ring)
	if err := p.memory.enter(n); err != nil {
		return nil, errors.Join(fmt.Errorf("xdp: %s: %w", p.name, err), n.queue.Close())
	}
	return n, nil
}

// betterOne reports whether each packet had better take one chunk: the card can do without the
// kernel's copy then, and only then.
func (p *Port) betterOne() bool {
	if p.o.Bind == BindCopy || p.prog.Info().Mode != AttachNative || p.longest() > p.room() {
		return false
	}
	x, err := ethtool.XDPOf(p.link.Index())
	return err == nil && x.Features.Has(ethtool.XDPZeroCopy) && x.ZCSegments < 2
}

// longest is the length of the longest frame, room that of the longest one that fits into a chunk.
func (p *Port) longest() int { return p.link.MTU() + packet.EthernetLen + vlanRoom }

func (p *Port) room() int { return int(p.memory.chunk) - sys.XDPHeadroom }

// wake has the driver take chunks from the fill ring, if it asks for that.
func (s *rxSocket) wake() bool {
	if !s.nq.queue.Fill().NeedWakeup() {
		return false
	}
	s.sock.WakeRx()
	return true
}

// setTarget says how many chunks the kernel is to have, and how many of them may be missing.
func (n *nicQueue) setTarget(chunks, slack int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.target = min(chunks, n.queue.Config().FillSize)
	n.slack = max(0, slack-(chunks-n.target))
	n.refill()
}

// refill gives the kernel the chunks that came back, and when too many are missing others from the
// pool, if that has more. The caller holds mu.
func (n *nicQueue) refill() {
	n.recycle()
	fill := n.queue.Fill()
	if len(n.back) > 0 {
		k := fill.Put(n.back) // nearly always all: they are among those that are out
		for _, a := range n.back[:k] {
			n.memory.table[a>>n.memory.shift] -= toRefill - filled
		}
		n.back = n.back[:copy(n.back, n.back[k:])]
	}
	if n.starved.Load() {
		n.starved.Store(false)
	}
	n.count()
	if !n.short.Load() {
		return
	}
	var handles [rxBatch]mem.Handle
	for n.out < n.target {
		room := fill.Reserve(min(n.target-n.out, rxBatch))
		if len(room) == 0 {
			return
		}
		k := n.feed.pool.GetBatch(handles[:len(room)])
		for i, h := range handles[:k] {
			room[i] = n.fill(h)
		}
		fill.Submit(k)
		if k < len(room) {
			n.starved.Store(true)
			break
		}
	}
	n.count()
}

// wants reports whether the kernel may have too few chunks to receive anything into.
func (n *nicQueue) wants() bool { return n.short.Load() || n.starved.Load() }

// count notes whether so many chunks are missing that the pool is to be asked. The caller holds mu.
func (n *nicQueue) count() {
	if short := n.target-n.out > n.slack; short != n.short.Load() {
		n.short.Store(short)
	}
}

// fill enters a slot of the pool as one that the kernel has, and returns its address. The caller
// holds mu.
func (n *nicQueue) fill(h mem.Handle) uint64 {
	m := n.memory
	a := n.feed.base + n.feed.pool.Offset(h)
	e, l := &m.table[a>>m.shift], &m.origins[a>>m.shift]
	*e = *e&^(queueMask|low) | n.tag | filled
	l.home, l.pool = h, n.feed.pool
	n.out++
	return a
}

// starving reports whether packets may be lost because the kernel has no chunks, and the pool has
// none either: then no owner is woken by a packet. The owner of s is about to sleep until w wakes
// it.
func (n *nicQueue) starving(s *rxSocket, w *engine.Waker) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.target == 0 {
		return false
	}
	if s.waker == nil {
		n.sleepers = append(n.sleepers, s)
	}
	s.waker = w
	n.refill()
	return n.starved.Load() && n.queue.Fill().Pending() < lowFill
}

// wakeSleepers wakes the owners that sleep, when the owner of s has just taken the last chunks:
// they look again after a pause, and the owner of s perhaps does not. An owner that took no chunk
// wakes no other: two that find nothing would wake each other for ever. The caller holds mu.
func (n *nicQueue) wakeSleepers(s *rxSocket, took bool) {
	if len(n.sleepers) == 0 {
		return
	}
	if len(n.back) > 0 {
		n.refill() // what it copied: it may be all that there is
	}
	if !took || !n.short.Load() {
		return
	}
	if n.refill(); !n.starved.Load() || n.queue.Fill().Pending() >= lowFill {
		return
	}
	for _, o := range n.sleepers {
		if o != s {
			o.waker.Wake()
		}
		o.waker = nil
	}
	clear(n.sleepers)
	n.sleepers = n.sleepers[:0]
}

// received reports whether the kernel can have this descriptor of a receive ring from us. The
// caller holds mu.
func (n *nicQueue) received(d *xsk.Desc) bool {
	m := n.memory
	if i := d.Addr >> m.shift; i < uint64(len(m.table)) && m.table[i]&(queueMask|stateMask) == n.tag|filled &&
		d.Addr&(m.chunk-1)+uint64(d.Len) <= m.chunk {
		return true
	}
	n.faults++
	return false
}

// reuse gives the chunk of a packet that was copied or dropped back to the kernel with the next
// refill. The caller holds mu.
func (n *nicQueue) reuse(addr uint64) {
	n.memory.table[addr>>n.memory.shift] += toRefill - filled
	n.back = append(n.back, addr&^(n.memory.chunk-1))
}

// later has the timer look after a pause at what is being sent. The caller holds mu.
func (n *nicQueue) later() {
	if n.armed || n.closed || n.inFlight == 0 {
		return
	}
	n.armed, n.pause, n.visited = true, firstLook, n.visits
	if n.timer == nil {
		n.timer = time.AfterFunc(n.pause, n.look)
	} else {
		n.timer.Reset(n.pause)
	}
}

// look takes what was sent, and has the kernel go on with what it has not sent.
func (n *nicQueue) look() {
	n.mu.Lock()
	n.armed = false
	if n.closed {
		n.mu.Unlock()
		return
	}
	if n.visits != n.visited { // others look as well: their next visit does the work
		n.visited, n.armed = n.visits, true
		n.timer.Reset(busyLook)
		n.mu.Unlock()
		return
	}
	before := n.inFlight
	n.reap()
	moved := n.inFlight < before
	txs := n.txs
	n.mu.Unlock()
	for _, t := range txs {
		t.resume()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	n.reap()
	n.visited = n.visits
	if n.inFlight == 0 || n.armed {
		return
	}
	if moved {
		n.pause = firstLook
	} else {
		n.pause = min(2*n.pause, lastLook)
	}
	n.armed = true
	n.timer.Reset(n.pause)
}

// drain waits until everything that the kernel has taken to send has left, for as long as the
// context lasts.
func (n *nicQueue) drain(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		n.mu.Lock()
		n.reap()
		left := n.inFlight
		n.mu.Unlock()
		if left == 0 {
			return
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// close gives the queue back to the interface. No socket is on it any more. Chunks that the kernel
// had are given back to their pools.
func (n *nicQueue) close() error {
	n.mu.Lock()
	n.closed = true
	if n.timer != nil {
		n.timer.Stop()
	}
	n.mu.Unlock()
	err := n.queue.Close()
	if card, _ := n.queue.ZeroCopy(); card { // it may still write into the chunks
		ctx, cancel := context.WithTimeout(context.Background(), n.port.o.Wait)
		err = errors.Join(err, n.queue.Released(ctx))
		cancel()
	}
	m := n.memory
	for _, c := range m.leave(n) {
		if c.last {
			c.tx.lost.Add(1)
			c.tx.out.Complete(1)
		}
		one := [1]mem.Handle{c.handle}
		m.put(c.src, one[:])
	}
	return err
}

// explain makes an error of the engine of one of its parts.
func (p *Port) explain(err error) error {
	kind := engine.ErrUnavailable
	for _, c := range []struct{ from, to error }{
		{xsk.ErrBusy, engine.ErrInUse},
		{xsk.ErrInvalid, engine.ErrInvalid},
		{xsk.ErrNoQueue, engine.ErrInvalid},
		{xsk.ErrInterface, engine.ErrDown},
		{xsk.ErrUnsupported, engine.ErrUnsupported},
		{xsk.ErrZeroCopy, engine.ErrUnsupported},
	} {
		if is(err, c.from) {
			kind = c.to
			break
		}
	}
	if is(err, sys.ENODEV) || p.link.Gone() {
		return fmt.Errorf("xdp: %s: %w: %w", p.name, ErrRemoved, err)
	}
	return fmt.Errorf("xdp: %s: %w: %w", p.name, err, kind)
}
