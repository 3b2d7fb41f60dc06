package xdp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
)

// What follows adds and removes queues. All of it runs with the lock of Port.rxs held, on a thread
// in the port's namespace.

// drainTime bounds the wait for packets that the kernel is sending when their queue of the
// interface is closed.
const drainTime = time.Second

// usable says why the port takes no queue.
func (p *Port) usable() error {
	if p.rxs.Closed() {
		return engine.ErrClosed
	}
	return p.failed()
}

// choose makes the port's memory around a pool, unless there is one.
func (p *Port) choose(pool *mem.Pool) (err error) {
	if p.memory != nil {
		return nil
	}
	if m := p.o.Memory; m != nil {
		if err := m.hold(); err != nil {
			return err
		}
		p.memory = m
		return nil
	}
	o := MemoryOptions{Spare: p.o.Spare}
	if chunk, ok := usable(pool); ok {
		o.Region, o.Chunk = pool.Region(), chunk
	} else if o.Spare < 0 {
		return fmt.Errorf("xdp: %s: pool %q: its slots, %d bytes apart, begin at offset %d of memory of kind %v: "+
			"expected writable memory of the kernel's pages, aligned to that, or Options.Spare: %w",
			p.name, pool.Name(), pool.Stride(), pool.Span().Off, pool.Region().Kind(), engine.ErrUnsupported)
	} else if p.longest() > 2048-sys.XDPHeadroom {
		o.Chunk = 4096
	}
	p.memory, err = NewMemory(o)
	return err
}

// dropMemory gives the memory up when nothing uses it.
func (p *Port) dropMemory() error {
	if p.memory == nil || len(p.rxs.Live())+len(p.txs) > 0 {
		return nil
	}
	err := p.shutQueues()
	m := p.memory
	p.memory = nil
	return errors.Join(err, m.release())
}

// shutQueues closes the queues of the interface, on which there are no sockets any more.
func (p *Port) shutQueues() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var errs []error
	for i, n := range p.nqs {
		if n == nil {
			continue
		}
		n.drain(ctx)
		errs = append(errs, n.close())
		p.nqs[i] = nil
	}
	p.feed = feed{}
	return errors.Join(errs...)
}

// nq opens a queue of the interface, unless it is open.
func (p *Port) nq(i int) (n *nicQueue, err error) {
	if p.nqs[i] == nil {
		if p.nqs[i], err = p.openQueue(p.o.Queues[i]); err != nil {
			return nil, err
		}
	}
	return p.nqs[i], nil
}

// chooseFeed says into which pool the kernel receives when q is the first receive queue: its own,
// or the spare one.
func (p *Port) chooseFeed(q *rxQueue) error {
	m := p.memory
	switch {
	case p.feed.pool != nil:
		return nil
	case m.fits(q.data()):
		p.feed = feed{pool: q.data()}
	case m.spare != nil:
		p.feed = feed{pool: m.spare, base: m.home}
	default:
		return fmt.Errorf("xdp: %s: pool %q is not in the port's memory in slots of %d bytes, and there are no spare "+
			"chunks%s: make it a part of that memory (mem.PoolOptions.Region), or see Options.Spare: %w",
			p.name, q.data().Name(), m.chunk, m.note, engine.ErrUnsupported)
	}
	for _, n := range p.nqs {
		if n != nil {
			n.mu.Lock()
			n.feed = p.feed
			n.mu.Unlock()
		}
	}
	return nil
}

// setTargets says how many chunks each queue of the interface holds for receiving: as many as can
// wait for all receive queues, and a quarter more, which may be missing until they come back. Some
// slots of the pool stay with the senders.
func (p *Port) setTargets() {
	need := 0
	for _, q := range p.rxs.Live() {
		need += q.ring()
	}
	target := 0
	if need > 0 {
		pieces := (p.longest() + p.room() - 1) / p.room()
		slots := p.feed.pool.Slots()
		most := slots - slots/8
		if p.feed.pool == p.memory.spare {
			most = slots - slots/4
		}
		most = max(1, most/len(p.nqs))
		need = min((need+rxBatch)*pieces, most)
		target = min(need+need/4, most)
	}
	for _, n := range p.nqs {
		if n != nil {
			n.setTarget(target, target-need)
		}
	}
}

// set enters the sockets of a receive queue into the program's map.
func (p *Port) set(q *rxQueue) error {
	for _, s := range q.sockets {
		if err := p.prog.Set(s.nq.number, q.ID(), s.sock.FD()); err != nil {
			return p.refusal(err)
		}
		s.wake()
	}
	return nil
}

// unset takes receive queues out of the program's map. When it returns nothing arrives in their
// sockets any more.
func (p *Port) unset(qs ...*rxQueue) (err error) {
	for _, q := range qs {
		for _, s := range q.sockets {
			err = errors.Join(err, p.prog.Unset(s.nq.number, q.ID()))
		}
	}
	if len(qs) > 0 {
		err = errors.Join(err, p.prog.Wait())
	}
	return err
}

