package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// captureRun is a capture on a host with a cable to another one.
type captureRun struct {
	t   *testing.T
	n   *netns.Net
	cmd *exec.Cmd
	err *bufio.Reader // the standard error, behind "capturing"
}

// startCapture starts a capture on host 1, and waits until it is under way.
func startCapture(t *testing.T, n *netns.Net, out *os.File, args ...string) *captureRun {
	t.Helper()
	r := &captureRun{t: t, n: n, cmd: n.Hosts[1].Command(os.Args[0], append([]string{"capture"}, args...)...)}
	r.cmd.Env = append(os.Environ(), mainEnv+"=1")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = out, write
	if err := n.Hosts[1].Start(r.cmd); err != nil {
		t.Fatal(err)
	}
	write.Close()
	stop := context.AfterFunc(limit(t), func() { r.cmd.Process.Kill() }) // what does not end is an error of end
	t.Cleanup(func() { stop(); read.Close(); r.cmd.Process.Kill() })
	r.err = bufio.NewReader(read)
	if line, err := r.err.ReadString('\n'); err != nil || !strings.HasPrefix(line, "capturing from ") {
		rest, _ := io.ReadAll(r.err)
		t.Fatalf("%q, %v: %s", line, err, rest)
	}
	return r
}

// end waits for the end, and returns what was said.
func (r *captureRun) end() string {
	r.t.Helper()
	said, _ := io.ReadAll(r.err)
	if err := r.cmd.Wait(); err != nil {
		r.t.Fatalf("%v: %s", err, said)
	}
	return string(said)
}

// send sends numbered datagrams to a port, those with odd numbers from the host of the capture.
func (r *captureRun) send(port, first, n int) {
	r.t.Helper()
	for i := first; i < first+n; i++ {
		from, to := i%2, r.n.Hosts[1-i%2]
		c, err := r.n.Hosts[from].Dial(r.t.Context(), "udp", fmt.Sprintf("%s:%d", hostAddr(r.t, to), port))
		if err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintf(c, "%04d", i) // an answer that there is no such port is no error here
		c.Close()
	}
}

// hostAddr is the address of a host on its cable.
func hostAddr(t *testing.T, h *netns.Host) (addr string) {
	t.Helper()
	if err := h.Do(func() error {
		f, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		all, err := f.Addrs()
		for _, a := range all {
			if ip := a.(*net.IPNet).IP.To4(); ip != nil {
				addr = ip.String()
			}
		}
		return err
	}); err != nil || addr == "" {
		t.Fatalf("%s has no address: %v", h, err)
	}
	return addr
}

