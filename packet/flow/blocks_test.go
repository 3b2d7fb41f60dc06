package flow_test

import (
	"slices"
	"testing"

	"github.com/penstock-io/penstock/packet/flow"
	"pgregory.net/rapid"
)

func TestBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Uint16().Draw(t, "lo")
		hi := rapid.Uint16Range(lo, 65535).Draw(t, "hi")
		all := flow.Blocks(flow.Some(flow.Range{Lo: lo, Hi: hi}))
		if len(all) > 30 {
			t.Fatalf("%d blocks", len(all))
		}
		ports := 0
		for _, b := range all {
			ports += int(^b.Mask) + 1
		}
		if ports != int(hi)-int(lo)+1 {
			t.Fatalf("%d ports in the blocks of %d-%d", ports, lo, hi)
		}
		for _, p := range append(rapid.SliceOfN(rapid.Uint16(), 50, 50).Draw(t, "ports"), lo-1, lo, hi, hi+1) {
			in := slices.ContainsFunc(all, func(b flow.Block) bool { return p&b.Mask == b.Value })
			if want := lo <= p && p <= hi; in != want {
				t.Fatalf("port %d is in a block of %d-%d: %t", p, lo, hi, in)
			}
		}
	})
}
