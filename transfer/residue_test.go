package transfer

import (
	"bytes"
	"testing"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
)

// TestNoResidue has a peer offer a tensor with a digest, so that it may read the memory, and look at what another peer's tensor
// has left there.
func TestNoResidue(t *testing.T) {
	const size = 200 << 10 // of a block of 256 KiB
	b := open(t, Options{Listen: []string{loopback}, Budget: 256 << 10})
	dial := func() *Peer {
		p, err := open(t, Options{}).Dial(ctx(t), b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	desc := tensor.Desc{DType: tensor.U8, Shape: []int64{size}}
	receive := func(name string) <-chan *Received {
		out := make(chan *Received, 1)
		go func() {
			r, _ := b.Receive(ctx(t), name)
			out <- r
		}()
		return out
	}
	secret, look := region(t, size), region(t, 256<<10)
	for i, s := 0, secret.All().Bytes(); i < len(s); i++ {
		s[i] = 0x5e
	}
	got := receive("x")
	x, err := dial().SendTensor(ctx(t), "x", desc, secret.All(), PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	if r := <-got; r == nil {
		t.Fatal("nothing was received")
	} else {
		r.Release()
	}

	other := dial()
	got = receive("y")
	wire, err := desc.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	id := other.node.nextID()
	r, err := other.request(ctx(t), &control.Offer{ID: id, Name: "y", Size: size, Tensor: wire, Digest: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := control.Parse[control.Accept](r.Body)
	if err != nil {
		t.Fatal(err)
	}
	all, err := look.All().Sub(0, a.Desc.Size)
	if err != nil {
		t.Fatal(err)
	}
	x, err = other.Get(ctx(t), []path.Copy{other.Import(a.Desc).At(0, all)}, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	if n := bytes.Count(all.Bytes(), []byte{0x5e}); n > 0 {
		t.Errorf("%d bytes of another peer's tensor can be read", n)
	}
	other.send(&control.Complete{ID: id, Code: control.Canceled})
	<-got
}
