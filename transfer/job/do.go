package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/pool"
)

// tries counts attempts that fail in a row against the limits of a Retry.
type tries struct {
	retry  Retry
	failed int // without progress in between, failed dials included
	// from when Retry.Total counts: the last progress, the start, or the loss of the session that
	// came first
	since time.Time
	lost  error // the loss of a session, after the last progress
}

func newTries(r Retry) *tries { return &tries{retry: r, since: time.Now()} }

// progressed sets both limits back.
func (t *tries) progressed(now time.Time) { t.failed, t.since, t.lost = 0, now, nil }

// bound is a context that ends also when the limit of time is reached.
func (t *tries) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.retry.Total < 0 {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, t.since.Add(t.retry.Total))
}

// dials is how many may fail in a row until the limit of attempts is reached; 0: any number.
func (t *tries) dials() int {
	if t.retry.Attempts > 0 {
		return t.retry.Attempts - t.failed
	}
	return 0
}

// again accounts for an attempt that failed with err: it says how long to wait before the next one,
// or with an error that there is none. dials is how many failed in it, met whether it had a
// session, lost whether that or a path is gone.
func (t *tries) again(now time.Time, dials int, met, lost bool, err error) (wait time.Duration, gaveUp error) {
	if met && t.failed == 0 {
		t.since = now // a session that moved bytes slowly was no wait for one
	}
	t.failed += max(dials, 1)
	if errors.Is(err, transfer.ErrPeerLost) {
		t.lost = err
	} else if t.lost != nil { // what came then, such as dials that are refused
		err = fmt.Errorf("%w; after %w", err, t.lost)
	}
	if t.retry.Attempts > 0 && t.failed >= t.retry.Attempts {
		return 0, fmt.Errorf("%w: %s without progress: %w", ErrGaveUp, count(t.failed, "attempt"), err)
	}
	if lost && t.failed == 1 { // setting up the next one takes its time anyway
		return 0, nil
	}
	wait = t.retry.backoff().Delay(t.failed)
	if t.retry.Total >= 0 && now.Add(wait).Sub(t.since) > t.retry.Total {
		return 0, fmt.Errorf("%w: %v without progress: %w", ErrGaveUp, t.retry.Total, err)
	}
	return wait, nil
}

// pause waits before an attempt. It returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// DoOptions modify Link.Do. The zero value is usual.
type DoOptions struct {
	Retry Retry // what is 0 is taken from the link's
	// Again, if any, says of errors whether they may pass, instead of Retriable. It is not asked
	// about lost sessions.
	Again func(error) bool
	// Progress, if any, is a number that grows as f gets further, over all its calls: that sets the
	// limits of Retry back.
	Progress func() uint64
}

// Do calls f with a session, and again with another session or after a while, as Retry says, while
// f fails with an error that may pass: for requests and for work that no Job does. The session is
// f's until it returns. The error is ctx's, the last one of f, or wraps that and ErrGaveUp.
func (l *Link) Do(ctx context.Context, o DoOptions, f func(ctx context.Context, p *transfer.Peer) error) error {
	if err := invariants.Context(ctx, "job.Link.Do"); err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}
	retry, err := o.Retry.complete(l.retry)
	if err != nil {
		return err
	}
	progress := o.Progress
	if progress == nil {
		progress = func() uint64 { return 0 }
	}
	mayPass := o.Again
	if mayPass == nil {
		mayPass = transfer.Retriable
	}
	t := newTries(retry)
	return l.repeat(ctx, t, progress, func() (try, error) {
		x, err := l.once(ctx, t, f)
		x.again = x.again || err != nil && x.peer != nil && mayPass(err)
		return x, err
	})
}

