package transfer

import (
	"context"
	"errors"
	"runtime/debug"
	"testing"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/path"
)

// hold keeps the node's loop from serving anything until the function that it returns is called.
func hold(t *testing.T, n *Node) (release func()) {
	t.Helper()
	bell, err := sys.Eventfd()
	if err != nil {
		t.Fatal(err)
	}
	held, free := make(chan struct{}), make(chan struct{})
	tag := n.loop.AddClosed(bell, func() {
		sys.Unring(bell)
		close(held)
		<-free
	})
	sys.Ring(bell)
	<-held
	return func() {
		n.loop.RemoveClosed(tag)
		sys.Close(bell)
		close(free)
	}
}

// A small put over shared memory is done when Put returns: the sender's loop has no part in it.
func TestPutIsDoneByItsCaller(t *testing.T) {
	p := newPair(t, Options{})
	src, dst := region(t, 64<<10), region(t, 64<<10)
	export(t, p.b, dst, "dst", path.Read|path.Write)
	copies := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	o := PutOptions{Paths: []string{"shm"}}
	if err := p.ab.PutWait(ctx(t), copies, o); err != nil { // sets the path up
		t.Fatal(err)
	}
	<-p.heard
	release := hold(t, p.a)
	defer release()
	for i := range 2000 { // several times round the peer's message ring and the window of the path
		fill(src, uint64(i))
		for what, begin := range map[string]func() (*Transfer, error){
			"put":    func() (*Transfer, error) { return p.ab.Put(ctx(t), copies, o) },
			"get":    func() (*Transfer, error) { return p.ab.Get(ctx(t), copies, o) },
			"notify": func() (*Transfer, error) { return p.ab.Notify(ctx(t), []byte{1}, o) },
		} {
			x, err := begin()
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-x.Done():
			default:
				t.Fatalf("round %d: a %s was not done when it had begun", i, what)
			}
			if err := x.Err(); err != nil {
				t.Fatal(err)
			}
			<-p.heard // so that there is room in the peer's ring
		}
	}
	if a, b := string(src.All().Bytes()), string(dst.All().Bytes()); a != b {
		t.Error("the bytes are not the same at both ends")
	}
}

// A put that is done by its caller takes one object: the Transfer.
func TestPutAllocatesATransfer(t *testing.T) {
	p := newPair(t, Options{})
	src, dst := region(t, 4096), region(t, 4096)
	export(t, p.b, dst, "dst", path.Write)
	copies := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	o := PutOptions{Paths: []string{"shm"}}
	c := ctx(t)
	// The receiver is the same process here. So nothing is counted that it does: its loop is held,
	// and its ring takes them all.
	if err := p.ab.PutWait(c, copies, o); err != nil {
		t.Fatal(err)
	}
	<-p.heard
	release := hold(t, p.b)
	n := testing.AllocsPerRun(100, func() {
		if err := p.ab.PutWait(c, copies, o); err != nil {
			t.Fatal(err)
		}
	})
	release()
	p.ignore(t)
	if n > 1 && !testenv.Race && !invariants.Enabled { // those allocate for themselves
		t.Errorf("%v allocations for each put, expected 1", n)
	}
}

// The transfers of a stream that wait for their turn are begun one after the other, not one inside
// the other.
func TestStreamOfPutsDoneAtOnce(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	src, dst := region(t, 64), region(t, 64)
	export(t, p.b, dst, "dst", path.Write)
	copies := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	o := PutOptions{Paths: []string{"shm"}, Stream: 7}
	if err := p.ab.PutWait(ctx(t), copies, o); err != nil {
		t.Fatal(err)
	}
	const waiting = 20_000
	defer debug.SetMaxStack(debug.SetMaxStack(1 << 20)) // a stack beyond that ends the test
	first := &Transfer{request: request{peer: p.ab, kind: path.Put, stream: o.Stream}}
	p.ab.streams.enter(first) // takes its turn, and keeps it
	var last *Transfer
	for range waiting {
		var err error
		if last, err = p.ab.Put(context.Background(), copies, o); err != nil {
			t.Fatal(err)
		}
	}
	p.ab.advance(first)
	wait(t, last, nil)
}

// PutWait returns when the memory is the caller's again: also when ctx ends first.
func TestPutWaitEndsWithItsContext(t *testing.T) {
	p := newPair(t, Options{})
	src, dst := region(t, 64), region(t, 64)
	export(t, p.b, dst, "dst", path.Write)
	copies := []path.Copy{lookup(t, p.ab, "dst").At(0, src.All())}
	o := PutOptions{Stream: 9}
	first := &Transfer{request: request{peer: p.ab, kind: path.Put, stream: o.Stream}}
	p.ab.streams.enter(first) // what follows waits for its turn
	c, cancel := context.WithCancelCause(ctx(t))
	why := errors.New("the caller has lost patience")
	done := make(chan error, 1)
	go func() { done <- p.ab.PutWait(c, copies, o) }()
	cancel(why)
	if err := <-done; !errors.Is(err, path.ErrCanceled) || !errors.Is(err, why) {
		t.Errorf("%v: expected an error that matches ErrCanceled and the cause of the context's end", err)
	}
	p.ab.advance(first)
}
