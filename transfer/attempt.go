package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/pool"
	"github.com/penstock-io/penstock/transfer/sched"
)

// errStalled ends an attempt by JobOptions.Stall.
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
		return canceledBy(cause)
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
	j.spent(func(t *JobTimes) { t.Connect += time.Since(begin) })
	j.mu.Lock()
	a.Dials = x.dials
	if err == nil {
		a.Peer, a.Session, a.Connect = x.peer.String(), x.peer.number, time.Since(begin)
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
		<-p.gone // then the node knows the session as lost
		if errors.Is(err, path.ErrUnavailable) {
			again = Retriable(p.Err()) // no wonder
		}
		again = again || j.link.cutOff(p, err)
	}
	x.again, x.lost = again, lost || errors.Is(err, path.ErrDown)
	return x, err
}

// with does the work of an attempt on a session; again says whether its error may pass.
func (j *Job) with(ctx context.Context, a *Attempt, s *pool.Lease[*Peer]) (again bool, err error) {
	p := s.Conn()
	begin := time.Now()
	r, err := j.o.Found, error(nil)
	if j.o.Found = nil; r == nil || r.Peer != p || r.Name != j.name { // once: it may have changed since
		r, err = p.Lookup(ctx, j.name)
	}
	j.spent(func(t *JobTimes) { t.Lookup += time.Since(begin) })
	if err != nil {
		return Retriable(err) || j.comingBack(p, err), err
	}
	if err := j.adopt(a, p, r); err != nil {
		return false, err
	}
	if j.o.OnSession != nil {
		j.o.OnSession(p)
	}
	begin = time.Now()
	err = j.move(j.ctx, a, s, r)
	j.spent(func(t *JobTimes) { t.Move += time.Since(begin) })
	if _, ok := errors.AsType[*unready](err); ok {
		return false, err
	}
	// A key that is unknown was revoked since it was looked up.
	return Retriable(err) || errors.Is(err, path.ErrKey), err
}

// comingBack reports whether a name that was there is missing because the node was started anew,
// and has not exported it yet.
func (j *Job) comingBack(p *Peer, err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Is(err, control.NotFound) && j.remote != 0 && j.remote != p.info.Instance
}

// adopt compares what the name stands for with what the verified bytes are a part of.
func (j *Job) adopt(a *Attempt, p *Peer, r *Remote) error {
	c := contentOf(p, r)
	need := path.Write
	if j.kind == path.Get {
		need = path.Read
	}
	if r.Desc.Rights&need == 0 {
		return fmt.Errorf("the export permits %v: %w", r.Desc.Rights, path.ErrRights)
	}
	if j.o.Off > c.size || j.kind == path.Put && j.local.Len > c.size-j.o.Off {
		return fmt.Errorf("offset %d + %d bytes of an export of %d: %w", j.o.Off, j.local.Len, c.size, path.ErrBounds)
	}
	bytes := min(j.local.Len, c.size-j.o.Off)
	j.mu.Lock()
	defer j.mu.Unlock()
	changed := false
	switch {
	case j.known:
		changed = !j.expect.same(&c)
	case j.have.prefix() > 0: // of an earlier process
		changed = j.expect.tag != ([16]byte{}) && j.expect.tag != c.tag || j.have.prefix() > bytes
	}
	old := j.expect
	j.remote = c.instance
	if !changed {
		j.expect, j.known, j.bytes = c, true, bytes
		return nil
	}
	err := fmt.Errorf("%w: %s", ErrChanged, difference(&old, &c, j.known))
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

// difference says in words how two contents differ.
func difference(old, now *content, known bool) string {
	switch {
	case known && old.size != now.size:
		return fmt.Sprintf("it had %d bytes and has %d", old.size, now.size)
	case known && old.dtype != now.dtype:
		return fmt.Sprintf("it was %s and is %s", old.dtype, now.dtype)
	case old.tag != now.tag:
		return "it has another tag"
	case !known:
		return "it has fewer bytes than were verified"
	case old.node != now.node:
		return "another node has the name, and no tag says that the content is the same"
	case old.instance != now.instance:
		return "its node was started anew, and no tag says that the content is the same"
	}
	return "the name was given to other memory, and no tag says that the content is the same"
}

// unready is an error of JobOptions.BeforePiece.
type unready struct{ error }

func (e *unready) Unwrap() error { return e.error }

// flight is a piece that is being moved.
type flight struct {
	t      *Transfer
	lo, hi uint64
	began  time.Duration // by clock
}

// move moves all bytes that are missing, a window of pieces at a time, and returns when none is
// under way.
func (j *Job) move(ctx context.Context, a *Attempt, s *pool.Lease[*Peer], r *Remote) error {
	p := s.Conn()
	begin := p.Get
	if j.kind == path.Put {
		begin = p.Put
	}
	j.mu.Lock()
	end := j.bytes
	j.mu.Unlock()
	depth := sched.Depth{Most: j.o.Window}
	var flying []flight
	var failed error
	var broken []*lane // paths that went down under pieces of a store, each once
	var next uint64
	var stall *time.Timer
	var stalled <-chan time.Time
	if j.o.Stall > 0 {
		stall = time.NewTimer(j.o.Stall)
		defer stall.Stop()
		stalled = stall.C
	}
	cancel := func() {
		for _, f := range flying {
			f.t.Cancel()
		}
	}
	for {
		for failed == nil && len(flying) < depth.Parts() {
			j.mu.Lock()
			lo, hi, ok := j.have.gap(next, j.o.Piece, end)
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
			flying = append(flying, flight{t, lo, hi, clock()})
		}
		if len(flying) == 0 {
			if len(broken) > 0 && ctx.Err() == nil {
				j.fence(ctx, p, broken)
			}
			return failed
		}
		f := flying[0]
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
		flying = slices.Delete(flying, 0, 1)
		if err := f.t.Err(); err != nil {
			if ln := f.t.currentLane(); j.kind == path.Put && errors.Is(err, path.ErrDown) &&
				!slices.Contains(broken, ln) {
				broken = append(broken, ln)
			}
			if failed == nil {
				failed = err
				cancel() // what is under way would be moved in vain, or is moved by the next attempt
			}
			continue
		}
		if stalled != nil {
			stall.Reset(j.o.Stall)
		}
		depth.Ended(clock() - f.began)
		if a.Moved == 0 {
			s.Good()
		}
		j.verified(a, f)
	}
}

// fence makes sure that nothing of pieces that failed is written any more by paths that went down,
// before they are put again. A transfer does that itself when it changes its path; this is for the
// one that has given up. A nil stands for a path that is not known any more. If the session lives
// and does not confirm, it is ended: the node has lost sessions ended at the other side before it
// moves anything by the next one.
func (j *Job) fence(ctx context.Context, p *Peer, broken []*lane) {
	for _, l := range broken {
		if p.Err() != nil {
			return
		}
		if l == nil || p.fenceRemote(ctx, l) != nil {
			p.Close()
			return
		}
	}
}

// currentLane is the lane that the transfer is on, or ended on; nil if it had to leave one.
func (t *Transfer) currentLane() *lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lane
}

// verified counts a piece that is in place.
func (j *Job) verified(a *Attempt, f flight) {
	f.t.mu.Lock()
	via, proof := f.t.explain.Path, f.t.explain.Proof
	f.t.mu.Unlock()
	j.mu.Lock()
	j.have.add(f.lo, f.hi)
	j.high = max(j.high, j.have.sum())
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
	j.notify.set(j.have.prefix())
	j.mu.Unlock()
	if fresh {
		j.link.used(via)
	}
}
