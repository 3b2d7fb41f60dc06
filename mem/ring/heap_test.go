package ring

import (
	"math"
	"strings"
	"testing"
)

func TestCapacity(t *testing.T) {
	for _, c := range []struct{ ask, want int }{{1, 2}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {1000, 1024}, {1024, 1024},
		{1025, 2048}} {
		s, err := NewSPSC[int](c.ask)
		if err != nil || s.Cap() != c.want {
			t.Errorf("NewSPSC(%d): cap %d, %v, want %d", c.ask, s.Cap(), err, c.want)
		}
		p, err := NewMPSC[int](c.ask)
		if err != nil || p.Cap() != c.want {
			t.Errorf("NewMPSC(%d): cap %d, %v, want %d", c.ask, p.Cap(), err, c.want)
		}
		m, err := NewMPMC[int](c.ask)
		if err != nil || m.Cap() != c.want {
			t.Errorf("NewMPMC(%d): cap %d, %v, want %d", c.ask, m.Cap(), err, c.want)
		}
	}
	for _, bad := range []int{0, -1, math.MinInt, MaxCapacity + 1, math.MaxInt} {
		if _, err := NewSPSC[int](bad); err == nil || !strings.Contains(err.Error(), "out of range") {
			t.Errorf("NewSPSC(%d): error %v", bad, err)
		}
		if _, err := NewMPSC[int](bad); err == nil {
			t.Errorf("NewMPSC(%d) was accepted", bad)
		}
		if _, err := NewMPMC[int](bad); err == nil {
			t.Errorf("NewMPMC(%d) was accepted", bad)
		}
	}
	if _, err := NewSPSC[[1 << 16]byte](MaxCapacity); err == nil ||
		!strings.Contains(err.Error(), "lower the capacity") {
		t.Errorf("64 TiB of slots: error %v", err)
	}
	if s, err := NewSPSC[struct{}](8); err != nil || !s.Put(struct{}{}) {
		t.Errorf("items of no size: %v", err)
	}
}

// TestGetClearsSlots looks into the slots: a ring must not keep alive what was got.
func TestGetClearsSlots(t *testing.T) {
	const n = 8
	type item struct {
		n int
		p *int
	}
	put := make([]item, n)
	for i := range put {
		put[i] = item{i, new(int)}
	}
	got := make([]item, n)
	empty := func(what string, v item) {
		t.Helper()
		if v != (item{}) {
			t.Errorf("%s: slot still holds %v", what, v)
		}
	}
	s, _ := NewSPSC[item](n)
	p, _ := NewMPSC[item](n)
	m, _ := NewMPMC[item](n)
	for range 3 { // ends at different offsets, so batches wrap
		for i, r := range []interface {
			PutBatch([]item) int
			GetBatch([]item) int
			Get() (item, bool)
		}{s, p, m} {
			if k := r.PutBatch(put); k != n {
				t.Fatalf("ring %d: PutBatch took %d of %d", i, k, n)
			}
			for range 3 {
				if _, ok := r.Get(); !ok {
					t.Fatalf("ring %d: Get found nothing", i)
				}
			}
			if k := r.GetBatch(got); k != n-3 {
				t.Fatalf("ring %d: GetBatch got %d, want %d", i, k, n-3)
			}
			r.PutBatch(put[:3])
			r.GetBatch(got[:3])
		}
		for i := range n {
			empty("SPSC", s.slots[i])
			empty("MPSC", p.slots[i].v)
			empty("MPMC", m.slots[i].v)
		}
	}
}

func TestHoldsPointers(t *testing.T) {
	check := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: pointers %v, want %v", what, got, want)
		}
	}
	a, _ := NewSPSC[[3]struct {
		a int
		b complex128
	}](2)
	check("plain struct", a.pointers, false)
	b, _ := NewSPSC[struct{ a [2]struct{ s string } }](2)
	check("nested string", b.pointers, true)
	c, _ := NewSPSC[[0]*int](2)
	check("empty array", c.pointers, false)
	d, _ := NewSPSC[any](2)
	check("interface", d.pointers, true)
	e, _ := NewSPSC[uintptr](2)
	check("uintptr", e.pointers, false)
}
