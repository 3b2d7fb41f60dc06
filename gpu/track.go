package gpu

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
)

// Under -tags invariants each stream counts what is put into it and how far its end was seen, by a
// wait or a query. So a check can tell for each memory and call whether the work that used it last
// is known to be done. This knows nothing of the device: work whose end no call has seen may be
// running.

// timeline is the count of one stream.
type timeline struct {
	mu   sync.Mutex
	put  uint64 // pieces of work put in
	done uint64 // pieces of work whose end was seen
	deps []dependency
	busy bool // a goroutine puts work in
}

// dependency is that work after at began when on was done.
type dependency struct {
	at uint64
	on point
}

// point is a place in a timeline; the zero point is none.
type point struct {
	t  *timeline
	at uint64
}

// enter is the beginning of a call that only one goroutine may make at a time.
func (t *timeline) enter(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy {
		panic(fmt.Sprintf("gpu: two goroutines put work into %s at once", o))
	}
	t.busy = true
}

func (t *timeline) leave() {
	t.mu.Lock()
	t.busy = false
	t.mu.Unlock()
}

// next counts one more piece of work.
func (t *timeline) next() {
	t.mu.Lock()
	t.put++
	t.mu.Unlock()
}

// now is the point behind all work put in; none without invariants.
func (t *timeline) now() point {
	if !invariants.Enabled {
		return point{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return point{t, t.put}
}

// depend notes that work from here on begins when p is done.
func (t *timeline) depend(p point) {
	if p.t == nil || p.t == t {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put++ // the wait is work itself
	t.deps = append(t.deps, dependency{t.put, p})
}

// seen notes that all work up to the point is known to be done, and so is what it had to wait for.
func (p point) seen() {
	if p.t == nil {
		return
	}
	p.t.mu.Lock()
	p.t.done = max(p.t.done, p.at)
	var also []point
	n := 0
	for n < len(p.t.deps) && p.t.deps[n].at <= p.t.done {
		also = append(also, p.t.deps[n].on)
		n++
	}
	p.t.deps = p.t.deps[n:]
	p.t.mu.Unlock()
	for _, q := range also {
		q.seen()
	}
}

// uses is where a memory or a call was used last, in each stream.
type uses struct {
	mu   sync.Mutex
	last map[*timeline]uint64
}

// at notes a use by the work that t has counted last.
func (u *uses) at(t *timeline) {
	p := t.now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[*timeline]uint64{}
	}
	u.last[t] = p.at
}

// over panics when work that uses o is not known to be done. On a lost device there is no work.
func (u *uses) over(o *object) {
	if o.ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for t, at := range u.last {
		t.mu.Lock()
		done := t.done
		t.mu.Unlock()
		if at > done {
			panic(fmt.Sprintf("gpu: %s is closed although work that uses it may be under way: wait for its stream "+
				"first; it was made at\n%s", o, format(o.stack)))
		}
	}
}
