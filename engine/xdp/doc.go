// Package xdp is the packet engine for whole Ethernet frames over AF_XDP sockets, past the kernel's
// network stack. It is plain Go: no library, no C compiler, and the XDP program is made here from
// the port's rules (package prog).
//
//	port, err := xdp.New().OpenPort(ctx, engine.PortSpec{Address: "eth0"})
//	pool, err := mem.NewPool(mem.PoolOptions{SlotSize: 2048, Slots: 8192})
//	rx, err := port.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}})
//	tx, err := port.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}})
//
// It needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF (and CAP_PERFMON with rules) and CAP_IPC_LOCK or a
// limit of locked memory that is large enough; errors name what is missing. The port belongs to the
// network namespace of the thread that opened it. While it is open its XDP program is on the
// interface; another one that is there already is named and stays (ErrOccupied). Program, sockets
// and rings are gone when the port is closed and when the process ends in any way.
//
// # What the port takes
//
// An isolated port takes what its rules match, and the rest stays with the kernel: counted in
// engine.PortStats.Kernel, and as fast as before but for the look of the program. Another port
// takes everything from its first receive queue on: what no rule matches goes to the receive queue
// with the lowest number. Without a receive queue all stays with the kernel.
//
// # Memory
//
// The kernel knows one piece of memory for each queue of the interface, cut into chunks of 2048 or
// 4096 bytes. The memory of a port is the region of the pool of its first queue, if its slots are
// so far apart and aligned to that; or that of Options.Memory. Then:
//
//   - The pool of the first receive queue is what the kernel receives into: a chunk is a slot.
//     Packets are delivered where the kernel put them, with 256 bytes of headroom. A frame that is
//     longer than a chunk less 256 bytes is a chain of slots.
//   - All receive queues that have the same pool deliver from there as well. One with another pool
//     gets copies in its own slots (RxStats.Copied): the kernel chooses the chunk before the
//     program knows which queue the packet is for.
//   - Packets that lie in the port's memory are sent from there, whatever pool they are of, and
//     those that were received are forwarded so. What lies elsewhere is copied into spare chunks
//     when it is sent (TxStats.Copied).
//
// So nothing is copied here where all pools are one, or parts of one region (mem.PoolOptions.Region
// and Offset), and ports with one NewMemory forward to each other without a copy. Whether the
// kernel copies depends on the driver: with zero-copy the card itself reads and writes the chunks;
// otherwise the kernel copies each packet once, and Capabilities().Notes say why. Some drivers have
// zero-copy only where no packet takes several chunks: the port does without those if the MTU
// allows it.
//
// Header/data split with two pools copies the header into a slot of the first; the payload stays
// where it is if the second is the pool that the kernel receives into. With one pool named twice,
// header and payload are two views of one slot, and nothing is copied.
//
// A pool gives up to 7/8 of its slots to the kernel: as many as can wait for the receive queues
// (RxSpec.Depth, which is rounded up to a power of two and at least 64, times the chunks of the
// longest frame), and a quarter more where there are so many. A packet that is released goes back
// to the kernel and not to the pool, unless the kernel has enough. The pool gets all back when its
// last receive queue is closed. As long as other queues of the port are open, the port restarts
// for that: for some ten milliseconds packets are dropped as engine.DropNoQueue, while what waits
// is kept.
//
// # Queues
//
// A receive queue is a logical one: it has a socket on each queue of the interface that the port
// uses (Options.Queues), because the kernel gives a socket only what came on its own queue, and the
// program puts packets into them as the rules say. The NIC spreads its traffic over its queues, and
// a receive queue takes them in turn. A transmit queue has a socket of its own on one queue of the
// interface, that of its number modulo theirs.
//
// The sockets on one queue of the interface share its fill and its completion ring, under a mutex
// that is taken once for a batch of up to 64 packets and never during a system call. Nothing is
// locked or allocated for a packet, and there is no goroutine but the one that watches the link;
// while packets are being sent and no more are given to Send, a timer looks for their return.
//
// # Rules
//
// Port.Rules is a *Rules: a table whose changes become a new program that replaces the old one from
// one packet to the next, without losing any. All fields of flow.Match are there; transformations
// (VLAN tags, tunnels) are not, and are refused. The ID of the rule is with each packet
// (burst.Burst.Flow). Counts are those of the program, which before the first rule counts only what
// it drops or leaves to the kernel.
//
// Where the interface has several queues, the card is given the rules that it can carry out
// (n-tuple rules), and its table of RSS is set to the port's queues where packets would miss them:
// Options.LeaveCard, package card. The program does what the rules say wherever a packet arrives;
// Capabilities().Notes names the rules that it does alone, with the reason.
//
// # What is counted
//
// What the kernel had no chunk for is engine.DropNoBuffers, a receive ring that is full
// engine.DropQueueFull, what a rule drops engine.DropRule, what has no socket engine.DropNoQueue.
// When sending, what the device drops is engine.DropRefused: in copy mode the kernel says so for
// each packet. What is lost before the program sees it, the interface's own counters know.
//
// # Changes
//
// The link's going down and up, the MTU and a new name are noticed. When the interface is deleted
// or moved to another network namespace, queues fail with ErrRemoved, whatever comes under its name
// later. The kernel refuses to take queues away that have sockets; packets on queues that were
// added later have none, and are dropped.
//
// Receive times are those of the NIC, where its driver gives them to XDP programs:
// Options.HardwareTime.
package xdp
