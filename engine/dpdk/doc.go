// Package dpdk is the engine of whole frames by poll-mode drivers of DPDK: a driver in this process has the network card, and the kernel sees
// nothing of its packets.
//
//	port, err := dpdk.New().OpenPort(ctx, engine.PortSpec{Address: "0000:3b:00.0"})
//	port, err := dpdk.New().OpenPort(ctx, engine.PortSpec{Address: "dpdk://net_memif0,role=server,socket=/run/m.sock"})
//
// It is in builds with the tag dpdk, which need cgo and libdpdk; in others it says how to get it (Engine.Available).
//
// # Memory
//
// Queues receive into the slots of their pools: each slot is the external buffer of an mbuf, and a packet begins 128 bytes (the headroom of mbufs)
// behind the beginning of its slot. Transmit queues send from where packets lie. So forwarding between two ports copies nothing. Drivers that take
// buffers only from memory of DPDK (Options.Buffers, table in docs/dpdk.md) lend that memory to queues without pools, and copy for queues with
// pools; RxStats.Copied and TxStats.Copied count each such byte. An mbuf of another port's (net_ring hands over what was sent) is copied as well.
//
// # Queues
//
// A driver is told the number of its queues before it starts. A port starts with its first queue, or, where PortSpec.RxQueues says how many
// there will be, when that many are there. A receive queue that comes later, or goes, stops the port for a moment: packets that arrive then are
// lost, and the card counts them.
//
// Receiving is polling: no descriptor wakes a reader, which looks again after a pause, or always (Batching.Spin).
//
// # EAL
//
// DPDK has one state for the process. The first port starts it with the EAL options of its Options; those of later ports are the same.
// EAL runs on a thread of its own, changes the affinity of no other thread, and leaves no files behind.
package dpdk
