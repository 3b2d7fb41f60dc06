package gpumemtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
)

// mover is a region of device memory with a Mover. The Mover is nil where the CPU reaches that
// memory: a check of moves ends there.
func (r *rig) mover(size int) (*mem.Region, mem.Mover) {
	r.Helper()
	x := r.alloc(mem.Device, size)
	mv := x.Mover()
	if moved := mv != nil; moved != r.opaque() || moved != (x.All().Bytes() == nil) {
		r.Fatalf("device memory has a Mover: %v, and bytes for the CPU: %v; opaque is %v", moved,
			x.All().Bytes() != nil, r.opaque())
	}
	return x, mv
}

// over waits for a move by one way or the other.
func (r *rig) over(m mem.Move, err error) {
	r.Helper()
	r.ok(err)
	if rand.IntN(2) == 0 {
		r.ok(m.Wait(always))
		return
	}
	for {
		done, err := m.Done()
		r.ok(err)
		if done {
			return
		}
		runtime.Gosched()
	}
}

// checkMoves is every kind of memory at the other end, lengths where implementations change their
// way, and offsets.
func checkMoves(r *rig) {
	const half = 64 << 10 // of the buffers, so that copies have many pieces
	o := r.h.Options
	for _, bounce := range []int{half, -1} {
		o.Bounce = bounce
		p := r.p
		r.p = r.provider(o)
		x, mv := r.mover(1 << 20)
		if mv == nil {
			return
		}
		n := int(x.Len())
		far := r.alloc(mem.Device, n)
		for _, h := range []*mem.Region{r.alloc(mem.HostPinned, n), r.host(n), far} {
			data, want := noise(3, n), noise(4, n)
			r.put(h, data)
			r.write(x, want)
			for i, k := range []int{n / 2, 3*half + 5, 2 * half, half + 1, half, half - 1, 4097, 64, 1, 0} {
				at, off := i*3, i*11
				r.over(mv.Store(uint64(off), mem.Span{Region: h, Off: uint64(at), Len: uint64(k)}))
				copy(want[off:off+k], data[at:])
				if !r.same(fmt.Sprintf("%d bytes of kind %s stored", k, h.Kind()), r.content(x)[:off+k+64],
					want[:off+k+64]) {
					return
				}
				r.put(h, data)
				back := append([]byte(nil), data...)
				r.over(mv.Load(mem.Span{Region: h, Off: uint64(off), Len: uint64(k)}, uint64(at)))
				copy(back[off:off+k], want[at:])
				if !r.same(fmt.Sprintf("%d bytes of kind %s loaded", k, h.Kind()), r.get(h)[:n], back) {
					return
				}
				r.put(h, data)
			}
			r.same("all of it", r.content(x), want)
		}
		s := r.p.Stats()
		if s.Loads != 27 || s.Stores != 27 || s.Loaded == 0 || s.Loaded != s.Stored || s.Bounced == 0 ||
			s.Bounced*3 != s.Loaded+s.Stored {
			r.Errorf("27 copies each way, a third of other memory, are %+v", s)
		}
		r.p = p
	}
}

// put and get are the bytes of a region of any kind, past its Mover.
func (r *rig) put(x *mem.Region, b []byte) {
	r.Helper()
	if h := x.All().Bytes(); h != nil {
		copy(h, b)
		return
	}
	r.write(x, b)
}

func (r *rig) get(x *mem.Region) []byte {
	r.Helper()
	if h := x.All().Bytes(); h != nil {
		return h
	}
	return r.content(x)
}

