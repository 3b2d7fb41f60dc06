//go:build dpdk

package dpdk

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	testpeers "github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/mem"
)

// TestTestpmd: dpdk-testpmd is at the other end of a memif, and sends back what it receives.
func TestTestpmd(t *testing.T) {
	testpeers.Need(t, "testpmd")
	socket := filepath.Join(t.TempDir(), "m")
	r, err := peers.StartPackets(t.Context(),
		peers.PacketTest{Devices: []string{"net_memif0,role=server,socket-abstract=no,socket=" + socket},
			Duration: time.Minute, NoFirst: true, CPUs: peers.CPUs{Client: 0, Server: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := openPort(t, engine.PortSpec{RxQueues: 1, TxQueues: 1,
		Address: fmt.Sprintf("dpdk://net_memif%d,role=client,socket-abstract=no,socket=%s", names.Add(1), socket)},
		Options{})
	const packets, size = 50_000, 300
	var ports []peers.PacketPort
	n := exchange(t, p, p, engine.RxSpec{Pools: []*mem.Pool{pool(t)}}, packets, size, func() {
		if ports, err = r.Stop(); err != nil {
			// testpmd 22.11 does not survive that the other end goes while it forwards
			t.Fatal(err)
		}
	})
	var s engine.PortStats
	p.Stats(&s)
	t.Logf("%d packets of %d came back; testpmd: %+v", n, packets, ports)
	if s.Rx.Copied != 0 || s.Tx.Packets != packets || ports[0].RX != packets || ports[0].TX != uint64(n) ||
		ports[0].RX != ports[0].TX+ports[0].TXDropped {
		t.Errorf("%d packets of %d came back, %+v; testpmd %+v", n, packets, s, ports)
	}
}
