package stream

import (
	"testing"

	"pgregory.net/rapid"
)

// The ledger says of any order of numbers, with repetitions, what a list of them says.
func TestLedgerAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k ledger
		for range 2 { // again after a reset
			seen, highest := map[uint32]bool{}, int64(-1)
			base := rapid.SampledFrom([]uint32{0, 1<<pageShift - 20, MaxPackets - 40}).Draw(t, "base")
			for _, d := range rapid.SliceOfN(rapid.Uint32Range(0, 39), 1, 100).Draw(t, "numbers") {
				seq, want := base+d, fresh
				switch {
				case seen[seq]:
					want = twice
				case int64(seq) < highest:
					want = late
				}
				if got := k.enter(seq); got != want {
					t.Fatalf("number %d: %d, want %d", seq, got, want)
				}
				seen[seq] = true
				highest = max(highest, int64(seq))
			}
			if k.count != uint64(len(seen)) || int64(k.next) != highest+1 {
				t.Fatalf("%d numbers below %d; want %d below %d", k.count, k.next, len(seen), highest+1)
			}
			if k.check(0, uint64(k.next)) != nil || k.check(0, uint64(k.next)-1) == nil {
				t.Fatal("check")
			}
			k.reset()
			if k.count != 0 || k.next != 0 || k.check(0, 0) != nil {
				t.Fatal("reset")
			}
		}
	})
}

func TestLedgerBounds(t *testing.T) {
	var whole ledger // every number has a bit of its own
	for seq := range uint32(3 << pageShift) {
		if whole.enter(seq) != fresh {
			t.Fatalf("number %d came before", seq)
		}
	}
	var k ledger
	for _, seq := range []uint32{MaxPackets, 1<<32 - 1} {
		if k.enter(seq) != beyond {
			t.Errorf("number %d was taken", seq)
		}
	}
	if len(k.seen) != 0 {
		t.Error("a number that is out of bounds took memory")
	}
}

func TestCountsCheck(t *testing.T) {
	good := Counts{Arrived: 10, Received: 5, Duplicates: 2, Damaged: 1, Foreign: 1, Stale: 1}
	if err := good.check(5); err != nil {
		t.Error(err)
	}
	if good.check(4) == nil {
		t.Error("more received than sent")
	}
	good.Arrived++
	if good.check(5) == nil {
		t.Error("a packet in no count")
	}
}
