package engine

import (
	"runtime"
	"time"
)

// spinPoll is what one look is taken for at least. Where the clock stands still while a goroutine
// computes (virtual time), looks are counted instead of time.
const spinPoll = 25 * time.Nanosecond

// spinner decides how long to look again and again before sleeping. Where that found nothing lately
// it is shorter, but never less than an eighth of the most, so that a time of traffic is noticed.
type spinner struct {
	most, budget, limit time.Duration
	start               time.Time
	looks               int
	keep                bool // its goroutine has a thread for itself
}

func newSpinner(most time.Duration) spinner {
	most = max(most, 0)
	return spinner{most: most, budget: most}
}

// begin begins to spin, for limit at most.
func (s *spinner) begin(limit time.Duration) { s.limit, s.looks = min(s.budget, limit), 0 }

// again says whether to look once more, and lets others run before that. A goroutine that is bound
// to its thread lets no other run: to yield it would have to wake another thread and wait for that
// one to wake it again, at each look, which disturbs all processors; packets came at 0.83 of the
// rate (docs/measurements/afpacket.md).
func (s *spinner) again() bool {
	switch {
	case s.looks == 0:
		if s.limit <= 0 {
			return false
		}
		s.start = time.Now()
	case time.Duration(s.looks)*spinPoll > s.limit, s.looks&15 == 0 && time.Since(s.start) >= s.limit:
		return false
	}
	s.looks++
	if !s.keep {
		runtime.Gosched()
	}
	return true
}

// hit says that looking was worth it, or would have been.
func (s *spinner) hit() { s.budget = min(2*s.budget, s.most) }

// miss says that looking found nothing.
func (s *spinner) miss() { s.budget = max(s.budget/2, s.most/8) }
