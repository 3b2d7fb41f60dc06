package shm

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// A part of a region whose owner lets the whole of it be handed over: its bytes alone are mapped,
// for puts, gets and views.
func TestPartOfRegion(t *testing.T) {
	u := newDuo(t, Driver{}, 0)
	const page = 4096
	r, l := u.region(8*page), u.region(2*page)
	for i, b := 0, r.All().Bytes(); i < len(b); i++ {
		b[i] = byte(i / page)
	}
	add := func(off, n uint64, around bool) (*path.Export, error) {
		return u.qx.AddFor(mem.Span{Region: r, Off: off, Len: n}, path.Read|path.Write, path.AllPeers, around)
	}
	for _, bad := range [][2]uint64{{1, page}, {page, 100}, {0, page + 1}} {
		if _, err := add(bad[0], bad[1], true); !errors.Is(err, mem.ErrBounds) {
			t.Errorf("%d bytes at %d: %v", bad[1], bad[0], err)
		}
	}
	x, err := add(3*page, 2*page, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.p.Reaches(x.Desc()); err != nil {
		t.Fatal(err)
	}
	move := func(kind path.OpKind, off, n uint64) error {
		return u.do(path.Op{Kind: kind, Copies: []path.Copy{{Local: mem.Span{Region: l, Len: n}, Key: x.Key(),
			RemoteOff: off}}}).Err
	}
	if err := move(path.Get, 0, 2*page); err != nil || l.All().Bytes()[0] != 3 || l.All().Bytes()[2*page-1] != 4 {
		t.Errorf("get: %v, bytes %d and %d", err, l.All().Bytes()[0], l.All().Bytes()[2*page-1])
	}
	l.All().Bytes()[0] = 99
	if err := move(path.Put, page, 1); err != nil || r.All().Bytes()[4*page] != 99 || r.All().Bytes()[page] != 1 {
		t.Errorf("put: %v, bytes %d", err, r.All().Bytes()[4*page])
	}
	if err := move(path.Put, 2*page-1, 2); !errors.Is(err, path.ErrBounds) {
		t.Errorf("a put beyond the part: %v", err)
	}
}
