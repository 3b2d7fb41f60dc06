package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/paired"
)

const loopFile = `penstock:
  memory_regions:
  - {name: m, kind: device, num_bufs: 8192, buf_size: 2KiB}
  interfaces:
  - name: loop
    engine: sim
    address: loopback
    rx: {queues: [{batch_size: 64, timeout: 1ms, memory_regions: [m]}]}
    tx: {queues: [{batch_size: 64, memory_regions: [m]}]}
bench_rx: {interface_name: loop}
bench_tx: {interface_name: loop, batch_size: 64, payload_size: 1000, eth_dst_addr: <MAC>, ip_src_addr: 10.0.0.1, ip_dst_addr: 10.0.0.2, udp_src_port: 1, udp_dst_port: 2}
`

// A file runs by its sections, with what the command line fills in; the result is a file for
// compare.
func TestBenchStreamFile(t *testing.T) {
	dir := t.TempDir()
	name, result := filepath.Join(dir, "loop.yaml"), filepath.Join(dir, "r.json")
	if err := os.WriteFile(name, []byte(loopFile), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"bench", "stream", name, "--quick", "--quiet", "--packets", "500", "--output", result}
	_, errOut, status := penstock(t, args...)
	if status == 0 || !strings.Contains(errOut, "bench_tx[0].eth_dst_addr=VALUE") {
		t.Fatalf("exit status %d with a placeholder: %s", status, errOut)
	}
	args = append(args, "--set", "bench_tx[*].eth_dst_addr=02:00:00:00:00:01")
	out, errOut, status := penstock(t, args...)
	if status != 0 || errOut != "" || !strings.Contains(out, "500 sent = ") || !strings.Contains(out, "instead") {
		t.Fatalf("exit status %d: %s%s", status, out, errOut)
	}
	r, err := paired.ReadFile(result)
	if err != nil || len(r.Rows) != 3 || r.Rows[0].Traffic == nil || r.Rows[0].Traffic.Sent != 500 ||
		r.Rows[0].Ours.Verified == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, errOut, status = penstock(t, append(args, "--strict")...); status == 0 ||
		!strings.Contains(errOut, "memory of kind device") {
		t.Errorf("strict: exit status %d: %s", status, errOut)
	}
	out, _, status = penstock(t, "bench", "stream", name, "--quick", "--set", args[len(args)-1], "--dry-run", "--json")
	var plan struct {
		OK      bool
		Plan    struct{ Senders []struct{ Payload int } }
		Instead []struct{ At string }
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || status != 0 || !plan.OK ||
		len(plan.Plan.Senders) != 1 || plan.Plan.Senders[0].Payload != 1000 || len(plan.Instead) != 1 ||
		!strings.Contains(plan.Instead[0].At, "loop.yaml:3:") {
		t.Errorf("%v, exit status %d: %s", err, status, out)
	}
	out, _, status = penstock(t, "bench", "stream", name, "--dry-run")
	if status != exitUnfit || !strings.Contains(out, "missing") || !strings.Contains(out, "instead") {
		t.Errorf("a dry run of what cannot run: exit status %d: %s", status, out)
	}
}

// A file of which every packet is lost is no success: the status and the words say so, and the
// result is written all the same.
func TestBenchStreamFileLossOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "loop.yaml")
	lossy := strings.Replace(loopFile, "rx: {queues",
		"rx: {flows: [{match: {udp_dst: 2}, actions: [{type: drop}]}], queues", 1)
	if err := os.WriteFile(name, []byte(lossy), 0o644); err != nil {
		t.Fatal(err)
	}
	result := name + ".json"
	out, errOut, status := penstock(t, "bench", "stream", name, "--quick", "--quiet", "--packets", "500", "--settle",
		"1ms", "--set", "bench_tx[*].eth_dst_addr=02:00:00:00:00:01", "--output", result)
	if status != exitFailure || !strings.Contains(errOut,
		"no packet came: bench_tx and bench_rx: all 500 that were sent were lost (dropped: rule 500;") {
		t.Errorf("exit status %d: %s%s", status, out, errOut)
	}
	if _, err := os.Stat(result); err != nil {
		t.Error(err)
	}
}

func TestBenchStreamFileUsage(t *testing.T) {
	name := filepath.Join(t.TempDir(), "loop.yaml")
	if err := os.WriteFile(name, []byte(loopFile), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--size is not for a configuration file": {name, "--size", "64"},
		"--dry-run is for a configuration file":  {"--dry-run"},
		"one configuration file, or none":        {name, name},
		"expected NAME=ADDRESS":                  {name, "--address", "eth0"},
		"expected PATH=VALUE":                    {name, "--set", "x"},
		"has no element \"nobody\"":              {name, "--address", "nobody=eth0"},
		"expected server or client":              {name, "--role", "both"},
		"a file has one":                         {name, "--engine", "xdp,packet"},
		"--json prints the plan":                 {name, "--dry-run", "--output", name + ".json"},
		"no such file":                           {name + ".not"},
		"--duration -1s":                         {name, "--duration", "-1s"},
	} {
		out, errOut, status := penstock(t, append([]string{"bench", "stream", "--quiet"}, args...)...)
		if status == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%v: exit status %d: %s%s; want %s", args, status, out, errOut, want)
		}
	}
}
