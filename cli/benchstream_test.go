package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
)

func TestBenchStream(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stream.json")
	args := []string{"bench", "stream", "--quick", "--quiet", "--engine", "sim,socket", "--size", "1518", "--burst",
		"8", "--workload", "fft", "--test", "latency,flood", "--rate", "2e3", "-o", file}
	out, errOut, status := penstock(t, args...)
	if status != 0 || errOut != "" || !strings.Contains(out, "udp fft") || !strings.Contains(out, "flood ") {
		t.Fatalf("exit status %d: %s%s", status, out, errOut)
	}
	r, err := paired.ReadFile(file)
	if err != nil || len(r.Rows) != 4 || r.Bench != "stream" || r.Rows[0].Size != 1518 || r.Rows[0].Traffic == nil ||
		r.Rows[0].Ours.Verified == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	out, errOut, status = penstock(t, "bench", "compare", file, file)
	if status != 0 || !strings.Contains(out, "udp socket 1518 B, burst 8, queues 1, fft: latency") {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
}

func TestBenchStreamUsage(t *testing.T) {
	for want, args := range map[string][]string{
		`--size "big"`:                  {"--size", "big"},
		`--rate "fast"`:                 {"--rate", "fast"},
		`--rate "-5"`:                   {"--rate=-5"},
		`workload "sort"`:               {"--workload", "sort"},
		`engine "efa": expected one of`: {"--engine", "efa"},
		"expected one --engine":         {"--serve"},
		"--size is for the near end":    {"--serve", "--engine", "socket", "--size", "64"},
		"--listen is of --serve":        {"--listen", "127.0.0.1:0"},
		"is penstock bench stream":      {"--engine", "socket", "--server", "127.0.0.1:1"},
	} {
		out, errOut, status := penstock(t, append([]string{"bench", "stream", "--quiet"}, args...)...)
		if status == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit status %d: %s%s; want %s", args, status, out, errOut, want)
		}
	}
}
