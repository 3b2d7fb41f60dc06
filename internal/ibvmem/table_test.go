package ibvmem

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/mem"
)

// hostMemory is host memory, closed when the test ends.
func hostMemory(t testing.TB, name string) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: name, Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func table(t testing.TB, w *world) *Table {
	t.Helper()
	x := New(w.ctx, Options{Tree: bare}).NewTable(w.pd)
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func find(t testing.TB, x *Table, r *mem.Region) *Registration {
	t.Helper()
	reg, err := x.Find(r)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// A region is registered once, by whichever goroutine and however many ask, and leased once.
func TestTableOnce(t *testing.T) {
	w := newWorld(t, "")
	x := table(t, w)
	before := w.counted(t, "ibv_reg_mr")
	var all []*mem.Region
	for i := range 3 * fewRegions {
		all = append(all, hostMemory(t, fmt.Sprint(i)))
	}
	got := make([][]*Registration, 4)
	var wg sync.WaitGroup
	for g := range got {
		wg.Go(func() {
			for _, r := range all {
				reg, err := x.Find(r)
				if err != nil {
					t.Error(err)
				}
				got[g] = append(got[g], reg)
			}
		})
	}
	wg.Wait()
	if n := w.counted(t, "ibv_reg_mr") - before; n != len(all) {
		t.Errorf("%d registrations of %d regions", n, len(all))
	}
	keys := map[uint32]bool{}
	for i, r := range all {
		reg := find(t, x, r)
		for g := range got {
			if got[g][i] != reg {
				t.Fatalf("region %d has two registrations", i)
			}
		}
		if s := reg.SGE(16, 8); s.Addr != reg.mr.Addr()+16 || s.Length != 8 || s.LKey != reg.mr.LKey() {
			t.Errorf("%+v", s)
		} else {
			keys[s.LKey] = true
		}
		if r.Leases() != 1 || reg.Hidden() || reg.Flusher() != nil {
			t.Errorf("region %d: %d leases", i, r.Leases())
		}
	}
	if len(keys) != len(all) {
		t.Errorf("%d keys of %d regions", len(keys), len(all))
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	for i, r := range all {
		if r.Leases() != 0 {
			t.Errorf("region %d is leased by a table that is closed", i)
		}
	}
}

// The table keeps a closed region registered while it is leased, and gives it up when the next
// region comes.
func TestTableSweeps(t *testing.T) {
	for _, many := range []int{0, 2 * fewRegions} { // in a list, and in a map
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			w := newWorld(t, "")
			x := table(t, w)
			for i := range many {
				find(t, x, hostMemory(t, fmt.Sprint(i)))
			}
			r := hostMemory(t, "closed")
			slot, err := r.Lease()
			if err != nil {
				t.Fatal(err)
			}
			reg := find(t, x, r)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			find(t, x, hostMemory(t, "the next"))
			if again := find(t, x, r); again != reg {
				t.Error("a packet in it is under way, and it was registered again")
			}
			slot.Release()
			if again := find(t, x, r); again != reg {
				t.Error("looking it up gives it up")
			}
			w.do(t, "fail ibv_dereg_mr 1 EBUSY")
			find(t, x, hostMemory(t, "one more"))
			select {
			case <-r.Unmapped():
				t.Fatal("the device did not let it go, and it is unmapped")
			default:
			}
			find(t, x, hostMemory(t, "the last"))
			<-r.Unmapped()
			if _, err := x.Find(r); !errors.Is(err, mem.ErrClosed) {
				t.Errorf("after it was given up: %v", err)
			}
		})
	}
}

// A registration that fails changes nothing, and the next attempt is one.
func TestTableFails(t *testing.T) {
	w := newWorld(t, "")
	x := table(t, w)
	first, r := hostMemory(t, "first"), hostMemory(t, "second")
	reg := find(t, x, first)
	w.do(t, "fail ibv_reg_mr 1 ENOMEM")
	if got, err := x.Find(r); !errors.As(err, new(*ibv.Error)) || got != nil || r.Leases() != 0 {
		t.Errorf("%v, %d leases", err, r.Leases())
	}
	if find(t, x, first) != reg || first.Leases() != 1 {
		t.Error("a refusal of one region has changed another")
	}
	if find(t, x, r); r.Leases() != 1 {
		t.Errorf("%d leases", r.Leases())
	}
	far := cardtest.New(t, cardtest.Options{}).Region("tensor", 4096)
	if _, err := x.Find(far); !errors.Is(err, ErrNoWay) || far.Leases() != 0 {
		t.Errorf("memory that nothing reaches: %v, %d leases", err, far.Leases())
	}
	gone := hostMemory(t, "gone")
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Find(gone); !errors.Is(err, mem.ErrClosed) {
		t.Errorf("a region that was closed before: %v", err)
	}
}

// Two ports of one device have a registration each, and the end of one is nothing to the other.
func TestTablesOfOneDevice(t *testing.T) {
	w := newWorld(t, "")
	pd, err := w.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	at := New(w.ctx, Options{Tree: bare})
	a, b := at.NewTable(w.pd), at.NewTable(pd)
	r := hostMemory(t, "both")
	if one, two := find(t, a, r), find(t, b, r); one.SGE(0, 1).LKey == two.SGE(0, 1).LKey || r.Leases() != 2 {
		t.Errorf("%d leases", r.Leases())
	}
	if err := errors.Join(a.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Find(r); err != nil || r.Leases() != 1 {
		t.Errorf("%v, %d leases", err, r.Leases())
	}
	if err := errors.Join(b.Close(), pd.Close()); err != nil {
		t.Fatal(err)
	}
	<-r.Unmapped()
}

// Memory of a card is known as such, with the flush that it takes.
func TestTableOfCard(t *testing.T) {
	w := newWorld(t, "")
	x := table(t, w)
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	if reg := find(t, x, card.Region("tensor", 4096)); !reg.Hidden() || reg.Flusher() != mem.Flusher(card) {
		t.Errorf("%+v", reg)
	}
	if err := x.Close(); err != nil { // before the card's memory goes
		t.Error(err)
	}
}

// BenchmarkFind looks up one region of some.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{1, fewRegions, 8 * fewRegions} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := table(b, newWorld(b, ""))
			var last *mem.Region
			for i := range n {
				last = hostMemory(b, fmt.Sprint(i))
				find(b, x, last)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := x.Find(last); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
