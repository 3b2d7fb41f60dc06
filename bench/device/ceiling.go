package device

import (
	"context"
	"fmt"
	"runtime"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
)

// Ways that bytes of a row go.
const (
	toDevice   = "h2d"
	fromDevice = "d2h"
	onDevice   = "d2d"
	bothWays   = "both ways"
)

// ceilings bound the rows of one size.
type ceilings struct {
	g    *rig
	size uint64
	cpu  *bench.CopyCeiling // where the device is the processor
}

func (g *rig) ceilings(size uint64) (*ceilings, error) {
	c := &ceilings{g: g, size: size}
	if g.card {
		return c, nil
	}
	var err error
	c.cpu, err = bench.NewCopyCeiling(size, false, false)
	return c, err
}

func (c *ceilings) close() {
	if c.cpu != nil {
		c.cpu.Close()
	}
}

// of is the ceiling of a row, nil where none is known. hot says that its source or destination
// stays in a cache of the processor, so that copying memory does not bound it; kernel that a kernel
// copies, which on a processor may use all of its cores.
func (c *ceilings) of(way string, hot, kernel bool) *paired.Ceiling {
	if c.cpu != nil {
		n := int(min(max(1, 16<<20/c.size), 256))
		return &paired.Ceiling{Method: bench.CopyCeilingMethod, Enforce: bench.CopyCeilingHolds(c.size) && !hot &&
			(!kernel || c.g.info.Units <= 2),
			Measure: func(context.Context) (float64, error) { return c.cpu.Sample(n) }}
	}
	value, method, enforce := 0.0, "", false
	switch link := c.g.is.Link; {
	case way == onDevice && c.g.bandwidth > 0:
		// A copy reads and writes each byte. What fits the card's cache is not bounded by its
		// memory.
		value, method, enforce = c.g.bandwidth/2,
			fmt.Sprintf("half of %.0f GB/s, the card's memory by its clock and width", c.g.bandwidth),
			2*c.size >= 4*c.g.cache
	case way != onDevice && link != nil:
		value = link.Max.BytesPerSecond() / 1e9
		method = fmt.Sprintf("the card's link, %s, after its line code", link.Max)
		if way == bothWays {
			value, method = 2*value, method+", both ways"
		}
		// on arm64 a card may have another way to the processor beside its link (NVLink-C2C)
		enforce = runtime.GOARCH == "amd64"
	}
	if value == 0 {
		return nil
	}
	return &paired.Ceiling{Method: method, Enforce: enforce, Measure: func(context.Context) (float64, error) {
		return value, nil
	}}
}
