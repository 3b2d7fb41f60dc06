// Package benchxdp measures AF_XDP beside a program in C on libxdp and DPDK's net_af_xdp in
// testpmd: packets that are received, sent and forwarded over veth between two network namespaces,
// in interleaved pairs. The program in C is the load and the sink of both. The ends count every
// packet and check every byte that arrives; a run whose ends disagree by more than the counted
// drops fails.
//
//	go run ./internal/lab bench xdp --mode held --size 64
//
// With --engine dpdk ours is engine/dpdk with the same driver as testpmd, net_af_xdp
// (docs/measurements/dpdk.md).
//
// Held rows tell the processor time of the thread under test alone: everything lies in the rings
// before it begins. Path rows are held ones with the sender's processor time, in which the kernel's
// part of receiving is on veth. Live rows tell packets that arrive while all work at once.
// docs/measurements/xdp.md has the results.
package benchxdp
