package guest

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// nicsTestpmd is Nics with DPDK's test program and the drivers for its cards.
func nicsTestpmd() Profile {
	p := Nics
	p.Name = "nics+testpmd"
	p.Programs = append(slices.Clone(p.Programs), Program{"dpdk-testpmd", "dpdk"})
	p.Package = "dpdk"
	for _, lib := range []string{"bus_pci", "bus_vdev", "mempool_ring", "net_e1000", "net_vmxnet3", "net_virtio"} {
		p.Files = append(p.Files, "/usr/lib/x86_64-linux-gnu/dpdk/pmds-*/librte_"+lib+".so*")
	}
	return p
}

// TestGuestTestpmd has DPDK's own drivers send packets from an e1000e to a vmxnet3 card and back.
func TestGuestTestpmd(t *testing.T) {
	if Enter(t, Spec{Profile: nicsTestpmd()}) {
		return
	}
	args := []string{"-l", "0-1", "--in-memory", "-m", "64", "--no-telemetry"}
	for _, c := range bindNics(t) {
		if c.name != "virtio-net" {
			args = append(args, "-a", c.address)
		}
	}
	cmd := exec.Command("dpdk-testpmd", append(args, "--", "-i", "--total-num-mbufs=4096", "--rxd=512", "--txd=512")...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	fmt.Fprintln(in, "set fwd io")
	deadline := time.Now().Add(time.Minute)
	for {
		// What is sent before a card finds its link up is lost, so each round sends again.
		fmt.Fprintln(in, "stop\nstart tx_first 4\nshow port stats all")
		select {
		case err := <-ended:
			t.Fatalf("testpmd ended: %v\n%s", err, out.String())
		case <-time.After(300 * time.Millisecond): // a program at the other end of a pipe has no events for us
		}
		got := received(out.String())
		if got[0] > 0 && got[1] > 0 {
			t.Logf("packets received by the two ports: %v", got)
			break
		}
		if time.Now().After(deadline) {
			cmd.Process.Kill()
			<-ended
			t.Fatalf("packets received by the two ports: %v\n%s", got, out.String())
		}
	}
	fmt.Fprintln(in, "stop\nquit")
	in.Close()
	if err := <-ended; err != nil {
		t.Errorf("testpmd: %v\n%s", err, out.String())
	}
}

var portStats = regexp.MustCompile(`NIC statistics for port (\d)\s[^\n]*\n\s*RX-packets: (\d+)`)

// received are the numbers of received packets of ports 0 and 1 in the last statistics.
func received(out string) (n [2]int) {
	for _, m := range portStats.FindAllStringSubmatch(out, -1) {
		port, _ := strconv.Atoi(m[1])
		if port < 2 {
			n[port], _ = strconv.Atoi(m[2])
		}
	}
	return n
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ToValidUTF8(l.b.String(), "?")
}
