package benchxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/engine/xdp/prog"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	flows "github.com/penstock-io/penstock/packet/flow"
)

// xskSide is the loops of the program in C on internal/xsk: what the engine can reach at best. Its
// memory is cut in two for each interface, as the program's is: chunks to receive into, which are
// in the fill ring, and chunks to send from.
type xskSide struct {
	size, batch, chunk, slots int // slots: chunks of each half
	region                    *mem.Region
	umem                      *xsk.Umem
	ports                     []*xskPort
	inspector
}

// xskPort is an interface of it.
type xskPort struct {
	name   string
	queue  *xsk.Queue
	socket *xsk.Socket
	prog   *prog.Program
	base   uint64 // of the chunks to send from
	next   int    // the packet that is sent next
	flight int    // descriptors with the kernel
}

// openXSK opens sockets without an engine.
func openXSK(ctx context.Context, h packetHost, s sideSpec) (_ packetSide, err error) {
	c := s.config(0)
	x := &xskSide{size: s.size, batch: s.batch, chunk: 2048, slots: c.Slots, inspector: inspector{size: s.size}}
	if s.chains() || c.Chunk != 0 {
		x.chunk = 4096
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.close())
		}
	}()
	if x.region, err = bench.Allocate("xsk", uint64(len(s.interfaces)*2*x.slots*x.chunk), s.huge); err != nil {
		return nil, err
	}
	page := 0
	if s.huge {
		page = 2 << 20
	}
	if x.umem, err = xsk.NewUmem(xsk.UmemConfig{Memory: x.region.All().Bytes(), ChunkSize: x.chunk,
		PageSize: page}); err != nil {
		return nil, err
	}
	for _, name := range s.interfaces {
		if err := h.Do(func() error { return x.open(ctx, name) }); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return newWorker(ctx, x, s), nil
}

// open takes queue 0 of an interface, fills its fill ring and prepares the packets that will be
// sent.
func (x *xskSide) open(ctx context.Context, name string) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	ring := 64
	for ring < x.slots {
		ring *= 2
	}
	p := &xskPort{name: name, base: uint64((2*len(x.ports) + 1) * x.slots * x.chunk)}
	x.ports = append(x.ports, p)
	many := x.size > x.chunk
	if p.queue, err = x.umem.OpenQueue(ctx, xsk.QueueConfig{Interface: dev.Index, FillSize: 2 * ring,
		CompletionSize: ring, NeedWakeup: true, MultiBuffer: many}); err != nil {
		return err
	}
	if p.socket, err = p.queue.OpenSocket(xsk.SocketConfig{RxSize: ring, TxSize: ring}); err != nil {
		return err
	}
	for i := range x.slots {
		if p.queue.Fill().Put([]uint64{p.base - uint64((x.slots-i)*x.chunk)}) != 1 {
			return fmt.Errorf("bench: the fill ring takes %d chunks of %d", i, x.slots)
		}
	}
	frags := x.frags()
	for i := range x.slots / frags {
		at := p.base + uint64(i*frags*x.chunk)
		xdpref.MakeFrame(x.umem.Data(xsk.Desc{Addr: at, Len: uint32(x.size)}), uint32(i))
	}
	p.prog, err = prog.Load(prog.Spec{Name: name, Interface: dev.Index, Queues: 1, Slots: 1, Frags: many,
		Uncounted: true, Isolation: flows.Isolation{Unmatched: flows.Deliver}})
	if err != nil {
		return err
	}
	if err := p.prog.Set(0, 0, p.socket.FD()); err != nil {
		return err
	}
	return p.prog.Attach(prog.Native)
}

// frags are the chunks of a packet to send.
func (x *xskSide) frags() int { return (x.size + x.chunk - 1) / x.chunk }

// close gives everything back. The chunks of each interface must be in its fill ring again, every
// one.
func (x *xskSide) close() error {
	var err error
	for _, p := range x.ports {
		if p.prog != nil {
			err = errors.Join(err, p.prog.Close())
		}
		if p.socket != nil {
			if n := p.queue.Fill().Pending(); err == nil && n+p.flight != x.slots {
				err = fmt.Errorf("bench: %d chunks of %d are in the fill ring of %s, and %d are being sent", n, x.slots,
					p.name, p.flight)
			}
			err = errors.Join(err, p.socket.Close())
		}
		if p.queue != nil {
			err = errors.Join(err, p.queue.Close())
		}
	}
	if x.region != nil {
		err = errors.Join(err, x.region.Close())
	}
	return err
}

func (x *xskSide) blind() bool { return false }

func (x *xskSide) dropped() (uint64, error) {
	var n uint64
	for _, p := range x.ports {
		var s xsk.Statistics
		if err := p.socket.Statistics(&s); err != nil {
			return 0, err
		}
		n += s.RxDropped + s.RxRingFull
	}
	return n, nil
}

