package transfer

import (
	"fmt"
	"time"

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

// cancel ends a transfer of this lane early.
func (l *lane) cancel(t *Transfer) {
	var end ending
	l.mu.Lock()
	for i := range l.slots {
		if s := &l.slots[i]; s.t == t {
			l.p.Cancel(uint64(s.gen)<<32&^fenceToken | uint64(i))
		}
	}
	if t.item.Queued() { // also one that only has its notification left, which may wait for others for ever
		t.m.Fail(path.ErrCanceled)
		l.follow(t, &end)
	}
	if t.m.Outstanding() > 0 && !l.gone {
		l.expectEnd(t)
	}
	l.finish(&end)
	l.peer.node.loop.kick(l)
}

// expectEnd has the path closed if a canceled transfer does not end in time. The mutex is held.
func (l *lane) expectEnd(t *Transfer) {
	wait := l.peer.node.patience
	if rate := l.cost.lastRate(); rate > 0 {
		wait += time.Duration(cancelBytes / rate * float64(time.Second))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end.Load() == endOpen && t.late == nil {
		t.late = time.AfterFunc(wait, func() { l.endLate(t, wait) })
	}
}

// endLate ends a canceled transfer that has not ended: with its path, if an operation of it is
// outstanding.
func (l *lane) endLate(t *Transfer, waited time.Duration) {
	var end ending
	l.mu.Lock()
	late := false
	for i := range l.slots {
		late = late || l.slots[i].t == t
	}
	if !late && t.item.Queued() { // its notification waits for what others have outstanding
		t.m.Fail(path.ErrCanceled)
		l.follow(t, &end)
	}
	if late && l.muted && !l.gone {
		// it is this side that holds the path back: the end may be there, behind notifications
		for range inboxFenced / len(l.events) {
			if t.m.Outstanding() == 0 || l.gone || l.peer.crowded() || l.poll(&end) == 0 {
				break
			}
		}
		late = t.m.Outstanding() > 0 && !l.gone && !l.overRate()
		if t.m.Outstanding() > 0 && !l.gone && !late {
			// the rate holds the peer back, and ends: it gets as much time again
			t.mu.Lock()
			t.late = nil
			t.mu.Unlock()
			l.expectEnd(t)
		}
	}
	l.finish(&end)
	if late {
		l.shut(fmt.Errorf("%w: a canceled transfer has not ended in %v: the path has stalled", path.ErrDown, waited))
	}
}
