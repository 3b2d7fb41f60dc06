// Package xsk opens AF_XDP sockets: UMEM, rings, and the binding to a queue of an interface.
//
//	u, err := xsk.NewUmem(xsk.UmemConfig{Memory: pages, ChunkSize: 4096})     // the memory, cut into chunks
//	q, err := u.OpenQueue(ctx, xsk.QueueConfig{Interface: 3, Queue: 0})      // a queue of the card: fill and completion ring
//	s, err := q.OpenSocket(xsk.SocketConfig{RxSize: 2048, TxSize: 2048})     // a socket on it: receive and transmit ring
//
//	q.Fill().Put(chunks)                         // chunks for the kernel to receive into
//	n := s.Rx().Get(descs)                       // packets; u.Data(descs[0]) are the bytes of the first
//	s.Tx().Put(descs[:n]); s.WakeTx()            // send them
//	n = q.Completion().Get(chunks)               // chunks whose packets are sent
//
// What comes where is decided by an XDP program on the interface, which puts packets into sockets
// through a map of the kind BPF_MAP_TYPE_XSKMAP, by the socket's descriptor [Socket.FD]. This
// package has nothing to do with programs.
//
// # Who owns what
//
// A chunk is in one place at a time: with the caller, in the fill ring, in a receive ring, in a
// transmit ring, in the completion ring, or with the kernel between them. The fill and completion
// ring belong to the pair of interface and queue, whatever sockets there are on it, so each of them
// has one owner at a time, as each ring of a socket has. That is why there is a [Queue]: it has a
// socket of its own, the carrier, that holds these rings and receives nothing. The kernel would let
// the first socket of a queue carry them. But the rings are mapped from the carrier's descriptor,
// and the mapping holds the carrier in the kernel as long as it lasts: had the first socket packets
// of its own, closing it would take the rings from those that came later, or leave it bound, and in
// the program's map, with no reader. Sockets of a Queue come and go in any order.
//
// A [Umem] may serve several queues, of several interfaces: an address means the same chunk to all
// of them, so a packet that came from one is sent on another without a copy. Queues of one
// interface share one registration of the memory; another interface gets one of its own unless both
// copy, so that each has the best mode it can. Each registration counts against the limit of locked
// memory, unless the process has CAP_IPC_LOCK.
//
// # Modes
//
// In zero-copy mode the card reads and writes the chunks. In copy mode the kernel copies each
// packet once between its own buffers and the chunks. [Auto] tries the first, takes the second, and
// [Queue.ZeroCopy] tells why.
//
// With QueueConfig.NeedWakeup the kernel says when it wants to be called: look at NeedWakeup of the
// fill ring and of the transmit ring after each batch, and call [Socket.WakeRx] and
// [Socket.WakeTx]. In copy mode nothing is sent without [Socket.WakeTx].
//
// # The end of things
//
// Closing does not wait until the kernel has freed a queue, some time later: [Umem.OpenQueue] does.
// In copy mode nothing is written to the memory once the sockets are closed. In zero-copy mode the
// card may still write, and does, until [Queue.Released] returns: before that the memory must not
// be used for anything else. As long as a queue is bound the kernel refuses to reduce the
// interface's queues below it. An interface that is deleted leaves its sockets unbound: WakeRx and
// WakeTx then answer sys.ENXIO, while poll says nothing. What a process holds is freed with it,
// however it ends.
//
// # What is trusted
//
// The kernel may read and write all of the umem at any time: that is what it is for. An index in a
// ring is believed only if it can be true, and no index makes this package touch memory outside the
// ring. What a descriptor says is checked by [Umem.Data].
//
// Sources: Documentation/networking/af_xdp.rst and linux/if_xdp.h of the Linux kernel.
package xsk
