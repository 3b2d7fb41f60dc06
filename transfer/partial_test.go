package transfer

import (
	"bytes"
	"testing"

	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A path that accepts one operation of each batch: what it left is posted again, pieces and bytes
// complete and in place.
func TestPartlyAcceptedBatchesLoseNothing(t *testing.T) {
	d := over("tcp")
	d.post = func(p path.Path, ops []path.Op) (int, error) {
		n, err := p.Post(ops[:1])
		if err == nil && n < len(ops) {
			err = path.ErrFull
		}
		return n, err
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	const each, count = 4096, 300
	size := each*count + 2*PieceSize + 12345
	src, dst := region(t, size), region(t, size)
	fill(src, 11)
	export(t, p.b, dst, "dst", path.Write)
	rem := lookup(t, p.ab, "dst")
	var all []*Transfer
	put := func(off, n uint64) {
		s, err := src.Span(off, n)
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(off, s)}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	for i := range uint64(count) {
		put(i*each, each)
		if i == count/2 { // several pieces in the middle of many small ones
			put(each*count, uint64(size-each*count))
		}
	}
	for _, x := range all {
		wait(t, x, nil)
	}
	if !bytes.Equal(src.All().Bytes()[:size], dst.All().Bytes()[:size]) {
		t.Error("bytes are missing")
	}
}

// What a peer says in a notification is believed once, and only about transfers that it can have
// begun.
func TestNotificationsAreChecked(t *testing.T) {
	p := newPair(t, Options{})
	msg := func(kind path.OpKind, number uint64) *path.Event {
		return &path.Event{Kind: path.EventNotify,
			Msg: append(inbox.Header{Kind: kind, Tag: 5, Number: number, Bytes: 7}.Append(nil), "text"...)}
	}
	const own = 1 << 20
	refused := func() uint64 {
		return p.b.Snapshot().Peers[0].Refused
	}
	for _, c := range []struct {
		what string
		e    *path.Event
		ok   bool
	}{
		{"the first", msg(path.Put, own), true},
		{"a repetition", msg(path.Put, own), false},
		{"another number", msg(path.Get, own+1), true},
		{"an unknown kind", msg(path.Fence, own+3), false},
		{"a short header", &path.Event{Kind: path.EventNotify, Msg: make([]byte, inbox.HeaderSize-1)}, false},
	} {
		before := refused()
		in, ok := p.ba.parseNotify(c.e, "tcp")
		if ok != c.ok || (refused() != before) == c.ok {
			t.Errorf("%s: accepted %v, refused %d times", c.what, ok, refused()-before)
		}
		if ok && (in.Bytes != 7 || in.Tag != 5 || in.ID.Instance() != p.a.instance || string(in.Msg) != "text" ||
			in.Peer != p.ba) {
			t.Errorf("%s: %+v", c.what, in)
		}
	}
}
