package xsk

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/sys"
)

// memory is a ring in the heap, laid out as the kernel lays out its rings, with both ends of it.
type memory struct {
	b    []byte
	off  sys.XDPRingOffset
	size int
}

func newMemory(n, entry int) *memory {
	// uint64 words, so that everything is aligned as mapped memory is.
	words := make([]uint64, 64+n*entry/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	return &memory{b, sys.XDPRingOffset{Producer: 0, Consumer: 128, Flags: 192, Desc: 256}, n}
}

func (m *memory) word(off uint64) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.b[off])) }

// entry is a copy of entry i, read and written without the code under test.
func (m *memory) entry(i uint32) uint64 {
	return binary.NativeEndian.Uint64(m.b[m.off.Desc+uint64(int(i)%m.size)*8:])
}

func (m *memory) setEntry(i uint32, v uint64) {
	binary.NativeEndian.PutUint64(m.b[m.off.Desc+uint64(int(i)%m.size)*8:], v)
}

// TestProducerModel runs a producer against a kernel that takes entries when it likes, from indices
// near their wrap.
func TestProducerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 1 << rapid.IntRange(0, 6).Draw(t, "size")
		at := rapid.SampledFrom([]uint32{0, 1, 1<<32 - 1, 1<<32 - 40, 1 << 31}).Draw(t, "start")
		m := newMemory(n, 8)
		m.word(m.off.Producer).Store(at)
		m.word(m.off.Consumer).Store(at)
		var p Producer[uint64]
		if err := p.open(m.b, n, m.off); err != nil {
			t.Fatal(err)
		}
		var queue []uint64 // what the kernel has not taken
		next, taken := uint64(1), at
		published := func() {
			if got := m.word(m.off.Producer).Load() - taken; int(got) != len(queue) {
				t.Fatalf("the kernel sees %d entries: expected %d", got, len(queue))
			}
			for i, v := range queue {
				if got := m.entry(taken + uint32(i)); got != v {
					t.Fatalf("entry %d is %d: expected %d", i, got, v)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				batch := make([]uint64, rapid.IntRange(0, 2*n).Draw(t, "batch"))
				for i := range batch {
					batch[i] = next + uint64(i)
				}
				got := p.Put(batch)
				if want := min(len(batch), n-len(queue)); got != want {
					t.Fatalf("put %d of %d with %d of %d in the ring: expected %d", got, len(batch), len(queue), n,
						want)
				}
				queue = append(queue, batch[:got]...)
				next += uint64(got)
			},
			"reserve": func(t *rapid.T) {
				ask := rapid.IntRange(-1, 2*n).Draw(t, "ask")
				room := p.Reserve(ask)
				if len(room) > max(ask, 0) || len(room) > n-len(queue) || ask > 0 && len(queue) < n && len(room) == 0 {
					t.Fatalf("reserved %d of %d with %d of %d in the ring", len(room), ask, len(queue), n)
				}
				for i := range room {
					room[i] = next + uint64(i)
				}
				k := rapid.IntRange(0, len(room)).Draw(t, "submit")
				p.Submit(k)
				queue = append(queue, room[:k]...)
				next += uint64(k)
			},
			"take": func(t *rapid.T) {
				k := rapid.IntRange(0, len(queue)).Draw(t, "take")
				queue, taken = queue[k:], taken+uint32(k)
				m.word(m.off.Consumer).Store(taken)
			},
			"flags": func(t *rapid.T) {
				f := rapid.Uint32Range(0, 3).Draw(t, "flags")
				m.word(m.off.Flags).Store(f)
				if p.NeedWakeup() != (f&1 != 0) {
					t.Fatalf("flags %d: NeedWakeup is %t", f, p.NeedWakeup())
				}
			},
			"": func(t *rapid.T) {
				if p.Room() != n-len(queue) || p.Pending() != len(queue) || p.Size() != n || p.Faults() != 0 {
					t.Fatalf("room %d, pending %d, size %d, faults %d: expected %d, %d, %d, 0", p.Room(), p.Pending(),
						p.Size(), p.Faults(), n-len(queue), len(queue), n)
				}
				published()
			},
		})
	})
}

