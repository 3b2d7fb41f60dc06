package transfer

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/path"
)

// cancelPatience is how long the operations of a canceled transfer may take to end, besides the
// time that cancelBytes take on the path. What they still wait for is in buffers, and does not come
// when the connection has stalled although the peer lives; then the path is closed at both ends,
// because nothing else makes sure that no byte is written any more.
const (
	cancelPatience = requestTimeout
	cancelBytes    = 16 << 20
)

// cancel ends a transfer of this channel early.
func (ch *channel) cancel(t *Transfer) {
	var end ending
	ch.mu.Lock()
	for i := range ch.slots {
		if s := &ch.slots[i]; s.t == t {
			ch.p.Cancel(uint64(s.gen)<<32&^fence.Token | uint64(i))
		}
	}
	if t.item.Queued() { // also one that only has its notification left, which may wait for others for ever
		t.m.Fail(path.ErrCanceled)
		ch.follow(t, &end)
	}
	if t.m.Outstanding() > 0 && !ch.gone {
		ch.expectEnd(t)
	}
	ch.finish(&end)
	ch.peer.node.loop.Kick(ch)
}

// expectEnd has the path closed if a canceled transfer does not end in time. The mutex is held.
func (ch *channel) expectEnd(t *Transfer) {
	wait := ch.peer.node.patience
	if rate := ch.cost.LastRate(); rate > 0 {
		wait += time.Duration(cancelBytes / rate * float64(time.Second))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end.Load() == endOpen && t.late == nil {
		t.late = time.AfterFunc(wait, func() { ch.endLate(t, wait) })
	}
}

// endLate ends a canceled transfer that has not ended: with its path, if an operation of it is
// outstanding.
func (ch *channel) endLate(t *Transfer, waited time.Duration) {
	var end ending
	ch.mu.Lock()
	late := false
	for i := range ch.slots {
		late = late || ch.slots[i].t == t
	}
	if !late && t.item.Queued() { // its notification waits for what others have outstanding
		t.m.Fail(path.ErrCanceled)
		ch.follow(t, &end)
	}
	if late && ch.muted && !ch.gone {
		// it is this side that holds the path back: the end may be there, behind notifications
		for range inbox.MaxFenced / len(ch.events) {
			if t.m.Outstanding() == 0 || ch.gone || ch.peer.inbox.Crowded() || ch.poll(&end) == 0 {
				break
			}
		}
		late = t.m.Outstanding() > 0 && !ch.gone && !ch.overRate()
		if t.m.Outstanding() > 0 && !ch.gone && !late {
			// the rate holds the peer back, and ends: it gets as much time again
			t.mu.Lock()
			t.late = nil
			t.mu.Unlock()
			ch.expectEnd(t)
		}
	}
	ch.finish(&end)
	if late {
		ch.shut(fmt.Errorf("%w: a canceled transfer has not ended in %v: the path has stalled", path.ErrDown, waited))
	}
}

// fence waits until nothing that came by this path can reach the revoked export any more.
func (ch *channel) fence(key path.Key) <-chan error {
	w, done := fence.For(key)
	ch.mu.Lock()
	defer ch.unlock()
	if ch.gone || ch.down != nil {
		ch.peer.node.exposed.Linger(&ch.mu, ch.p, w)
		return done
	}
	ch.fences.Add(w)
	ch.fences.Post(ch.p)
	return done
}
