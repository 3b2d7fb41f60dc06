package burst

import (
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/invariants"
)

// Shares counts references to memory that several packets, or packets of several bursts, refer to.
// The memory goes back to its Owner with the last of them. Any goroutine may use it. NewShares
// allocates all that it needs, but for a Source for each Source that it sees first.
//
// Shared bytes are read-only: a segment of it has neither headroom nor room behind its bytes, and
// Source.Shared reports it. SetLen and TrimFront change one packet's view only.
type Shares struct {
	mu      sync.Mutex
	entries []share
	free    []uint32
	sources []*Source // pairs: an Owner's, and that under which its memory is shared
}

// share is a piece of memory that waits for its last reference. Its handle is its index, with gen
// above.
type share struct {
	handle Handle
	refs   int32
	gen    uint32 // counts how often the entry was used
}

// shared is the Owner of memory of src that is shared.
type shared struct {
	s   *Shares
	src *Source
}

// knownSources bounds the list of Sources. It restarts behind that many, which costs only that
// they are made again.
const knownSources = 64

// NewShares makes one with room for that many pieces of memory that are shared at a time, at least
// 1.
func NewShares(pieces int) *Shares {
	pieces = max(pieces, 1)
	s := &Shares{entries: make([]share, pieces), free: make([]uint32, pieces),
		sources: make([]*Source, 0, knownSources)}
	for i := range s.free {
		s.free[i] = uint32(pieces - 1 - i)
	}
	return s
}

// Source is that under which memory of src is shared: same region, other owner. For one that s has
// made it is that.
func (s *Shares) Source(src *Source) *Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source(src)
}

func (s *Shares) source(src *Source) *Source {
	if s.owns(src) {
		return src
	}
	for i := 0; i < len(s.sources); i += 2 {
		if s.sources[i] == src {
			return s.sources[i+1]
		}
	}
	if len(s.sources) == knownSources {
		clear(s.sources)
		s.sources = s.sources[:0]
	}
	other := &Source{region: src.region, bytes: src.bytes, owner: &shared{s, src}}
	s.sources = append(s.sources, src, other)
	return other
}

func (s *Shares) owns(src *Source) bool {
	o, ok := src.owner.(*shared)
	return ok && o.s == s
}

// Hold takes over a piece of memory for refs references, at least 1, and returns the handle that
// each of them carries, with the Source that s.Source has for its own. It is false when s is full:
// the caller still owns the piece.
func (s *Shares) Hold(h Handle, refs int) (Handle, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return 0, false
	}
	return s.hold(h, int32(refs)), true
}

func (s *Shares) hold(h Handle, refs int32) Handle {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	e := &s.entries[i]
	e.handle, e.refs = h, refs
	return Handle(e.gen)<<32 | Handle(i)
}

// of is the entry of a handle; nil where it was released already.
func (s *Shares) of(h Handle) *share {
	if i := uint32(h); int(i) < len(s.entries) && s.entries[i].refs > 0 && s.entries[i].gen == uint32(h>>32) {
		return &s.entries[i]
	}
	if invariants.Enabled {
		panic(fmt.Sprintf("burst: released twice: share %#x", uint64(h)))
	}
	return nil
}

// sets are arrays of handles that go back, so that Reclaim allocates nothing.
var sets = sync.Pool{New: func() any { return new([64]Handle) }}

// Reclaim implements Owner. What was released already is left alone.
func (o *shared) Reclaim(handles []Handle) {
	s := o.s
	back := sets.Get().(*[64]Handle)
	defer sets.Put(back)
	for len(handles) > 0 {
		n := 0
		s.mu.Lock()
		for len(handles) > 0 && n < len(back) {
			h := handles[0]
			if e := s.of(h); e != nil {
				if e.refs--; e.refs == 0 {
					back[n] = e.handle
					n++
					e.gen++
					s.free = append(s.free, uint32(h))
				}
			}
			handles = handles[1:]
		}
		s.mu.Unlock() // the owner may be another Shares
		if n > 0 {
			o.src.owner.Reclaim(back[:n])
		}
	}
}

// Clone makes dst, an empty burst, refer to the same packets as b, whose memory goes back to its
// owners when both bursts have released it. Each burst has its own lengths, flows, times and so on;
// the bytes are shared. Room that b has reserved stays b's. It is false, and nothing has changed,
// when dst is not empty or too small, or when s has no room for the segments of b.
func (s *Shares) Clone(b, dst *Burst) bool {
	if dst == b || dst.n > 0 || b.n > len(dst.flow) || len(b.segs) > cap(dst.segs) {
		return false
	}
	if b.n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	need := 0
	for k := range b.segs {
		if g := &b.segs[k]; g.handle != NoHandle && !s.owns(b.sources[g.src]) {
			need++
		}
	}
	if need > len(s.free) {
		return false
	}
	if invariants.Enabled {
		dst.debug.fill(dst)
	}
	for k := range b.segs {
		g := &b.segs[k]
		g.head, g.cap = 0, g.len
		if g.handle == NoHandle {
			continue
		}
		if !s.owns(b.sources[g.src]) {
			g.handle = s.hold(g.handle, 2)
		} else if e := s.of(g.handle); e != nil {
			e.refs++
		}
	}
	for i, src := range b.sources[:b.nsources] {
		b.sources[i] = s.source(src)
	}
	dst.sources, dst.nsources = b.sources, b.nsources
	dst.segs = append(dst.segs, b.segs...)
	copy(dst.first, b.first[:b.n+1])
	copy(dst.flow, b.flow[:b.n])
	copy(dst.meta, b.meta[:b.n])
	dst.n, dst.asked = b.n, b.asked
	return true
}

// Shared reports whether other packets may refer to memory of s, which is read-only then.
func (s *Source) Shared() bool {
	_, ok := s.owner.(*shared)
	return ok
}
