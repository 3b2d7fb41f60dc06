// Package rdma is the packet engine "rdma": it moves each packet as one message over the RDMA queue
// pairs of a connection. The device of one side fetches it from a slot, and the device of the other
// side puts it into a slot. Neither this process nor the kernel touches its bytes.
// docs/engine-rdma.md has it all.
//
// # Addresses
//
//	roce://10.0.0.1:4096?listen=1            accept connections
//	roce://10.0.0.1:4096                     connect, again and again with Options.Reconnect
//	roce://10.0.0.1:4096?local=10.0.0.2      from that address
//	roce://10.0.0.2                          connect from there, when Port.Connect says to whom
//
// The device is the one that has the IP address, unless device= names one, and gid= the place of
// the address in its table. transport= is RC, UC or UD; connect= is tcp or cm; rdma:// is the same
// as roce://. What an address cannot say is in Options. Ports are *Port, which can do more than
// engine.Port.
//
// # Connections
//
// Two ports meet over TCP at the address and exchange records: who they are, and queue pairs to
// send to. Each packet carries the id of the connection that it came by (burst.Burst.Conn), and a
// packet to be sent goes to the connection that it names; a port that connects to one peer takes 0
// for that one. The end of the TCP connection, or of a queue pair, is the end of the connection.
//
// # Other programs
//
// With connect=cm (ByCM) ports meet by the connection manager of RDMA instead, and the peer may be
// any program that does: a connection is one queue pair, used in both directions, whose messages
// are the packets and nothing else. There are no records, so no credits, and nothing of what is
// below. With UC and UD what finds no buffer is lost, and with UD neither side learns that the
// other has ended. A connection belongs to the receive queue that it began with, and a port accepts
// and connects when it has one.
//
// # Channels and credits
//
// The receiver makes a queue pair for each connection, a channel, whose buffers are those of the
// receive queue that the connection belongs to: one shared receive queue for all connections,
// refilled in chains. When that queue closes, channels are taken back in order, and the next queue
// has new ones; nothing is lost but what was sent before its sender knew. A sender knows how many
// messages may come. So no message finds its receiver without a buffer, which would stop the
// connection for a pause of the device's choice; where several connections share buffers they may
// count on twice as many as there are, and then a pause is 10 us and not 655 ms.
//
// A receiver that stands still therefore stops its senders and loses nothing
// (engine.Capabilities.Lossless). What waits for it holds descriptors of the sender's queue.
package rdma
