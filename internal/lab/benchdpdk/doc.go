// Package benchdpdk measures what engine/dpdk costs for each packet on top of a driver of DPDK that
// costs next to nothing, net_null, beside dpdk-testpmd on the same driver, in interleaved pairs.
// net_null makes packets of 64 bytes whenever it is asked, and drops what it gets.
//
//	go run -tags dpdk ./internal/lab bench dpdk
//
// Packets that arrive somewhere are in benchxdp (bench xdp --engine dpdk).
// docs/measurements/dpdk.md has the results of both.
package benchdpdk
