//go:build dpdk && !race && !asan

package dpdk

import (
	"testing"

	"github.com/penstock-io/penstock/engine/enginetest"
)

// TestAFXDP: net_af_xdp receives into memory of DPDK, from which packets are copied, or lent.
// libxdp leaves two file descriptors open for each port.
func TestAFXDP(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return veth(t, "net_af_xdp", "", Options{}, 0) },
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, LeavesFiles: true,
		Buffered: 8192,
	})
}

// TestPcapSuite: net_pcap over an interface has its packets from the kernel in blocks, a while
// after they came.
func TestPcapSuite(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return veth(t, "net_pcap", "", Options{}, 0) },
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, Buffered: 8192,
	})
}

// TestVhostSuite: net_vhost, which is a machine's end of a virtual machine's card, and
// net_virtio_user, which is the card. The second keeps what it has sent until it needs the
// descriptor: its queues send copies, whose packets are free at once.
func TestVhostSuite(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open: func(t testing.TB) enginetest.Pair {
			host, card := vhost(t)
			return enginetest.Pair{A: host, B: card}
		},
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Silent: true, Buffered: 8192, LeavesFiles: true,
	})
}
