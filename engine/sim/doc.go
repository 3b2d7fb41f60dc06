// Package sim is the packet engine over a simulated network: ports, links and switches in memory,
// in real or virtual time, with seeded faults. It needs no privilege and no device. In
// testing/synctest it lives in virtual time, and then the same program with the same seed sees the
// same packets at the same times, byte for byte; outside it runs in real time, as fast as memory
// allows.
//
// # Quick start
//
//	a, err := sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://a"})
//	b, err := sim.Default.OpenPort(ctx, engine.PortSpec{Address: "sim://b"})
//
// All ports of the Default network are on one segment: what one sends all others receive, whatever
// its addresses. A port opened as "sim://a?loop" receives what it sends itself. Tests make networks
// of their own:
//
//	n, err := sim.NewNetwork(sim.Options{Seed: 1})
//	cable, err := n.Link("a", "b")
//	cable.SetFaults(sim.Faults{Loss: 0.01, Delay: time.Millisecond})
//
// # Memory
//
// The simulated wire writes a packet into the pool of the receiving queue, as a NIC would; that is
// no copy of the application's and is not counted as one. Where the packet lies in that very pool
// already, the receiver gets the sender's slot instead and nothing moves (hand-off): give both
// queues one pool. Packets that are late (delay, rate, reordering) wait in memory of the network,
// and those for several receivers, or changed by a rule, are written to each of them.
//
// # Accounting
//
// No packet is lost without a reason. Ledger lists every place that packets pass, with what came
// in, what was made there (duplicates, copies of the segment), what went out, what waits, and what
// was dropped for which reason, and says whether all of that adds up. It is exact at every moment.
// In the statistics of ports the drops of a wire to a port count there, those of a wire to the
// segment, and of the segment, with the port that sent.
//
// # Who runs
//
// There is no goroutine for a link without delay: Send puts packets into the ring of the receiver.
// What is late is delivered by one goroutine for each network, which ends when nothing was late for
// a second, and sleeps on a timer and a channel only.
package sim
