package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// errStalled ends an attempt by Options.Stall.
var errStalled = fmt.Errorf("no piece was completed in time: %w", context.DeadlineExceeded)

// run makes attempts until the job is done, or fails.
func (j *Job) run() error {
	t := newTries(j.retry)
	err := j.link.repeat(j.ctx, t, j.pieces, func() (try, error) {
		a := &Attempt{}
		j.open(a)
		x, err := j.attempt(a, t)
		j.close(a, err)
		return x, err
	})
	// A Link that closes ends the contexts of its jobs one after the other.
	if cause := cmp.Or(context.Cause(j.ctx), context.Cause(j.link.ctx)); err != nil && cause != nil {
		return cause
	}
	return err
}

// pieces is how many were verified so far.
func (j *Job) pieces() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fresh
}

// attempt gets a session, looks the name up, and moves what is missing.
func (j *Job) attempt(a *Attempt, t *tries) (try, error) {
	ctx, cancel := t.bound(j.ctx)
	defer cancel()
	begin := time.Now()
	s, x, err := j.link.session(ctx, t)
	j.spent(func(t *Times) { t.Connect += time.Since(begin) })
	j.mu.Lock()
	a.Dials = x.dials
	if err == nil {
		a.Peer, a.Session, a.Connect = x.peer.String(), x.peer.Number(), time.Since(begin)
	}
	j.mu.Unlock()
	if err != nil {
		return x, err
	}
	defer s.Release()
	p := x.peer
	again, err := j.with(ctx, a, s)
	lost := p.Err() != nil
	if lost {
		<-p.Gone() // then the node knows the session as lost
		if errors.Is(err, path.ErrUnavailable) {
			again = transfer.Retriable(p.Err()) // no wonder
		}
		again = again || j.link.cutOff(p, err)
	}
	x.again, x.lost = again, lost || errors.Is(err, path.ErrDown)
	return x, err
}

// with does the work of an attempt on a session; again says whether its error may pass.
func (j *Job) with(ctx context.Context, a *Attempt, s *pool.Lease[*transfer.Peer]) (again bool, err error) {
	p := s.Conn()
	begin := time.Now()
	r, err := j.o.Found, error(nil)
	if j.o.Found = nil; r == nil || r.Peer != p || r.Name != j.name { // once: it may have changed since
		r, err = p.Lookup(ctx, j.name)
	}
	j.spent(func(t *Times) { t.Lookup += time.Since(begin) })
	if err != nil {
		return transfer.Retriable(err) || j.comingBack(p, err), err
	}
	if err := j.adopt(a, r); err != nil {
		return false, err
	}
	if j.o.OnSession != nil {
		j.o.OnSession(p)
	}
	begin = time.Now()
	err = j.move(j.ctx, a, s, r)
	j.spent(func(t *Times) { t.Move += time.Since(begin) })
	if _, ok := errors.AsType[*unready](err); ok {
		return false, err
	}
	// A key that is unknown was revoked since it was looked up.
	return transfer.Retriable(err) || errors.Is(err, path.ErrKey), err
}

// comingBack reports whether a name that was there is missing because the node was restarted,
// and has not exported it yet.
func (j *Job) comingBack(p *transfer.Peer, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Is(err, control.NotFound) && j.remote != 0 && j.remote != p.Instance()
}

// adopt compares what the name stands for with what the verified bytes are a part of.
func (j *Job) adopt(a *Attempt, r *transfer.Remote) error {
	c := r.Content()
	need := path.Write
	if j.kind == path.Get {
		need = path.Read
	}
	if r.Desc.Rights&need == 0 {
		return fmt.Errorf("the export permits %v: %w", r.Desc.Rights, path.ErrRights)
	}
	if j.o.Off > c.Size || j.kind == path.Put && j.local.Len > c.Size-j.o.Off {
		return fmt.Errorf("offset %d + %d bytes of an export of %d: %w", j.o.Off, j.local.Len, c.Size, path.ErrBounds)
	}
	bytes := min(j.local.Len, c.Size-j.o.Off)
	j.mu.Lock()
	defer j.mu.Unlock()
	changed := false
	switch {
	case j.known:
		changed = !j.expect.Same(c)
	case j.have.Prefix() > 0: // of an earlier process
		changed = j.expect.Tag != ([16]byte{}) && j.expect.Tag != c.Tag || j.have.Prefix() > bytes
	}
	what := j.expect.Difference(c)
	switch {
	case j.known:
	case j.expect.Tag != c.Tag:
		what = "it has another tag"
	default:
		what = "it has fewer bytes than were verified"
	}
	j.remote = c.Instance
	if !changed {
		j.expect, j.known, j.bytes = c, true, bytes
		return nil
	}
	err := fmt.Errorf("%w: %s", transfer.ErrChanged, what)
	if j.restarts >= j.o.Restarts {
		return err
	}
	j.restarts++
	a.Restarted = true
	j.expect, j.known, j.bytes, j.have = c, true, bytes, nil
	j.notify.set(0)
	j.mu.Unlock()
	j.link.mu.Lock()
	j.link.counts.Restarts++
	j.link.mu.Unlock()
	j.notify.wait(j.ctx) // OnVerified must return before the bytes that it counted are overwritten
	j.mu.Lock()
	return j.ctx.Err()
}

