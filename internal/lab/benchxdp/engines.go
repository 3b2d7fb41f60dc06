package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/xdp"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// xdpSides are the sides that can be ours, by the names of --engine.
var xdpSides = map[string]openerOf{
	"afpacket": openEngine(openAFPacket),
	"dpdk":     openEngine(openDPDK),
	"xdp":      openEngine(openXDPEngine),
	"xsk":      openXSK,
}

// engineOpener opens what a packet engine needs for a side: its receive queue on the first
// interface, its transmit queue on the last, and everything else that is to be closed, in this
// order. Slots are those of pools: they must all be back at the end.
type engineOpener func(ctx context.Context, h packetHost, s sideSpec) (*engineParts, error)

// engineParts are the open queues of an engine.
type engineParts struct {
	rx    engine.RxQueue
	tx    engine.TxQueue // takes no packets of rx's when it is on the same interface and they are not forwarded
	ports []engine.Port
	pools []*mem.Pool
	more  []func() error // closed last
	fill  int            // packets to prepare, as many as tx's pool has; 0: none
	blind bool           // the engine does not learn of packets that the kernel had no room for
}

func (p *engineParts) close() error {
	var err error
	if p.rx != nil {
		err = errors.Join(err, p.rx.Close())
	}
	if p.tx != nil {
		err = errors.Join(err, p.tx.Close())
	}
	for _, x := range p.ports {
		err = errors.Join(err, x.Close())
	}
	for _, x := range p.pools {
		if n := x.Stats().InUse; n > 0 {
			err = errors.Join(err, fmt.Errorf("bench: %d of %d slots of pool %s are not back", n, x.Slots(), x.Name()))
		}
		err = errors.Join(err, x.Close())
	}
	for _, f := range p.more {
		err = errors.Join(err, f())
	}
	return err
}

// engineSide is a packet engine as a side.
type engineSide struct {
	parts *engineParts
	size  int
	b     *burst.Burst
	inspector
}

// openEngine makes a side of an engine.
func openEngine(open engineOpener) openerOf {
	return func(ctx context.Context, h packetHost, s sideSpec) (packetSide, error) {
		p, err := open(ctx, h, s)
		if err != nil {
			return nil, err
		}
		e := &engineSide{parts: p, size: s.size, b: burst.NewSegmented(s.batch, s.batch*max(1, s.chunks())),
			inspector: inspector{size: s.size}}
		if err := e.prepare(); err != nil {
			return nil, errors.Join(err, p.close())
		}
		return newWorker(ctx, e, s), nil
	}
}

// prepare writes packets into all slots that will be sent from.
func (e *engineSide) prepare() error {
	n := e.parts.fill
	if n == 0 {
		return nil
	}
	b := burst.NewSegmented(n, n*8)
	got, err := e.parts.tx.Alloc(b, n, e.size)
	if got == 0 {
		return err
	}
	for i := range got {
		e.write(b, i, uint32(i))
		for k := range b.Segments(i) {
			xdpref.WriteHeaders(b.Bytes(i, k)[:xdpref.HeaderSize], e.size) // any of them may begin a packet later
		}
	}
	b.Release()
	return nil
}

// write writes packet i of b as a whole.
func (e *engineSide) write(b *burst.Burst, i int, slot uint32) {
	e.whole = append(e.whole[:0], make([]byte, e.size)...)
	xdpref.MakeFrame(e.whole, slot)
	rest := e.whole
	for k := range b.Segments(i) {
		rest = rest[copy(b.Bytes(i, k), rest):]
	}
}

func (e *engineSide) close() error { return e.parts.close() }

// dropped are all packets that the engine says it lost.
func (e *engineSide) dropped() (uint64, error) {
	var n uint64
	for _, p := range e.parts.ports {
		var s engine.PortStats
		p.Stats(&s)
		n += s.Drops.Total() + s.Rx.Drops.Total() + s.Tx.Drops.Total()
	}
	return n, nil
}

func (e *engineSide) blind() bool { return e.parts.blind }

// take counts what b holds, and looks at it as the command says.
func (e *engineSide) take(c *xdpref.Command, r *xdpref.Result, swap bool) {
	b, n := e.b, e.b.Len()
	if c.Touch {
		b.Fetch() // as the program in C does
	}
	r.Chunks += uint64(b.SegmentCount())
	for i := range n {
		if b.PacketLen(i) != e.size { // the kernel's own, such as reports of multicast groups
			r.Other++
			continue
		}
		r.Packets++
		if c.Touch {
			f := b.Bytes(i, 0)
			if xdpref.Headers(f) {
				r.Matched++
			}
			if swap {
				xdpref.SwapMACs(f)
			}
		}
		if c.Check {
			e.inspect(c, r, i)
		}
	}
}

func (e *engineSide) inspect(c *xdpref.Command, r *xdpref.Result, i int) {
	e.whole = e.whole[:0]
	for k := range e.b.Segments(i) {
		e.whole = append(e.whole, e.b.Bytes(i, k)...)
	}
	e.one(e.whole, c, r)
}

func (e *engineSide) receive(_ context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	for last := false; ; {
		n, err := e.parts.rx.TryRecv(e.b)
		if n > 0 {
			e.take(c, r, false)
			e.b.Release()
			last = false
		}
		switch {
		case err != nil:
			return err
		case n > 0:
		case !c.Live || last:
			return nil
		default:
			last = stop.Load() // one more look: what came before is there
		}
	}
}

