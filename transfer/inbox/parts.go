package inbox

import (
	"slices"
	"sync"

	"github.com/penstock-io/penstock/transfer/control"
)

const (
	// MaxParts is the number of messages of a peer that are not complete; a further one replaces
	// the oldest.
	MaxParts = 4
	// MaxLong is the number of bytes of complete messages of a peer that wait for the application;
	// more are refused.
	MaxLong = 4 << 20
)

// Parts are messages of a peer that are not complete, the oldest first. Its methods may be called
// from any goroutine.
type Parts struct {
	mu    sync.Mutex // guards what follows; Charge is called with it
	all   []partial
	ended error
	// Charge charges bytes to the peer, or gives them back.
	Charge func(bytes int) error
}

type partial struct {
	number uint64
	total  int
	b      []byte
}

// Add appends a part to its message, and returns what there is of it; a complete one is forgotten.
// waiting is how many bytes of complete ones wait. A message is charged from its first part on.
func (l *Parts) Add(number uint64, total, off int, part []byte, waiting int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.all, func(m partial) bool { return m.number == number })
	if off == 0 && i < 0 {
		if waiting > MaxLong {
			return nil, control.Errorf(control.Busy, "more than %d bytes of messages wait for the application",
				MaxLong)
		}
		if l.ended != nil {
			return nil, l.ended
		}
		more := total
		if len(l.all) == MaxParts {
			more -= l.all[0].total
		}
		if err := l.Charge(more); err != nil {
			return nil, err
		}
		if len(l.all) == MaxParts {
			l.all = slices.Delete(l.all, 0, 1)
		}
		i = len(l.all)
		l.all = append(l.all, partial{number: number, total: total})
	}
	if i < 0 || len(l.all[i].b) != off || l.all[i].total != total {
		return nil, control.Errorf(control.BadRequest, "notification: a part at %d does not follow one that is known",
			off)
	}
	m := &l.all[i]
	if m.b = append(m.b, part...); len(m.b) < total {
		return m.b, nil
	}
	b := m.b
	l.all = slices.Delete(l.all, i, i+1)
	return b, nil
}

// End forgets what is not complete; no message begins any more, because of err.
func (l *Parts) End(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.all {
		l.Charge(-m.total)
	}
	l.all, l.ended = nil, err
}
