package verbs

import (
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// TestAdapterKeepsRights: a peer that may only read, of an export that others may write, and that
// does not keep to what it was told, is stopped by the adapter.
func TestAdapterKeepsRights(t *testing.T) {
	for _, o := range []Options{{}, {NoWindows: true}} {
		name := "windows"
		if o.NoWindows {
			name = "domains"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "")
			o.Library = w.lib
			f := factory(o, 1)
			var b *Path
			dial := f.New
			f.New = func(t testing.TB, ca, cb setup.Config) (path.Path, path.Path) {
				ca.Rights = path.Read // of b, on a's node
				pa, pb := dial(t, ca, cb)
				b = pb.(*Path)
				return pa, pb
			}
			p := pathtest.NewPair(t, f, 0)
			mine, local := p.A.Region(1<<16), p.B.Region(1<<16)
			e := p.A.Export(mine, both)
			pathtest.Fill(mine.All().Bytes(), 4)
			p.B.MustDo(path.Op{Kind: path.Get, Copies: copyTo(local, e, 0, 1<<16)})
			if i := pathtest.Verify(local.All().Bytes(), 4); i >= 0 {
				t.Fatalf("byte %d that was read is wrong", i)
			}
			pathtest.Fill(local.All().Bytes(), 5)
			r := b.reaches[e.Key()]
			if r.rights != path.Read {
				t.Fatalf("the peer was granted %s, expected read", r.rights)
			}
			r.rights = both // it pretends
			if got := p.B.Do(path.Op{Kind: path.Put, Copies: copyTo(local, e, 0, 1<<16)}); got.Err == nil {
				t.Error("a peer with the right to read wrote")
			}
			if i := pathtest.Verify(mine.All().Bytes(), 4); i >= 0 {
				t.Errorf("byte %d was written", i)
			}
		})
	}
}
