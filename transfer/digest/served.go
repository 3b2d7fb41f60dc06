package digest

import (
	"crypto/sha256"
	"hash"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// MaxKept is the number of unfinished digests that a node keeps for one peer; when there are
// more, the one that was not asked for longest is forgotten. Honest peers have fewer (maxOpen),
// besides those that they gave up.
const MaxKept = 256

// Served has the digests that a peer asks for. Its methods may be called from any goroutine. The
// zero value is empty.
type Served struct {
	mu   sync.Mutex // guards what follows
	busy int
	kept []*Open // the first one was not asked for longest
}

// Open is a digest that a peer asks for. The goroutine that took it from the table owns it.
type Open struct {
	ID    observe.ID
	H     hash.Hash
	Bytes uint64
	Key   path.Key // of the first block
	Whole bool     // the blocks follow one another from the start of one export
}

// Take admits a request and hands out the digest that it continues, or a new one.
func (s *Served) Take(q *control.Digest) (*Open, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy >= MaxAsked {
		return nil, control.Errorf(control.Busy, "%d requests for digests are being answered", MaxAsked)
	}
	d := s.forget(q.ID)
	switch {
	case q.At == 0:
		d = &Open{ID: q.ID, H: sha256.New(), Whole: true}
	case d == nil:
		return nil, control.Errorf(control.NotFound, "no open digest %v", observe.ID(q.ID))
	case d.Bytes != q.At:
		return nil, control.Errorf(control.BadRequest, "digest %v is at byte %d, not %d", d.ID, d.Bytes, q.At)
	}
	s.busy++
	return d, nil
}

// Give ends a request; d, unless nil, is kept for the next one.
func (s *Served) Give(d *Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if d == nil {
		return
	}
	s.forget(d.ID) // the peer may have used the id for two at once
	if len(s.kept) == MaxKept {
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	s.kept = append(s.kept, d)
}

// forget takes the open digest of an id out, nil if there is none. The mutex is held.
func (s *Served) forget(id observe.ID) *Open {
	i := slices.IndexFunc(s.kept, func(d *Open) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	d := s.kept[i]
	s.kept = slices.Delete(s.kept, i, i+1)
	return d
}
