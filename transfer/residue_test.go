package transfer

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// TestNoResidue has a peer offer a tensor with a digest, and ask for the digest of memory where
// another peer's tensor was before.
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
	if _, err := other.Get(ctx(t), []path.Copy{other.Import(a.Desc).At(0, look.All())}, PutOptions{}); !errors.Is(err,
		path.ErrRights) {
		t.Errorf("a get of a tensor that is being pushed: %v", err)
	}
	r, err = other.request(ctx(t), &control.Digest{ID: id, Last: true,
		Blocks: []control.Block{{Key: a.Desc.Key, Len: a.Desc.Size}}})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := control.Parse[control.DigestSum](r.Body)
	if want := sha256.Sum256(make([]byte, a.Desc.Size)); err != nil || sum.Sum != want {
		t.Errorf("the digest of memory that nobody wrote is %x, %v; that of zeros is %x: something of another peer's "+
			"tensor is there", sum.Sum, err, want)
	}
	other.send(&control.Complete{ID: id, Code: control.Canceled})
	<-got
}
