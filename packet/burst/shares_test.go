package burst

import (
	"fmt"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"pgregory.net/rapid"
)

// TestSharesModel clones bursts, also clones of clones and by two Shares, moves packets between
// them and releases them, in any order. Each piece of memory goes back to its owner when no burst
// refers to it any more, once and not before.
func TestSharesModel(t *testing.T) {
	region, err := mem.Alloc(mem.Options{Name: "shares", Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	rapid.Check(t, func(t *rapid.T) {
		var errs []string
		owners, sources := make([]*owner, 3), make([]*Source, 3)
		for i := range owners {
			owners[i] = &owner{name: fmt.Sprint("owner ", i), out: map[Handle]bool{}, next: Handle(i) << 16,
				errs: &errs}
			sources[i] = NewSource(region, region.All().Bytes(), owners[i])
		}
		shares := []*Shares{NewShares(rapid.IntRange(1, 12).Draw(t, "pieces")), NewShares(12)}
		bursts := []*Burst{NewSegmented(8, 12), NewSegmented(8, 12), NewSegmented(8, 12), NewSegmented(3, 4)}
		check := func() {
			held := map[Handle]bool{} // by offset, which says which piece a segment is
			for _, b := range bursts {
				for i := range b.Len() {
					for k := range b.Segments(i) {
						if p := b.Builder().Part(i, k); p.Handle != NoHandle {
							held[Handle(p.Off)] = true
						}
					}
				}
			}
			out := 0
			for _, o := range owners {
				out += len(o.out)
				for h := range o.out {
					if !held[h] {
						t.Fatalf("%s misses %d, and no burst refers to it", o.name, h)
					}
				}
			}
			if out != len(held) || len(errs) > 0 {
				t.Fatalf("%d pieces in bursts, %d out; %v", len(held), out, errs)
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			b, c := bursts[rapid.IntRange(0, 3).Draw(t, "burst")], bursts[rapid.IntRange(0, 3).Draw(t, "other")]
			switch op := rapid.SampledFrom([]string{"add", "add", "add", "clone", "clone", "clone", "move", "take",
				"truncate", "part", "release"}).Draw(t, "op"); op {
			case "add":
				x := rapid.IntRange(0, 2).Draw(t, "owner")
				h := owners[x].give()
				g := Segment{Handle: h, Off: uint64(h), Len: 10, Cap: 20, Headroom: 5}
				if more := rapid.Bool().Draw(t, "segment"); !(more && b.Builder().AddSegment(sources[x], g) || !more &&
					b.Builder().Add(sources[x], g) >= 0) {
					delete(owners[x].out, h)
				}
			case "clone":
				s := shares[rapid.IntRange(0, 1).Draw(t, "shares")]
				need, cells := 0, len(s.free)
				for k := range b.segs {
					if b.segs[k].handle != NoHandle && !s.owns(b.sources[b.segs[k].src]) {
						need++
					}
				}
				want := b != c && c.Len() == 0 && b.Len() <= c.Cap() && b.SegmentCount() <= c.SegmentRoom() &&
					(need <= cells || b.Len() == 0)
				if got := s.Clone(b, c); got != want {
					t.Fatalf("Clone is %v, want %v", got, want)
				}
				if !want {
					break
				}
				for i := range b.Len() {
					if b.Segments(i) != c.Segments(i) {
						t.Fatalf("packet %d has %d segments, its clone %d", i, b.Segments(i), c.Segments(i))
					}
					for k := range b.Segments(i) {
						p, q := b.Builder().Part(i, k), c.Builder().Part(i, k)
						if p != q || !p.Source.Shared() || p.Headroom != 0 || p.Cap != p.Len {
							t.Fatalf("packet %d segment %d: %+v and %+v", i, k, p, q)
						}
					}
				}
			case "move":
				b.MoveTo(c)
			case "take":
				if b.Len() > 0 && b != c {
					b.Take(c, rapid.IntRange(0, b.Len()-1).Draw(t, "packet"))
				}
			case "truncate":
				b.Truncate(rapid.IntRange(0, 8).Draw(t, "to"))
			case "part":
				if n := b.Len(); n > 0 {
					b.Builder().ReleasePart(rapid.IntRange(0, n-1).Draw(t, "from"), n)
				}
			case "release":
				b.Release()
			}
			check()
		}
		for _, b := range bursts {
			b.Release()
		}
		check()
		for i, s := range shares {
			if len(s.free) != len(s.entries) {
				t.Fatalf("shares %d: %d of %d entries are free at the end", i, len(s.free), len(s.entries))
			}
		}
	})
}

// TestCloneViews: each of the two has its own lengths and what is known of its packets, over the
// same bytes, and nothing to write before or behind.
func TestCloneViews(t *testing.T) {
	p := newPool(t, 4)
	a, b := New(4), New(4)
	fill(t, a, p, PoolSource(p), 2)
	a.Builder().SetFlow(1, 9)
	a.Builder().SetHash(1, 7)
	s := NewShares(4)
	if !s.Clone(a, b) {
		t.Fatal("no clone")
	}
	n := b.PacketLen(0)
	if hash, ok := b.Hash(1); b.Len() != 2 || b.Flow(1) != 9 || hash != 7 || !ok ||
		&a.Bytes(0, 0)[0] != &b.Bytes(0, 0)[0] {
		t.Error("the clone is another one")
	}
	if b.SetLen(0, 0, n+1) || b.Prepend(0, 1) || a.Prepend(0, 1) {
		t.Error("a packet can grow over shared bytes")
	}
	if !b.TrimFront(0, 1) || a.PacketLen(0) != n || b.PacketLen(0) != n-1 {
		t.Error("lengths are shared")
	}
	a.Release()
	if used := p.Stats().InUse; used != 2 {
		t.Errorf("%d slots in use, a clone has 2", used)
	}
	b.Release()
	if used := p.Stats().InUse; used != 0 {
		t.Errorf("%d slots in use at the end", used)
	}
}

// TestCloneAllocations: a burst to two consumers, in a steady state.
func TestCloneAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	p := newPool(t, 64)
	src := PoolSource(p)
	a, b, s := New(64), New(64), NewShares(64)
	var hs [64]Handle
	if n := testing.AllocsPerRun(100, func() {
		a.Builder().AddSlots(src, p, hs[:p.GetBatch(hs[:])], nil, Segment{Len: 60})
		if !s.Clone(a, b) {
			t.Fatal("no clone")
		}
		a.Release()
		b.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCloneConsumers: two goroutines release the two halves at the same time.
func TestCloneConsumers(t *testing.T) {
	p := newPool(t, 64)
	src, s := PoolSource(p), NewShares(64)
	a, b := New(64), New(64)
	var to, done sync.WaitGroup
	next := make(chan struct{})
	done.Add(1)
	go func() {
		defer done.Done()
		for range next {
			b.Release()
			to.Done()
		}
	}()
	for range 2000 {
		fill(t, a, p, src, 64)
		if !s.Clone(a, b) {
			t.Fatal("no clone: not everything came back")
		}
		to.Add(1)
		next <- struct{}{}
		a.Release()
		to.Wait()
	}
	close(next)
	done.Wait()
}