// checkCaptured compares a file with the datagrams of send, as tshark reads it.
func checkCaptured(t *testing.T, file string, first, n int) {
	t.Helper()
	got, err := peers.Dissect(limit(t), peers.Dissection{File: file,
		Fields: []string{"udp.payload", "frame.packet_flags_direction", "frame.interface_name"}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range got {
		seen[p.Fields[0]+strings.TrimPrefix(strings.ToLower(p.Fields[1]), "0x0000000")+p.Fields[2]] = true
	}
	for i := first; i < first+n; i++ {
		if want := fmt.Sprintf("%x%deth0", fmt.Sprintf("%04d", i), 1+i%2); !seen[want] {
			t.Errorf("datagram %d, %s, is missing: %v", i, want, seen)
		}
	}
	if len(got) != n || t.Failed() {
		t.Fatalf("%s: %d packets, expected %d", file, len(got), n)
	}
}

// A capture has what a host sends and receives, each packet once and with its direction, until -c.
func TestCaptureFile(t *testing.T) {
	testpeers.Need(t, "tshark")
	n := netns.New(t, netns.Topology{Neighbours: true})
	dir := t.TempDir()
	file := filepath.Join(dir, "a.pcapng")
	r := startCapture(t, n, nil, "eth0", "-w", file, "-c", "20", "udp", "port", "7")
	r.send(8, 100, 4) // does not match
	r.send(7, 0, 30)
	if said := r.end(); !strings.Contains(said, "20 packets captured, 0 filtered besides") ||
		!strings.Contains(said, "dropped: nothing") {
		t.Errorf("%q", said)
	}
	checkCaptured(t, file, 0, 20)
	// The file stays as it is, unless --force says otherwise. A signal ends the capture in order.
	var out bytes.Buffer
	status := 0
	if err := n.Hosts[1].Do(func() error {
		status = Main([]string{"capture", "eth0", "-w", file}, nil, &out, &out)
		return nil
	}); err != nil || status != exitExists {
		t.Errorf("%v, status %d: %s", err, status, &out)
	}
	r = startCapture(t, n, nil, "eth0", "-w", file, "--force", "-Q", "in", "-s", "45", "udp", "port", "7")
	r.send(7, 0, 6)
	r.send(9, 0, 6)
	// the capture has the packets when its file has their bytes
	written := func() int { b, _ := os.ReadFile(file + ".partial"); return bytes.Count(b, []byte("\x00\x07\x00\x0c")) }
	for ctx := limit(t); written() < 3; runtime.Gosched() {
		if ctx.Err() != nil {
			t.Fatalf("%d packets are in the file", written())
		}
	}
	r.cmd.Process.Signal(sys.Interrupts()[1])
	if said := r.end(); !strings.Contains(said, "3 packets captured") {
		t.Errorf("%q", said)
	}
	got, err := peers.Dissect(limit(t), peers.Dissection{File: file})
	if err != nil || len(got) != 3 {
		t.Fatalf("%d packets, %v", len(got), err)
	}
	for _, p := range got {
		if p.Captured != 45 || p.Length != 46 {
			t.Errorf("%d of %d bytes", p.Captured, p.Length)
		}
	}
}

// With -w - the packets come out of the pipe one by one, which tshark reads; when the reader goes,
// the capture ends in order.
func TestCapturePipe(t *testing.T) {
	testpeers.Need(t, "tshark")
	n := netns.New(t, netns.Topology{Neighbours: true})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := startCapture(t, n, write, "eth0", "-w", "-", "udp port 7")
	write.Close()
	shark := exec.CommandContext(limit(t), "tshark", "-l", "-r", "-", "-c", "2", "-T", "fields", "-e", "udp.payload")
	shark.Stdin = read
	var out bytes.Buffer
	shark.Stdout = &out
	if err := shark.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	r.send(7, 0, 2)
	if err := shark.Wait(); err != nil || out.String() != "30303030\n30303031\n" {
		t.Errorf("%v: tshark shows %q", err, &out)
	}
	r.send(7, 2, 1) // nobody reads
	if said := r.end(); !strings.Contains(said, "packets captured") || strings.Contains(said, "penstock:") {
		t.Errorf("%q", said)
	}
}

// Without -w there is a line for each packet, and -x has its bytes.
func TestCaptureLines(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r := startCapture(t, n, write, "eth0", "-nx", "-c", "2", "udp port 7 and outbound")
	write.Close()
	r.send(7, 0, 4)
	out, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("> %s:7 UDP 46\n", hostAddr(t, n.Hosts[0]))
	if s := string(out); strings.Count(s, want) != 2 || strings.Count(s, " out "+hostAddr(t, n.Hosts[1])) != 2 ||
		!strings.Contains(s, "0001|") || !strings.Contains(s, "0003|") {
		t.Errorf("%s, expected %q twice", s, want)
	}
	if said := r.end(); !strings.Contains(said, "2 packets captured") {
		t.Errorf("%q", said)
	}
}

// On lo, where each packet goes out and comes in, a capture has it once.
func TestCaptureLoopback(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r := startCapture(t, n, write, "lo", "--buffer", "2MiB", "-x", "-c", "2", "udp port 7")
	write.Close()
	for i := range 2 {
		c, err := n.Hosts[1].Dial(t.Context(), "udp", "127.0.0.1:7")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "%04d", i)
		c.Close()
	}
	out, err := io.ReadAll(read)
	if s := string(out); err != nil || strings.Count(s, "0000|") != 1 || strings.Count(s, "0001|") != 1 {
		t.Errorf("%v: %s", err, s)
	}
	r.end()
}

// What cannot be captured is said before the first packet.
func TestCaptureRefused(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	file := filepath.Join(t.TempDir(), "x")
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{{"eth7", exitUnfit, `no interface "eth7"`}, {"eth0 udp prot 7", exitUnfit, "syntax error"},
		{"eth0 ifindex 3", exitUnfit, "only the kernel"}, {"eth0 --engine xdp", exitUsage, "--flow"},
		{"eth0 --engine xdp --all -Q out", exitUsage, "afpacket"}, {"eth0 lo", exitUsage, "one interface"},
		{"eth0 --all", exitUsage, "copies"}, {"eth0 -Q up", exitUsage, "inout"}, {"eth0 -W 3", exitUsage, "-C or -G"},
		{"eth0 -C 1 -w -", exitUsage, "pipe"}, {"eth0 -C 1", exitUsage, "-w"}, {"eth0 -C 10k -w " + file, exitUsage, "64KiB"},
		{"eth0 -G soon -w " + file, exitUsage, "10m"}, {"eth0 --format npy -w " + file, exitUsage, "pcapng"},
		{"eth0 --ring 30s", exitUsage, "expected -w"}, {"eth0 --ring soon -w " + file, exitUsage, "1GiB"},
		{"eth0 -x -w " + file, exitUsage, "prints"}, {"tcp://127.0.0.1:0?listen=1 -w " + file, exitFailure, "raw"},
		{"", exitUsage, "an interface"}} {
		var out bytes.Buffer
		status := -1
		if err := n.Hosts[0].Do(func() error {
			status = Main(append([]string{"capture"}, strings.Fields(c.args)...), nil, &out, &out)
			return nil
		}); err != nil || status != c.status || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %v, status %d, expected %d and %q: %s", c.args, err, status, c.status, c.want, &out)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was made")
	}
}

// Without the right to open packet sockets the capture ends before the first packet.
func TestCaptureNoRight(t *testing.T) {
	p := proc.Start(t, program("capture", "lo").As(t, otherUser))
	if _, err := p.WaitLine(limit(t), regexp.MustCompile("CAP_NET_RAW is missing")); err != nil {
		t.Error(err)
	}
	if x, err := p.Wait(limit(t)); err != nil || x.Code != exitUnfit {
		t.Error(x, err)
	}
}

// A URL and a configuration file are captured the same way, and SIGTERM ends that in order.
func TestCaptureOthers(t *testing.T) {
	conf := confFile(t, "c.yaml", `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces: [{name: loop, engine: sim, address: "sim://capture?loop", rx: {queues: [{memory_regions: [a]}]}}]
`)
	for _, where := range []string{"sim://capture2?loop", conf} {
		file := filepath.Join(t.TempDir(), "x.pcap")
		p := proc.Start(t, program("capture", where, "-w", file, "--format", "pcap", "udp"))
		if _, err := p.WaitLine(limit(t), regexp.MustCompile("capturing")); err != nil {
			t.Fatal(err)
		}
		p.Signal(sys.Interrupts()[1])
		if _, err := p.WaitLine(limit(t),
			regexp.MustCompile("^0 packets captured, 0 filtered, dropped: nothing")); err != nil {
			t.Error(err)
		}
		if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
			t.Error(x, err)
		}
		if b, err := os.ReadFile(file); err != nil || len(b) != 24 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
}
