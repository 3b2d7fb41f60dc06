package fence

import (
	"errors"
	"maps"
	"slices"

	"github.com/penstock-io/penstock/transfer/path"
)

// Token marks the tokens of fences among those of a path.
const Token = 1 << 63

// Set has the fences that callers wait for on one path. The owner of the path serializes its
// methods. The zero value is empty.
type Set struct {
	posted  map[uint64]Wait // by token; nil: none was yet
	waiting []Wait          // not posted yet: the window is full
}

// Wait is a caller that waits for a fence.
type Wait struct {
	Key  path.Key
	done chan error // buffered
}

// For makes the wait for a fence of an export, and what the caller receives its end from.
func For(key path.Key) (Wait, <-chan error) {
	w := Wait{key, make(chan error, 1)}
	return w, w.done
}

// End tells the caller that the fence has ended.
func (w Wait) End(err error) { w.done <- err }

// Add takes a fence, which Post posts.
func (s *Set) Add(w Wait) { s.waiting = append(s.waiting, w) }

// Waits reports whether fences wait to be posted.
func (s *Set) Waits() bool { return len(s.waiting) > 0 }

// Empty reports whether no fence is under way.
func (s *Set) Empty() bool { return len(s.posted)+len(s.waiting) == 0 }

// Post posts those that wait, as far as the window has room.
func (s *Set) Post(p path.Path) {
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		token := Token | uint64(w.Key.Epoch)<<24
		for _, ok := s.posted[token]; ok; _, ok = s.posted[token] {
			token++
		}
		n, err := p.Post([]path.Op{{Kind: path.Fence, Key: w.Key, Token: token}})
		switch {
		case n == 1:
			if s.posted == nil {
				s.posted = map[uint64]Wait{}
			}
			s.posted[token] = w
		case errors.Is(err, path.ErrFull), errors.Is(err, path.ErrDown): // the next completion, or the end of the path
			return
		default:
			w.End(err)
		}
		s.waiting = s.waiting[1:]
	}
}

// Ended tells the caller of a posted one what became of it. If the path went down, its end decides
// that.
func (s *Set) Ended(e *path.Event) {
	if w, ok := s.posted[e.Token]; ok && !errors.Is(e.Err, path.ErrDown) {
		w.End(e.Err)
		delete(s.posted, e.Token)
	}
}

// Take returns all that have not ended, and forgets them.
func (s *Set) Take() []Wait {
	all := slices.AppendSeq(s.waiting, maps.Values(s.posted))
	*s = Set{}
	return all
}
