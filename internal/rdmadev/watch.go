package rdmadev

import (
	"errors"
	"time"
)

// A device ends every request, by success, by a refusal, or when its retries are used up. If the
// completion of one is lost, by a fault of the device or of its library, the next one on the queue
// pair shows that it is over, because requests end in order. So while something is under way the
// owner looks at a queue pair once every WatchEvery (Watch). Where it sees no progress it posts a
// request that moves nothing, at more and more distant looks (Sparse). It gives up a queue pair
// without progress for longer than a slow network needs for what is under way (Patience).
const (
	WatchEvery = time.Second
	WatchMost  = 60       // looks without any progress, where nothing large is under way
	WatchPace  = 16 << 10 // bytes that the slowest network of all moves from one look to the next
)

// ErrSilent is why the owner gives a queue pair up.
var ErrSilent = errors.New("the device does not end its requests any more")

// Watch is what a queue pair had done at the last look.
type Watch struct {
	done  uint64
	still int
}

// Look notes what the queue pair has done, in any number that changes when it gets on, and returns
// how many looks in a row found that it has something under way and does not get on.
func (w *Watch) Look(busy bool, done uint64) int {
	if !busy || done != w.done {
		*w = Watch{done: done}
		return 0
	}
	w.still++
	return w.still
}

// Again forgets the looks so far.
func (w *Watch) Again() { w.still = 0 }

// Sparse says after which looks without progress a request that moves nothing follows: soon in the
// beginning, later now and then.
func Sparse(looks int) bool {
	return looks > 0 && (looks%16 == 0 || looks < 16 && looks&(looks-1) == 0)
}

// Patience is after how many looks without progress the owner gives up a queue pair that has so
// many bytes under way. A chain of requests ends as one, and a transfer tells nothing before its
// end.
func Patience(bytes uint64) int { return WatchMost + int(bytes/WatchPace) }
