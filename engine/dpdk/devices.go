package dpdk

import "strings"

// driver is the name of the poll-mode driver of a virtual device: net_memif of net_memif0,role=server; "" of a place on the PCI bus.
func driver(where string) string {
	name, _, _ := strings.Cut(where, ",")
	if !strings.HasPrefix(name, "net_") && !strings.HasPrefix(name, "virtio_user") && !strings.HasPrefix(name, "eth_") {
		return ""
	}
	return strings.TrimRight(name, "0123456789")
}

// external reports whether the driver of a device takes buffers that are not in memory of DPDK, and why not.
func external(where string) (ok bool, why string) {
	switch driver(where) {
	case "net_af_xdp":
		return false, "net_af_xdp receives into one area of DPDK's own memory (UMEM)"
	case "net_virtio_user", "virtio_user":
		return false, "the other end of virtio-user maps DPDK's own memory"
	case "net_memif":
		if strings.Contains(where, "zero-copy=yes") {
			return false, "the other end of memif with zero-copy=yes maps DPDK's own memory"
		}
	}
	return true, ""
}
