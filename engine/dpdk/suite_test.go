//go:build dpdk && !race && !asan

package dpdk

import (
	"testing"

	"github.com/penstock-io/penstock/engine/enginetest"
)

// TestAFXDP: net_af_xdp receives into memory of DPDK, from which packets are copied, or lent. libxdp leaves two file descriptors open for each port.
func TestAFXDP(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{
		Open:      func(t testing.TB) enginetest.Pair { return veth(t, "net_af_xdp", "", Options{}, 0) },
		MinPacket: 14, MaxPacket: 1514, Boundaries: []int{60}, Noise: true, Silent: true, LeavesFiles: true, Buffered: 8192,
	})
}