// TestConsumerModel runs a consumer against a kernel that puts entries in when it likes.
func TestConsumerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 1 << rapid.IntRange(0, 6).Draw(t, "size")
		at := rapid.SampledFrom([]uint32{0, 1, 1<<32 - 1, 1<<32 - 40, 1 << 31}).Draw(t, "start")
		m := newMemory(n, 8)
		m.word(m.off.Producer).Store(at)
		m.word(m.off.Consumer).Store(at)
		var c Consumer[uint64]
		if err := c.open(m.b, n, m.off); err != nil {
			t.Fatal(err)
		}
		var queue []uint64
		next, put := uint64(1), at
		check := func(got []uint64) {
			if !slices.Equal(got, queue[:len(got)]) {
				t.Fatalf("got %v: expected %v", got, queue[:len(got)])
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				for range rapid.IntRange(0, n-len(queue)).Draw(t, "put") {
					m.setEntry(put, next)
					queue = append(queue, next)
					put, next = put+1, next+1
				}
				m.word(m.off.Producer).Store(put)
			},
			"get": func(t *rapid.T) {
				out := make([]uint64, rapid.IntRange(0, 2*n).Draw(t, "out"))
				got := c.Get(out)
				if want := min(len(out), len(queue)); got != want {
					t.Fatalf("got %d of %d: expected %d", got, len(out), want)
				}
				check(out[:got])
				queue = queue[got:]
			},
			"peek": func(t *rapid.T) {
				ask := rapid.IntRange(-1, 2*n).Draw(t, "ask")
				got := c.Peek(ask)
				if len(got) > max(ask, 0) || len(got) > len(queue) || ask > 0 && len(queue) > 0 && len(got) == 0 {
					t.Fatalf("peek %d gave %d of %d", ask, len(got), len(queue))
				}
				check(got)
				k := rapid.IntRange(0, len(got)).Draw(t, "release")
				c.Release(k)
				queue = queue[k:]
			},
			"": func(t *rapid.T) {
				if c.Ready() != len(queue) || c.Faults() != 0 || c.Size() != n {
					t.Fatalf("ready %d, faults %d: expected %d, 0", c.Ready(), c.Faults(), len(queue))
				}
				if got := put - m.word(m.off.Consumer).Load(); int(got) != len(queue) {
					t.Fatalf("the kernel sees %d entries in use: expected %d", got, len(queue))
				}
			},
		})
	})
}

// TestHostileIndices: whatever the kernel's index says, the rings touch only their own entries,
// give at most their size, and count what cannot be true.
func TestHostileIndices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 1 << rapid.IntRange(0, 5).Draw(t, "size")
		pm, cm := newMemory(n, 8), newMemory(n, 16)
		var p Producer[uint64]
		var c Consumer[Desc]
		if p.open(pm.b, n, pm.off) != nil || c.open(cm.b, n, cm.off) != nil {
			t.Fatal("open")
		}
		t.Repeat(map[string]func(*rapid.T){
			"producer": func(t *rapid.T) {
				v := rapid.Uint32().Draw(t, "consumer")
				pm.word(pm.off.Consumer).Store(v)
				could := p.next-v <= uint32(n)
				before := p.Faults()
				if r := p.Room(); r < 0 || r > n || !could && r != 0 || could != (p.Faults() == before) {
					t.Fatalf("consumer at %d, producer at %d of %d: room %d, faults %d", v, p.next, n, r,
						p.Faults()-before)
				}
				if got := p.Put(make([]uint64, n+1)); got > n {
					t.Fatalf("put %d into a ring of %d", got, n)
				}
				p.Submit(n + 5) // nothing was reserved
				if p.next-p.seen > uint32(n) {
					t.Fatalf("%d entries published in a ring of %d", p.next-p.seen, n)
				}
			},
			"consumer": func(t *rapid.T) {
				v := rapid.Uint32().Draw(t, "producer")
				cm.word(cm.off.Producer).Store(v)
				could := v-c.next <= uint32(n)
				before := c.Faults()
				r := c.Ready()
				if r < 0 || r > n || could != (c.Faults() == before) {
					t.Fatalf("producer at %d, consumer at %d of %d: ready %d, faults %d", v, c.next, n, r,
						c.Faults()-before)
				}
				if got := c.Get(make([]Desc, n+1)); got > r {
					t.Fatalf("got %d of %d", got, r)
				}
				c.Release(n + 5)
				if c.seen-c.next > uint32(n) {
					t.Fatal("released more than there was")
				}
			},
		})
	})
}

