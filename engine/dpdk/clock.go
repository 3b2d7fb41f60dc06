//go:build dpdk

package dpdk

import (
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// baseline is the time over which the clock of a device is first compared with the machine's,
	// at least.
	baseline = 20 * time.Millisecond
	// compareEvery is the time between two comparisons.
	compareEvery = time.Second
)

// clock is the clock of a device, whose ticks have a length that DPDK does not say
// (rte_eth_read_clock): it is measured from the first comparison with the machine's clock to the
// newest, and times are counted from the newest. Any goroutine may use it.
type clock struct {
	read func() (uint64, error)

	mu   sync.Mutex
	base moment
	now  atomic.Pointer[comparison] // nil before start
}

// moment is one moment by both clocks.
type moment struct {
	ticks uint64
	at    time.Time
}

// comparison is what follows from two moments.
type comparison struct {
	moment
	wall      int64  // nanoseconds since 1970
	ns, ticks uint64 // so many nanoseconds are so many ticks
	good      uint64 // nanoseconds for which to go by it
}

// newClock reads the clock for the first time.
func newClock(read func() (uint64, error)) (*clock, error) {
	c := &clock{read: read}
	m, err := c.look()
	c.base = m
	return c, err
}

// look reads both clocks, as close together as three attempts are.
func (c *clock) look() (m moment, err error) {
	least := time.Duration(-1)
	for range 3 {
		before := time.Now()
		ticks, err := c.read()
		if err != nil {
			return m, err
		}
		if d := time.Since(before); least < 0 || d < least {
			least, m = d, moment{ticks, before.Add(d / 2)}
		}
	}
	return m, nil
}

// start makes the clock ready. It waits where it was read for the first time only now.
func (c *clock) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	<-time.After(baseline - time.Since(c.base.at))
	err := c.compare()
	if err == nil && c.now.Load() == nil { // the device has set it back
		<-time.After(baseline)
		err = c.compare()
	}
	if err == nil && c.now.Load() == nil {
		err = errors.New("the clock of the device stands still")
	}
	return err
}

// compare compares the clocks. The caller holds mu.
func (c *clock) compare() error {
	m, err := c.look()
	if err != nil {
		return err
	}
	d := m.at.Sub(c.base.at)
	switch {
	case m.ticks <= c.base.ticks: // the device has set it back: what was compared before goes on to serve
		c.base = m
		return nil
	case d < baseline:
		return nil
	}
	c.now.Store(&comparison{moment: m, wall: m.at.UnixNano(), ns: uint64(d), ticks: m.ticks - c.base.ticks,
		good: uint64(min(d, compareEvery))})
	return nil
}

// lately is the comparison to go by for a time that is that many nanoseconds away from the newest.
func (c *clock) lately(away uint64) *comparison {
	f := c.now.Load()
	if away > f.good && c.mu.TryLock() {
		_ = c.compare() // else the old one goes on to serve
		f = c.now.Load()
		c.mu.Unlock()
	}
	return f
}

// ns is the time in nanoseconds since 1970 of a reading of the device's clock.
func (c *clock) ns(ticks uint64) int64 {
	f := c.now.Load()
	if d := ticks - f.moment.ticks; int64(d) > 0 {
		f = c.lately(scale(d, f.ns, f.ticks))
	}
	d := int64(ticks - f.moment.ticks)
	if d < 0 {
		return f.wall - int64(scale(uint64(-d), f.ns, f.ticks))
	}
	return f.wall + int64(scale(uint64(d), f.ns, f.ticks))
}

// ticks is what the device's clock says at a time in nanoseconds since 1970.
func (c *clock) ticks(ns int64) uint64 {
	f := c.now.Load()
	if d := ns - f.wall; d > 0 {
		f = c.lately(uint64(d))
	}
	d := ns - f.wall
	if d < 0 {
		return f.moment.ticks - scale(uint64(-d), f.ticks, f.ns)
	}
	return f.moment.ticks + scale(uint64(d), f.ticks, f.ns)
}

// scale is n*a/b, 0 where that is centuries.
func scale(n, a, b uint64) uint64 {
	hi, lo := bits.Mul64(n, a)
	if hi >= b {
		return 0
	}
	q, _ := bits.Div64(hi, lo, b)
	return q
}
