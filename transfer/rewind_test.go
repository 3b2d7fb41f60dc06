package transfer

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/path"
)

// TestRewind cuts random transfers into operations, of which some end with their path, and checks that what is left afterwards is
// exactly what is not in place: each byte once, from and to where it belongs.
func TestRewind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lens := rapid.SliceOfN(rapid.Uint64Range(0, 40), 0, 6).Draw(t, "blocks")
		x := &Transfer{kind: path.Put}
		// Block i lies at 1000*i locally and at 5000*i remotely.
		for i, n := range lens {
			x.copies = append(x.copies, path.Copy{Local: mem.Span{Off: uint64(1000 * i), Len: n}, RemoteOff: uint64(5000 * i)})
			x.bytes += n
		}
		whole := append([]path.Copy(nil), x.copies...)
		inPlace := map[uint64]bool{} // by local offset
		place := func(cs []path.Copy) {
			for _, c := range cs {
				for k := range c.Local.Len {
					off := c.Local.Off + k
					if c.RemoteOff+k != off/1000*5000+off%1000 {
						t.Fatalf("the byte at %d would go to %d", off, c.RemoteOff+k)
					}
					if inPlace[off] {
						t.Fatalf("byte %d is moved twice", off)
					}
					inPlace[off] = true
				}
			}
		}
		for path := range 4 { // that go down under it, but the last
			for !x.all && (path == 3 || rapid.IntRange(0, 4).Draw(t, "go on") > 0) {
				s := slot{start: x.at, bytes: rapid.Uint64Range(min(1, x.bytes-x.at.done), x.bytes-x.at.done).Draw(t, "bytes")}
				cs := x.cut(s.bytes, &s)
				if path == 3 || rapid.Bool().Draw(t, "done") {
					place(cs)
				} else {
					x.breaks(undone{s.start, s.bytes}, false)
				}
			}
			if path < 3 {
				x.rewind()
				if left := x.bytes - x.at.done; left != x.bytes-uint64(len(inPlace)) {
					t.Fatalf("%d bytes are left, %d of %d are in place", left, len(inPlace), x.bytes)
				}
				if x.broken || x.leaving || x.notified {
					t.Fatal("it is not as new")
				}
			}
		}
		for _, c := range whole {
			for k := range c.Local.Len {
				if !inPlace[c.Local.Off+k] {
					t.Fatalf("byte %d is missing", c.Local.Off+k)
				}
			}
		}
	})
}
