package mem

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

func TestBatches(t *testing.T) {
	p, err := NewPool(PoolOptions{Name: "batch", SlotSize: 100, Slots: 200})
	if err != nil {
		t.Fatal(err)
	}
	hs := make([]Handle, 250)
	if n := p.GetBatch(hs[:150]); n != 150 {
		t.Fatalf("%d of 150 slots", n)
	}
	if n := p.GetBatch(hs[150:]); n != 50 {
		t.Fatalf("%d slots, 50 were left", n)
	}
	if s := p.Stats(); s.InUse != 200 || s.Gets != 200 || s.Exhausted != 1 {
		t.Errorf("%+v", s)
	}
	offs := make([]uint64, 200)
	for i, h := range hs[:200] {
		offs[i] = p.Offset(h)
		if p.Slot(h).Handle() != h || p.Slot(h).Span().Off != offs[i] {
			t.Fatalf("handle %#x is slot %+v at %d", h, p.Slot(h), offs[i])
		}
	}
	slices.Sort(offs)
	for i, o := range offs {
		if o != uint64(i)*128 {
			t.Fatalf("slot %d at %d", i, o)
		}
	}
	again := hs[7]
	if n, err := p.PutBatch(hs[:130]); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	n, err := p.PutBatch([]Handle{again, hs[130], 1 << 20})
	if e := (*slotError)(nil); n != 2 || !errors.As(err, &e) || !errors.Is(err, ErrReleased) ||
		e.Index != int(again.index()) {
		t.Errorf("%d refused: %v", n, err)
	}
	if s := p.Stats(); s.InUse != 69 || s.Puts != 131 || s.Rejected != 2 {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("close with slots out: %v", err)
	}
	if n := p.GetBatch(make([]Handle, 3)); n != 0 {
		t.Errorf("%d slots of a closed pool", n)
	}
	if n, err := p.PutBatch(hs[131:200]); n != 0 || err != nil {
		t.Error(n, err)
	}
	if r := LeakReport(); len(r) != 0 {
		t.Error(r)
	}
}

// Several goroutines take and give batches; no slot is ever out twice.
func TestBatchesRace(t *testing.T) {
	p, err := NewPool(PoolOptions{Name: "batch", SlotSize: 8, Slots: 500})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b := p.Region().All().Bytes()
	var wg sync.WaitGroup
	for id := range 4 {
		wg.Go(func() {
			hs := make([]Handle, 90)
			c := p.Cache()
			defer c.Close()
			for round := range 2000 {
				n := 1 + (round*7+id)%len(hs)
				if round%2 == 0 {
					n = p.GetBatch(hs[:n])
				} else {
					n = c.GetBatch(hs[:n])
				}
				for _, h := range hs[:n] {
					b[p.Offset(h)] = byte(id)
				}
				for _, h := range hs[:n] {
					if b[p.Offset(h)] != byte(id) {
						t.Errorf("slot %d is out twice", h.index())
						return
					}
				}
				if r, err := p.PutBatch(hs[:n]); r != 0 || err != nil {
					t.Error(r, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if s := p.Stats(); s.InUse != 0 || s.Gets != s.Puts {
		t.Errorf("%+v", s)
	}
}

func TestBatchAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	p, err := NewPool(PoolOptions{Name: "batch", SlotSize: 8, Slots: 500})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hs := make([]Handle, 64)
	if n := testing.AllocsPerRun(100, func() { p.PutBatch(hs[:p.GetBatch(hs)]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPoolBatch(b *testing.B) {
	p, err := NewPool(PoolOptions{Name: "batch", SlotSize: 2048, Slots: 4096})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	hs := make([]Handle, 64)
	b.ReportAllocs()
	for b.Loop() {
		p.PutBatch(hs[:p.GetBatch(hs)])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*64), "ns/slot")
}

// A cache gives what it keeps first, and gives nothing of a closed pool.
func TestCacheBatch(t *testing.T) {
	p, err := NewPool(PoolOptions{Name: "batch", SlotSize: 8, Slots: 20, CacheSlots: 4})
	if err != nil {
		t.Fatal(err)
	}
	c := p.Cache()
	var hs [20]Handle
	s, err := c.Get()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Put(s); err != nil {
		t.Fatal(err)
	}
	if n := c.GetBatch(hs[:10]); n != 10 || hs[0].index() != s.Handle().index() {
		t.Errorf("%d slots, the first is %d and not %d", n, hs[0].index(), s.Handle().index())
	}
	if n := c.GetBatch(hs[10:]); n != 10 {
		t.Errorf("%d slots, 10 were left", n)
	}
	if st := p.Stats(); st.InUse != 20 || st.Gets != 21 || st.Puts != 1 {
		t.Errorf("%+v", st)
	}
	if n := c.GetBatch(hs[:1]); n != 0 {
		t.Errorf("%d slots of an empty pool", n)
	}
	if n, err := p.PutBatch(hs[:10]); n != 0 || err != nil {
		t.Error(n, err)
	}
	if n := c.GetBatch(hs[:1]); n != 1 { // and some into the cache
		t.Error(n)
	}
	s, err = c.Get()
	if err != nil {
		t.Fatal(err)
	}
	c.Put(s)
	if err := p.Close(); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	if n := c.GetBatch(hs[1:3]); n != 0 {
		t.Errorf("%d slots of a closed pool", n)
	}
	c.Close()
	if n, err := p.PutBatch(append(hs[10:20:20], hs[0])); n != 0 || err != nil {
		t.Error(n, err)
	}
	if r := LeakReport(); len(r) != 0 {
		t.Error(r)
	}
}

// A handle of a slot that was never taken is refused like one that was released.
func TestHandleNeverTaken(t *testing.T) {
	p := newPool(t, PoolOptions{SlotSize: 64, Slots: 4})
	if n, err := p.PutBatch([]Handle{0, 3}); n != 2 || !errors.Is(err, ErrReleased) {
		t.Errorf("%d of 2 were refused, %v", n, err)
	}
	if err := p.Put(p.Slot(3)); !errors.Is(err, ErrReleased) {
		t.Error(err)
	}
	if p.Slot(0).Check() == nil || p.Stats().InUse != 0 {
		t.Errorf("%+v", p.Stats())
	}
}

// Close waits for a batch that is being taken: its slots count as out.
func TestCloseWaitsForBatch(t *testing.T) {
	p, err := NewPool(PoolOptions{SlotSize: 64, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	hs := []Handle{1 << 32, 1<<32 | 1} // as GetBatch has them before it marks them
	p.takers.Add(1)
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	for !p.shut.Load() {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	select {
	case err := <-closed:
		t.Fatalf("Close returned before: %v", err)
	default:
	}
	p.takeAll(hs)
	p.takers.Add(-1)
	if err := <-closed; !errors.Is(err, ErrInUse) || p.Stats().InUse != 2 {
		t.Errorf("%v; %+v", err, p.Stats())
	}
	if n := p.GetBatch(make([]Handle, 4)); n != 0 {
		t.Errorf("%d slots of a pool that is closed", n)
	}
	if n, err := p.PutBatch(hs); n != 0 || p.Region().Leases() != 0 {
		t.Errorf("%d refused, %v; %d leases", n, err, p.Region().Leases())
	}
}
