// Package engine defines packet engines: ports with receive and transmit queues that move bursts of
// packets between a network and memory. Packages below it are the engines (sim, socket, afpacket,
// and those with kernel bypass); enginetest is the conformance suite that each of them passes.
//
// # The parts
//
// An Engine opens Ports (a network interface, a socket address, a port of the simulator). A Port
// has receive queues, transmit queues and a table of steering rules, all of which come and go while
// it runs. Queues are the small contract that engines implement; they never wait. What waits is
// made here, once for all engines:
//
//	Rx       receives on one queue from the caller's own goroutine (direct polling): batches, time limits, spinning, sleeping
//	Poller   one goroutine, pinned or not, that serves several queues and hands bursts over through rings
//	Stage    what packets pass between a queue and the application; Rx and Poller take queues and stages alike, as a Receiver
//	Consumer what an application does with packets; Consume gives them to it
//	RxFront  the front half of a receive queue: all but the device (RxDevice); RxSet has the queues of a port
//	Outbox   the front half of a transmit queue: descriptors, many senders, order, what the device does not take at once
//	Reactor  wakes a goroutine when a descriptor is readable
//	Table    the engines of a program by name
//
// What a port would refuse is asked before anything is opened: Check compares specs with the
// capabilities that the port would have, by the code that AddRxQueue and AddTxQueue run, and a
// Checker looks for the device and the rights.
//
// # Receiving
//
//	eng, err := table.Get("socket")
//	port, err := eng.OpenPort(ctx, engine.PortSpec{Address: "udp://[::]:5000"})
//	q, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
//	rx := engine.NewRx(q, engine.Batching{Packets: 64, Timeout: time.Millisecond})
//	b := burst.New(64)
//	for rx.Recv(ctx, b) == nil {
//		...
//		b.Release()
//	}
//
// A burst is delivered when it holds Batching.Packets packets, or when its first packet has waited
// for Batching.Timeout: a partial burst never waits for ever. A receive queue has one owner; a
// consumer that stalls costs packets, which are counted as such where they are lost, in the kernel
// or the NIC, not in between.
//
// # Sending
//
// Sending cannot lose. Alloc and Forward reserve a descriptor for each packet, so Send is never
// refused for lack of room; when there is none it is Alloc that says so. Send takes the packets
// whatever it returns. A transmit queue may be fed by any number of goroutines.
//
//	n, err := tx.Alloc(b, 32, 1500)
//	for i := range n {
//		b.SetLen(i, 0, copy(b.Bytes(i, 0), data))
//	}
//	err = tx.Send(b)
//
// # Accounting
//
// Every packet that does not arrive is counted under a Drop reason by the queue or port that
// dropped it. On the simulator and on veth, sent = received + dropped, exactly; where hardware or
// the kernel lose packets without saying why, the difference is counted as Unattributed.
//
// # Errors
//
// Errors are typed (match them with errors.Is) and say what to do.
package engine
