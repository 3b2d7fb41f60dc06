package transfer

import (
	"bytes"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

func TestBorrow(t *testing.T) {
	p := newPair(t, Options{})
	mine := region(t, 1<<20)
	fill(mine, 3)
	x := export(t, p.b, mine, "lent", path.Read)
	rem := lookup(t, p.ab, "lent")
	v, err := p.ab.Borrow(ctx(t), rem, 100, 1<<19)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(v.Bytes, mine.All().Bytes()[100:100+1<<19]) {
		t.Error("the view shows other bytes")
	}
	mine.All().Bytes()[100]++ // it is the same memory
	if v.Bytes[0] != mine.All().Bytes()[100] {
		t.Error("the view is a copy")
	}
	v.Release()
	if _, err := p.ab.Borrow(ctx(t), rem, 1<<20, 1); !errors.Is(err, path.ErrBounds) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := x.Revoke(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ab.Borrow(ctx(t), rem, 0, 1); err == nil {
		t.Error("borrowed from a revoked export")
	}
	wo := export(t, p.b, region(t, 4096), "writeonly", path.Write)
	_ = wo
	if _, err := p.ab.Borrow(ctx(t), lookup(t, p.ab, "writeonly"), 0, 1); !errors.Is(err, path.ErrRights) {
		t.Errorf("borrow of a write-only export: %v", err)
	}
}
