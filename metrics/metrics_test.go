package metrics

import (
	"errors"
	"math"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// TestLayout: the whole cache line of a metric's word lies inside the metric.
func TestLayout(t *testing.T) {
	for _, m := range []reflect.Type{reflect.TypeFor[Counter](), reflect.TypeFor[Gauge]()} {
		if m.Size() != metricSize {
			t.Errorf("%v takes %d bytes, want %d", m, m.Size(), metricSize)
		}
		n, _ := m.FieldByName("n")
		if n.Offset < 64-8 || m.Size()-n.Offset < 64 {
			t.Errorf("%v: word at %d of %d: its line may be shared", m, n.Offset, m.Size())
		}
	}
	h := reflect.TypeFor[Histogram]()
	first, _ := h.FieldByName("notMin")
	last, _ := h.FieldByName("buckets")
	if first.Offset < 64-8 || h.Size()-(last.Offset+last.Type.Size()) < 64-8 {
		t.Errorf("Histogram: words from %d to %d of %d", first.Offset, last.Offset+last.Type.Size(), h.Size())
	}
	for f := range reflect.TypeFor[HistogramSnapshot]().Fields() {
		if !unicode.IsUpper(rune(f.Name[0])) {
			t.Errorf("HistogramSnapshot is not plain: field %s", f.Name)
		}
	}
}

func TestCounterAndGaugeAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Counter
		var g Gauge
		var count uint64
		var level int64
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if c.Load() != count || g.Load() != level {
					t.Fatalf("counter %d, gauge %d, want %d and %d", c.Load(), g.Load(), count, level)
				}
			},
			"Counter.Add": func(t *rapid.T) { n := rapid.Uint64().Draw(t, "n"); c.Add(n); count += n },
			"Counter.Inc": func(t *rapid.T) { c.Inc(); count++ },
			"Gauge.Add":   func(t *rapid.T) { n := rapid.Int64().Draw(t, "n"); g.Add(n); level += n },
			"Gauge.Set":   func(t *rapid.T) { n := rapid.Int64().Draw(t, "n"); g.Set(n); level = n },
		})
	})
}

// TestReadersSeeGrowth reads a counter and a histogram while their writers work:
// no reader sees a number go back, or a histogram that contradicts itself.
func TestReadersSeeGrowth(t *testing.T) {
	const values = 30_000
	var c Counter
	var h Histogram
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var last, lastCount uint64
			var s HistogramSnapshot
			for lastCount < values {
				if n := c.Load(); n < last {
					t.Errorf("counter went from %d to %d", last, n)
					return
				} else {
					last = n
				}
				h.Snapshot(&s)
				if s.Count < lastCount {
					t.Errorf("count went from %d to %d", lastCount, s.Count)
					return
				}
				lastCount = s.Count
				for i, n := range s.Counts {
					if low, high := Bounds(i); n > 0 && (s.Min > high || s.Max < low) {
						t.Errorf("values from %d to %d counted, but min %d, max %d", low, high, s.Min, s.Max)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	for i := range uint64(values) {
		c.Add(3)
		if i%2 == 0 {
			h.Record(1<<40 + i<<20) // ever larger
		} else {
			h.Record(1<<39 - i<<20) // ever smaller
		}
	}
	wg.Wait()
	if c.Load() != 3*values {
		t.Errorf("counter %d, want %d", c.Load(), 3*values)
	}
}

// TestSecondWriterIsFound: the check of the rule of one writer works, where built in.
func TestSecondWriterIsFound(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants, "built without -tags invariants, which this test is about")
	if runtime.GOMAXPROCS(0) < 2 {
		testenv.Missing(t, "two processors, for two writers at once", errors.New("GOMAXPROCS is 1"))
	}
	var c Counter
	var g Gauge
	var h Histogram
	for name, write := range map[string]func(){
		"Counter":   c.Inc,
		"Gauge":     func() { g.Add(1) },
		"Histogram": func() { h.Record(1) },
	} {
		var found atomic.Bool // by either; the other one need not go on
		var wg sync.WaitGroup
		// On a busy machine the two may take turns for long; the bound is only there to end a test
		// that fails.
		give := time.Now().Add(30 * time.Second)
		for range 2 {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						found.Store(true)
					}
				}()
				for !found.Load() && time.Now().Before(give) {
					for range 1000 {
						write()
					}
				}
			})
		}
		wg.Wait()
		if !found.Load() {
			t.Errorf("%s: two writers were not noticed", name)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	var c Counter
	var g Gauge
	var h Histogram
	var s, e HistogramSnapshot
	v := uint64(1)
	if n := testing.AllocsPerRun(100, func() {
		c.Add(v)
		g.Set(int64(v))
		g.Add(-1)
		h.Record(v)
		v = v*3 + 1
		h.Snapshot(&s)
		s.Quantile(0.99)
		e.Merge(&s)
		if err := s.Sub(&s); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per run", n)
	}
}

func BenchmarkCounterAdd(b *testing.B) {
	var c Counter
	b.ReportAllocs()
	for b.Loop() {
		c.Add(64)
	}
}

func BenchmarkGaugeSet(b *testing.B) {
	var g Gauge
	b.ReportAllocs()
	for b.Loop() {
		g.Set(64)
	}
}

func BenchmarkHistogramRecord(b *testing.B) {
	var h Histogram
	b.ReportAllocs()
	v := uint64(1)
	for b.Loop() {
		v = v*6364136223846793005 + 1442695040888963407
		h.Record(v >> 40)
	}
}

func BenchmarkHistogramSnapshot(b *testing.B) {
	var h Histogram
	for i := range uint64(10_000) {
		h.Record(i * i)
	}
	var s HistogramSnapshot
	b.ReportAllocs()
	for b.Loop() {
		h.Snapshot(&s)
	}
}

func BenchmarkQuantile(b *testing.B) {
	var h Histogram
	for i := range uint64(10_000) {
		h.Record(i * i)
	}
	var s HistogramSnapshot
	h.Snapshot(&s)
	b.ReportAllocs()
	var sum uint64
	for b.Loop() {
		sum += s.Quantile(0.999)
	}
	if sum == math.MaxUint64 {
		b.Log(sum)
	}
}
