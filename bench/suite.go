package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/transfer/path"
)

// Conditions are what every benchmark of this package is run under.
type Conditions struct {
	// Gate waits before each round until other programs leave the machine alone; nil: no wait.
	Gate *paired.Gate
	// Seed decides the order of contenders and the draws of the bootstrap; 0: a new one each time.
	Seed     uint64
	Progress Progress
}

// Suite is a report that is filled with rows, one after the other: Conditions.Begin makes it,
// Suite.Measure adds a row, Suite.End closes it.
type Suite struct {
	*paired.Report
	c     Conditions
	seeds *rand.Rand
}

// seedBits are those of a number that every reader of JSON keeps exactly.
const seedBits = 53

// Begin starts the report of the benchmark called bench; method says in sentences how it measures.
func (c Conditions) Begin(bench string, method ...string) *Suite {
	if c.Seed == 0 {
		c.Seed = rand.Uint64() >> (64 - seedBits)
	}
	s := &Suite{paired.NewReport(bench), c, rand.New(rand.NewPCG(c.Seed, 0))}
	s.Method = paired.Method{Seed: c.Seed, Warmup: 1, Notes: method}
	if c.Gate != nil {
		m := c.Gate.Method()
		s.Method.Gate = &m
	}
	return s
}

// Measure runs a plan and adds its row. fill completes what is not measured in rounds; it may be
// nil. A row that failed is added too, and Check ends the run with what is wrong with it.
func (s *Suite) Measure(ctx context.Context, p paired.Plan, fill func(*paired.Row) error) error {
	p.Gate, p.Seed = s.c.Gate, s.seeds.Uint64()>>(64-seedBits)
	x, err := paired.Run(ctx, p)
	if x == nil {
		return err
	}
	if fill != nil {
		if err := fill(x); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	s.Rows = append(s.Rows, *x)
	return nil
}

// End closes the report: it comes with every error that was found after the first row, so that what
// was measured is not lost.
func (s *Suite) End(err error) (*paired.Report, error) {
	s.Took = time.Since(s.Began).Seconds()
	return s.Report, errors.Join(err, s.Check())
}

// noBytes is the reason for no check of bytes where none are moved.
const noBytes = "moves no bytes"

// shape is what a row of two processes measures.
type shape struct {
	class  string // its name in the table of targets
	what   string // "put", "get", "borrow"
	path   string
	mode   string
	peers  int
	size   uint64 // bytes of one operation
	blocks int    // of one operation
	memory string // "device to host"; "": host memory on both sides
}

// carrierOf says what carries the bytes of a path, where it says that; "" otherwise.
func carrierOf(p path.Path) string {
	if c, ok := p.(path.Carrier); ok {
		return c.Carrier()
	}
	return ""
}

// title names a row.
func (h shape) title() string {
	if h.class != "" {
		return h.class
	}
	parts := []string{h.path, h.what, FormatSize(h.size), h.mode}
	if h.blocks > 1 {
		parts[2] = fmt.Sprintf("%d x %s", h.blocks, FormatSize(h.size/uint64(h.blocks)))
	}
	if h.size == 0 {
		parts[2] = ""
	}
	if h.peers > 1 {
		parts = append(parts, fmt.Sprintf("%d peers", h.peers))
	}
	parts = append(parts, h.memory)
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}

func (h shape) describe(x *paired.Row) {
	x.What, x.Path, x.Mode, x.Peers, x.Size, x.Blocks = h.what, h.path, h.mode, h.peers, h.size, h.blocks
}

// Progress hears what is being measured, one line each; nil is silent.
type Progress func(line string)

// Say tells one line; nil says nothing.
func (p Progress) Say(format string, a ...any) {
	if p != nil {
		p(fmt.Sprintf(format, a...))
	}
}

// FormatSize writes a size in the binary units that sizes of operations come in.
func FormatSize(n uint64) string {
	switch {
	case n >= 1<<30 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// GBps is a rate in 1e9 bytes per second.
func GBps(bytes uint64, d time.Duration) float64 {
	return float64(bytes) / max(d.Seconds(), 1e-12) / 1e9
}

func splitLines(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") }