// look takes one descriptor of a packet, whose bytes before it are part, and returns how many there
// are now, 0 after the packet's last.
func (x *xskSide) look(d xsk.Desc, part int, c *xdpref.Command, r *xdpref.Result, swap bool) int {
	if c.Touch && part == 0 {
		f := x.umem.Data(d)
		if xdpref.Headers(f) {
			r.Matched++
		}
		if swap {
			xdpref.SwapMACs(f)
		}
	}
	if c.Check {
		x.whole = append(x.whole, x.umem.Data(d)...)
	}
	part += int(d.Len)
	if d.Options&xsk.More != 0 {
		return part
	}
	if part == x.size {
		r.Packets++
		if c.Check {
			x.one(x.whole, c, r)
		}
	} else {
		r.Other++
	}
	x.whole = x.whole[:0]
	return 0
}

func (x *xskSide) receive(_ context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	p := x.ports[0]
	rx, fill := p.socket.Rx(), p.queue.Fill()
	part, last := 0, false
	for {
		in := rx.Peek(x.batch)
		if len(in) == 0 {
			if !c.Live || last {
				return nil
			}
			last = stop.Load()
			if fill.NeedWakeup() {
				p.socket.WakeRx()
			}
			continue
		}
		out := fill.Reserve(len(in))
		in = in[:min(len(in), len(out))] // the rings wrap at different times
		for i, d := range in {
			out[i] = d.Addr
			part = x.look(d, part, c, r, false)
		}
		r.Chunks += uint64(len(in))
		fill.Submit(len(in))
		rx.Release(len(in))
		last = false
	}
}

// kick has the kernel send.
func (p *xskPort) kick(r *xdpref.Result) error {
	if !p.socket.NeedWakeTx() {
		return nil
	}
	r.Calls++
	switch e := p.socket.WakeTx(); e {
	case 0, sys.EAGAIN, sys.EBUSY:
		return nil
	default:
		return fmt.Errorf("send on %s: %w", p.name, e)
	}
}

func (x *xskSide) send(_ context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	p := x.ports[0]
	tx, done := p.socket.Tx(), p.queue.Completion()
	frags := x.frags()
	packets := x.slots / frags
	var until time.Time
	if c.Time > 0 {
		until = time.Now().Add(c.Time)
	}
	seq := c.Seq
	for (c.Packets == 0 || r.Packets < c.Packets) && !stop.Load() {
		want := min(x.batch, packets-(p.flight+frags-1)/frags)
		if c.Packets > 0 {
			want = int(min(uint64(want), c.Packets-r.Packets))
		}
		if tx.Room() < want*frags {
			want = 0
		}
		for left := want * frags; left > 0; {
			room := tx.Reserve(left)
			for i := range room {
				k := (want*frags - left + i) % frags
				at := p.base + uint64((p.next*frags+k)*x.chunk)
				room[i] = xsk.Desc{Addr: at, Len: uint32(min(x.size-k*x.chunk, x.chunk))}
				if k+1 < frags {
					room[i].Options = xsk.More
				}
				if k == 0 && (c.Touch || c.Check) {
					f := x.umem.Data(room[i])
					if c.Touch {
						xdpref.WriteHeaders(f, x.size)
					}
					xdpref.Stamp(f, seq)
					seq++
				}
				if k+1 == frags {
					if p.next++; p.next == packets {
						p.next = 0
					}
				}
			}
			tx.Submit(len(room))
			left -= len(room)
		}
		p.flight += want * frags
		r.Packets += uint64(want)
		if err := p.kick(r); err != nil {
			return err
		}
		p.reap(done)
		if !until.IsZero() && !time.Now().Before(until) {
			break
		}
	}
	for p.flight > 0 {
		if err := p.kick(r); err != nil {
			return err
		}
		p.reap(done)
	}
	if c.Touch {
		r.Matched = r.Packets
	}
	r.Chunks = r.Packets * uint64(frags)
	return nil
}

// reap takes back what was sent from the port's own chunks, which come back in the order in which
// they are used.
func (p *xskPort) reap(done *xsk.CompletionRing) {
	n := done.Ready()
	done.Release(n)
	p.flight -= n
}

func (x *xskSide) forward(_ context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error {
	in, out := x.ports[0], x.ports[len(x.ports)-1]
	rx, tx := in.socket.Rx(), out.socket.Tx()
	part, last := 0, false
	for {
		from := rx.Peek(x.batch)
		if len(from) == 0 {
			switch {
			case out.flight > 0:
				if err := out.kick(r); err != nil {
					return err
				}
				recycle(in, out)
			case !c.Live || last:
				return nil
			default:
				last = stop.Load()
				if in.queue.Fill().NeedWakeup() {
					in.socket.WakeRx()
				}
			}
			continue
		}
		to := tx.Reserve(len(from))
		from = from[:min(len(from), len(to))]
		copy(to, from)
		for _, d := range from {
			part = x.look(d, part, c, r, c.Touch)
		}
		r.Chunks += uint64(len(from))
		tx.Submit(len(from))
		rx.Release(len(from))
		out.flight += len(from)
		if err := out.kick(r); err != nil {
			return err
		}
		recycle(in, out)
		last = false
	}
}

// recycle gives what out has sent back to the fill ring of in.
func recycle(in, out *xskPort) {
	fill, done := in.queue.Fill(), out.queue.Completion()
	for {
		back := done.Peek(done.Size())
		room := fill.Reserve(len(back))
		n := copy(room, back)
		if n == 0 {
			return
		}
		fill.Submit(n)
		done.Release(n)
		out.flight -= n
	}
}
