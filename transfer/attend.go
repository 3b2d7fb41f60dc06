package transfer

import (
	"context"
	"runtime"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer/loop"
)

// attend has the calling goroutine serve the channel of the transfer, as the loop does, until the
// transfer has ended or the node's spin time is over. So the goroutine that waits sees the end
// itself, and neither the loop nor the Go scheduler has to wake a thread for it. One goroutine at a
// time attends a channel, and the loop leaves the channel to it.
func (t *Transfer) attend(ctx context.Context) {
	t.mu.Lock()
	l := t.channel
	t.mu.Unlock()
	if l == nil || l.peer.node.loop.Spin() == 0 || !l.attended.CompareAndSwap(false, true) {
		return
	}
	for round, until := 1, clock()+l.peer.node.loop.Spin(); !t.ended() && ctx.Err() == nil && clock() < until; round++ {
		if round%loop.LookRounds == 0 {
			runtime.Gosched()
		}
		if more, _ := l.Serve(false); !more {
			sys.Yield()
		}
	}
	l.attended.Store(false)
	if more, _ := l.Serve(true); more {
		l.peer.node.loop.Kick(l)
	}
}
