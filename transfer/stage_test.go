package transfer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/path"
)

// anyMemory is host memory or that of a device, with its bytes as a test sees them.
func anyMemory(t testing.TB, d *fakeDevice, size int) (*mem.Region, []byte) {
	if d != nil {
		return d.region(size)
	}
	r := region(t, size)
	return r, r.All().Bytes()[:size]
}

func fillBytes(b []byte, seed uint64) {
	x := rand.New(rand.NewPCG(seed, seed))
	for i := range b {
		b[i] = byte(x.Uint32())
	}
}

// TestStaged puts into and gets from memory of devices, at either side and at both.
func TestStaged(t *testing.T) {
	for _, name := range paths {
		for _, where := range []string{"local", "remote", "both"} {
			for _, size := range []int{0, 1, 4097, 1 << 20, 9<<20 + 12345} {
				t.Run(fmt.Sprintf("%s/%s/%d", name, where, size), func(t *testing.T) {
					var da, db *fakeDevice
					if where != "remote" {
						da = newFakeDevice(t, "card of a")
					}
					if where != "local" {
						db = newFakeDevice(t, "card of b")
					}
					p := newPair(t, Options{})
					src, sb := anyMemory(t, da, size+64)
					dst, rb := anyMemory(t, db, size+64)
					back, bb := anyMemory(t, da, size+64)
					fillBytes(sb, 7)
					export(t, p.b, dst, "dst", path.Read|path.Write)
					rem := lookup(t, p.ab, "dst")
					if rem.Desc.Device != (db != nil) {
						t.Fatalf("described as %+v", rem.Desc)
					}
					local, _ := src.Span(1, uint64(size))
					x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(3, local)},
						PutOptions{Paths: []string{name}, Msg: []byte("hi")})
					wait(t, x, err)
					if !bytes.Equal(rb[3:3+size], sb[1:1+size]) {
						t.Fatal("the bytes did not arrive")
					}
					e := x.Explain()
					if x.Progress() != 1 || e.Path != name || e.Moved != uint64(size) {
						t.Errorf("progress %v, %v", x.Progress(), e)
					}
					in := <-p.heard
					if in.ID != x.ID() || in.Bytes != uint64(size) || in.Kind != path.Put || string(in.Msg) != "hi" ||
						in.Peer != p.ba {
						t.Errorf("the receiver heard %+v", in)
					}
					for _, side := range []struct {
						d *fakeDevice
						s Staging
					}{{da, e.Local}, {db, e.Remote}} {
						want := Staging{}
						if side.d != nil && size > 0 {
							want = Staging{Device: side.d.name, Bytes: uint64(size), SlotSize: side.s.SlotSize,
								Slots: side.s.Slots}
							if side.s.SlotSize == 0 || side.s.Slots < 1 || side.s.Slots > bounce.AtOnce {
								t.Errorf("%+v", side.s)
							}
						}
						if side.s != want {
							t.Errorf("staging %+v, want %+v", side.s, want)
						}
					}
					if e.Staged != e.Local.Bytes+e.Remote.Bytes {
						t.Errorf("%d bytes staged: %v", e.Staged, e)
					}
					addsUp(t, x)
					back1, _ := back.Span(9, uint64(size))
					x, err = p.ab.Get(ctx(t), []path.Copy{rem.At(3, back1)}, PutOptions{Paths: []string{name}})
					wait(t, x, err)
					if !bytes.Equal(bb[9:9+size], sb[1:1+size]) {
						t.Fatal("the bytes did not come back")
					}
					if in := <-p.heard; in.ID != x.ID() || in.Kind != path.Get {
						t.Errorf("the receiver heard %+v", in)
					}
					addsUp(t, x)
					for _, n := range []*Node{p.a, p.b} {
						for _, k := range n.Snapshot().Totals {
							want := uint64(0)
							if n == p.a && k.Kind != "notify" {
								want = 1
							}
							if k.Begun != want || k.Completed != want || k.Bytes != want*uint64(size) ||
								k.Failovers+k.Fallbacks != 0 {
								t.Errorf("%s: %+v", n.Name(), k)
							}
						}
					}
				})
			}
		}
	}
}
