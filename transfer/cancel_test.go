package transfer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// A canceled transfer ends also when all that is left of it is a notification, for which the path
// has no room, and perhaps never will.
func TestCancelBeforeTheNotification(t *testing.T) {
	for _, late := range []bool{false, true} {
		// the cancellation comes before the last byte is in place, and finds nothing to do
		d := over("tcp")
		var full atomic.Bool
		d.post = func(p path.Path, ops []path.Op) (int, error) {
			for i, op := range ops {
				if op.Kind == path.Notify && full.Load() {
					n, err := p.Post(ops[:i])
					if err == nil {
						err = path.ErrFull
					}
					return n, err
				}
			}
			return p.Post(ops)
		}
		p := newPair(t, Options{Paths: []setup.Driver{d}})
		p.ignore(t)
		src, dst := region(t, PieceSize+1), region(t, PieceSize+1) // more than one operation
		export(t, p.b, dst, "dst", path.Write)
		r := lookup(t, p.ab, "dst")
		x, err := p.ab.Notify(ctx(t), nil, PutOptions{})
		wait(t, x, err)
		full.Store(true)
		ch := channelOf(t, p.ab, "tcp")
		begin := func(x *Transfer, err error) *Transfer {
			if err != nil {
				t.Fatal(err)
			}
			until(t, "the turn of its notification", func() bool {
				ch.mu.Lock()
				defer ch.unlock()
				return x.m.Posted() && x.m.Outstanding() == 0 && x.item.Queued()
			})
			return x
		}
		put := begin(p.ab.Put(ctx(t), []path.Copy{r.At(0, src.All())}, PutOptions{}))
		for kind, x := range map[string]*Transfer{"put": put, "notify": begin(p.ab.Notify(ctx(t), nil, PutOptions{}))} {
			if late {
				x.because.Store(&context.Canceled)
				ch.endLate(x, 0)
			} else {
				x.Cancel()
			}
			if err := x.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
				t.Errorf("%s: %v", kind, err)
			}
		}
		full.Store(false)
		x, err = p.ab.Notify(ctx(t), nil, PutOptions{})
		wait(t, x, err)
		unleased(t, src)
	}
}

// A canceled transfer whose path goes down before its operations have ended is not said to have
// ended before the other side is fenced.
func TestCanceledAndThenThePathGoesDown(t *testing.T) {
	s := newTwoPaths(t, 4*PieceSize)
	a, b := nodeChannel(t, s.a, "alpha"), nodeChannel(t, s.b, "alpha")
	s.mode.Store(deaf)
	x := s.put(t)
	until(t, "something outstanding", func() bool { return outstanding(x) })
	x.Cancel()
	b.mu.Lock() // so that it cannot close its side
	s.mode.Store(stuck)
	a.shut(errCut)
	select {
	case <-x.Done():
		t.Errorf("it ended with %v while the other side may still write", x.Err())
	default:
	}
	b.unlock()
	if err := x.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
		t.Error(err)
	}
}