func (e *engineSide) send(ctx context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	q, b := e.parts.tx, e.b
	var until time.Time
	if c.Time > 0 {
		until = time.Now().Add(c.Time)
	}
	seq := c.Seq
	for (c.Packets == 0 || r.Packets < c.Packets) && !stop.Load() {
		want := b.Room()
		if c.Packets > 0 {
			want = int(min(uint64(want), c.Packets-r.Packets))
		}
		n, err := q.Alloc(b, want, e.size)
		if n == 0 && !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
			return err
		}
		if c.Touch || c.Check {
			for i := range n {
				f := b.Bytes(i, 0)
				if c.Check && b.Segments(i) > 1 {
					e.write(b, i, uint32(seq))
				} else if c.Touch {
					xdpref.WriteHeaders(f, e.size)
				}
				xdpref.Stamp(f, seq)
				seq++
			}
		}
		if err := q.Send(b); err != nil {
			return err
		}
		r.Packets += uint64(n)
		if !until.IsZero() && !time.Now().Before(until) {
			break
		}
	}
	if c.Touch {
		r.Matched = r.Packets
	}
	err := q.Drain(ctx)
	if err == nil && c.Check && e.size > e.parts.pools[len(e.parts.pools)-1].SlotSize() {
		err = e.prepare() // packets were written as a whole: their later parts have no headers now
	}
	return err
}

func (e *engineSide) forward(ctx context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	q, b := e.parts.tx, e.b
	for last := false; ; {
		n, err := e.parts.rx.TryRecv(b)
		if n > 0 {
			e.take(c, r, c.Touch)
			if _, err := q.Forward(b); err != nil {
				return err // what does not fit is lost, and the sink misses it
			}
			if err := q.Send(b); err != nil {
				return err
			}
			last = false
		}
		switch {
		case err != nil:
			return err
		case n > 0:
		case !c.Live || last:
			return q.Drain(ctx)
		default:
			last = stop.Load()
		}
	}
}

// openXDPEngine is engine/xdp. All packets lie in one memory, also those of two interfaces, so that
// nothing is copied here.
func openXDPEngine(ctx context.Context, h packetHost, s sideSpec) (_ *engineParts, err error) {
	p := new(engineParts)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	c := s.config(0)
	chunk := max(2048, c.Chunk)
	if s.chains() {
		chunk = 4096
	}
	depth := 64 // descriptors of a ring
	for depth < c.Slots {
		depth *= 2
	}
	// The kernel gets as many chunks to receive into as that of the program in C: all go round, and
	// more of them are more than the processor's cache holds. The engine leaves an eighth of a pool
	// to senders.
	slots := []int{(c.Slots+64)*8/7 + 1, c.Slots}
	region, err := bench.Allocate("xdp", uint64((slots[0]+slots[1])*chunk), s.huge)
	if err != nil {
		return p, err
	}
	p.more = append(p.more, region.Close)
	memory, err := xdp.NewMemory(xdp.MemoryOptions{Region: region, Chunk: chunk, Spare: -1})
	if err != nil {
		return p, err
	}
	p.more = append([]func() error{memory.Close}, p.more...)
	for _, name := range s.interfaces {
		err := h.Do(func() error {
			x, err := xdp.New().OpenPort(ctx, engine.PortSpec{Address: name,
				Options: xdp.Options{Queues: []int{0}, Attach: xdp.AttachNative,
					Memory: memory, Ring: 2 * depth, Spare: -1, Wait: 30 * time.Second}})
			if err == nil {
				p.ports = append(p.ports, x)
			}
			return err
		})
		if err != nil {
			return p, fmt.Errorf("%s: %w", name, err)
		}
	}
	for i, name := range []string{"received", "to send"} {
		x, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: chunk, Align: chunk, Slots: slots[i],
			Region: region, Offset: i * slots[0] * chunk})
		if err != nil {
			return p, err
		}
		p.pools = append(p.pools, x)
	}
	if p.rx, err = p.ports[0].AddRxQueue(engine.RxSpec{Name: "rx", Pools: p.pools[:1], Depth: depth}); err != nil {
		return p, fmt.Errorf("receive queue: %w", err)
	}
	if p.tx, err = p.ports[len(p.ports)-1].AddTxQueue(engine.TxSpec{Name: "tx", Pools: p.pools[1:],
		Depth: depth}); err != nil {
		return p, fmt.Errorf("transmit queue: %w", err)
	}
	p.fill = c.Slots / ((s.size + chunk - 1) / chunk)
	return p, nil
}

// openAFPacket is engine/afpacket: for machines without XDP, and to try the stand.
func openAFPacket(ctx context.Context, h packetHost, s sideSpec) (_ *engineParts, err error) {
	p := new(engineParts)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, name := range s.interfaces {
		err := h.Do(func() error {
			x, err := afpacket.New().OpenPort(ctx,
				engine.PortSpec{Address: name, Options: afpacket.Options{Frames: s.slots}})
			if err == nil {
				p.ports = append(p.ports, x)
			}
			return err
		})
		if err != nil {
			return p, err
		}
	}
	pool := func(name string, slots int) (*mem.Pool, error) {
		x, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: s.size + 256, Slots: slots})
		if err == nil {
			p.pools = append(p.pools, x)
		}
		return x, err
	}
	in, err := pool("received", s.slots)
	if err != nil {
		return p, err
	}
	const depth = 1024
	out, err := pool("to send", depth)
	if err != nil {
		return p, err
	}
	if p.rx, err = p.ports[0].AddRxQueue(engine.RxSpec{Name: "rx", Pools: []*mem.Pool{in},
		Depth: s.slots}); err != nil {
		return p, fmt.Errorf("receive queue: %w", err)
	}
	p.fill = depth
	if p.tx, err = p.ports[len(p.ports)-1].AddTxQueue(engine.TxSpec{Name: "tx", Pools: []*mem.Pool{out},
		Depth: depth}); err != nil {
		return p, fmt.Errorf("transmit queue: %w", err)
	}
	return p, nil
}
