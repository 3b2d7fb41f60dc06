package transfer

import (
	"strings"
	"testing"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// An export takes over the name of another one in one step: a lookup always finds one, the list has
// one, and the old one can be read by its key until it is revoked, which leaves the name to the new
// one.
func TestExportReplaces(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	r, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	local, err := mem.Alloc(mem.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	span := func(k uint64) mem.Span {
		s, err := r.Span(k*8, 8)
		if err != nil {
			t.Fatal(err)
		}
		s.Bytes()[0] = byte(k)
		return s
	}
	now, err := p.b.Export(span(0), ExportOptions{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.b.Export(span(1), ExportOptions{Name: "x"}); err == nil || !strings.Contains(err.Error(), "taken") {
		t.Fatal(err)
	}
	// A goroutine looks it up all the time.
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		var last uint64
		for {
			x, err := p.ab.Lookup(ctx(t), "x")
			if err != nil || x.Generation < last {
				looked <- err
				return
			}
			last = x.Generation
			select {
			case <-stop:
				looked <- nil
				return
			default:
			}
		}
	}()
	get := func(x *Remote) (byte, error) {
		local.All().Bytes()[0] = 255
		f, err := p.ab.Get(ctx(t), []path.Copy{x.At(0, mem.Span{Region: local, Len: 8})}, PutOptions{})
		if err == nil {
			err = f.Wait(ctx(t))
		}
		return local.All().Bytes()[0], err
	}
	for k := uint64(1); k < 100; k++ {
		before, err := p.ab.Lookup(ctx(t), "x")
		if err != nil {
			t.Fatal(err)
		}
		old := now
		if now, err = p.b.Export(span(k), ExportOptions{Name: "x", Replaces: old}); err != nil {
			t.Fatal(err)
		}
		if v, err := get(before); err != nil || v != byte(k-1) {
			t.Fatalf("the old one: %d, %v", v, err)
		}
		if err := old.Revoke(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if v, err := get(before); err == nil {
			t.Fatalf("a revoked one: %d", v)
		}
		list, err := p.ab.List(ctx(t), "")
		if err != nil || len(list) != 1 {
			t.Fatalf("%d names, %v", len(list), err)
		}
		if v, err := get(list[0]); err != nil || v != byte(k) {
			t.Fatalf("the new one: %d, %v", v, err)
		}
		// One that has lost the name cannot pass it on.
		if _, err := p.b.Export(span(k), ExportOptions{Name: "x", Replaces: old}); err == nil {
			t.Fatal("an export without the name replaced the one with it")
		}
	}
	close(stop)
	if err := <-looked; err != nil {
		t.Error("somebody looked the name up and found nothing:", err)
	}
}
