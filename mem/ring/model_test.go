package ring

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// heapRing is what the three heap rings have in common.
type heapRing[T any] interface {
	Put(T) bool
	PutBatch([]T) int
	Get() (T, bool)
	GetBatch([]T) int
	Len() int
	Cap() int
}

// heapRings makes one of each, with tickets from start on.
func heapRings[T any](tb interface{ Fatal(...any) }, capacity int, start uint64) map[string]heapRing[T] {
	s, err := newSPSC[T](capacity, start)
	if err != nil {
		tb.Fatal(err)
	}
	p, err := newMPSC[T](capacity, start)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := newMPMC[T](capacity, start)
	if err != nil {
		tb.Fatal(err)
	}
	return map[string]heapRing[T]{"SPSC": s, "MPSC": p, "MPMC": m}
}

// starts are first tickets: the usual one, and some just before the wrap of 2^64.
var starts = rapid.OneOf(
	rapid.Just(uint64(0)),
	rapid.Uint64Range(math.MaxUint64-80, math.MaxUint64),
	rapid.Uint64(),
)

// TestHeapRingsAreQueues runs random calls against a slice. In one goroutine all
// answers are exact: full at exactly Cap items, empty at none, batches as large as
// possible.
func TestHeapRingsAreQueues(t *testing.T) {
	for name := range heapRings[uint64](t, 1, 0) {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			capacity := rapid.IntRange(1, 20).Draw(t, "capacity")
			r := heapRings[uint64](t, capacity, starts.Draw(t, "start"))[name]
			if r.Cap() < capacity {
				t.Fatalf("Cap %d, asked for %d", r.Cap(), capacity)
			}
			var model []uint64
			next := uint64(1)
			t.Repeat(map[string]func(*rapid.T){
				"": func(t *rapid.T) {
					if r.Len() != len(model) {
						t.Fatalf("Len %d, want %d", r.Len(), len(model))
					}
				},
				"Put": func(t *rapid.T) {
					ok := r.Put(next)
					if ok != (len(model) < r.Cap()) {
						t.Fatalf("Put with %d of %d items answered %v", len(model), r.Cap(), ok)
					}
					if ok {
						model = append(model, next)
					}
					next++
				},
				"PutBatch": func(t *rapid.T) {
					vs := make([]uint64, rapid.IntRange(0, 2*r.Cap()).Draw(t, "n"))
					for i := range vs {
						vs[i] = next
						next++
					}
					n := r.PutBatch(vs)
					if want := min(len(vs), r.Cap()-len(model)); n != want {
						t.Fatalf("PutBatch of %d with %d of %d items took %d, want %d", len(vs), len(model), r.Cap(), n,
							want)
					}
					model = append(model, vs[:n]...)
				},
				"Get": func(t *rapid.T) {
					v, ok := r.Get()
					if ok != (len(model) > 0) {
						t.Fatalf("Get with %d items answered %v", len(model), ok)
					}
					if !ok {
						if v != 0 {
							t.Fatalf("Get of nothing returned %d", v)
						}
						return
					}
					if v != model[0] {
						t.Fatalf("Get returned %d, want %d", v, model[0])
					}
					model = model[1:]
				},
				"GetBatch": func(t *rapid.T) {
					dst := make([]uint64, rapid.IntRange(0, 2*r.Cap()).Draw(t, "n"))
					n := r.GetBatch(dst)
					if want := min(len(dst), len(model)); n != want {
						t.Fatalf("GetBatch of %d with %d items got %d, want %d", len(dst), len(model), n, want)
					}
					if d := cmp.Diff(append([]uint64{}, model[:n]...), append([]uint64{}, dst[:n]...)); d != "" {
						t.Fatalf("GetBatch (-want +got):\n%s", d)
					}
					for i, v := range dst[n:] {
						if v != 0 {
							t.Fatalf("GetBatch wrote beyond its answer at %d", n+i)
						}
					}
					model = model[n:]
				},
			})
		}))
	}
}

// TestHeapRingsWrap crosses 2^64 at every offset and fill, exhaustively.
func TestHeapRingsWrap(t *testing.T) {
	const capacity = 4
	for name := range heapRings[int](t, 1, 0) {
		for before := range uint64(3 * capacity) {
			for fill := 1; fill <= capacity; fill++ {
				for batch := range 2 {
					where := fmt.Sprintf("%s from 2^64-%d, %d at a time, batch %d", name, before, fill, batch)
					r := heapRings[int](t, capacity, -before)[name]
					vs, dst := make([]int, fill), make([]int, fill)
					for v := 0; v < 8*capacity*fill; v += fill {
						for i := range vs {
							vs[i] = v + i
						}
						if batch == 1 {
							if n := r.PutBatch(vs); n != fill {
								t.Fatalf("%s: at %d PutBatch took %d", where, v, n)
							}
						} else {
							for _, x := range vs {
								if !r.Put(x) {
									t.Fatalf("%s: Put(%d) found no room", where, x)
								}
							}
						}
						if fill == capacity && r.Put(-1) {
							t.Fatalf("%s: at %d a full ring took one more", where, v)
						}
						if batch == 1 {
							if n := r.GetBatch(dst); n != fill {
								t.Fatalf("%s: at %d GetBatch got %d", where, v, n)
							}
						} else {
							for i := range dst {
								dst[i], _ = r.Get()
							}
						}
						if d := cmp.Diff(vs, dst); d != "" {
							t.Fatalf("%s: at %d (-want +got):\n%s", where, v, d)
						}
						if x, ok := r.Get(); ok {
							t.Fatalf("%s: an empty ring gave %d", where, x)
						}
					}
				}
			}
		}
	}
}
