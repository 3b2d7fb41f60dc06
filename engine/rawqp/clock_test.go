package rawqp

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/ibv"
)

// Ticks of a clock that wraps become nanoseconds, before and after the moment at which the clocks
// were compared.
func TestClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const wall = 1_700_000_000_000_000_000
		khz := rapid.Uint64Range(1_000, 2_000_000).Draw(t, "kHz")
		width := rapid.IntRange(48, 64).Draw(t, "bits")
		mask := ^uint64(0) >> (64 - width)
		base := rapid.Uint64().Draw(t, "ticks at the comparison") & mask
		ms := rapid.Int64Range(-900, 900).Draw(t, "ms from it")
		c := clock{kind: ibv.TimesDevice, mask: mask, khz: khz, ticks: base, wall: wall, until: khz * 1000}
		at := (base + uint64(ms)*khz) & mask
		if got, want := c.ns(at), int64(wall)+ms*1_000_000; got != want {
			t.Fatalf("%d ms from the comparison: %d, expected %d", ms, got, want)
		}
		if first, then := c.ns(at), c.ns((at-khz)&mask); then < first {
			t.Fatalf("%d after %d", then, first)
		}
	})
	c := clock{kind: ibv.TimesDevice, mask: ^uint64(0), khz: 1000, read: func() (uint64, error) {
		return 5_000_000, nil
	}}
	if err := c.compare(); err != nil || c.ticks != 5_000_000 || c.until != 1_000_000 {
		t.Fatalf("%v: %+v", err, c)
	}
	c.read = func() (uint64, error) { return 9_000_000, nil }
	if c.ns(8_000_000); c.ticks != 9_000_000 {
		t.Error("more than a second later the clocks were not compared again")
	}
}
