package transfer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

const (
	// maxFailovers is how many paths may go down under one transfer before it fails.
	maxFailovers = 4
	// failoverPause is waited before the second failover, twice as long before the third, and so
	// on: the first costs nothing.
	failoverPause = 10 * time.Millisecond
)

// Failover is a change of path in the middle of a transfer.
type Failover struct {
	From  string // path that went down
	Moved uint64 // bytes that were in place by then
	Cause error
}

// interrupted decides about a transfer whose path is down: nothing of it is outstanding here. The
// channel's mutex is held.
func (ch *channel) interrupted(t *Transfer, end *ending) {
	if ch.peer.ctx.Err() == nil {
		// also one that does not go on: its user must not get the end before the other side is
		// fenced
		ch.dismiss(t) // Cancel cannot make it shorter: until the path is fenced, bytes may still be written
		end.moved = append(end.moved, t)
		return
	}
	t.m.Fail(ch.down)
	end.add(t)
}

// failover lets transfers go on by another path, or end. Both ends of the old one are closed first,
// so that nothing that it still carried can be written after what the new one brings, or after the
// transfer is said to have ended.
func (p *Peer) failover(old *channel, ts []*Transfer) {
	ctx, stop := context.WithTimeout(p.ctx, p.node.patience)
	for _, t := range ts {
		t.tries++
	}
	p.node.log.Warn("transfers lose their path", "peer", p.info.Name, "from", old.p.Name(), "transfers", len(ts),
		"error", old.down)
	go func() {
		defer stop()
		err := p.fenceRemote(ctx, old)
		delivered := map[observe.ID]bool{}
		if err == nil {
			delivered, err = p.askDelivered(ctx, ts)
		}
		if err != nil && p.ctx.Err() == nil {
			// The other end may still write. A session that is lost is fenced before anything moves
			// by a later one.
			p.fail(fmt.Errorf("%w: it does not say that it closed the path %s: %w", path.ErrDown, old.p.Name(), err))
			<-p.gone
		}
		for _, t := range ts {
			switch {
			case delivered[t.id]: // only the news was lost
				t.complete(nil)
			case t.m.Err() != nil:
				t.complete(t.m.Err())
			case t.canceled():
				t.complete(path.ErrCanceled)
			case t.tries > maxFailovers:
				t.complete(old.down)
			case err != nil:
				t.complete(fmt.Errorf("%w; and going on by another path failed: %w", old.down, p.lostOr(err)))
			default:
				p.resume(t, old)
			}
		}
	}()
}

// avoids reports whether a path of that name went down under the transfer.
func (t *Transfer) avoids(name string) bool {
	return slices.ContainsFunc(t.explain.Failovers, func(f Failover) bool { return f.From == name })
}

// avoidLast puts the candidates that went down under the transfer behind those that did not.
func (t *Transfer) avoidLast(cs []Candidate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.explain.Failovers) == 0 {
		return
	}
	slices.SortStableFunc(cs, func(a, b Candidate) int {
		switch x, y := t.avoids(a.Path), t.avoids(b.Path); {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
}

// lostOr is why the peer was lost, if it was, else err.
func (p *Peer) lostOr(err error) error {
	if lost := p.Err(); lost != nil {
		return lost
	}
	return err
}

// fenceRemote has the peer close its end of a path that is down here, and waits until nothing can
// come by it any more.
func (p *Peer) fenceRemote(ctx context.Context, old *channel) error {
	old.mu.Lock()
	why := old.down
	old.unlock()
	if why == nil { // its peer was lost first, or the path is given up although it is up
		why = path.ErrDown
	}
	_, err := p.request(ctx, &control.PathDown{PathID: old.id, Reason: clipReason(why)})
	return err
}

func clipReason(err error) string {
	s := err.Error()
	return s[:min(len(s), control.MaxText/4)] // whatever becomes of its last character
}

// askDelivered asks which transfers the peer knows to be complete: their last operation was on its
// way when the path went down. The path is fenced, so the answer does not change any more.
func (p *Peer) askDelivered(ctx context.Context, ts []*Transfer) (map[observe.ID]bool, error) {
	var doubt [][16]byte
	for _, t := range ts {
		if t.m.Doubt() {
			doubt = append(doubt, t.id)
		}
	}
	out := map[observe.ID]bool{}
	for len(doubt) > 0 {
		n := min(len(doubt), control.MaxIDs)
		r, err := p.request(ctx, &control.Delivered{IDs: doubt[:n]})
		if err != nil {
			return nil, err
		}
		a, err := control.Parse[control.Outcomes](r.Body)
		if err != nil {
			return nil, err
		}
		if len(a.Delivered) != n {
			return nil, fmt.Errorf("transfer: %s says of %d transfers what was asked of %d: %w", p, len(a.Delivered), n,
				path.ErrProtocol)
		}
		for i, yes := range a.Delivered {
			out[observe.ID(doubt[i])] = yes
		}
		doubt = doubt[n:]
	}
	return out, nil
}

// resume posts what is left of a transfer by the best path that there is now.
func (p *Peer) resume(t *Transfer, old *channel) {
	t.m.Resume()
	t.posted = 0
	if t.part != nil {
		t.part.lost(old)
	}
	t.mu.Lock()
	t.explain.Failovers = append(slices.Clip(t.explain.Failovers), Failover{old.p.Name(), t.moved.Load(), old.down})
	t.mu.Unlock()
	ctx, stop := t.abortable(p.ctx)
	go func() {
		defer stop()
		if wait := failoverPause << (t.tries - 1) / 2; t.tries > 1 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if needsDevices(t.exports, t.devices) && ctx.Err() == nil { // a path that reached its memory is gone
			p.stage(t)
			return
		}
		ch, err := p.choose(ctx, t, t.exports, t.allowed)
		switch {
		case t.canceled():
			err = path.ErrCanceled
		case err != nil:
			err = fmt.Errorf("%w; and going on by another path failed: %w", old.down, p.lostOr(err))
		}
		if err != nil {
			t.complete(err)
			return
		}
		p.launch(t, ch)
	}()
}

// deliveredHere answers which of the peer's transfers this node knows to be complete.
func (p *Peer) deliveredHere(q *control.Delivered) (control.Body, error) {
	a := control.Outcomes{Delivered: make([]bool, len(q.IDs))}
	for i, id := range q.IDs {
		if observe.ID(id).Instance() != p.info.Instance {
			return nil, control.Errorf(control.BadRequest, "transfer %v is not of this peer's making", observe.ID(id))
		}
		a.Delivered[i] = p.seen.Has(observe.ID(id).Number())
	}
	return &a, nil
}

// Fence makes sure that the paths under which transfers failed (path.ErrDown) write nothing of them
// any more, so that their bytes can be moved again. A transfer does that itself when it changes its
// path; this is for those that gave up. A session that lives and does not confirm is ended: this
// node has lost sessions ended at the other side before it moves anything by the next one.
func (p *Peer) Fence(ctx context.Context, failed []*Transfer) error {
	if err := invariants.Context(ctx, "transfer.Peer.Fence"); err != nil {
		return err
	}
	var fenced []*channel
	for _, t := range failed {
		ch := t.currentChannel()
		if p.Err() != nil || slices.Contains(fenced, ch) {
			continue
		}
		if ch == nil || p.fenceRemote(ctx, ch) != nil {
			return p.Close()
		}
		fenced = append(fenced, ch)
	}
	return nil
}

// currentChannel is the channel that the transfer is on, or ended on; nil if it had to leave one.
func (t *Transfer) currentChannel() *channel {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.channel
}
