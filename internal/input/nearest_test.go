package input

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	words := []string{"num_bufs", "buf_size", "cpu_core", "memory_regions", "kind", "id", "rx", "tx"}
	for w, want := range map[string]string{"num_buf": "num_bufs", "numbufs": "num_bufs", "Num-Bufs": "num_bufs",
		"bufsize": "buf_size", "cpucore": "cpu_core", "core": "cpu_core",
		"memory_region": "memory_regions", "mermory_regions": "memory_regions", "knid": "kind", "dI": "id", "zzz": "",
		"": "", "something_else": "", strings.Repeat("a", 1000): ""} {
		if got := Nearest(w, words); got != want {
			t.Errorf("%q: %q, expected %q", w, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"ab", "ba", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := Distance(c.a, c.b, 10); got != c.want {
			t.Errorf("%q %q: %d", c.a, c.b, got)
		}
	}
	if Distance("kitten", "sitting", 2) != 2 {
		t.Error("beyond its limit it is the limit")
	}
}