// repeat makes attempts until one succeeds, another one is no use, a limit of t is reached, or ctx
// or the link ends.
func (l *Link) repeat(ctx context.Context, t *tries, progress func() uint64, attempt func() (try, error)) error {
	for best := progress(); ; {
		x, err := attempt()
		if err == nil || ctx.Err() != nil || l.ctx.Err() != nil {
			return err
		}
		now := time.Now()
		if n := progress(); n > best {
			best = n
			t.progressed(now)
		}
		if !x.again {
			return err
		}
		wait, gaveUp := t.again(now, x.dials, x.peer != nil, x.lost, err)
		if gaveUp != nil {
			return gaveUp
		}
		if x.peer != nil { // the link reported each failed dial already
			l.retrying(x.peer, err)
		}
		if !pause(ctx, wait) {
			return err
		}
	}
}

// try is what became of one attempt.
type try struct {
	peer  *transfer.Peer // whose session it had; nil: none
	again bool           // another attempt may go better
	lost  bool           // with a new session or path, which takes its time to set up
	dials int            // that failed
}

// session waits for a session of one attempt.
func (l *Link) session(ctx context.Context, t *tries) (*pool.Lease[*transfer.Peer], try, error) {
	s, err := l.lease(ctx, t.dials())
	var d *pool.DialError
	switch {
	case errors.As(err, &d):
		return nil, try{again: transfer.Retriable(d.Last), dials: d.Failed}, err
	case err != nil:
		return nil, try{again: transfer.Retriable(err)}, err
	}
	return s, try{peer: s.Conn()}, nil
}

func (l *Link) once(ctx context.Context, t *tries, f func(context.Context, *transfer.Peer) error) (try, error) {
	wait, cancel := t.bound(ctx)
	s, x, err := l.session(wait, t)
	cancel()
	if err != nil {
		return x, err
	}
	defer s.Release()
	p := x.peer
	if err = f(ctx, p); err == nil {
		s.Good()
		return x, nil
	}
	if x.lost = p.Err() != nil; x.lost {
		<-p.Gone() // then the node knows the session as lost
		// What f says may be of its own making: it counts as an error of the session if it is one
		// that could come from its loss.
		x.again = errors.Is(err, transfer.ErrPeerLost) && transfer.Retriable(err) ||
			errors.Is(err, path.ErrUnavailable) && transfer.Retriable(p.Err()) || l.cutOff(p, err)
	}
	return x, err
}

// cutOff reports whether an error comes from a session that was closed by this side, but not with
// the link: there can be another one.
func (l *Link) cutOff(p *transfer.Peer, err error) bool {
	return errors.Is(err, transfer.ErrClosed) && errors.Is(p.Err(), transfer.ErrClosed) && l.ctx.Err() == nil
}

// retrying gives OnRetry a failure that the link tries again. p is the session that it came from,
// nil for a dial; OnRetry gets the loss of a session once, however many jobs it had.
func (l *Link) retrying(p *transfer.Peer, err error) {
	if l.onRetry == nil {
		return
	}
	f := LinkFailure{Dial: p == nil, Err: err}
	if p != nil {
		if lost := p.Err(); lost != nil {
			if !l.lostFirst(p.Number()) {
				return
			}
			f.Lost, f.Err = true, lost
		}
	}
	l.onRetry(f)
}

// maxTold bounds how many lost sessions are remembered.
const maxTold = 64

// lostFirst reports whether OnRetry has yet to get the loss of a session, and remembers it.
func (l *Link) lostFirst(session uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(l.told, session) {
		return false
	}
	if len(l.told) == maxTold {
		l.told = slices.Delete(l.told, 0, 1)
	}
	l.told = append(l.told, session)
	return true
}

// Connect waits for a session as Peer does, but gives up with the error of the first dial that
// fails: for a caller that wants to know at once whether the peer answers.
func (l *Link) Connect(ctx context.Context) (*transfer.Peer, error) {
	s, err := l.lease(ctx, 1)
	if err != nil {
		var d *pool.DialError
		if errors.As(err, &d) && d.Cause == nil {
			return nil, d.Last
		}
		return nil, err
	}
	defer s.Release()
	return s.Conn(), nil
}
