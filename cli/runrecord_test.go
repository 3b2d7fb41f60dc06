package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/sys"
)

// SIGUSR1 begins files, and the end says what is in them.
func TestRunRotate(t *testing.T) {
	dir := t.TempDir()
	file := confFile(t, "record.yaml", strings.ReplaceAll(`penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - name: loop
      engine: sim
      address: sim://runrotate?loop
      rx: {queues: [{memory_regions: [a], stages: [{type: record, record: DIR/a}]}]}
  applications: [{kind: sink, interface: loop, record: DIR/b}]
`, "DIR", dir))
	p := proc.Start(t, program("run", file))
	if _, err := p.WaitLine(limit(t), regexp.MustCompile(`^running`)); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(sys.User1); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WaitLine(limit(t), regexp.MustCompile(`SIGUSR1: 2 recordings begin a file`)); err != nil {
		t.Fatal(err)
	}
	p.Signal(sys.Interrupts()[0])
	if _, err := p.WaitLine(limit(t),
		regexp.MustCompile(`^loop/0 record: recorded 0 packets, .* 2 whole files`)); err != nil {
		t.Error(err)
	}
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Error(x, err)
	}
	for _, name := range []string{"a", "a-00001", "b", "b-00001"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// A capture with a ring writes nothing until SIGUSR1, and then what it has and what comes.
func TestCaptureRing(t *testing.T) {
	testpeers.Need(t, "tshark")
	n := netns.New(t, netns.Topology{Neighbours: true})
	dir := t.TempDir()
	file := filepath.Join(dir, "a.pcapng")
	r := startCapture(t, n, nil, "eth0", "-w", file, "--ring", "30s", "--after", "1h", "udp", "port", "7")
	r.send(7, 0, 6)
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	if err := r.cmd.Process.Signal(sys.User1); err != nil {
		t.Fatal(err)
	}
	written := func() int { b, _ := os.ReadFile(file + ".partial"); return bytes.Count(b, []byte("\x00\x07\x00\x0c")) }
	for ctx := limit(t); written() < 6; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("%d packets are in the file", written())
		}
	}
	r.cmd.Process.Signal(sys.Interrupts()[1])
	r.end()
	checkCaptured(t, file, 0, 6)
}
