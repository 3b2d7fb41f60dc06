//go:build dpdk

package dpdk

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// vhost opens net_vhost, which listens when its port starts, and net_virtio_user, which connects to
// it.
func vhost(t testing.TB) (host, card *Port) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "vhost")
	host = openPort(t, engine.PortSpec{Name: "vhost",
		Address: fmt.Sprintf("dpdk://net_vhost%d,queues=1,iface=%s", names.Add(1), socket)}, Options{})
	var s engine.PortStats
	host.Stats(&s) // the driver would crash
	host.Families("vhost")
	q, err := host.AddRxQueue(engine.RxSpec{})
	if err != nil {
		t.Fatal(err)
	}
	card = openPort(t, engine.PortSpec{Name: "card",
		Address: fmt.Sprintf("dpdk://net_virtio_user%d,queues=1,path=%s", names.Add(1), socket)}, Options{})
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	return host, card
}

// TestVhost: packets go in both directions.
func TestVhost(t *testing.T) {
	host, card := vhost(t)
	for i, d := range [][2]*Port{{host, card}, {card, host}} {
		const packets, size = 20_000, 300
		if n := exchange(t, d[0], d[1], engine.RxSpec{}, packets, size); n != packets {
			t.Errorf("direction %d: %d packets of %d arrived", i, n, packets)
		}
	}
}