// checkModel is random copies that run side by side, against copies in order: those that touch the
// same bytes wait for each other.
func checkModel(r *rig) {
	const n = 96 << 10
	o := r.h.Options
	o.Bounce = 4096
	r.p = r.provider(o)
	x, mv := r.mover(n)
	if mv == nil {
		return
	}
	pinned, other := r.alloc(mem.HostPinned, n), r.host(n)
	regions := []*mem.Region{pinned, other}
	rapid.Check(rapidT{r.TB}, func(t *rapid.T) {
		dev := noise(5, n)
		sides := [][]byte{noise(6, n), noise(7, n)}
		r.write(x, dev)
		for i, h := range regions {
			copy(h.All().Bytes(), sides[i])
		}
		var under []mem.Move
		waitAll := func() {
			for _, m := range under {
				if err := m.Wait(always); err != nil {
					t.Fatal(err)
				}
			}
			under = under[:0]
		}
		for range rapid.IntRange(1, 12).Draw(t, "copies") {
			i := rapid.IntRange(0, 1).Draw(t, "side")
			k := rapid.IntRange(0, n).Draw(t, "length")
			at, off := rapid.IntRange(0, n-k).Draw(t, "at"), rapid.IntRange(0, n-k).Draw(t, "offset")
			span := mem.Span{Region: regions[i], Off: uint64(at), Len: uint64(k)}
			waitAll() // what overlaps waits; disjoint halves go on below
			store := rapid.Bool().Draw(t, "store")
			// In two halves at once: they touch other bytes.
			for _, part := range [][2]int{{0, k / 2}, {k / 2, k}} {
				s, err := span.Sub(uint64(part[0]), uint64(part[1]-part[0]))
				if err != nil {
					t.Fatal(err)
				}
				var m mem.Move
				if store {
					m, err = mv.Store(uint64(off+part[0]), s)
				} else {
					m, err = mv.Load(s, uint64(off+part[0]))
				}
				if err != nil {
					t.Fatal(err)
				}
				under = append(under, m)
			}
			if store {
				copy(dev[off:off+k], sides[i][at:])
			} else {
				copy(sides[i][at:at+k], dev[off:])
			}
		}
		waitAll()
		if !r.same("the device", r.content(x)[:n], dev) || !r.same("pinned memory", pinned.All().Bytes()[:n],
			sides[0]) || !r.same("other memory", other.All().Bytes()[:n], sides[1]) {
			t.FailNow()
		}
	})
}

// rapidT gives rapid what it asks of a test.
type rapidT struct{ testing.TB }

// checkTogether is goroutines with many copies under way each.
func checkTogether(r *rig) {
	const each, part, under = 40, 8 << 10, 8
	workers := 4
	x, mv := r.mover(workers * under * part)
	if mv == nil {
		return
	}
	pinned := r.alloc(mem.HostPinned, int(x.Len()))
	other := r.host(int(x.Len()))
	b, ob := r.bytes(pinned), r.bytes(other)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for round := range each {
				h, hb := pinned, b
				if rng.IntN(4) == 0 {
					h, hb = other, ob
				}
				var moves [under]mem.Move
				start := w * under * part
				seed := noise(uint64(w*1000+round), under*part)
				copy(hb[start:start+under*part], seed)
				for i := range moves {
					off := uint64(start + i*part)
					m, err := mv.Store(off, mem.Span{Region: h, Off: off, Len: part})
					if err != nil {
						r.Error(err)
						return
					}
					moves[i] = m
				}
				if !finish(r, moves[:], rng) {
					return
				}
				clear(hb[start : start+under*part])
				for i := range moves {
					off := uint64(start + i*part)
					m, err := mv.Load(mem.Span{Region: h, Off: off, Len: part}, off)
					if err != nil {
						r.Error(err)
						return
					}
					moves[i] = m
				}
				if !finish(r, moves[:], rng) || !r.same(fmt.Sprintf("worker %d, round %d", w, round),
					hb[start:start+under*part], seed) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// finish ends moves in any order.
func finish(r *rig, moves []mem.Move, rng *rand.Rand) bool {
	for _, i := range rng.Perm(len(moves)) {
		if rng.IntN(2) == 0 {
			done, err := moves[i].Done()
			if err != nil {
				r.Error(err)
				return false
			}
			if done {
				continue
			}
		}
		if err := moves[i].Wait(always); err != nil {
			r.Error(err)
			return false
		}
	}
	return true
}

// checkDropped drops moves: regions are closed all the same, after the copies, and the provider
// uses the events of the moves again.
func checkDropped(r *rig) {
	if _, mv := r.mover(1); mv == nil {
		return
	}
	for start := time.Now(); ; {
		live := r.c.Live()
		x := must(mem.Alloc(mem.Options{Kind: mem.Device, Size: 1 << 20, Provider: r.p}))(r)
		h := must(mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1 << 20, Provider: r.p}))(r)
		for i := range 8 {
			must(x.Mover().Store(uint64(i)<<16, mem.Span{Region: h, Len: 1 << 16}))(r)
		}
		r.ok(h.Close(), x.Close())
		if r.c.Live() == live {
			return // no event was made: those of moves that were dropped came back
		}
		runtime.GC() // finds the moves; the cleanup that takes their events back runs soon after
		if time.Since(start) > 30*time.Second {
			r.Fatalf("%d objects of the context, and more with each copy that is dropped", r.c.Live())
		}
	}
}

