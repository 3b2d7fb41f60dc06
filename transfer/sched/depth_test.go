package sched

import (
	"testing"
	"time"
)

func TestDepth(t *testing.T) {
	for _, c := range []struct {
		name              string
		most, parts, want int
		each              time.Duration // of the link for a part
	}{
		{"slow", 8, 100, 2, soon},
		{"fast", 8, 100, 8, soon - 1},
		{"fast, a few", 8, 3, 5, time.Millisecond},
		{"one at a time", 1, 100, 1, time.Millisecond},
	} {
		d := Depth{Most: c.most}
		if n := d.Parts(); n != min(c.most, 2) {
			t.Errorf("%s: %d parts at first", c.name, n)
		}
		for range c.parts {
			d.Ended(time.Duration(d.Parts()) * c.each)
		}
		if n := d.Parts(); n != c.want {
			t.Errorf("%s: %d parts, expected %d", c.name, n, c.want)
		}
	}
}
