package tcp

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestNeeds opens a path of each shape and moves bytes both ways: it takes no more descriptors than
// Driver.Needs says, and no more memory.
func TestNeeds(t *testing.T) {
	for _, c := range []struct {
		streams, window int
		sealed          bool
	}{{0, 0, false}, {1, 1, false}, {maxStreams, maxWindow, false}, {maxStreams, 0, true}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			local, err := mem.Alloc(mem.Options{Name: "needs", Size: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer local.Close()
			key := path.Key{Secret: 1} // of nothing: the frames go their way all the same
			cfg := setup.Config{Exports: new(path.Exports), Rights: path.Read | path.Write, Streams: c.streams,
				Window: c.window}
			if c.sealed {
				cfg.Secret = aSecret()
			}
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			files := countFiles(t)
			pa, pb := dialPair(t, Options{}, cfg, cfg)
			defer pa.Close()
			defer pb.Close()
			copies := []path.Copy{{Local: local.All(), Key: key}}
			for _, p := range []*Path{pa, pb} {
				for i, ops := 0, p.window; i < ops; i++ {
					if _, err := p.Post([]path.Op{{Kind: path.Get, Token: uint64(i), Copies: copies}}); err != nil {
						break
					}
				}
			}
			var events [64]path.Event
			for range 2000 {
				pa.Poll(events[:])
				pb.Poll(events[:])
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			n := New(Options{}).Needs(&cfg)
			if got := countFiles(t) - files; got > 2*n.Descriptors {
				t.Errorf("two sides have %d descriptors, each should need %d", got, n.Descriptors)
			}
			if got := after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc); got > 2*n.Memory {
				t.Errorf("two sides take %d bytes of the heap, each should need %d", got, n.Memory)
			} else {
				t.Logf("two sides: %d of %d bytes, %d of %d descriptors", got, 2*n.Memory, countFiles(t)-files,
					2*n.Descriptors)
			}
		})
	}
}
