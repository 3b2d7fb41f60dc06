// Package socket is the packet engine over the kernel's UDP and TCP sockets, which needs no rights.
// Payload is read by the kernel straight into slots of the user's pools and sent from where it
// lies; this process copies nothing.
//
// # Addresses
//
//	udp://[::]:5000                          receive on a port, send to whom a packet names
//	udp://:0?remote=10.0.0.2:5000            one peer
//	udp://239.1.2.3:5000?interface=eth0      the packets of one multicast group, joined on eth0; without interface where the route to it says
//	udp://:5000?group=239.1.2.3&group=239.1.2.4  those of several, and what is sent to this machine
//	tcp://10.0.0.2:5000                      connect, again and again with Options.Reconnect
//	tcp://[::]:5000?listen=1                 accept connections
//
// What an address cannot say is in UDPOptions and TCPOptions, given as engine.PortSpec.Options.
// Ports are *UDPPort and *TCPPort, which can do more than engine.Port.
//
// # Connections
//
// Each packet carries the id of whom it came from (burst.Burst.Conn), and a packet to be sent goes
// to the id that it names: a server answers any client, not only the one that wrote last. For UDP
// an id stands for an address; the table of them is bounded, and the one that was silent longest
// goes. For TCP it is a connection, and is never used again. UDPPort.Peer and TCPPort.Find go from
// addresses to ids, UDPPort.PeerAddr and TCPPort.Conn the other way. A port with one peer ignores
// the id of what it sends. Ids are the port's own: a packet that came through one port and leaves
// through another must be given an id of that one.
//
// # UDP
//
// One recvmmsg fills a slot per datagram, up to 64. Where there are no free slots, datagrams wait
// in the kernel's buffer, and what finds that full is counted as engine.DropKernel, exactly: the
// kernel is asked for the socket's own count (SO_MEMINFO). What arrives while the port has no
// receive queue is engine.DropNoQueue. A datagram that is longer than a slot is engine.DropTooLong,
// or comes with burst.Truncated if wanted. Errors that a peer's machine sends back (ICMP), such as
// for a closed port, are counted in UDPPort.Errors and stop nothing.
//
// Packets of equal length to one peer that follow each other leave as one large one that the kernel
// or the NIC cuts (UDP_SEGMENT), which the device's MTU bounds. With UDPOptions.GRO the kernel may
// put arriving ones together likewise; several packets of a burst then share one slot, which goes
// back with the last of them.
//
// Several receive queues share a port's packets by SO_REUSEPORT, see UDPOptions.Spread.
//
// # TCP
//
// A packet is a piece of one connection's stream, as much as was there and fits into a slot. The
// borders mean nothing. The last packet of a connection is empty and has the flag burst.Last; if
// the connection broke, also burst.Truncated. Nothing is ever dropped on the way in: without free
// slots nothing is read, until the window that the kernel grants the peer is used up.
//
// A connection's bytes come to the queue that is bound to it (engine.RxSpec.Conn), or else to the
// one of the unbound queues that was given the connection, and to no other. What a packet queue
// sends to one connection leaves in order; a peer that does not read stops only its own packets,
// until those hold all descriptors of the queue.
package socket
