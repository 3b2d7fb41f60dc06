package path

import (
	"fmt"
	"runtime"
	"testing"
)

// replaceOne revokes an export and adds one of the same memory, as the owner of a file that changed
// does.
func replaceOne(t testing.TB, x *Exports, e *Export) *Export {
	x.Revoke(e)
	x.Retire(e)
	return add(t, x, e.Span(), Read)
}

// TestExportsChangeInConstantWork replaces exports of a table of 64 and of one of 100,000 and
// counts the bytes that a change allocates: what copies the table allocates as much as the table
// has.
func TestExportsChangeInConstantWork(t *testing.T) {
	r := region(t, 4096)
	for _, n := range []int{64, 100_000} {
		var x Exports
		all := make([]*Export, n)
		for i := range all {
			all[i] = add(t, &x, r.All(), Read)
		}
		const changes = 2000
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range changes {
			all[i%n] = replaceOne(t, &x, all[i%n])
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / changes; each > 1024 {
			t.Errorf("a change in a table of %d exports allocates %d bytes, expected at most 1024", n, each)
		}
		if live := x.All(); len(live) != n {
			t.Errorf("%d exports of %d are live", len(live), n)
		}
		for _, e := range all {
			if got, err := x.Lookup(e.Key()); got != e {
				t.Fatalf("lookup of a live export: %v", err)
			}
		}
		for _, e := range all {
			x.Revoke(e)
			x.Retire(e)
		}
		if x.used > uint32(n) || len(x.free) != n {
			t.Errorf("%d indexes are in use and %d free after %d changes of %d exports", x.used, len(x.free), changes,
				n)
		}
	}
}

// BenchmarkExportsReplace replaces one export of a table.
func BenchmarkExportsReplace(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var x Exports
			r := region(b, 4096)
			all := make([]*Export, n)
			for i := range all {
				all[i] = add(b, &x, r.All(), Read)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				all[i%n] = replaceOne(b, &x, all[i%n])
				i++
			}
		})
	}
}