// unready is an error of Options.BeforePiece.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

// piece is a piece that is being moved.
type piece struct {
	t      *transfer.Transfer
	lo, hi uint64
	began  time.Time
}

// move moves all bytes that are missing, a window of pieces at a time, and returns when none is
// under way.
func (j *Job) move(ctx context.Context, a *Attempt, s *pool.Lease[*transfer.Peer], r *transfer.Remote) error {
	p := s.Conn()
	begin := p.Get
	if j.kind == path.Put {
		begin = p.Put
	}
	j.mu.Lock()
	end := j.bytes
	j.mu.Unlock()
	depth := sched.Depth{Most: j.o.Window}
	var pieces []piece
	var failed error
	var broken []*transfer.Transfer // whose paths went down under pieces of a store
	var next uint64
	var stall *time.Timer
	var stalled <-chan time.Time
	if j.o.Stall > 0 {
		stall = time.NewTimer(j.o.Stall)
		defer stall.Stop()
		stalled = stall.C
	}
	cancel := func() {
		for _, f := range pieces {
			f.t.Cancel()
		}
	}
	for {
		for failed == nil && len(pieces) < depth.Parts() {
			j.mu.Lock()
			lo, hi, ok := j.have.Gap(next, j.o.Piece, end)
			j.mu.Unlock()
			if !ok {
				break
			}
			if j.o.BeforePiece != nil {
				if err := j.o.BeforePiece(ctx, lo, hi); err != nil {
					failed = &unready{err} // what is under way may still come
					break
				}
			}
			local := mem.Span{Region: j.local.Region, Off: j.local.Off + lo, Len: hi - lo}
			t, err := begin(ctx, []path.Copy{r.At(j.o.Off+lo, local)}, j.o.Transfer)
			if err != nil {
				failed = err
				cancel()
				break
			}
			next = hi
			pieces = append(pieces, piece{t, lo, hi, time.Now()})
		}
		if len(pieces) == 0 {
			if len(broken) > 0 && ctx.Err() == nil {
				p.Fence(ctx, broken)
			}
			return failed
		}
		f := pieces[0]
		select {
		case <-f.t.Done():
		case <-stalled:
			stalled = nil
			if failed == nil {
				failed = errStalled
			}
			cancel()
			<-f.t.Done()
		}
		pieces = slices.Delete(pieces, 0, 1)
		if err := f.t.Err(); err != nil {
			if j.kind == path.Put && errors.Is(err, path.ErrDown) {
				broken = append(broken, f.t)
			}
			if failed == nil {
				failed = err
				cancel() // what is under way would be moved for nothing, or is moved by the next attempt
			}
			continue
		}
		if stalled != nil {
			stall.Reset(j.o.Stall)
		}
		depth.Ended(time.Since(f.began))
		if a.Moved == 0 {
			s.Good()
		}
		j.verified(a, f)
	}
}

// verified counts a piece that is in place.
func (j *Job) verified(a *Attempt, f piece) {
	via, proof := f.t.Via()
	j.mu.Lock()
	j.have.Add(f.lo, f.hi)
	j.high = max(j.high, j.have.Sum())
	j.fresh++
	if a.Moved == 0 {
		a.First = time.Since(a.Begin) - a.Connect
	}
	a.Moved += f.hi - f.lo
	a.Proof = proof
	fresh := !slices.Contains(a.Paths, via)
	if fresh {
		a.Paths = append(a.Paths, via)
	}
	j.notify.set(j.have.Prefix())
	j.mu.Unlock()
	if fresh {
		j.link.used(via)
	}
}
