package verbs

import (
	"errors"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
)

// A device ends every request. If the completion of one is lost, by a fault of the device or of its library, the next one on the queue pair shows
// that it is over, because requests end in order. Where there is no next one the lane makes one: while something is under way it is
// looked at once a second, and where nothing got on since, a write of no bytes follows, at more and more distant looks. A lane that does not
// get on all the same, for longer than a slow network needs for what is under way, is given up, and its connection with it.
//
// A message whose completion is lost at the receiver, or a credit at the sender, shows when the sender says how many messages it has
// sent: with RC it does so when it has waited for a second, where nothing can be lost on the way.

const (
	watchEvery = time.Second
	watchMost  = 60       // looks without any progress, where nothing large is under way
	watchPace  = 16 << 10 // bytes that the slowest network of all moves from one look to the next
)

var errSilent = errors.New("the device does not end its requests any more")

// watched is what a lane had done when it was looked at last.
type watched struct {
	head  uint64
	still int
}

// guard makes sure that a lane with something under way is looked at. The caller holds c.mu.
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

// look looks whether the lanes get on.
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
		c.settle(o)
	}
	c.flush()
}

func (o *outLane) look() {
	if o.flushed != nil { // since the last look, and its connection lives: the device has kept to itself what failed
		o.c.port.report(o.c, o.flushed)
	}
	o.reap()
	if o.flying() == 0 || o.head != o.watched.head || o.broken {
		o.watched = watched{head: o.head}
		return
	}
	if o.watched.still++; o.watched.still >= watchMost && o.watched.still >= o.patience() {
		o.fail(errSilent)
		return
	}
	if n := o.watched.still; n&(n-1) == 0 {
		o.nudge()
	}
}

// nudge writes no bytes, where that can be: it ends when what is before it has ended, or when the device finds the peer's gone.
func (o *outLane) nudge() {
	if o.flying() > o.depth || o.c.port.o.Transport == UD || o.c.plain { // there is one already, or it cannot be, or the peer may not let itself be written to
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

// patience is after how many looks without progress the lane is given up. A chain of messages ends as one, and a transfer tells nothing
// before its end.
func (o *outLane) patience() int {
	n := uint64(0)
	for i := o.head; i != o.tail; i++ {
		n += uint64(o.posts[i%uint64(len(o.posts))].bytes)
	}
	return watchMost + int(n/watchPace)
}
