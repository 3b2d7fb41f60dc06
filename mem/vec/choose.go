package vec

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// The limits of a calibration: its time, and the memory of each of its two buffers.
const (
	calibrationTime   = 50 * time.Millisecond
	calibrationBuffer = 16 << 20
	roundsWanted      = 5
	roundsNeeded      = 3 // a class with fewer rounds counts as not measured
)

// advantage is how much faster than Builtin a kernel must be to replace it, so that noise alone
// changes nothing.
const advantage = 1.03

// class is a range of copy sizes and how it is measured.
type class struct {
	over  int  // holds copies larger than this, up to the next class
	probe int  // bytes per measured copy
	times int  // copies per sample
	cold  bool // evict both buffers before each copy: the class never fits a cache, however large
	like  int  // the class to follow when this one could not be measured; itself: none
}

// The last class cannot be measured at its size within the limits, so it uses a copy whose source
// and destination have been evicted from the caches. The built-in copy itself turns to non-temporal
// stores at 32 MiB, in the way of NTAVX2.
var classes = [...]class{
	{over: ChosenCopy, probe: 64 << 10, times: 32, like: 0},
	{over: LargeCopy, probe: 512 << 10, times: 8, like: 1},
	{over: 1 << 20, probe: 2 << 20, times: 2, like: 1},
	{over: 4 << 20, probe: 8 << 20, times: 1, like: 2},
	{over: 12 << 20, probe: calibrationBuffer, times: 1, like: 5},
	{over: 48 << 20, probe: 4 << 20, times: 1, cold: true, like: 4},
}

// order is that in which classes are measured while the time lasts: the ones where most is to be
// gained first, but those that need much memory late, since the first touch of a page can cost more
// than a hundred copies of it.
var order = [len(classes)]int{5, 1, 0, 2, 4, 3}

// Speed is what a kernel reached in one size class: the median of the rounds, in 10⁹ bytes copied
// per second.
type Speed struct {
	Kernel Kernel
	GBps   float64
}

// Choice is the kernel that Copy uses for one size class, and why.
type Choice struct {
	Over   int     // the class holds copies larger than this many bytes, up to Over of the next class
	Probe  int     // bytes of the copies that were measured
	Kernel Kernel  // what Copy uses
	Speeds []Speed // of every available kernel; empty when the class was not measured
	Why    string  // in words
}

// table is the outcome of a calibration.
type table struct {
	kernels [len(classes)]Kernel
	choices []Choice
	took    time.Duration
}

var (
	current     atomic.Pointer[table]
	calibrating sync.Mutex
	begun       atomic.Bool // a large copy has begun a calibration
	measured    = measure   // tests hold it
)

// Calibrate measures the kernels of this machine and replaces the choice of Copy, and returns that
// choice. It takes less than 60 ms and 32 MiB of memory, which it gives back. The first large Copy
// begins the same in the background if no caller has called Calibrate; call it at start, or again
// when the machine was busy the first time. Concurrent copies go on with what was chosen before.
func Calibrate() []Choice {
	calibrating.Lock()
	defer calibrating.Unlock()
	current.Store(measured(Kernels(), calibrationTime))
	return Choices()
}

// chosen is the table in force for a copy of n bytes, nil before there is one. The first large copy
// begins a calibration in the background; no copy waits for it.
func chosen(n int) *table {
	if t := current.Load(); t != nil || n <= LargeCopy || begun.Swap(true) {
		return t
	}
	go func() {
		calibrating.Lock()
		defer calibrating.Unlock()
		if current.Load() == nil {
			current.Store(measured(Kernels(), calibrationTime))
		}
	}()
	return nil
}

// copyLarge copies with the kernel for copies of total bytes, or of the size of this one where that
// is larger.
func copyLarge(dst, src []byte, total int) int {
	n := max(total, min(len(dst), len(src)))
	t := chosen(n)
	if t == nil {
		return copy(dst, src)
	}
	return t.kernels[classOf(n)].Copy(dst, src)
}

func classOf(n int) int {
	for i := len(classes) - 1; i > 0; i-- {
		if n > classes[i].over {
			return i
		}
	}
	return 0
}

var anyNonTemporal = func() Kernel {
	for _, k := range Kernels() {
		if k.NonTemporal() {
			return k
		}
	}
	return Builtin
}()

// Choices returns the choice of Copy per size class, smallest first, or nil before the first
// calibration. The caller must not change what it points to.
func Choices() []Choice {
	t := current.Load()
	if t == nil {
		return nil
	}
	return slices.Clone(t.choices)
}

// Explain describes the choice of Copy as a table for people: one line per size class with the
// kernel in use, the speed of each kernel in GB/s (10⁹ bytes copied per second) and the reason.
func Explain() string {
	t := current.Load()
	if t == nil {
		return fmt.Sprintf("copy: built-in up to %s; larger sizes are measured beside the first large copy "+
			"(kernels: %v)\n", size(ChosenCopy), Kernels())
	}
	var b strings.Builder
	fmt.Fprintf(&b, "copy: built-in up to %s; above that chosen by a measurement of %s\n", size(ChosenCopy),
		t.took.Round(time.Millisecond))
	fmt.Fprintf(&b, "  %-9s %-11s", "over", "kernel")
	for _, k := range Kernels() {
		fmt.Fprintf(&b, "%11s", k)
	}
	b.WriteString("  why\n")
	for _, c := range t.choices {
		fmt.Fprintf(&b, "  %-9s %-11s", size(c.Over), c.Kernel)
		for _, k := range Kernels() {
			i := slices.IndexFunc(c.Speeds, func(s Speed) bool { return s.Kernel == k })
			if i < 0 {
				fmt.Fprintf(&b, "%11s", "-")
			} else {
				fmt.Fprintf(&b, "%11.1f", c.Speeds[i].GBps)
			}
		}
		fmt.Fprintf(&b, "  %s\n", c.Why)
	}
	return b.String()
}

