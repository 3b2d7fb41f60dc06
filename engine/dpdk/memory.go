//go:build dpdk

package dpdk

import "strings"

// headroom is what a driver leaves free in front of a packet (RTE_PKTMBUF_HEADROOM).
const headroom = 128

// driver is the name of the driver of a virtual device: net_memif of net_memif0,role=server.
func driver(where string) string {
	name, _, _ := strings.Cut(where, ",")
	return strings.TrimRight(name, "0123456789")
}

// external says why the driver of a device takes no buffers that are not in memory of DPDK; "" where it does.
func external(where string) (why string) {
	switch driver(where) {
	case "net_af_xdp":
		return "net_af_xdp receives into one area of DPDK's own memory (UMEM)"
	case "net_virtio_user":
		return "the other end of virtio-user maps DPDK's own memory"
	case "net_memif":
		if strings.Contains(where, "zero-copy=yes") {
			return "the other end of memif with zero-copy=yes maps DPDK's own memory"
		}
	}
	return ""
}

// reads reports whether the driver also sends from memory that is not DPDK's.
func reads(where string) bool {
	return external(where) == "" || driver(where) == "net_af_xdp" // which copies what is not in its area
}

// dials reports whether the driver connects to another process when it starts, and only then.
func dials(where string) bool {
	return driver(where) == "net_memif" && !strings.Contains(where, "role=server")
}
