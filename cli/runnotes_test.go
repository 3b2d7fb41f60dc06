package cli

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// People read that the card takes VLAN tags out of frames before rules look for them: in the check
// of the file, and in a run of it.
func TestNotesOfInterfaces(t *testing.T) {
	if err := xdp.New().Available(); err != nil {
		testenv.Missing(t, "AF_XDP", err)
	}
	n := netns.New(t, netns.Topology{})
	name := confFile(t, "tagged.yaml", `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces:
    - name: in
      engine: xdp
      address: eth0
      rx:
        flow_isolation: true
        queues: [{memory_regions: [m]}]
        flows: [{name: f, match: {vlan: 5}, actions: [{type: queue, id: 0}]}]
  applications: [{kind: count, interface: in}]
`)
	for _, args := range [][]string{{"config", "check", "--here", name}, {"config", "check", "--here", "--json", name},
		{"run", name, "--dry-run"}, {"run", name, "--duration", "10ms"},
		{"run", name, "--duration", "10ms", "--json"}} {
		var out, errOut bytes.Buffer
		status := -1
		if err := n.Hosts[0].Do(func() error {
			status = Main(args, strings.NewReader(""), &out, &errOut)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(strings.Fields(out.String()+errOut.String()), " ")
		if status != 0 || !strings.Contains(said, "rules look at VLAN tags, but the device takes them out of frames") {
			t.Errorf("%v: exit status %d\n%s%s", args, status, &out, &errOut)
		}
	}
}

// waitsFor is a writer that says when a text has come.
type waitsFor struct {
	text string
	came chan struct{}

	mu  sync.Mutex
	all bytes.Buffer
}

func (w *waitsFor) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := strings.Contains(w.all.String(), w.text)
	w.all.Write(b)
	if !was && strings.Contains(w.all.String(), w.text) {
		close(w.came)
	}
	return len(b), nil
}

// An application that fails ends the run with its error: its interface is removed.
func TestRunApplicationFails(t *testing.T) {
	n := netns.New(t, netns.Topology{})
	name := confFile(t, "removed.yaml", `penstock:
  memory_regions: [{name: m, kind: host, num_bufs: 1024, buf_size: 2KiB}]
  interfaces: [{name: in, engine: afpacket, address: eth0, rx: {queues: [{memory_regions: [m]}]}}]
  applications: [{name: counter, kind: count, interface: in}]
`)
	out, ended := &waitsFor{text: "\nrunning\n", came: make(chan struct{})}, make(chan int, 1)
	var errOut bytes.Buffer
	go n.Hosts[0].Do(func() error {
		ended <- Main([]string{"run", name, "--duration", "1m"}, strings.NewReader(""), out, &errOut)
		return nil
	})
	select {
	case <-out.came:
	case status := <-ended:
		t.Fatalf("exit status %d\n%s%s", status, &out.all, &errOut)
	}
	if err := n.Hosts[1].Run(exec.Command("ip", "link", "del", "eth0")); err != nil { // the other end of the cable
		t.Fatal(err)
	}
	if status := <-ended; status != exitFailure || !strings.Contains(errOut.String(), `application "counter": `) ||
		!strings.Contains(out.all.String(), "counter: took ") {
		t.Errorf("exit status %d\n%s%s", status, &out.all, &errOut)
	}
}
