// Package null is the packet engine without a network: it makes received packets at memory speed
// and drops sent ones. It shows what the rest of a program can do at most, and is the smallest
// complete engine: docs/write-an-engine.md walks through it.
//
//	port, err := null.New().OpenPort(ctx, engine.PortSpec{Address: "null://?size=64"})
//
// All received packets are of one size, 64 bytes unless the address says otherwise. Each lies in a
// slot of the queue's pool and goes back there with Release. The engine writes into no slot but
// once: when a queue is opened, the slots that are free then get a UDP frame. So a packet is that
// frame, or what the program has written into its slot since.
//
// A queue without a free slot makes no packets, and so counts none as dropped. There is no
// descriptor to sleep on, so a queue looks again every millisecond then (engine.ArmedPoll).
package null
