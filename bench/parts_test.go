package bench

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
)

func TestParts(t *testing.T) {
	ctx := limit(t)
	v, err := Vec(ctx, VecOptions{Sizes: []int{1000, 300_000}, Pairs: 2, Budget: 100 * time.Microsecond})
	if err != nil || len(v.Rows) != 2*len(vecOps) {
		t.Errorf("vec: %v", err)
	}
	r, err := Ring(ctx, RingOptions{Bursts: []int{1, 8}, Pairs: 2, Items: 500})
	if err != nil || len(r.Rows) != 8 || len(r.Rows[0].Theirs) != 3 {
		t.Errorf("ring: %v, %+v", err, r)
	}
	m, err := Mem(ctx, MemOptions{Samples: 2, Budget: time.Millisecond, Size: 8 << 20})
	if err != nil || len(m.Rows) < 6 {
		t.Errorf("mem: %v, %+v", err, m)
	}
	// Each is a whole file.
	for _, x := range []*paired.Report{v, r, m} {
		var b bytes.Buffer
		if err := x.Write(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := paired.Read(&b); err != nil {
			t.Errorf("%s: %v", x.Bench, err)
		}
	}
}

// A run that is cancelled ends, with what it has.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(limit(t))
	n := 0
	r, err := Ring(ctx, RingOptions{Bursts: []int{1}, Pairs: 2, Items: 500,
		Conditions: Conditions{Progress: func(string) {
			if n++; n == 3 {
				cancel()
			}
		}}})
	if !errors.Is(err, context.Canceled) || len(r.Rows) != 2 {
		t.Errorf("%v, %+v", err, r)
	}
}

// The same seed draws the same seeds for the rows.
func TestSeed(t *testing.T) {
	seeds := func() (v []uint64) {
		r, err := Ring(limit(t), RingOptions{Bursts: []int{8}, Pairs: 1, Items: 100, Conditions: Conditions{Seed: 7}})
		if err != nil || r.Method.Seed != 7 {
			t.Fatal(err)
		}
		for _, x := range r.Rows {
			v = append(v, x.Seed)
		}
		return v
	}
	if a, b := seeds(), seeds(); !slices.Equal(a, b) || a[0] == a[1] {
		t.Errorf("%v, %v", a, b)
	}
}

// A queue that loses, repeats or swaps items fails.
func TestPassFindsWrongItems(t *testing.T) {
	for name, spoil := range map[string]func(i int, v uint64) uint64{
		"lost":     func(i int, v uint64) uint64 { return v + 1 },
		"repeated": func(i int, v uint64) uint64 { return v &^ 1 },
	} {
		q, _, err := newQueue("ring.SPSC")
		if err != nil {
			t.Fatal(err)
		}
		get, n := q.get, 0
		q.get = func(b []uint64) int {
			k := get(b)
			for i := range b[:k] {
				b[i] = spoil(n, b[i])
				n++
			}
			return k
		}
		if _, err := pass(q, 4, 100); !errors.Is(err, paired.ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
