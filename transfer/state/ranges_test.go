package state

import (
	"testing"

	"pgregory.net/rapid"
)

// Ranges against a bitmap.
func TestRangesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		var r Ranges
		var model [size]bool
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			lo := rapid.Uint64Range(0, size).Draw(t, "lo")
			hi := rapid.Uint64Range(0, size).Draw(t, "hi")
			r.Add(lo, hi)
			for i := lo; i < hi; i++ {
				model[i] = true
			}
			prefix, sum := uint64(0), uint64(0)
			for prefix < size && model[prefix] {
				prefix++
			}
			for _, b := range model {
				if b {
					sum++
				}
			}
			if r.Prefix() != prefix || r.Sum() != sum {
				t.Fatalf("%v: prefix %d, sum %d: expected %d, %d", r, r.Prefix(), r.Sum(), prefix, sum)
			}
			for i := range r {
				if r[i].lo >= r[i].hi || i > 0 && r[i].lo <= r[i-1].hi {
					t.Fatalf("not in order, or not joined: %v", r)
				}
			}
			at := rapid.Uint64Range(0, size+2).Draw(t, "at")
			max := rapid.Uint64Range(1, size).Draw(t, "max")
			end := rapid.Uint64Range(0, size).Draw(t, "end")
			wantLo := at
			for wantLo < end && model[wantLo] {
				wantLo++
			}
			wantHi := wantLo
			for wantHi < end && !model[wantHi] && wantHi-wantLo < max {
				wantHi++
			}
			lo, hi, ok := r.Gap(at, max, end)
			if ok != (wantLo < wantHi) || ok && (lo != wantLo || hi != wantHi) {
				t.Fatalf("%v: gap from %d of at most %d below %d: %d to %d, %v: expected %d to %d", r, at, max, end, lo,
					hi, ok, wantLo, wantHi)
			}
		}
	})
}

func TestRangesAtTheEnd(t *testing.T) {
	const top = ^uint64(0)
	var r Ranges
	r.Add(top-5, top)
	if lo, hi, ok := r.Gap(0, top, top); !ok || lo != 0 || hi != top-5 {
		t.Errorf("%d to %d, %v", lo, hi, ok)
	}
	if lo, hi, ok := r.Gap(top-10, top, top); !ok || lo != top-10 || hi != top-5 {
		t.Errorf("%d to %d, %v", lo, hi, ok)
	}
}
