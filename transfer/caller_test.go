package transfer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
)

// watched is a path.Immediate that calls seen before it takes operations, and says how many bytes
// of large transfers it took at once.
type watched struct {
	path.Path
	now  path.Immediate
	seen func(ops []path.Op, once bool)
}

func (w *watched) Post(ops []path.Op) (int, error) {
	w.seen(ops, false)
	return w.Path.Post(ops)
}

func (w *watched) PostNow(ops []path.Op, events []path.Event) (int, int, error) {
	w.seen(ops, true)
	return w.now.PostNow(ops, events)
}

// watch has seen called with what a channel hands over. The mutex of the channel is held then.
func watch(ch *channel, seen func(ops []path.Op, once bool)) {
	ch.mu.Lock()
	defer ch.unlock()
	w := &watched{ch.p, ch.now, seen}
	ch.p, ch.now = w, w
}

// large is a list of callerSize bytes in blocks of 4 KiB, prepared over shared memory, and both
// ends' memory.
func large(t *testing.T, p *pair) (r *Prepared, src, dst []byte, ch *channel) {
	t.Helper()
	a, b := region(t, callerSize), region(t, callerSize)
	export(t, p.b, b, "large", path.Read|path.Write)
	const size = 4096
	r, err := p.ab.Prepare(path.Put, blocks(lookup(t, p.ab, "large"), a, callerSize/size, size),
		PutOptions{Paths: []string{"shm"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	x, err := r.Post(context.Background()) // sets the path up
	wait(t, x, err)
	return r, a.All().Bytes(), b.All().Bytes(), channelOf(t, p.ab, "shm")
}

// same reports whether a prepared list of large has arrived.
func same(src, dst []byte) bool {
	const size = 4096
	for off := 0; off < len(src); off += size {
		if !bytes.Equal(dst[off:off+size], src[len(src)-off-size:len(src)-off]) {
			return false
		}
	}
	return true
}

// A large transfer that is alone on shared memory is done when the call that begins it returns, in
// steps, and the sender's loop has no part in it. What is larger is left to the loop.
func TestLargeIsDoneByItsCaller(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	r, src, dst, ch := large(t, p)
	var steps []uint64
	watch(ch, func(ops []path.Op, once bool) {
		for _, op := range ops {
			if op.Bulk && once {
				steps = append(steps, op.Bytes())
			}
		}
	})
	a, b := region(t, callerSize+1), region(t, callerSize+1)
	export(t, p.b, b, "one", path.Read|path.Write)
	one := []path.Copy{lookup(t, p.ab, "one").At(0, a.All())}
	one[0].Local.Len = callerSize
	if err := p.ab.PutWait(ctx(t), one, PutOptions{Paths: []string{"shm"}}); err != nil { // maps the export
		t.Fatal(err)
	}
	release := hold(t, p.a)
	for i := range src {
		src[i] = byte(i>>12 + i)
	}
	fill(a, 7)
	for what, begin := range map[string]func() (*Transfer, error){
		"a prepared list": func() (*Transfer, error) { return r.Post(context.Background()) },
		"a put": func() (*Transfer, error) {
			return p.ab.Put(ctx(t), one, PutOptions{Paths: []string{"shm"}})
		},
		"a get": func() (*Transfer, error) {
			return p.ab.Get(ctx(t), one, PutOptions{Paths: []string{"shm"}})
		},
	} {
		if what == "a get" {
			copy(b.All().Bytes(), a.All().Bytes()) // whichever is first
		}
		steps = nil
		x, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		if !x.ended() || x.Err() != nil {
			t.Fatalf("%s is not done when it has begun (%v)", what, x.Err())
		}
		if e := x.Explain(); len(steps) != callerSize/stepSize || e.Pieces != callerSize/stepSize ||
			e.Moved != callerSize || steps[0] != stepSize {
			t.Errorf("%s: steps of %d bytes, %d pieces", what, steps, e.Pieces)
		}
		addsUp(t, x)
	}
	if !same(src, dst) || !bytes.Equal(a.All().Bytes()[:callerSize], b.All().Bytes()[:callerSize]) {
		t.Error("the bytes are not the same at both ends")
	}
	one[0].Local.Len++
	x, err := p.ab.Put(ctx(t), one, PutOptions{Paths: []string{"shm"}})
	if err != nil {
		t.Fatal(err)
	}
	if x.ended() {
		t.Error("the caller has carried more than callerSize")
	}
	release()
	wait(t, x, nil)
}

// Between the steps of a caller others have the path. A small put that comes during a step is
// handed over before the next one. With another large transfer both are left to the loop, which has
// them take turns.
func TestOthersComeBetweenSteps(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	r, src, dst, ch := large(t, p)
	near := region(t, callerSize)
	export(t, p.b, region(t, callerSize), "other", path.Write)
	other := lookup(t, p.ab, "other").At(0, near.All())
	o := PutOptions{Paths: []string{"shm"}}
	if err := p.ab.PutWait(ctx(t), []path.Copy{other}, o); err != nil { // maps the export
		t.Fatal(err)
	}
	var begin func()
	var handed []string
	watch(ch, func(ops []path.Op, once bool) {
		for _, op := range ops {
			what := "left"
			switch {
			case op.Kind != path.Put:
				continue
			case !op.Bulk:
				what = "small"
			case once:
				what = "step"
			}
			handed = append(handed, what)
		}
		if len(handed) == 1 {
			done := make(chan struct{})
			go func() {
				defer close(done)
				begin()
			}()
			<-done // the channel is held by this goroutine: the other one does not wait for it
		}
	})
	for round, c := range []struct {
		bytes uint64
		want  func() bool
	}{
		{64, func() bool { return slices.Equal(handed, []string{"step", "small", "step", "step", "step"}) }},
		{callerSize, func() bool {
			return len(handed) > 2 && handed[0] == "step" && !slices.ContainsFunc(handed[1:], func(s string) bool {
				return s != "left"
			})
		}},
	} {
		var second *Transfer
		var err error
		copies := []path.Copy{other}
		copies[0].Local.Len = c.bytes
		begin = func() { second, err = p.ab.Put(context.Background(), copies, o) }
		for i := range src {
			src[i] = byte(i>>12 + i + round)
		}
		ch.mu.Lock()
		handed = nil
		ch.unlock()
		x, e := r.Post(context.Background())
		wait(t, x, e)
		wait(t, second, err)
		ch.mu.Lock()
		if !c.want() {
			t.Errorf("with %d bytes beside it: %v", c.bytes, handed)
		}
		ch.unlock()
		if !same(src, dst) {
			t.Error("the bytes are not the same at both ends")
		}
	}
}

// A caller that carries a large transfer takes no further step when it is canceled.
func TestCancelBetweenSteps(t *testing.T) {
	p := newPair(t, Options{})
	p.ignore(t)
	r, _, _, ch := large(t, p)
	steps := 0
	watch(ch, func(ops []path.Op, once bool) {
		if steps++; steps == 1 {
			go r.last.Cancel()
			until(t, "the cancel", r.last.canceled)
		}
	})
	x, err := r.Post(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
		t.Errorf("it ends with %v", err)
	}
	ch.mu.Lock()
	defer ch.unlock()
	if steps != 1 {
		t.Errorf("%d steps after the cancel", steps-1)
	}
}
