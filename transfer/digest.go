package transfer

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/state"
)

import ()

// Digest is the SHA-256 (FIPS 180-4) of n bytes of the export from off, as the peer that holds them
// computes it; nothing else of them travels. The export must permit reading. It says what the peer
// has, not that the peer is honest.
func (r *Remote) Digest(ctx context.Context, off, n uint64) ([32]byte, error) {
	if err := invariants.Context(ctx, "transfer.Remote.Digest"); err != nil {
		return [32]byte{}, err
	}
	if off > r.Desc.Size || n > r.Desc.Size-off {
		return [32]byte{}, fmt.Errorf("transfer: digest: remote offset %d + %d bytes of an export of %d: %w", off, n,
			r.Desc.Size, path.ErrBounds)
	}
	p := r.Peer
	return p.asks.Sum(ctx, p.node.nextID(), r.Desc.Key, off, n)
}

// compared is a transfer as package digest tells it how the digests compare.
type compared Transfer

// newComparison makes what compares the digests of a transfer.
func newComparison(t *Transfer) *digest.Comparison {
	return t.peer.asks.New(digest.Work{ID: t.id, Kind: t.kind, Bytes: t.bytes, Copies: t.m.Copies(), Offered: t.offered,
		Staging: t.peer.node.staging}, (*compared)(t))
}

func (c *compared) Compared(local [32]byte) {
	t := (*Transfer)(c)
	t.mu.Lock()
	t.explain.more().Digest = local
	ch := t.channel // nil before it has a path, and while it changes it: the next one asks for the outcome
	t.mu.Unlock()
	if ch != nil {
		ch.prove(t)
	}
}

func (c *compared) Released(err error) { (*Transfer)(c).complete(err) }

// placed takes note of a part that is in place, for the digest.
func (t *Transfer) placed(part state.Segment) {
	if t.digest != nil && t.tries == 0 {
		t.digest.Place(part)
	}
}

// prove is called when the outcome of a transfer's digests is known, once.
func (ch *channel) prove(t *Transfer) {
	var end ending
	ch.mu.Lock()
	t.mu.Lock()
	here := t.channel == ch // otherwise it has left for another path meanwhile
	t.mu.Unlock()
	_, err := t.digest.Outcome()
	if here { // otherwise the goroutine that takes it up asks for the outcome
		t.m.Proved(err)
		switch step := t.m.Next(); {
		case step == state.Queue && ch.down != nil:
			t.m.Fence()
			ch.interrupted(t, &end)
		case step == state.Queue:
			ch.enqueue(t)
			ch.pump(&end)
		default:
			ch.act(t, step, &end)
		}
	}
	ch.mu.Unlock()
	end.run(ch)
	ch.peer.node.loop.Kick(ch)
}
