//go:build dpdk

package dpdk

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// TestVhost: packets go from net_vhost, which is a machine's end of a virtual machine's card, to net_virtio_user, which is the card, and back: both copy. It is no run of the
// suite, because net_virtio frees what it has sent only with the next packets: see docs/dpdk-drivers.md.
func TestVhost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "vhost")
	host := openPort(t, engine.PortSpec{Name: "vhost", Address: fmt.Sprintf("dpdk://net_vhost%d,queues=1,iface=%s", names.Add(1), socket)}, Options{})
	var s engine.PortStats
	host.Stats(&s) // the driver would crash
	host.Families("vhost")
	q, err := host.AddRxQueue(engine.RxSpec{}) // net_vhost listens when it starts
	if err != nil {
		t.Fatal(err)
	}
	card := openPort(t, engine.PortSpec{Name: "card", Address: fmt.Sprintf("dpdk://net_virtio_user%d,queues=1,path=%s", names.Add(1), socket)}, Options{})
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	for i, d := range [][2]*Port{{host, card}, {card, host}} {
		const packets, size = 20_000, 300
		if n := exchange(t, d[0], d[1], engine.RxSpec{}, packets, size); n != packets {
			t.Errorf("direction %d: %d packets of %d arrived", i, n, packets)
		}
	}
}
