package xdp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/xsk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// queueRig is a Memory and a queue of an interface without a kernel.
type queueRig struct {
	m    *Memory
	home *mem.Pool // in place
	tiny *mem.Pool // slots of 64 bytes in the same region: several in a chunk
	n    *nicQueue
	port *Port
}

func newQueueRig(t testing.TB, chunk int) *queueRig {
	t.Helper()
	g := &queueRig{port: &Port{name: "rig"}}
	g.port.frags.Store(true)
	r, err := mem.Alloc(mem.Options{Name: "home", Size: 50 * chunk})
	if err != nil {
		t.Fatal(err)
	}
	if g.home, err = mem.NewPool(mem.PoolOptions{Name: "home", SlotSize: chunk, Align: chunk, Slots: 48,
		Region: r}); err != nil {
		t.Fatal(err)
	}
	if g.tiny, err = mem.NewPool(mem.PoolOptions{Name: "tiny", SlotSize: 64, Slots: chunk / 32, Region: r,
		Offset: 48 * chunk}); err != nil {
		t.Fatal(err)
	}
	if g.m, err = NewMemory(MemoryOptions{Region: g.home.Region(), Chunk: chunk, Spare: 24}); err != nil {
		t.Fatal(err)
	}
	g.n = &nicQueue{port: g.port, memory: g.m, feed: feed{pool: g.home}}
	if err := g.m.enter(g.n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.m.Close(); err != nil {
			t.Error(err)
		}
		if s := g.home.Stats(); s.InUse > 0 || s.Rejected > 0 {
			t.Errorf("%+v", s)
		}
		if err := errors.Join(g.home.Close(), g.tiny.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// arrives does what the kernel does with a packet: it writes it into chunks. ok is false when there
// are not enough.
func (g *queueRig) arrives(data []byte, offset int) (d []xsk.Desc, ok bool) {
	for at := 0; at < len(data); {
		h, err := g.home.Get()
		if err != nil {
			for i := range d {
				g.leaves(d[i].Addr)
			}
			return nil, false
		}
		a := g.n.fill(h.Handle())
		if at > 0 {
			offset = 256
			if len(data)%3 == 0 { // not where the first one begins
				offset = 320
			}
		}
		k := copy(g.m.bytes[a+uint64(offset):a+g.m.chunk], data[at:])
		d = append(d, xsk.Desc{Addr: a + uint64(offset), Len: uint32(k), Options: xsk.More})
		at += k
	}
	d[len(d)-1].Options = 0
	return d, true
}

// leaves gives a chunk that the kernel has back to the pool.
func (g *queueRig) leaves(addr uint64) {
	i := addr >> g.m.shift
	g.home.PutBatch([]mem.Handle{g.m.origins[i].home})
	g.m.table[i] = idle
	g.n.out--
}

// takeBack gives the chunks that go back to the kernel back to the pool, and those that were
// released.
func (g *queueRig) takeBack() {
	for _, a := range g.n.back {
		g.leaves(a)
	}
	g.n.back = g.n.back[:0]
	g.n.toPools(g.n.returns.take())
}

// Whatever the lengths, the pools and the room in a burst: a packet is delivered byte for byte, or
// dropped for a reason, or stays where it is, and every slot is accounted for.
func TestPlaceModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		chunk := rapid.SampledFrom([]int{2048, 4096}).Draw(rt, "chunk")
		g := newQueueRig(t, chunk)
		size := func(name string) int {
			return rapid.SampledFrom([]int{32, 60, 64, 128, 1000, 2048, 5000}).Draw(rt, name)
		}
		pool := func(name string, size int) *mem.Pool {
			p, err := mem.NewPool(mem.PoolOptions{Name: name, SlotSize: size,
				Slots: rapid.SampledFrom([]int{4, 40, 200}).Draw(rt, name+" slots")})
			if err != nil {
				rt.Fatal(err)
			}
			return p
		}
		spec := engine.RxSpec{Depth: 64}
		switch rapid.IntRange(0, 4).Draw(rt, "mode") {
		case 0:
			spec.Pools = []*mem.Pool{g.home}
		case 1:
			spec.Pools = []*mem.Pool{g.home, g.home}
		case 2:
			spec.Pools = []*mem.Pool{pool("headers", size("header slot")), g.home}
		case 3:
			spec.Pools = []*mem.Pool{pool("packets", size("slot"))}
		case 4:
			spec.Pools = []*mem.Pool{pool("headers", size("header slot")), pool("payload", size("slot"))}
		}
		if len(spec.Pools) == 2 {
			spec.SplitAt = rapid.IntRange(0, spec.Pools[0].SlotSize()).Draw(rt, "split")
		}
		g.port.o.Ring = 2048
		q := g.port.newRx(spec)
		q.whole = q.data() == g.home
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		var held []*burst.Burst
		var want [][]byte
		for range rapid.IntRange(1, 12).Draw(rt, "packets") {
			data := make([]byte, rapid.SampledFrom([]int{14, 60, 61, 300, 1792, 1793, 3000, 3840, 3841, 9000}).Draw(rt,
				"length"))
			for i := range data {
				data[i] = byte(rnd.IntN(256))
			}
			d, ok := g.arrives(data, 256+8*rapid.IntRange(0, 4).Draw(rt, "offset"))
			if !ok {
				break
			}
			b := burst.NewSegmented(1, rapid.SampledFrom([]int{1, 2, 3, 8, 64}).Draw(rt, "room"))
			if rapid.IntRange(0, 3).Draw(rt, "full") == 0 { // there is something in it
				b = burst.NewSegmented(2, rapid.SampledFrom([]int{1, 2, 3, 8, 64}).Draw(rt, "room"))
				b.Builder().Add(burst.NewSource(nil, nil, nil), burst.Segment{Handle: burst.NoHandle})
			}
			had, out, backs := b.Len(), g.n.out, len(g.n.back)
			drops := q.total()
			added, room := q.place(g.n, b, d)
			switch {
			case !room:
				if added != 0 || b.Len() != had || had == 0 || g.n.out != out || len(g.n.back) != backs ||
					q.total() != drops {
					rt.Fatalf("no room: %d packets added to %d, %d", added, had, b.Len())
				}
				b.Release()
				if added, room = q.place(g.n, b, d); !room {
					rt.Fatal("no room in an empty burst")
				}
				had = 0
				if added == 0 && q.total() != drops+1 {
					rt.Fatal("gone without a trace")
				}
			case added == 0 && q.total() != drops+1:
				rt.Fatal("gone without a trace")
			}
			if added == 0 {
				continue
			}
			if b.Len() != had+1 || q.total() != drops {
				rt.Fatalf("%d packets added, %d are there, of which %d were before", added, b.Len(), had)
			}
			held, want = append(held, b), append(want, data)
		}
		for i, b := range held { // all of them are out together
			at := b.Len() - 1
			got := make([]byte, b.PacketLen(at))
			for k := range b.Segments(at) { // no segment may grow beyond its chunk
				if x := b.Builder().Part(at, k); q.whole && x.Source == g.m.source &&
					x.Off%g.m.chunk+uint64(x.Cap) > g.m.chunk {
					rt.Fatalf("segment %d at %d may have %d bytes in chunks of %d", k, x.Off, x.Cap, g.m.chunk)
				}
			}
			if b.CopyTo(got, at) != len(want[i]) || !bytes.Equal(got, want[i]) {
				rt.Fatalf("packet %d of %d bytes is another one, of %d", i, len(want[i]), len(got))
			}
			if len(spec.Pools) == 2 && spec.SplitAt > 0 && len(got) > spec.SplitAt && !q.views() &&
				(b.Role(at, 0) != burst.Header || len(b.Bytes(at, 0)) != spec.SplitAt ||
					b.Role(at, 1) != burst.Payload) {
				rt.Fatalf("packet of %d bytes, split at %d: a %v of %d bytes", len(got), spec.SplitAt, b.Role(at, 0),
					len(b.Bytes(at, 0)))
			}
			b.Release()
		}
		g.takeBack()
		if err := q.Shut(); err != nil {
			rt.Fatal(err)
		}
		for _, p := range spec.Pools {
			if s := p.Stats(); s.InUse != 0 || s.Rejected != 0 {
				rt.Fatalf("pool %s: %+v", p.Name(), s)
			}
			if p != g.home {
				if err := p.Close(); err != nil {
					rt.Fatal(err)
				}
			}
		}
		if g.n.out != 0 || g.n.faults != 0 {
			rt.Fatalf("%d chunks are with the kernel, %d faults", g.n.out, g.n.faults)
		}
	})
}

