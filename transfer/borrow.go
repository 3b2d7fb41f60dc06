package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/path"
)

// Borrow shows n bytes of a peer's export at off without copying them, which only shared memory
// can. The bytes are the peer's memory itself: they change when a process writes there. Release the
// view once, before the export can be revoked to the end; a second Release changes nothing and
// returns an error that wraps mem.ErrReleased. The first borrow of an export maps it; later ones
// take a fraction of a microsecond, whatever n is.
func (p *Peer) Borrow(ctx context.Context, r *Remote, off, n uint64) (path.View, error) {
	if err := invariants.Context(ctx, "transfer.Peer.Borrow"); err != nil {
		return path.View{}, err
	}
	if r.Desc.Rights&path.Read == 0 {
		return path.View{}, fmt.Errorf("transfer: borrow: the export permits %v: %w", r.Desc.Rights, path.ErrRights)
	}
	if r.Desc.Device {
		return path.View{}, fmt.Errorf("transfer: borrow from %s: the export is memory of a device, which the CPU "+
			"cannot look at; use Get: %w", p, path.ErrUnreachable)
	}
	if !p.SameHost() {
		return path.View{}, fmt.Errorf("transfer: borrow from %s: it does not share this machine's memory: %w", p,
			path.ErrUnreachable)
	}
	v, err := p.borrow(ctx, r, off, n)
	if err != nil {
		return path.View{}, fmt.Errorf("transfer: borrow from %s: %w", p, p.verdict(ctx, err, r.Desc.Key))
	}
	return v, nil
}

func (p *Peer) borrow(ctx context.Context, r *Remote, off, n uint64) (path.View, error) {
	ch, err := p.lender(ctx)
	if err != nil {
		return path.View{}, err
	}
	for kicked := false; ; {
		v, wait, err := ch.borrow(r, off, n)
		if wait == nil {
			return v, err
		}
		if !kicked { // the request is on its way then, and the answer wakes the loop
			kicked = true
			p.node.loop.Kick(ch)
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return path.View{}, endOf(ctx)
		}
	}
}

// lender returns the channel of the first driver whose paths can lend.
func (p *Peer) lender(ctx context.Context) (*channel, error) {
	err := fmt.Errorf("no path of this node can lend: %w", path.ErrUnreachable)
	for _, d := range p.node.drivers {
		if !d.Traits().Borrow {
			continue
		}
		var ch *channel
		if ch, err = p.channel(ctx, d.Name()); err == nil {
			return ch, nil
		}
	}
	return nil, err
}

// borrow tries once; wait is not nil when the export is being attached: try again when it is
// closed.
func (ch *channel) borrow(r *Remote, off, n uint64) (v path.View, wait <-chan struct{}, err error) {
	ch.mu.Lock()
	defer ch.unlock()
	if ch.down != nil {
		return v, nil, ch.down
	}
	b, ok := ch.p.(path.Borrower)
	if !ok {
		return v, nil, fmt.Errorf("%s cannot lend: %w", ch.p.Name(), path.ErrUnreachable)
	}
	if err := ch.p.Reaches(r.Desc); err != nil {
		return v, nil, err
	}
	v, err = b.Borrow(r.Desc.Key, off, n)
	if !errors.Is(err, path.ErrFull) {
		return v, nil, err
	}
	c := make(chan struct{})
	ch.watchers = append(ch.watchers, c)
	return v, c, nil
}
