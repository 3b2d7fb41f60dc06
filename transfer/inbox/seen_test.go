package inbox

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSeen(t *testing.T) {
	var s Seen
	for _, n := range []uint64{5, 1, 4, SeenSpan + 5, 6, 1 << 40, math.MaxUint64 - 3, math.MaxUint64} {
		if !s.First(n) {
			t.Errorf("%d was not seen before", n)
		}
	}
	if s.First(math.MaxUint64-3) || s.First(math.MaxUint64) {
		t.Error("a repeated number counts as new")
	}
	// A large transfer may end after very many small ones that began later.
	if !s.First(7) {
		t.Error("an old number was refused")
	}
	s = Seen{}
	seenBefore := map[uint64]bool{}
	rng := rand.New(rand.NewPCG(3, 4))
	base := uint64(0)
	for range 200000 {
		base += uint64(rng.IntN(3))
		n := base + uint64(rng.IntN(SeenSpan/4))
		if got := s.First(n); got == seenBefore[n] {
			t.Fatalf("%d: first is %v", n, got)
		}
		seenBefore[n] = true
	}
}
