package transfer

import (
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A handler gets what has its tag, over each path; the rest, and what comes before it is there and
// after it is removed, is OnTransfer's.
func TestTags(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{Paths: []setup.Driver{over(name)}})
			other, tagged := make(chan Incoming, 8), make(chan Incoming, 8)
			p.b.opts.OnTransfer = func(in Incoming) { other <- in }
			src := region(t, 4096)
			export(t, p.b, region(t, 4096), "dst", path.Write)
			rem := lookup(t, p.ab, "dst")
			send := func(to chan Incoming, tag uint32, msg string) {
				t.Helper()
				x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{Tag: tag, Msg: []byte(msg)})
				wait(t, x, err)
				x, err = p.ab.Notify(ctx(t), []byte(msg), PutOptions{Tag: tag})
				wait(t, x, err)
				for _, kind := range []path.OpKind{path.Put, path.Notify} {
					if in := <-to; in.Tag != tag || string(in.Msg) != msg || in.Kind != kind {
						t.Errorf("%q: %+v", msg, in)
					}
				}
			}
			send(other, 7, "no handler yet")
			remove, err := p.b.OnTag(7, func(in Incoming) { tagged <- in })
			if err != nil {
				t.Fatal(err)
			}
			for _, tag := range []uint32{0, 7} {
				if _, err := p.b.OnTag(tag, func(Incoming) {}); err == nil {
					t.Errorf("tag %d was taken twice", tag)
				}
			}
			send(tagged, 7, "tagged")
			send(other, 0, "without a tag")
			send(other, 1<<32-1, "of another tag")
			remove()
			remove()
			send(other, 7, "removed")
			if len(other)+len(tagged) != 0 {
				t.Errorf("%d and %d more", len(other), len(tagged))
			}
		})
	}
}

// A completed transfer without a handler or receiver starts no goroutine.
func TestNobodyTakesIt(t *testing.T) {
	p := newPair(t, Options{})
	soon(t, p.ba.introduced, "the introduction")
	p.b.opts.OnTransfer = nil
	tagged := make(chan Incoming, 1)
	remove, err := p.b.OnTag(7, func(in Incoming) { tagged <- in })
	if err != nil {
		t.Fatal(err)
	}
	in := func(tag uint32) Incoming { return Incoming{Peer: p.ba, Kind: path.Put, Tag: tag} }
	if p.ba.deliver(in(0)) || p.ba.deliver(in(8)) {
		t.Error("it is delivered to nobody")
	}
	if !p.ba.deliver(in(7)) {
		t.Error("a handler does not get what has its tag")
	}
	<-tagged
	remove()
	drained, again := make(chan struct{}), make(chan struct{})
	p.ba.inbox.Drained(func() { close(drained) })
	soon(t, drained, "the end of the delivery")
	if p.ba.deliver(in(7)) {
		t.Error("it is delivered to a handler that is removed")
	}
	p.b.offered.Store(true) // a receiver may wait for it
	if !p.ba.deliver(in(0)) {
		t.Error("a receiver of tensors does not get it")
	}
	p.b.offered.Store(false)
	p.ba.inbox.Drained(func() { close(again) })
	soon(t, again, "the end of the delivery")
	p.b.opts.OnTransfer = func(Incoming) {}
	if !p.ba.deliver(in(0)) {
		t.Error("OnTransfer does not get it")
	}
}
