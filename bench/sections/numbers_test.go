package sections

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

// The window says of each number what a list of all numbers would say, also where 32 bits begin
// again.
func TestNumbersAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k numbers
		first := rapid.SampledFrom([]uint32{0, 1, 1 << 31, 1<<32 - 1, 1<<32 - 70}).Draw(t, "first")
		k.beginAt(first)
		seen := map[uint64]bool{}
		top := uint64(first) // one above the highest
		for range rapid.IntRange(1, 300).Draw(t, "packets") {
			n := top
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0: // some are lost
				n += rapid.Uint64Range(0, 200).Draw(t, "lost")
			case 1: // very many
				n += rapid.SampledFrom([]uint64{window - 1, window, window + 1, 3 * window, 1<<31 - 1}).Draw(t, "lost")
			case 2, 3: // one from before
				n -= min(n-uint64(first), rapid.Uint64Range(1, 100).Draw(t, "back"))
			case 4: // one from long before
				n -= min(n-uint64(first), rapid.SampledFrom([]uint64{window - 1, window, window + 1,
					2 * window}).Draw(t, "back"))
			}
			want := fresh
			switch {
			case n >= top:
				top = n + 1
			case top-n > window:
				want = beyond
			case seen[n]:
				want = twice
			default:
				want = late
			}
			if got := k.enter(uint32(n)); got != want {
				t.Fatalf("number %d below %d: %v, expected %v", n, top, got, want)
			}
			if want == fresh || want == late {
				seen[n] = true
			}
			if k.unique != uint64(len(seen)) || k.gaps() != top-uint64(first)-uint64(len(seen)) || !k.check() {
				t.Fatalf("%d different, %d gaps: expected %d, %d", k.unique, k.gaps(), len(seen),
					top-uint64(first)-uint64(len(seen)))
			}
		}
	})
}

// Without a beginning the lowest that comes is the first, whichever comes first.
func TestNumbersBeginWithTheLowest(t *testing.T) {
	for _, first := range []uint32{1000, 1, 1<<32 - 1} {
		var k numbers
		for _, x := range []struct {
			n    uint32
			want arrival
		}{{0, fresh}, {2, fresh}, {1, late}, {1, twice}, {1<<32 - 1, late}, {1<<32 - 1, twice}, {1<<32 - 3, late},
			{3, fresh}} {
			if got := k.enter(first + x.n); got != x.want {
				t.Errorf("%d after %d: %v, expected %v", x.n, first, got, x.want)
			}
		}
		if k.unique != 6 || k.gaps() != 1 || k.late != 3 || k.twice != 2 || k.beyond != 0 || !k.check() {
			t.Errorf("from %d: %d different, %d gaps, %d late, %d twice, %d beyond", first, k.unique, k.gaps(), k.late,
				k.twice, k.beyond)
		}
	}
}

// check reports whether the counts agree with the bits, as long as all numbers are in the window.
func (k *numbers) check() bool {
	if k.next-k.low > window || k.seen == nil {
		return true
	}
	n := 0
	for _, w := range k.seen {
		n += bits.OnesCount64(w)
	}
	return uint64(n) == k.unique
}
