package inbox

import "sync"

// Seen remembers which transfer numbers of a peer were delivered: a bitmap over the latest ones,
// like that of RFC 4303 section 3.4.3. Older ones count as new, unlike there: paths deliver each
// notification once, so this only guards against a peer that repeats itself, while a large transfer
// may well end after many small ones that began later. Its methods may be called from any
// goroutine.
type Seen struct {
	mu   sync.Mutex
	high uint64
	bits [1 << 10]uint64
}

// SeenSpan is how many numbers are remembered.
const SeenSpan = 64 * (1 << 10)

// First reports whether n was not seen before, and remembers it.
func (s *Seen) First(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n <= s.high && s.high-n >= SeenSpan {
		return true
	}
	if n > s.high {
		if n-s.high >= SeenSpan {
			clear(s.bits[:])
		} else {
			for i := s.high + 1; i-1 != n; i++ { // n may be the largest number there is
				s.bits[i/64%uint64(len(s.bits))] &^= 1 << (i % 64)
			}
		}
		s.high = n
	}
	w, b := n/64%uint64(len(s.bits)), uint64(1)<<(n%64)
	if s.bits[w]&b != 0 {
		return false
	}
	s.bits[w] |= b
	return true
}

// Has reports whether n was seen. Numbers that are too old to be remembered count as not seen.
func (s *Seen) Has(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.high || s.high-n >= SeenSpan {
		return false
	}
	return s.bits[n/64%uint64(len(s.bits))]&(1<<(n%64)) != 0
}
