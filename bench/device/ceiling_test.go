package device

import (
	"math"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/host/cards"
)

// What bounds a card: its link each way, twice that both ways, half of its memory's rate within it,
// and nothing where nothing is known.
func TestCeilingsOfACard(t *testing.T) {
	g := &rig{card: true, bandwidth: 3350, cache: 50 << 20,
		is: cards.Device{Link: &cards.Link{Max: cards.Lane{GTs: 32, Lanes: 16}}}}
	amd64 := runtime.GOARCH == "amd64"
	for _, x := range []struct {
		way     string
		size    uint64
		want    float64
		enforce bool
	}{
		{toDevice, 1 << 20, 63.015, amd64}, {fromDevice, 256 << 20, 63.015, amd64}, {bothWays, 1 << 20, 126.03, amd64},
		{onDevice, 1 << 20, 1675, false}, {onDevice, 100<<20 - 1, 1675, false}, {onDevice, 100 << 20, 1675, true},
	} {
		c, err := g.ceilings(x.size)
		if err != nil {
			t.Fatal(err)
		}
		p := c.of(x.way, true, true)
		v, err := p.Measure(t.Context())
		if err != nil || math.Abs(v-x.want) > 0.01 || p.Enforce != x.enforce || p.Method == "" {
			t.Errorf("%s of %d bytes: %v, %+v, %v", x.way, x.size, v, p, err)
		}
		c.close()
	}
	g.bandwidth, g.is.Link = 0, nil
	c, err := g.ceilings(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if p := c.of(onDevice, false, false); p != nil {
		t.Errorf("%+v", p)
	}
	if p := c.of(toDevice, false, false); p != nil {
		t.Errorf("%+v", p)
	}
}

// What bounds a processor is enforced beyond its caches, but not for what stays in them nor for a
// kernel on many cores.
func TestCeilingsOfAProcessor(t *testing.T) {
	g := &rig{}
	for _, x := range []struct {
		units       int
		size        uint64
		hot, kernel bool
		enforce     bool
	}{{2, 128 << 20, false, false, true}, {2, 128<<20 - 1, false, false, false}, {2, 128 << 20, true, false, false},
		{2, 128 << 20, false, true, true}, {3, 128 << 20, false, true, false},
		{3, 128 << 20, false, false, true}} {
		g.info.Units = x.units
		c := ceilings{g: g, size: x.size, cpu: new(bench.CopyCeiling)}
		if p := c.of(toDevice, x.hot, x.kernel); p.Enforce != x.enforce {
			t.Errorf("%+v: %+v", x, p)
		}
	}
}