// checkBroken is waits that are broken off: the move goes on, and is good.
func checkBroken(r *rig) {
	x, mv := r.mover(8 << 20)
	if mv == nil {
		return
	}
	h := r.alloc(mem.HostPinned, int(x.Len()))
	data := noise(8, int(x.Len()))
	copy(r.bytes(h), data)
	for range 20 {
		m := must(mv.Store(0, h.All()))(r)
		ctx, cancel := context.WithCancel(always)
		cancel()
		if err := m.Wait(ctx); err == nil {
			continue // it was over
		} else if err != ctx.Err() {
			r.Fatalf("the error of a wait that was broken off is %v", err)
		}
		r.ok(m.Wait(r.Context()))
	}
	r.same("stored", r.content(x), data)
}

// checkLost is a device that is lost under copies: each ends once with that, and everything closes.
func checkLost(r *rig) {
	if r.h.Lose == nil {
		return // it cannot be done on purpose
	}
	x, mv := r.mover(1 << 20)
	if mv == nil {
		return
	}
	pinned, other := r.alloc(mem.HostPinned, 1<<20), r.host(1<<20)
	var moves []mem.Move
	for range 8 {
		moves = append(moves, must(mv.Store(0, pinned.All()))(r))
	}
	r.h.Lose(r.TB, r.c)
	lost := 0
	for _, m := range moves {
		if err := m.Wait(always); err != nil {
			r.is("a copy on a lost device", err, gpu.ErrDeviceLost)
			lost++
		}
	}
	for _, h := range []*mem.Region{pinned, other} {
		for i := 0; i < 3; i++ {
			m, err := mv.Store(0, h.All())
			if err == nil {
				err = m.Wait(always)
			}
			if err != nil {
				r.is("a copy on a lost device", err, gpu.ErrDeviceLost)
				lost++
			}
		}
		m, err := mv.Load(h.All(), 0)
		for err == nil {
			var done bool
			if done, err = m.Done(); done {
				break
			}
			runtime.Gosched()
		}
		r.is("a load from a lost device", err, gpu.ErrDeviceLost)
	}
	if lost == 0 {
		r.Error("the device was lost, and no copy says so")
	}
	_, err := mem.Alloc(mem.Options{Kind: mem.Device, Size: 1, Provider: r.p})
	r.is("memory of a lost device", err, gpu.ErrDeviceLost)
	_, err = gpumem.New(r.c, gpumem.Options{})
	r.is("a provider on a lost device", err, gpu.ErrDeviceLost)
	_ = x
}

// checkAllocations counts what Go allocates for copies, in steady state.
func checkAllocations(r *rig) {
	testenv.LeaveOut(r, testenv.WithRace|testenv.WithInvariants, "it allocates for its own checks")
	x, mv := r.mover(1 << 16)
	if mv == nil {
		return
	}
	pinned, other := r.alloc(mem.HostPinned, int(x.Len())), r.host(int(x.Len()))
	for _, h := range []*mem.Region{pinned, other} {
		span := mem.Span{Region: h, Len: 4096}
		round := func() {
			m, err := mv.Store(0, span)
			if err == nil {
				err = m.Wait(always)
			}
			if err == nil {
				m, err = mv.Load(span, 4096)
			}
			for done := false; err == nil && !done; {
				runtime.Gosched() // AllocsPerRun leaves Go one processor
				done, err = m.Done()
			}
			if err != nil {
				r.Fatal(err)
			}
		}
		for range 100 {
			round()
		}
		if n := testing.AllocsPerRun(200, round); n != 0 {
			r.Errorf("a copy to and one from the device with memory of kind %s allocate %v times", h.Kind(), n)
		}
	}
}
