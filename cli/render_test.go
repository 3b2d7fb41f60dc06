package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/share"
	"pgregory.net/rapid"
)

var renderings = []struct {
	title string
	s     status
}{
	{"under way", status{what: "model-00001-of-00003.safetensors", done: 152_300_000, total: 354_800_000, rate: 1.234e9,
		eta: 12 * time.Second, hasETA: true, path: "shm"}},
	{"resumed", status{what: "w", done: 152_300_000, total: 354_800_000, rate: 98e6, eta: 2 * time.Second, hasETA: true, path: "tcp", resumed: 50e6}},
	{"stalled", status{what: "weights", done: 1, total: 10e9}},
	{"reconnecting", status{what: "weights", done: 5e9, total: 10e9, problem: "connection lost, attempt 3"}},
	{"files", status{what: "layers.11.mlp.up_proj.weight", done: 5e9, total: 10e9, rate: 2e9,
		eta: 2500 * time.Millisecond, hasETA: true, files: 12, filesOf: 148, path: "tcp"}},
	{"failed", status{what: "layers.11.mlp.up_proj.weight", done: 5e9, total: 10e9, rate: 2e9,
		eta: 2500 * time.Millisecond, hasETA: true, files: 12, filesOf: 148, failed: 3}},
	{"empty", status{what: "nothing", hasETA: true}},
	{"done", status{what: "x", done: 10, total: 10, hasETA: true, rate: 1e3}},
}

// What the display shows at each width is in testdata/render.txt; -update writes it.
func TestRenderGolden(t *testing.T) {
	const file = "testdata/render.txt"
	var b strings.Builder
	for _, r := range renderings {
		for _, width := range []int{120, 100, 80, 60, 40, 30, 20, 12, 5, 3} {
			fmt.Fprintf(&b, "%-12s %3d |%s|\n", r.title, width, r.s.render(width))
		}
	}
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the display differs from %s:\n%s", file, b.String())
	}
}

// Whatever there is to show and however narrow the terminal: never wider, and the percentage is
// there when it fits at all.
func TestRenderFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64().Draw(t, "total")
		s := status{
			what:    share.Printable(rapid.String().Draw(t, "what")),
			total:   total,
			done:    rapid.Uint64Range(0, total).Draw(t, "done"),
			rate:    rapid.Float64Range(0, 1e15).Draw(t, "rate"),
			eta:     time.Duration(rapid.Int64Range(0, 1e18).Draw(t, "eta")),
			hasETA:  rapid.Bool().Draw(t, "has"),
			path:    rapid.SampledFrom([]string{"", "shm", "tcp"}).Draw(t, "path"),
			resumed: rapid.Uint64().Draw(t, "resumed"),
			filesOf: rapid.IntRange(0, 1e6).Draw(t, "of"),
			failed:  rapid.IntRange(0, 1e6).Draw(t, "failed"),
			problem: rapid.SampledFrom([]string{"", "connection lost, attempt 12"}).Draw(t, "problem"),
		}
		width := rapid.IntRange(0, 200).Draw(t, "width")
		got := s.render(width)
		if columns(got) > width {
			t.Fatalf("%d columns at width %d: %q", columns(got), width, got)
		}
		if width >= 5 && !strings.Contains(got, "%") {
			t.Fatalf("no percentage at width %d: %q", width, got)
		}
	})
}
