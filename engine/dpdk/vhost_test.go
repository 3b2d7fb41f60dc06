//go:build dpdk

package dpdk

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/enginetest"
)

// vhost opens a port over net_vhost, which is a machine's end of a virtual machine's card, and one over net_virtio_user, which is the card.
func vhost(t testing.TB, queues int) enginetest.Pair {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "vhost")
	host := openPort(t, engine.PortSpec{Name: "vhost", RxQueues: queues, TxQueues: queues, Address: fmt.Sprintf("dpdk://net_vhost%d,queues=1,iface=%s", names.Add(1), socket)}, Options{})
	q, err := host.AddRxQueue(engine.RxSpec{}) // net_vhost listens when it starts
	if err != nil {
		t.Fatal(err)
	}
	card := openPort(t, engine.PortSpec{Name: "card", RxQueues: queues, TxQueues: queues, Address: fmt.Sprintf("dpdk://net_virtio_user%d,queues=1,path=%s", names.Add(1), socket)}, Options{})
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	return enginetest.Pair{A: host, B: card}
}

// TestVhost: packets from a machine to a virtual machine's card and back: both copy.
func TestVhost(t *testing.T) {
	pair := vhost(t, 0)
	for i, d := range [][2]engine.Port{{pair.A, pair.B}, {pair.B, pair.A}} {
		const packets, size = 20_000, 300
		if n := exchange(t, d[0].(*Port), d[1].(*Port), engine.RxSpec{}, packets, size); n == 0 {
			t.Errorf("direction %d: nothing arrived", i)
		} else {
			t.Logf("direction %d: %d of %d", i, n, packets)
		}
	}
}

func TestVhostSuite(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return vhost(t, 0) },
		MinPacket: 14, MaxPacket: 1514, Silent: true, Buffered: 4096,
	})
}
