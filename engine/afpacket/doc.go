// Package afpacket is the packet engine for whole Ethernet frames on any interface, over packet
// sockets (AF_PACKET). It needs CAP_NET_RAW when a port is opened, and no right afterwards.
//
//	port, err := afpacket.New().OpenPort(ctx, engine.PortSpec{Address: "eth0"})
//
// The port belongs to the network namespace of the thread that opened it. Everything that the
// interface receives is seen by the port, and by the kernel's own network stack as well: a packet
// socket gets copies. What this host sends itself is not, unless Options.Direction asks for it.
//
// # Receiving
//
// The kernel copies each frame into a ring that is mapped into this process, without a system call
// (PACKET_RX_RING with TPACKET_V2, in which every frame has its own owner;
// docs/measurements/afpacket.md says why not TPACKET_V3 or recvmmsg). A queue with pools has each
// packet copied once more, into a slot of the first pool, or header and payload into one of each;
// the bytes are counted in engine.RxStats.Copied. A queue without pools lends the packets where
// they lie, and each frame goes back to the kernel when its packet is released. The kernel fills
// the ring strictly in order and stops at a frame that is still out, so leave the pools out only
// where packets are released soon: within the time in which the ring fills once.
//
// All queues of a port share one ring unless Options.Fanout says otherwise. TryRecv of any of them
// takes out what is there: what a rule gives to another queue waits for its owner, up to its Depth,
// and above that is counted as engine.DropQueueFull. What finds the ring full is engine.DropKernel,
// exactly: the kernel counts it. It is counted by the queue if the port has only one, otherwise by
// the port. A packet for which the pool has no slot is engine.DropNoBuffers.
//
// VLAN tags that the kernel took off are put back first, so rules see them. Receive times are the
// kernel's, or, for a queue with RxSpec.HardwareTime, those of the NIC where its driver takes them
// of all packets (burst.HardwareTime marks them).
//
// The kernel says of each frame whether it has verified the checksums (burst.ChecksumGood), or
// whether a sender on this machine left that of TCP or UDP to a device (burst.ChecksumPartial):
// Forward and Send compute it then.
//
// # Rules
//
// Rules (Port.Rules, a *Rules) run in software, see package flow, transformations of VLAN tags and
// tunnels included. On an isolated port what no rule matches, and on any port what a rule leaves to
// the kernel, is counted in engine.PortStats.Kernel and goes no further: the kernel has had it
// anyway. It also has what the port took: an address that the kernel does not own, or a firewall
// rule, keeps it from answering.
//
// # Sending
//
// sendmmsg sends packets from where they lie, up to 64 with one call, whatever memory that is:
// Forward never copies. The kernel copies them. When the device or the socket takes no more
// (ENOBUFS, EAGAIN) the queue waits and tries again; while the link is down, packets are
// engine.DropDown, and those longer than the MTU are engine.DropTooLong.
//
// # The interface
//
// Its going down and up, and its MTU, are noticed (engine.PortInfo, engine.PortStats.LinkChanges).
// When it is removed, queues fail with ErrRemoved, and the port must be opened again.
package afpacket