// TestLayout: offsets of the kernel's that do not fit into the mapping are refused.
func TestLayout(t *testing.T) {
	m := newMemory(8, 8)
	good := m.off
	for i, c := range []struct {
		n int
		o func(o *sys.XDPRingOffset)
	}{
		{0, func(*sys.XDPRingOffset) {}},
		{-8, func(*sys.XDPRingOffset) {}},
		{6, func(*sys.XDPRingOffset) {}},
		{1 << 20, func(*sys.XDPRingOffset) {}},
		{8, func(o *sys.XDPRingOffset) { o.Desc = uint64(len(m.b)) - 8 }},
		{8, func(o *sys.XDPRingOffset) { o.Desc = 1<<64 - 8 }},
		{8, func(o *sys.XDPRingOffset) { o.Desc = 257 }},
		{8, func(o *sys.XDPRingOffset) { o.Producer = uint64(len(m.b)) }},
		{8, func(o *sys.XDPRingOffset) { o.Consumer = 1<<64 - 2 }},
		{8, func(o *sys.XDPRingOffset) { o.Consumer = 1<<64 - 4 }},
		{8, func(o *sys.XDPRingOffset) { o.Flags = 2 }},
		{8, func(o *sys.XDPRingOffset) { o.Flags = uint64(len(m.b)) - 2 }},
	} {
		o := good
		c.o(&o)
		var p Producer[uint64]
		var r Consumer[Desc]
		if p.open(m.b, c.n, o) == nil || r.open(m.b, c.n, o) == nil {
			t.Errorf("case %d: %d entries at %+v were taken", i, c.n, o)
		}
	}
	var p Producer[uint64]
	if err := p.open(m.b, 8, good); err != nil {
		t.Error(err)
	}
}

// TestShut: a ring whose memory is gone is empty and has no room.
func TestShut(t *testing.T) {
	var p TxRing
	var c RxRing
	p.shut()
	c.shut()
	if p.Put(make([]Desc, 3)) != 0 || len(p.Reserve(3)) != 0 || p.Room() != 0 || p.NeedWakeup() ||
		c.Get(make([]Desc, 3)) != 0 || len(c.Peek(3)) != 0 || c.Ready() != 0 {
		t.Error("a ring without memory has something")
	}
	p.Submit(1)
	c.Release(1)
	if p.next != 0 || c.next != 0 {
		t.Error("an index moved")
	}
}

// TestConcurrentEnds: what one goroutine puts in, as the kernel would, another takes out, each
// value once and in order.
func TestConcurrentEnds(t *testing.T) {
	const n, total = 64, 200_000
	m := newMemory(n, 16)
	var p Producer[Desc]
	var c Consumer[Desc]
	if p.open(m.b, n, m.off) != nil || c.open(m.b, n, m.off) != nil {
		t.Fatal("open")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := rand.New(rand.NewPCG(1, 2))
		for next := uint64(0); next < total; {
			room := p.Reserve(1 + r.IntN(n))
			for i := range room {
				room[i] = Desc{Addr: next, Len: uint32(next), Options: uint32(next >> 3)}
				next++
			}
			p.Submit(len(room))
			if len(room) == 0 {
				waitABit()
			}
		}
	}()
	out := make([]Desc, 40)
	for next := uint64(0); next < total; {
		k := c.Get(out)
		for _, d := range out[:k] {
			if d != (Desc{Addr: next, Len: uint32(next), Options: uint32(next >> 3)}) {
				t.Fatalf("entry %d is %+v", next, d)
			}
			next++
		}
		if k == 0 {
			waitABit()
		}
	}
	<-done
}
