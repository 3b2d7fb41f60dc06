package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
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

// What the kernel has no room for, while the capture stands still, is said at the end.
func TestCaptureLoss(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	file := filepath.Join(t.TempDir(), "a.pcapng")
	r := startCapture(t, n, nil, "eth0", "-w", file, "--buffer", "512KiB", "udp", "port", "7")
	pid := r.cmd.Process.Pid
	if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return bytes.Contains(b, []byte(") T "))
	}
	for ctx := limit(t); !stopped(); runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the capture does not stop")
		}
	}
	const sent = 2500
	r.send(7, 0, sent) // the kernel fills four blocks in 80 ms
	if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	written := func() int { b, _ := os.ReadFile(file + ".partial"); return bytes.Count(b, []byte("\x00\x07\x00\x0c")) }
	for ctx := limit(t); written() < 1; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("%d packets are in the file", written())
		}
	}
	r.send(7, sent, 1) // it comes behind all that waits
	last := func() bool { b, _ := os.ReadFile(file + ".partial"); return bytes.Contains(b, fmt.Append(nil, sent)) }
	for ctx := limit(t); !last(); runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatal("the last packet is not in the file")
		}
	}
	r.cmd.Process.Signal(sys.Interrupts()[1])
	said := r.end()
	m := regexp.MustCompile(`(\d+) packets captured.*dropped: \S+ (\d+)\n`).FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("%q", said)
	}
	captured, _ := strconv.Atoi(m[1])
	if dropped, _ := strconv.Atoi(m[2]); dropped < 500 || captured+dropped != sent+1 {
		t.Errorf("%q of %d packets", said, sent+1)
	}
}