// total is the number of packets that the queue has dropped.
func (q *rxQueue) total() (n uint64) {
	var s engine.RxStats
	q.Stats(&s)
	return s.Drops.Total()
}

// FuzzDescriptors has a kernel that writes nonsense into the receive ring: nothing outside of the
// memory is touched.
func FuzzDescriptors(f *testing.F) {
	f.Add(uint64(256), uint32(100), uint32(0), uint64(1)<<40, uint32(1), uint32(1))
	f.Add(uint64(2048-1), uint32(2), uint32(1), ^uint64(0), ^uint32(0), uint32(0))
	f.Add(uint64(256), uint32(0), uint32(1), uint64(2048+256), uint32(0), uint32(0)) // pieces without bytes
	f.Add(uint64(256), uint32(1792), uint32(1), uint64(2048+256), uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, a1 uint64, l1, o1 uint32, a2 uint64, l2, o2 uint32) {
		g := newQueueRig(t, 2048)
		g.port.o.Ring = 2048
		q := g.port.newRx(engine.RxSpec{Depth: 64, Pools: []*mem.Pool{g.home}})
		q.whole = true
		if _, ok := g.arrives(make([]byte, 3000), 256); !ok {
			t.Fatal("no chunks")
		}
		b := burst.NewSegmented(4, 8)
		if a1>>g.m.shift != a2>>g.m.shift { // the kernel is trusted not to give one chunk twice
			q.place(g.n, b, []xsk.Desc{{Addr: a1, Len: l1, Options: o1}, {Addr: a2, Len: l2, Options: o2}})
		}
		b.Release()
		q.place(g.n, b, []xsk.Desc{{Addr: a1, Len: l1, Options: o1}})
		b.Release()
		g.takeBack()
		for i := range g.m.table {
			if g.m.table[i]&stateMask == filled {
				g.leaves(uint64(i) << g.m.shift)
			}
		}
	})
}

