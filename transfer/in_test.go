package transfer

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// A remote export goes on in the next session while it is the same one, and does not when the name
// stands for something else.
func TestRemoteInAnotherSession(t *testing.T) {
	p := newPair(t, Options{})
	mem := region(t, 4096)
	x := export(t, p.b, mem, "x", path.Write)
	first := lookup(t, p.ab, "x")
	p.ab.Close()
	again := func() *Peer {
		q, err := p.a.Dial(ctx(t), p.b.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	q := again()
	r, err := first.In(ctx(t), q)
	if err != nil {
		t.Fatal(err)
	}
	put, err := q.Put(ctx(t), []path.Copy{r.At(0, region(t, 4096).All())}, PutOptions{})
	wait(t, put, err)
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.In(ctx(t), q); !errors.Is(err, control.NotFound) {
		t.Errorf("revoked: %v", err)
	}
	export(t, p.b, mem, "x", path.Write)
	if _, err := first.In(ctx(t), again()); !errors.Is(err, ErrChanged) {
		t.Errorf("exported again: %v", err)
	}
	if _, err := (&Remote{Peer: q}).In(ctx(t), q); !errors.Is(err, path.ErrKey) {
		t.Errorf("without a name: %v", err)
	}
}
