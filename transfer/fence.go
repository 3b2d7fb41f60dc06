package transfer

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// fence waits until nothing that came by this path can reach the revoked export any more.
func (ch *channel) fence(key path.Key) <-chan error {
	f := fenceWait{key, make(chan error, 1)}
	ch.mu.Lock()
	defer ch.unlock()
	if ch.gone || ch.down != nil {
		ch.peer.node.linger(&ch.mu, ch.p, f)
		return f.done
	}
	ch.fences.waiting = append(ch.fences.waiting, f)
	ch.fences.post(ch.p)
	return f.done
}

// fences are those that callers wait for on one path. Its owner has them.
type fences struct {
	posted  map[uint64]fenceWait // by token; nil: none was yet
	waiting []fenceWait          // not posted yet: the window is full
}

// fenceWait is a caller that waits for a fence; done is buffered.
type fenceWait struct {
	key  path.Key
	done chan error
}

// post posts those that wait, as far as the window has room.
func (f *fences) post(p path.Path) {
	for len(f.waiting) > 0 {
		w := f.waiting[0]
		token := fenceToken | uint64(w.key.Epoch)<<24
		for _, ok := f.posted[token]; ok; _, ok = f.posted[token] {
			token++
		}
		n, err := p.Post([]path.Op{{Kind: path.Fence, Key: w.key, Token: token}})
		switch {
		case n == 1:
			if f.posted == nil {
				f.posted = map[uint64]fenceWait{}
			}
			f.posted[token] = w
		case errors.Is(err, path.ErrFull), errors.Is(err, path.ErrDown): // the next completion, or the end of the path
			return
		default:
			w.done <- err
		}
		f.waiting = f.waiting[1:]
	}
}

// ended tells the caller of a posted one what became of it. If the path went down, its end decides
// that.
func (f *fences) ended(e *path.Event) {
	if w, ok := f.posted[e.Token]; ok && !errors.Is(e.Err, path.ErrDown) {
		w.done <- e.Err
		delete(f.posted, e.Token)
	}
}

// take returns all that have not ended, and forgets them.
func (f *fences) take() []fenceWait {
	all := slices.AppendSeq(f.waiting, maps.Values(f.posted))
	*f = fences{}
	return all
}

// exposer is a path whose peer may go on reaching memory after the path has ended; see
// shm.Path.Exposed.
type exposer interface {
	Exposed() []path.Key
	ExposedFD() int // readable when Exposed may have shrunk; -1: it does not shrink any more
	Forget()        // the owner will not ask again
}

// exposes reports whether the peer of a path that is down may still reach an export.
func exposes(p path.Path, key path.Key) bool {
	x, ok := p.(exposer)
	return ok && slices.Contains(x.Exposed(), key)
}

// lookAgain is how often the node looks whether a peer has let go of memory after its path went
// down. Nothing tells: the path is closed. It happens only while a peer is stopped or hangs.
const lookAgain = 50 * time.Millisecond

// linger answers a fence of a path that is closed, at once or as soon as the peer has let the
// memory go. The mutex owns the path and is held.
func (n *Node) linger(mu *sync.Mutex, p path.Path, f fenceWait) {
	if !exposes(p, f.key) {
		f.done <- nil
		return
	}
	go func() {
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		for exposed := true; exposed; {
			select {
			case <-tick.C:
				mu.Lock()
				exposed = exposes(p, f.key)
				mu.Unlock()
			case <-n.ctx.Done(): // a node that is closed does not use the memory again
				exposed = false
			}
		}
		f.done <- nil
	}()
}

// closedPath is a channel or queue that is down.
type closedPath interface {
	fence(key path.Key) <-chan error
	exposing() bool // its peer may still reach exports
	forget()        // the node will not ask again
	refund()        // nothing of it is left: gives back what was charged for it
}

func (ch *channel) exposing() bool {
	ch.mu.Lock()
	defer ch.unlock()
	return len(ch.p.(exposer).Exposed()) > 0
}

func (ch *channel) refund() { ch.grant.release() }

func (ch *channel) forget() {
	ch.mu.Lock()
	defer ch.unlock()
	ch.p.(exposer).Forget()
}

// keepExposed remembers a path that was closed although its peer may still reach exports, until the
// peer has let go; of any other nothing is left. Its owner calls it. A node that has ended
// remembers nothing.
func (n *Node) keepExposed(c closedPath, p path.Path) {
	x, ok := p.(exposer)
	if !ok || len(x.Exposed()) == 0 {
		c.refund()
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.exposed == nil {
		x.Forget()
		c.refund()
		return
	}
	n.exposed[c] = n.loop.AddClosed(x.ExposedFD(), func() { n.lookExposed(c) })
}

// lookExposed forgets a closed path whose peer has let go.
func (n *Node) lookExposed(c closedPath) {
	if c.exposing() {
		return
	}
	n.mu.Lock()
	tag, kept := n.exposed[c]
	delete(n.exposed, c)
	n.mu.Unlock()
	n.loop.RemoveClosed(tag)
	if kept {
		c.refund()
	}
}

// forgetExposed is the end of it: a program that keeps a closed node does not keep the sockets of
// paths whose peers hang.
func (n *Node) forgetExposed() {
	n.mu.Lock()
	all := n.exposed
	n.exposed = nil
	n.mu.Unlock()
	for c := range all {
		c.forget()
		c.refund()
	}
}

// fenceExposed asks the paths that were closed but are remembered.
func (n *Node) fenceExposed(key path.Key) []<-chan error {
	n.mu.Lock()
	all := slices.Collect(maps.Keys(n.exposed))
	n.mu.Unlock()
	var out []<-chan error
	for _, c := range all {
		out = append(out, c.fence(key))
		n.lookExposed(c)
	}
	return out
}