// What is sent is what the packet says, from where it lies or copied: no descriptor crosses a
// chunk, none names a chunk that another one has, and all memory comes back to whom it belongs.
func TestGatherModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newQueueRig(t, 2048)
		small, err := mem.NewPool(mem.PoolOptions{Name: "small", SlotSize: 300, Slots: 64})
		if err != nil {
			rt.Fatal(err)
		}
		q := &txQueue{port: g.port, nq: g.n, descs: make([]xsk.Desc, 0, 256)}
		if q.sender, err = g.m.addSender(q, g.n); err != nil {
			rt.Fatal(err)
		}
		if q.out, err = engine.NewOutbox((*device)(q), 64, true); err != nil {
			rt.Fatal(err)
		}
		defer q.out.Close()
		home, other := burst.PoolSource(g.home), burst.PoolSource(small)
		tiny := burst.PoolSource(g.tiny)
		again := burst.PoolSource(g.home) // another source of the same pool
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		b := burst.NewSegmented(4, 64)
		var want [][]byte
		for range rapid.IntRange(1, 4).Draw(rt, "packets") {
			var whole []byte
			add := func(s *burst.Source, x burst.Segment) {
				if whole == nil {
					b.Builder().Add(s, x)
				} else {
					b.Builder().AddSegment(s, x)
				}
				p := s.Region().All().Bytes()[x.Off:][:x.Len]
				for i := range p {
					p[i] = byte(rnd.IntN(256))
				}
				whole = append(whole, p...)
			}
			for whole == nil || rapid.Bool().Draw(rt, "more") && len(whole) < 4000 {
				length := uint32(rapid.IntRange(1, 250).Draw(rt, "length"))
				if rapid.IntRange(0, 2).Draw(rt, "elsewhere") == 0 {
					h, err := small.Get()
					if err != nil {
						break
					}
					add(other, burst.Segment{Handle: h.Handle(), Off: small.Offset(h.Handle()), Len: length})
					continue
				}
				if rapid.IntRange(0, 3).Draw(rt, "tiny") == 0 {
					h, err := g.tiny.Get()
					if err != nil {
						break
					}
					add(tiny, burst.Segment{Handle: h.Handle(), Off: g.tiny.Offset(h.Handle()), Len: min(length, 64)})
					continue
				}
				h, err := g.home.Get()
				if err != nil {
					break
				}
				off, src, carry := g.home.Offset(h.Handle()), home, h.Handle()
				if rapid.Bool().Draw(rt, "received") {
					off, src = g.n.fill(h.Handle()), g.m.source
					carry = g.m.handle(off)
					e := &g.m.table[off>>11]
					*e = e.delivered()
					g.n.out--
				}
				off += uint64(rapid.IntRange(0, 500).Draw(rt, "offset"))
				switch rapid.IntRange(0, 3).Draw(rt, "views") {
				case 0: // two views, the second of which carries the slot
					add(again, burst.Segment{Handle: burst.NoHandle, Off: off, Len: 20})
					add(src, burst.Segment{Handle: carry, Off: off + 20, Len: length})
				case 1: // and the first, with a gap
					add(src, burst.Segment{Handle: carry, Off: off, Len: 20})
					add(src, burst.Segment{Handle: burst.NoHandle, Off: off + 30, Len: length})
				default:
					add(src, burst.Segment{Handle: carry, Off: off, Len: length})
				}
			}
			if whole == nil {
				break
			}
			want = append(want, whole)
		}
		used := map[uint64]bool{}
		for i, data := range want {
			had := len(q.descs)
			copied := q.copied
			passed := 0
			if b.Segments(i) == 1 {
				_, passed = q.forwardRun(b, i, i+1, 1<<16)
			}
			if passed > 0 {
				if passed != len(data) {
					rt.Fatalf("%d of %d bytes are passed on", passed, len(data))
				}
				b.Builder().ForgetPart(i, i+1)
			} else if in := q.gather(b, i); !in {
				q.descs = q.descs[:had]
				pieces := (len(data) + 2047) / 2048
				if why := q.cannotCopy(len(data), pieces); why != engine.NumDrops {
					rt.Fatalf("%d bytes: %v", len(data), why)
				}
				if !q.copyOut(b, i, len(data), pieces, 64) {
					rt.Fatal("no spare chunks")
				}
				if q.copied != copied+uint64(len(data)) {
					rt.Fatalf("%d of %d bytes are counted as copied", q.copied-copied, len(data))
				}
			} else {
				b.Builder().ForgetPart(i, i+1)
			}
			if passed == 0 {
				q.enter(had)
			}
			var got []byte
			for k, d := range q.descs[had:] {
				if d.Addr>>11 != (d.Addr+uint64(d.Len)-1)>>11 || used[d.Addr>>11] {
					rt.Fatalf("%d bytes at %d: across chunks, or of another packet's chunk", d.Len, d.Addr)
				}
				used[d.Addr>>11] = true
				if more := d.Options&xsk.More != 0; more != (had+k < len(q.descs)-1) ||
					g.m.table[d.Addr>>11]&lastChunk != 0 == more {
					rt.Fatalf("descriptor %d of %d: more is %v", k, len(q.descs)-had, more)
				}
				got = append(got, g.m.bytes[d.Addr:][:d.Len]...)
			}
			if !bytes.Equal(got, data) {
				rt.Fatalf("%d bytes are to be sent, %d others are", len(data), len(got))
			}
		}
		b.Release() // what was copied
		for _, d := range q.descs {
			if g.m.sender(*g.m.senders.Load(), g.m.table[d.Addr>>11], g.n) != q.sender {
				rt.Fatalf("chunk %d is not sent by its queue", d.Addr>>11)
			}
			c := g.m.unsend(d.Addr >> 11)
			g.m.put(c.src, []mem.Handle{c.handle})
		}
		g.takeBack()
		if s := small.Stats(); s.InUse != 0 || s.Rejected != 0 || g.home.Stats().InUse != 0 ||
			g.tiny.Stats().InUse != 0 || g.tiny.Stats().Rejected != 0 || g.m.spare.Stats().InUse != 0 {
			rt.Fatalf("%+v, %+v, %+v", s, g.home.Stats(), g.m.spare.Stats())
		}
		if err := small.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}