func size(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// measure runs rounds over all classes for at most limit.
func measure(ks []Kernel, limit time.Duration) *table {
	start := time.Now()
	m, err := newMeter(start.Add(limit))
	var rates [len(classes)][][]float64
	if err == nil {
		if len(ks) > 1 { // nothing to choose from otherwise
			for _, c := range order {
				rates[c] = m.class(classes[c], ks)
			}
		}
		err = m.close()
	}
	t := tabulate(ks, rates, err)
	t.took = time.Since(start)
	return t
}

// tabulate turns the rates [class][kernel][round] into choices.
func tabulate(ks []Kernel, rates [len(classes)][][]float64, err error) *table {
	t := &table{choices: make([]Choice, len(classes))}
	for i, c := range classes {
		ch := &t.choices[i]
		ch.Over, ch.Probe = c.over, c.probe
		ch.Kernel, ch.Speeds = decide(ks, rates[i])
		switch {
		case len(ks) == 1:
			ch.Why = "the only kernel on this machine and build"
		case err != nil:
			ch.Why = fmt.Sprintf("not measured: %v", err)
		case len(ch.Speeds) == 0:
			ch.Why = "not measured in the time allowed"
		default:
			ch.Why = reason(c, *ch)
		}
	}
	for i, c := range classes {
		if to := t.choices[c.like]; len(t.choices[i].Speeds) == 0 && len(to.Speeds) > 0 {
			t.choices[i].Kernel = to.Kernel
			t.choices[i].Why += fmt.Sprintf("; as for over %s", size(to.Over))
		}
		t.kernels[i] = t.choices[i].Kernel
	}
	return t
}

func reason(c class, ch Choice) string {
	state := "warm"
	if c.cold {
		state = "cold"
	}
	if ch.Kernel == Builtin {
		return fmt.Sprintf("no kernel is 3 %% faster than the built-in copy (%s copies of %s)", state, size(c.probe))
	}
	var base, got float64
	for _, s := range ch.Speeds {
		switch s.Kernel {
		case Builtin:
			base = s.GBps
		case ch.Kernel:
			got = s.GBps
		}
	}
	return fmt.Sprintf("%.2f times the built-in copy (%s copies of %s)", got/base, state, size(c.probe))
}

// decide picks from the rates [kernel][round] of one class. Builtin is ks[0] and stays unless
// another kernel's median is better by advantage. Speeds are nil when there are too few rounds.
func decide(ks []Kernel, rates [][]float64) (Kernel, []Speed) {
	if len(rates) != len(ks) || len(rates[0]) < roundsNeeded {
		return Builtin, nil
	}
	speeds := make([]Speed, len(ks))
	best := 0
	for i, r := range rates {
		speeds[i] = Speed{ks[i], median(r)}
		if speeds[i].GBps > speeds[best].GBps {
			best = i
		}
	}
	if speeds[best].GBps < advantage*speeds[0].GBps {
		best = 0
	}
	return ks[best], speeds
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// meter owns the memory of a calibration and its deadline.
type meter struct {
	mem      []byte // source in the first half, destination in the second
	touched  int    // of each half
	deadline time.Time
}

func newMeter(deadline time.Time) (*meter, error) {
	mem, err := sys.MmapAnonymous(2 * calibrationBuffer)
	if err != nil {
		return nil, err
	}
	return &meter{mem: mem, deadline: deadline}, nil
}

func (m *meter) close() error { return sys.Munmap(m.mem) }

func (m *meter) late() bool { return !time.Now().Before(m.deadline) }

// touch makes the first n bytes of both halves present and reports whether there was time to.
func (m *meter) touch(n int) bool {
	const page = 4096
	for ; m.touched < n; m.touched += page {
		m.mem[m.touched] = 1
		m.mem[calibrationBuffer+m.touched] = 1
		if m.touched%(64*page) == 0 && m.late() {
			return false
		}
	}
	return true
}

// class measures the kernels in interleaved rounds and returns the rates [kernel][round]. A round
// that the deadline cuts is dropped, so all kernels have as many.
func (m *meter) class(c class, ks []Kernel) [][]float64 {
	rates := make([][]float64, len(ks))
	if c.cold && !canFlush || !m.touch(c.probe) {
		return rates
	}
	src, dst := m.mem[:c.probe], m.mem[calibrationBuffer:][:c.probe]
	round := make([]float64, len(ks))
	for r := range roundsWanted + 1 {
		for i := range ks {
			i = (i + r) % len(ks) // no kernel always runs after the same one
			if m.late() {
				return rates
			}
			round[i] = sample(ks[i], dst, src, c)
		}
		if r > 0 { // round 0 warms caches, translations and clocks
			for i := range ks {
				rates[i] = append(rates[i], round[i])
			}
		}
	}
	return rates
}

// sample is the rate of one kernel in GB/s.
func sample(k Kernel, dst, src []byte, c class) float64 {
	if c.cold {
		// Non-temporal stores throw dst out of the caches; flushing the dirty lines of a kernel
		// before this one would take a hundred times as long. What flush finds then is clean, or
		// nothing.
		anyNonTemporal.Copy(dst, src)
		flush(src)
		flush(dst)
	}
	start := time.Now()
	for range c.times {
		k.Copy(dst, src)
	}
	d := time.Since(start)
	runtime.KeepAlive(dst)
	return float64(c.times) * float64(len(src)) / float64(max(d, 1))
}
