package transfer

import (
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/path"
)

// A tensor without elements is exported, listed, put, got, sent and shared as others are: of memory
// of no bytes, and of none of the bytes of a region. A put of it brings its message.
func TestTensorWithoutBytes(t *testing.T) {
	d := tensor.Desc{DType: tensor.F32, Shape: []int64{4, 0, 3}}
	for name, by := range map[string][]string{"any path": nil, "tcp": {"tcp"}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			none, err := mem.Adopt("none", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { none.Close() })
			for where, s := range map[string]mem.Span{"no memory": none.All(),
				"no bytes of a region": {Region: region(t, 4096), Off: 4096}} {
				x, err := p.b.Export(s, ExportOptions{Name: "e", Rights: path.Read | path.Write, Tensor: &d,
					WholeRegion: s.Region != none})
				if err != nil {
					t.Fatalf("%s: %v", where, err)
				}
				list, err := p.ab.List(ctx(t), "")
				if err != nil || len(list) != 1 || list[0].Size() != 0 || !list[0].Tensor.Equal(d) {
					t.Fatalf("%s: listed %+v: %v", where, list, err)
				}
				rem := lookup(t, p.ab, "e")
				if rem.Tensor == nil || !rem.Tensor.Equal(d) || rem.Size() != 0 || rem.Desc.Device || rem.Desc.Whole {
					t.Errorf("%s: looked up %+v", where, rem)
				}
				for _, digest := range []bool{false, true} {
					o := PutOptions{Msg: []byte("none"), Tag: 3, Digest: digest, Paths: by}
					y, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, s)}, o)
					wait(t, y, err)
					in := <-p.heard
					for in.Tag == 0 { // of the others, which have none
						in = <-p.heard
					}
					if in.Kind != path.Put || in.Bytes != 0 || in.Tag != 3 || string(in.Msg) != "none" {
						t.Errorf("%s: heard %+v", where, in)
					}
					y, err = p.ab.Get(ctx(t), []path.Copy{rem.At(0, s)}, PutOptions{Digest: digest, Paths: by})
					wait(t, y, err)
				}
				got, y, err := p.ab.GetTensor(ctx(t), "e", s)
				wait(t, y, err)
				if !got.Equal(d) {
					t.Errorf("%s: got %v", where, got)
				}
				l, err := p.ab.Prepare(path.Put, []path.Copy{rem.At(0, s)}, PutOptions{Paths: by})
				if err != nil {
					t.Fatal(err)
				}
				y, err = l.Post(ctx(t))
				wait(t, y, err)
				l.Close()

				received := make(chan *Received, 1)
				go func() {
					r, err := p.b.Receive(ctx(t), "sent")
					if err != nil {
						t.Error(err)
					}
					received <- r
				}()
				y, err = p.ab.SendTensor(ctx(t), "sent", d, s, PutOptions{Digest: true, Paths: by})
				wait(t, y, err)
				if r := <-received; r != nil {
					if x := r.Tensor(); !x.Desc.Equal(d) || len(x.Bytes()) != 0 {
						t.Errorf("%s: received %v of %d bytes", where, x.Desc, len(x.Bytes()))
					}
					r.Release()
				}
				if err := x.Revoke(ctx(t)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
