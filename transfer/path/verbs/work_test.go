package verbs

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
)

// TestWholeBatches has lists of as many blocks as one turn posts, which end while others fill what
// may be under way: the lists of operations hold none that ended, whose slot the next operation
// takes.
func TestWholeBatches(t *testing.T) {
	const ahead, block = 64 << 10, 512
	for _, blocks := range []int{batchMax - 1, batchMax, batchMax + 1, 2 * batchMax} {
		t.Run(fmt.Sprint(blocks), func(t *testing.T) {
			w := newWorld(t, "")
			r := newRig(t, w, Options{Tuning: Tuning{Ahead: Bounds{ahead, ahead}}}, 1)
			const size = 1 << 20
			local := r.A.Region(size)
			pathtest.Fill(local.All().Bytes(), 7)
			first, second := r.B.Export(r.B.Region(size), both), r.B.Export(r.B.Region(size), both)
			r.A.MustDo(path.Op{Kind: path.Put, Copies: copyTo(local, first, 0, 1)}) // the key is known from here on
			list := func(e *path.Export) []path.Copy {
				copies := make([]path.Copy, blocks)
				for i := range copies {
					off := uint64(i * 2 * block)
					copies[i] = path.Copy{Local: mem.Span{Region: local, Off: off, Len: block}, Key: e.Key(),
						RemoteOff: off}
				}
				return copies
			}
			large := func() path.Op { return path.Op{Kind: path.Put, Copies: copyTo(local, first, 512<<10, 256<<10)} }
			res := r.A.Post(path.Op{Kind: path.Put, Copies: list(first)}, large(), large())
			for turn := 0; slices.ContainsFunc(res, func(x *pathtest.Result) bool { return x.Times == 0 }); turn++ {
				if r.A.Poll(); turn < 8 {
					// the slot of what ended is used again, by what has to wait for a key, then by
					// what has not
					e := first
					if turn == 0 {
						e = second
					}
					res = append(res, r.A.Post(path.Op{Kind: path.Put, Copies: list(e)})...)
				}
				for k := range r.a.works {
					if w := &r.a.works[k]; (!w.used || w.done) && w.list != nil {
						t.Fatalf("slot %d is in a list of operations, and its operation is over", k)
					}
				}
				r.B.Poll()
				if turn > 100_000 {
					t.Fatalf("nothing more happens\n%s", r.Dump())
				}
			}
			for _, x := range res {
				if x.Event.Err != nil {
					t.Error(x.Event.Err)
				}
			}
			for _, e := range []*path.Export{first, second} {
				for _, c := range list(e) {
					got := e.Span().Bytes()[c.RemoteOff : c.RemoteOff+block]
					if !slices.Equal(got, c.Local.Bytes()) {
						t.Fatalf("wrong bytes at %d", c.RemoteOff)
					}
				}
			}
		})
	}
}