// admitRx adds a receive queue.
func (p *Port) admitRx(q *rxQueue) (err error) {
	before, had, fed := p.rxs.Live(), p.had, p.feed
	defer func() {
		if err != nil {
			p.had = had
			if len(q.sockets) > 0 {
				_ = p.unset(q)
			}
			filled, _ := p.rxs.Remove(q)
			_ = q.Shut()
			switch {
			case len(before)+len(p.txs) == 0:
				_ = p.dropMemory()
			case !filled:
				p.feed = fed // the kernel has nothing of another one
			case q.whole && !slices.ContainsFunc(before, whole):
				err = errors.Join(err, p.restart()) // as when it is closed
			default:
				p.setTargets()
			}
		}
	}()
	if err := p.choose(q.data()); err != nil {
		return err
	}
	if err := p.openRx(q); err != nil {
		return err
	}
	p.rxs.Add(q)
	p.setTargets()
	if err := p.set(q); err != nil {
		return err
	}
	return p.isolate(p.rxs.Live())
}

// whole reports whether a queue delivers packets where the kernel put them.
func whole(q *rxQueue) bool { return q.whole }

// openRx opens the sockets of a receive queue on all queues of the interface.
func (p *Port) openRx(q *rxQueue) error {
	if err := p.chooseFeed(q); err != nil {
		return err
	}
	for i := range p.nqs {
		if _, err := p.nq(i); err != nil {
			return err
		}
	}
	if frame, room := p.longest(), p.room(); !p.frags.Load() && frame > room {
		return fmt.Errorf("xdp: %s: frames of the MTU %d have up to %d bytes, and a slot of %d takes %d: use slots "+
			"of 4096 bytes or a smaller MTU, since packets of several slots are not to be had here (%v): %w",
			p.name, p.link.MTU(), frame, p.memory.chunk, room, p.notes, engine.ErrUnsupported)
	}
	return q.open()
}

// dismissRx removes a receive queue.
func (p *Port) dismissRx(q *rxQueue) error {
	rest := slices.DeleteFunc(slices.Clone(p.rxs.Live()), func(o *rxQueue) bool { return o == q })
	err := p.isolate(rest) // what no rule accepts goes elsewhere first
	err = errors.Join(err, p.unset(q))
	_, failed := p.rxs.Remove(q)
	err = errors.Join(err, failed)
	switch {
	case len(rest)+len(p.txs) == 0:
		return errors.Join(err, p.dropMemory())
	case q.whole && !slices.ContainsFunc(rest, whole):
		// The kernel has slots of a pool that no queue uses any more, and gives them back only with
		// the whole queue of the interface.
		return errors.Join(err, p.restart())
	}
	p.setTargets()
	return err
}

// admitTx adds a transmit queue.
func (p *Port) admitTx(q *txQueue) (err error) {
	if err := p.choose(q.spec.Pools[0]); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = p.dropMemory()
		}
	}()
	if err := p.openTx(q); err != nil {
		return err
	}
	p.txs = append(p.txs, q)
	return nil
}

func (p *Port) openTx(q *txQueue) error {
	m := p.memory
	for _, pool := range q.spec.Pools {
		if s := pool.Span(); m.spare == nil && (s.Region != m.region || s.Off+s.Len > m.home) {
			return fmt.Errorf("xdp: %s: pool %q is not in the port's memory, and there are no spare chunks%s: make "+
				"it a part of that memory (mem.PoolOptions.Region), or see Options.Spare: %w",
				p.name, pool.Name(), m.note, engine.ErrUnsupported)
		}
	}
	n, err := p.nq(q.ID() % len(p.nqs))
	if err != nil {
		return err
	}
	return q.open(n)
}

// dismissTx removes a transmit queue.
func (p *Port) dismissTx(q *txQueue) error {
	err := q.shut(engine.DropClosed)
	p.txs, p.gone = engine.RetireTx(q, p.txs, p.gone, &p.pastTx)
	return errors.Join(err, p.dropMemory())
}

// restart closes all sockets, so that the kernel gives every chunk back, and opens them again. What
// waits in them is kept.
func (p *Port) restart() error {
	err := p.unset(p.rxs.Live()...)
	for _, q := range p.rxs.Live() {
		err = errors.Join(err, q.suspend())
	}
	for _, q := range p.txs {
		err = errors.Join(err, q.shut(engine.DropRefused))
	}
	err = errors.Join(err, p.shutQueues())
	m := p.memory
	p.memory = nil
	if err = errors.Join(err, m.release(), p.start()); err != nil {
		err = fmt.Errorf("xdp: %s: it could not restart: close it and open it again: %w", p.name, err)
		p.broken.Store(&err)
		for _, q := range p.rxs.Live() {
			q.Wake()
		}
	}
	return err
}

// start opens the sockets of all queues.
func (p *Port) start() error {
	var pool *mem.Pool
	for _, q := range slices.Backward(p.txs) {
		pool = q.spec.Pools[0]
	}
	for _, q := range slices.Backward(p.rxs.Live()) {
		pool = q.data()
	}
	if err := p.choose(pool); err != nil {
		return err
	}
	for _, q := range p.txs {
		if err := p.openTx(q); err != nil {
			return err
		}
	}
	for _, q := range p.rxs.Live() {
		if err := p.openRx(q); err != nil {
			return err
		}
	}
	p.setTargets()
	for _, q := range p.rxs.Live() {
		if err := p.set(q); err != nil {
			return err
		}
		q.Wake() // it waits for sockets that are closed
	}
	return nil
}

// quit closes all queues for good.
func (p *Port) quit() error {
	live := p.rxs.Live()
	err := p.unset(live...)
	for _, q := range live {
		_, failed := p.rxs.Remove(q)
		err = errors.Join(err, failed)
	}
	for _, q := range p.txs {
		err = errors.Join(err, q.shut(engine.DropClosed))
		p.gone = append(p.gone, q)
	}
	p.txs = nil
	return errors.Join(err, p.dropMemory())
}
