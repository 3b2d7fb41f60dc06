package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/testenv"
	xdpref "github.com/penstock-io/penstock/internal/testenv/peers/xdp"
)

func TestBenchXDP(t *testing.T) {
	testenv.Once(t)
	xdpref.Need(t)
	file := filepath.Join(t.TempDir(), "xdp.json")
	args := []string{"bench", "xdp", "--quick", "--quiet", "--engine", "xdp", "--against", "c", "--touched", "no", "--size", "64"}
	out, errOut, status := penstock(t, append(args, "--op", "receive", "--mode", "held,path", "--json", file)...)
	if status != 0 || errOut != "" || !strings.Contains(out, "receive 64 B, untouched, path") {
		t.Fatalf("exit status %d: %s%s", status, out, errOut)
	}
	r, err := paired.ReadFile(file)
	if err != nil || len(r.Rows) != 2 || r.Rows[0].Size != 64 || r.Rows[0].Ours.Verified == 0 || len(r.Rows[0].Theirs) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	out, errOut, status = penstock(t, append(args, "--packets", "2e3")...)
	if status != 0 || !strings.Contains(out, "2000 sent by the load") || !strings.Contains(out, "128000 bytes checked at the sink, all right") {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
}

func TestBenchXDPUsage(t *testing.T) {
	for want, args := range map[string][]string{
		`--touched "maybe"`:              {"--touched", "maybe"},
		`--packets "many"`:               {"--packets", "many"},
		`--packets "1.5"`:                {"--packets", "1.5"},
		"--json does not go with it":     {"--packets", "1", "--json", "-"},
		`engine "dpdk": expected one of`: {"--engine", "dpdk"},
	} {
		out, errOut, status := penstock(t, append([]string{"bench", "xdp", "--quiet"}, args...)...)
		if status == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit status %d: %s%s; want %s", args, status, out, errOut, want)
		}
	}
}
