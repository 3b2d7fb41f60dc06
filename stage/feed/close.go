package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/mem/ring"
)

// fail ends the stage: what is with the kernel is dropped, what has a result still comes.
func (s *Stage) fail(err error) {
	if s.failed != nil {
		return
	}
	s.failed = fmt.Errorf("feed: queue %q: %w", s.queue, err)
	s.room.stop()
	s.abandon(engine.DropDown)
}

// abandon drops what is with the kernel, which has left, and what was not published.
func (s *Stage) abandon(why engine.Drop) {
	for q := s.low; q != s.next; q++ {
		if e := &s.window[q%uint64(len(s.window))]; e.state == entryOut {
			s.abandoned.Inc()
			s.out.Add(-1)
			s.drop(e, why)
		}
	}
	s.drops.Add(why, uint64(s.in.Live()))
	s.in.Release()
	s.slide()
}

// closing is how long Close waits for the kernel to leave.
const closing = 10 * time.Second

// Close implements engine.Stage: it stops the kernel, and drops what was with it.
func (s *Stage) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.unfollow()
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if left := s.room.leave(ctx); left != nil {
		s.closed = false // the kernel may still write; Close again
		return fmt.Errorf("feed: queue %q: %w", s.queue, left)
	}
	if invariants.Enabled {
		err = errors.Join(err, s.balance())
	}
	for q := s.low; q != s.next; q++ {
		if e := &s.window[q%uint64(len(s.window))]; e.state == entryDone {
			if s.o.Row > 0 {
				s.room.release(e.row)
			}
			s.drop(e, engine.DropClosed)
		}
	}
	s.abandon(engine.DropClosed)
	return errors.Join(err, s.room.end())
}

// balance is an error unless all that was published has a result, was dropped or abandoned, or is
// with the kernel: by the counts of the stage, by its window, and ring by ring. The kernel has
// left.
func (s *Stage) balance() error {
	err := s.room.check()
	published, ended, out := s.published.Load(), s.results.Load()+s.oldest.Load()+s.abandoned.Load(), uint64(0)
	for q := s.low; q != s.next; q++ {
		if s.window[q%uint64(len(s.window))].state == entryOut {
			out++
		}
	}
	if level := uint64(s.out.Load()); published != ended+out || level != out {
		err = errors.Join(err, fmt.Errorf("%d packets were published, but %d have ended, %d are with the kernel, and "+
			"the count of those is %d: %w", published, ended, out, level, ring.ErrCorrupt))
	}
	if s.failed != nil {
		return err // a ring that is not what it should be
	}
	in, results := s.room.totals()
	if in.Published != published || in.Dropped != s.oldest.Load() || results != s.results.Load() {
		err = errors.Join(err, fmt.Errorf("the rings have %d published, %d dropped and %d results that were claimed: "+
			"the stage counted %d, %d and %d: %w",
			in.Published, in.Dropped, results, published, s.oldest.Load(), s.results.Load(), ring.ErrCorrupt))
	}
	return err
}
