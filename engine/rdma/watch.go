package rdma

import (
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
)

// A channel with something under way is watched (rdmadev.Watch), and given up with its connection.
//
// A message whose completion is lost at the receiver, or a credit at the sender, shows when the
// sender says how many messages it has sent: with RC it does so when it has waited for a second,
// where nothing can be lost on the way.

// guard makes sure that look looks at a channel with something under way. The caller holds c.mu.
func (c *conn) guard() {
	if c.guarded || c.dead {
		return
	}
	c.guarded = true
	if c.watchdog == nil {
		c.watchdog = time.AfterFunc(c.port.o.looks(), c.look)
		return
	}
	c.watchdog.Reset(c.port.o.looks())
}

// look looks whether the channels get on.
func (c *conn) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guarded = false
	if c.dead {
		return
	}
	for _, o := range append(c.gone[:len(c.gone):len(c.gone)], c.out) {
		if o == nil {
			continue
		}
		o.look()
		if o.flying() > 0 || o.flushed != nil {
			c.guard()
		}
		c.endWithdrawn(o)
	}
	c.flush()
}

func (o *txChannel) look() {
	if o.flushed != nil { // since the last look, and its connection lives: the device has kept to itself what failed
		o.c.port.report(o.c, o.flushed)
	}
	o.reap()
	switch n := o.watch.Look(o.flying() > 0 && !o.broken, o.head); {
	case n >= rdmadev.WatchMost && n >= o.patience():
		o.fail(rdmadev.ErrSilent)
	case rdmadev.Sparse(n):
		o.nudge()
	}
}

// nudge writes no bytes, where that can be: it ends when what is before it has ended, or when the
// device finds the peer's gone.
func (o *txChannel) nudge() {
	if o.flying() > o.depth || o.c.port.o.Transport == UD || o.c.plain {
		// there is one already, or it cannot be, or the peer may not let itself be written to
		return
	}
	o.chain.Reset()
	o.chain.Write(o.tail, ibv.Signaled, 0, 0)
	if n, err := o.x.qp.PostSend(o.chain); n == 0 {
		o.fail(err)
		return
	}
	o.posts[o.tail%uint64(len(o.posts))] = posted{}
	o.tail++
	o.reap()
}

// patience is after how many looks without progress look gives the channel up.
func (o *txChannel) patience() int {
	n := uint64(0)
	for i := o.head; i != o.tail; i++ {
		n += uint64(o.posts[i%uint64(len(o.posts))].bytes)
	}
	return rdmadev.Patience(n)
}
