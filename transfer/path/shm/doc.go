// Package shm is the transfer path between processes of one user on one machine, over shared
// memory. A transfer is one copy, or none.
//
//	l, _ := shm.Driver{}.Listen()
//	go l.Accept(ctx, token, cfg)                                          // one process
//	p, _ := shm.Driver{}.Dial(ctx, setup.Offer{Addr: addr, Token: token}, cfg) // the other
//
// # How it works
//
// Two processes meet at an abstract unix socket. Both ask the kernel who the other is (SO_PEERCRED)
// and go on only if it is the same effective user. The socket stays for the life of the path:
// exports travel over it as file descriptors, a sleeping peer is woken by a byte on it, and its
// hang-up is the peer's death. All data travel outside of it:
//
//   - An export is a memfd. The first operation on its key asks the owner for it and maps it; from
//     then on a put is a copy by the poster into the owner's memory, a get is a copy out of it, and
//     the owner's CPU takes no part.
//   - Notifications go through two message rings (package ring) in a small memfd of their own. A
//     put with Notify places its bytes first and then the message, so that a peer that sees the
//     message sees the bytes.
//   - Borrow gives the mapping itself to read: no copy at any size.
//   - Puts of 8 MiB and more are copied by both sides' cores at once, if the peer polls and both
//     have Driver.NoHelp unset. For this the poster lends its whole local region to the peer,
//     read-only. See help.go.
//
// A path has no goroutine and takes no lock to post or poll. While its owner sleeps (Arm, FD) it
// costs nothing, and a peer makes a system call only to wake a sleeping one. Operations are done in
// order, but small puts and gets overtake a large one that is being copied. Up to 256 KiB they are
// done inside Post, up to 1 MiB inside PostNow.
//
// # Whom it trusts
//
// The peer runs as the same user, who could read and write this process's memory anyway (ptrace,
// /proc). So the checks here are against mistakes and crashes, not against that user:
//
//   - Rights and bounds of a put or get are checked by the side that copies, not by the owner.
//     Read-only exports are handed over as descriptors that cannot be mapped for writing.
//   - A mapping cannot be taken away from a process. Revoking an export stops honest peers: Fence
//     completes when the peer has confirmed that nothing of it is mapped any more, views included,
//     or when the peer is dead. Memory whose fence has not completed is retired: treat it as
//     writable by the peer. The same holds after Close; see Path.Exposed.
//   - Only a whole memfd can be handed over, so exports that are a part of a region are reachable
//     only where their owner permits that (path.Exports.AddFor). The peer maps their pages alone,
//     but nothing keeps it from mapping the others.
//   - What arrives in shared memory or on the socket is copied out, checked, and never used as a
//     size to allocate or an address. Nonsense takes the path down with path.ErrProtocol.
//     Descriptors must be memfds that are sealed against shrinking and have the size that was said,
//     so that no access can fault; memory of huge pages can still be taken out by punching a hole,
//     which ends the operation that meets it with an error.
//
// # When the peer stops
//
// A peer that died is noticed by the hang-up of its socket: at once by a sleeping side, within
// milliseconds by a polling one. A peer that is stopped (SIGSTOP, a debugger) looks alive: puts and
// gets still work, notifications wait once the ring is full, and a large put waits if the peer was
// stopped in the middle of a chunk that it copies. Such operations stay outstanding until the peer
// goes on, or the caller, who has a heartbeat, closes the path. Close is safe then: a stopped
// helper only reads this side's memory, by a descriptor of its own, and writes to its own exports
// before it learns of anything else.
//
// # What a peer can take
//
// What it lends is taken only if it may put, at most 8 regions of a path, and mapped only if it is
// not sparse. Its exports are mapped when this side uses them. Mappings and descriptors are charged
// to Config.Principal, who has a share of what the process can have (package internal/budget);
// beyond it an export is not reachable by this path, and large puts are copied by one core. Sparse
// memory is the owner's affair as long as it is only lent. An export without pages gets them when
// this side reads or writes it, at this side's expense: as many as the transfer has.
package shm
