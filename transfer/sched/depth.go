package sched

import "time"

// Depth is how many parts of one transfer are in flight: two at first, and one more with each part
// that took little time for so many. So a slow link has few of them, which end one after the other
// and are not moved again after an early end, and a fast one has enough for connections that lost
// packets not to hold the others up.
type Depth struct {
	Most int // of parts

	n int
}

// soon is the time that the link takes for a part from which on more of them are of no use.
const soon = 100 * time.Millisecond

// Parts is how many may be in flight.
func (d *Depth) Parts() int { return min(max(d.n, 2), d.Most) }

// Ended notes that a part ended, so long after it began.
func (d *Depth) Ended(took time.Duration) {
	if n := d.Parts(); took < time.Duration(n)*soon {
		d.n = min(n+1, d.Most)
	}
}
