package fence

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer/loop"
	"github.com/penstock-io/penstock/transfer/path"
)

// exposer is a path whose peer may go on reaching memory after the path has ended; see
// shm.Path.Exposed.
type exposer interface {
	Exposed() []path.Key
	ExposedFD() int // readable when Exposed may have shrunk; -1: it does not shrink any more
	Forget()        // the owner will not ask again
}

// Exposes reports whether the peer of a path that is down may still reach an export.
func Exposes(p path.Path, key path.Key) bool {
	x, ok := p.(exposer)
	return ok && slices.Contains(x.Exposed(), key)
}

// lookAgain is how often it is looked whether a peer has let go of memory after its path went down.
// Nothing tells: the path is closed. It happens only while a peer is stopped or hangs.
const lookAgain = 50 * time.Millisecond

// Closed has the paths of a node that were closed although their peers may still reach exports. Its
// methods may be called from any goroutine.
type Closed struct {
	loop *loop.Loop
	done <-chan struct{} // the node does not use the memory again

	mu    sync.Mutex       // guards what follows; taken under the mutex that owns a path
	paths map[*Path]uint64 // with the tag in the loop; nil when the node has ended
}

// Path is a path that is closed, with the mutex that owns it.
type Path struct {
	Mu     sync.Locker
	Path   path.Path
	Refund func() // gives back what was charged for the path, once nothing of it is left
}

// NewClosed makes an empty table. When done is closed the node does not use the memory again.
func NewClosed(l *loop.Loop, done <-chan struct{}) *Closed {
	return &Closed{loop: l, done: done, paths: map[*Path]uint64{}}
}

// Linger answers a fence of a path that is closed, at once or as soon as the peer has let the
// memory go. The mutex owns the path and is held.
func (c *Closed) Linger(mu sync.Locker, p path.Path, w Wait) {
	if !Exposes(p, w.Key) {
		w.End(nil)
		return
	}
	go func() {
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		for exposed := true; exposed; {
			select {
			case <-tick.C:
				mu.Lock()
				exposed = Exposes(p, w.Key)
				mu.Unlock()
			case <-c.done:
				exposed = false
			}
		}
		w.End(nil)
	}()
}

// Keep remembers a path that was closed although its peer may still reach exports, until the peer
// has let go; of any other nothing is left. The mutex of the path is held. A node that has ended
// remembers nothing.
func (c *Closed) Keep(p *Path) {
	x, ok := p.Path.(exposer)
	if !ok || len(x.Exposed()) == 0 {
		p.Refund()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paths == nil {
		x.Forget()
		p.Refund()
		return
	}
	c.paths[p] = c.loop.AddClosed(x.ExposedFD(), func() { c.look(p) })
}

// look forgets a closed path whose peer has let go.
func (c *Closed) look(p *Path) {
	p.Mu.Lock()
	exposing := len(p.Path.(exposer).Exposed()) > 0
	p.Mu.Unlock()
	if exposing {
		return
	}
	c.mu.Lock()
	tag, kept := c.paths[p]
	delete(c.paths, p)
	c.mu.Unlock()
	c.loop.RemoveClosed(tag)
	if kept {
		p.Refund()
	}
}

// Forget is the end of it: a program that keeps a closed node does not keep the sockets of paths
// whose peers hang.
func (c *Closed) Forget() {
	c.mu.Lock()
	all := c.paths
	c.paths = nil
	c.mu.Unlock()
	for p := range all {
		p.Mu.Lock()
		p.Path.(exposer).Forget()
		p.Mu.Unlock()
		p.Refund()
	}
}

// Fence asks for a fence of an export on all paths of the table.
func (c *Closed) Fence(key path.Key) (out []<-chan error) {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.paths))
	c.mu.Unlock()
	for _, p := range all {
		w, done := For(key)
		p.Mu.Lock()
		c.Linger(p.Mu, p.Path, w)
		p.Mu.Unlock()
		out = append(out, done)
		c.look(p)
	}
	return out
}
