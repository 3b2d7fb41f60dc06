package cli

import (
	"math/bits"
	"time"
)

// meter says how fast bytes come and when the rest will be there. It is arithmetic only: the caller
// gives the time, with every set; what it says holds for the last of them. Bytes that were there
// before the start (of a transfer that goes on where another ended) count as progress, not as
// speed.
type meter struct {
	total   uint64
	done    uint64
	first   uint64 // done at the start
	started time.Time
	at      time.Time // of the last set

	// ring holds what was done at moments of the last meterWindow, at least meterStep apart, the
	// oldest at ring[head].
	ring [meterSamples]meterSample
	head int
	n    int
}

type meterSample struct {
	at   time.Time
	done uint64
}

const (
	// meterWindow is the time over which the rate is taken: long enough to be readable, short
	// enough that a stall is seen.
	meterWindow  = 5 * time.Second
	meterStep    = 100 * time.Millisecond
	meterSamples = int(meterWindow/meterStep) + 2
)

// start begins at now with done bytes of total that are there already. A total of 0 bytes is done
// at once.
func (m *meter) start(now time.Time, total, done uint64) {
	*m = meter{total: total, done: min(done, total), first: min(done, total), started: now, at: now}
	m.keep(now)
}

// set says that done bytes are there at now. Less than before is a transfer that restarted: the
// rate starts again with it.
func (m *meter) set(now time.Time, done uint64) {
	done = min(done, m.total)
	if done < m.done {
		m.start(now, m.total, done)
		return
	}
	m.done, m.at = done, now
	last := m.ring[(m.head+m.n-1)%meterSamples]
	if now.Sub(last.at) >= meterStep {
		m.keep(now)
	}
}

func (m *meter) keep(now time.Time) {
	if m.n == meterSamples {
		m.head, m.n = (m.head+1)%meterSamples, m.n-1
	}
	m.ring[(m.head+m.n)%meterSamples] = meterSample{now, m.done}
	m.n++
}

// rate is in bytes per second over the last meterWindow before the last set, or since the start
// when that is less ago.
func (m *meter) rate() float64 {
	base := m.ring[m.head]
	for i := 1; i < m.n; i++ { // the youngest that is at least a window old, else the oldest
		s := m.ring[(m.head+i)%meterSamples]
		if m.at.Sub(s.at) < meterWindow {
			break
		}
		base = s
	}
	return perSecond(m.done-base.done, m.at.Sub(base.at))
}

// average is the rate since the start in bytes per second.
func (m *meter) average() float64 { return perSecond(m.done-m.first, m.elapsed()) }

// elapsed is the time from the start to the last set.
func (m *meter) elapsed() time.Duration { return m.at.Sub(m.started) }

// eta is how long the rest takes at the present rate; false when that cannot be said: nothing
// moves.
func (m *meter) eta() (time.Duration, bool) {
	if m.done >= m.total {
		return 0, true
	}
	const limit = 1000 * time.Hour // longer ones are not shown
	if s := float64(m.total-m.done) / m.rate(); s < limit.Seconds() {
		return time.Duration(s * float64(time.Second)), true
	}
	return 0, false
}

// percent is the share that is there, rounded down: 100 means everything.
func (m *meter) percent() int { return percent(m.done, m.total) }

// percent is 100*done/total rounded down, for done up to total; of nothing, everything is there.
func percent(done, total uint64) int {
	if total == 0 {
		return 100
	}
	hi, lo := bits.Mul64(done, 100)
	q, _ := bits.Div64(hi, lo, total)
	return int(q)
}

// perSecond is 0 where no time has passed.
func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
