// Package verbs builds a stand-in for libibverbs.so.1: RDMA devices inside one process, with
// scripted errors.
//
// The library has the public symbols of libibverbs with their versions, and fills the operation
// tables through which the inline functions of verbs.h post and poll, so programs run on it
// unchanged: from Go by loading the path that [Build] returns, other programs through the loader
// ([Dir], [Env]). It serves devices fake0, fake1 ... with one port each, RoCE by default. Requests
// copy bytes between queue pairs that were connected by hand, and are checked as hardware would
// check them: domains, keys, rights, bounds, states, queue sizes, sequence numbers, timeouts and
// retries. The queue pair goes into error and flushes.
//
// What there is: RC, UC, UD, XRC; send, receive, write, read, atomics, immediate and inline data,
// lists, unsignaled and solicited requests, shared receive queues with limit events, memory windows
// of type 1 and 2B, remote and local invalidation, dma-buf regions over any descriptor that can be
// mapped (from its file position on), completion channels and asynchronous events as real file
// descriptors, ibv_cq_ex. With the line "raw on" there are raw packet queue pairs: all devices are
// on one segment, a frame goes to the queue pairs of the best rule (ibv_create_flow: Ethernet,
// IPv4, IPv6, TCP, UDP, the default) of each other device, and nowhere without one. With the line
// "odp on" regions may be registered on demand: nothing is pinned or counted. Where it is compiled
// with the headers of librdmacm, it stands in for librdmacm.so.1 too: event channels, ids in the
// port spaces TCP, UDP and IB, and what they say to each other, with the kernel's lengths of
// private data. An IP address belongs to the device that has it as a GID, 192.0.2.1 to fake0. What
// one side does is at once an event of the other. What is absent, with EOPNOTSUPP: implicit regions
// on demand and advice for them, multicast, device memory, other rules, work queues, thread
// domains, counters, tag matching, import and export of objects, ECE, alternate paths, SRQ
// resizing. Also absent: the functions that only drivers use, and of librdmacm: queue pairs that it
// makes, synchronous ids, multicast, names of hosts.
//
// # The script
//
// A program starts with the script in $PENSTOCK_FAKE_VERBS; the exported function
// penstock_fake_script(const char *) adds lines later, all or none, and returns NULL or what is
// wrong and where. One order per line or semicolon, # begins a comment:
//
//	devices N                     how many there are (2); before the first ibv_get_device_list
//	link infiniband               LIDs (device + 1) instead of RoCE
//	limit max_sge 1               also max_qp max_qp_wr max_cq max_cqe max_mr max_mr_size max_pd max_mw max_ah max_srq max_srq_wr
//	                              max_srq_sge max_qp_rd_atom max_inline
//	absent dmabuf                 also mw atomics srq xrc ud ex (query_device_ex, create_cq_ex) wallclock (times of completions) flows
//	odp on                        on-demand paging for RC and for sends of UD; off is the default
//	raw on                        raw packet queue pairs, and rules; off is the default
//	memlock 64M                   registrations beyond that fail with ENOMEM
//	peer 0x700000000000 7 64M     addresses of a device, as nvidia-peermem knows them: descriptor 7, which stays open, from its beginning
//	gid 0 5 2001:db8::7 v2        device, index, address, type (ib, v1, v2); tells by GID_CHANGE
//	mode post                     requests are executed as they are posted (the default); or
//	mode wire                     by a thread, "delay 50us" after posting; with "seed 7" after anything up to twice that; or
//	mode pump                     by penstock_fake_pump(n) alone, whatever the time; a retry counts as one
//	loss 5%                       so many packets of UC and UD are lost; what came of a message before the first is in its place
//	timers instant                retries follow each other at once, so that errors come without waiting
//	fail ibv_reg_mr 3 ENOMEM      the third call from now; * instead of a number is every call
//	status send 5 REM_OP_ERR      the fifth send request from now is not executed and ends so; recv: a receive, executed
//	drop send 1                   its completion is lost; drop recv 1
//	delay send 1 20ms             it is executed, its completion comes later, and so do the requests behind it
//	port 0 down                   or up, with the event; cable 0 cut (or mend) is the same without an event
//	partial on                    a queue pair that goes into error has begun to fill a receive of its shared queue: it comes back flushed
//	                              3 ms later, with LAST_WQE_REACHED; with the queue pair destroyed before, it is lost, as drops count
//	event 0 DEVICE_FATAL          also LID_CHANGE PKEY_CHANGE SM_CHANGE CLIENT_REREGISTER GID_CHANGE
//	kill 0 0x11                   a queue pair goes into error, with QP_FATAL
//	overrun 0 0x11                a completion does not fit into the queue of its receives, and is lost: CQ_ERR, and QP_FATAL as well
//	fail cm_address 1 ETIMEDOUT   the event of that step says so (also cm_route, cm_connect, and cm_accept, whose answer is lost)
//	cm expire                     the connection manager has waited long enough: for answers to requests, acceptances and disconnects
//	cm remove 0                   the ids on a device hear that it is gone; cm addr_change, cm timewait and cm odd (an event that does not
//	                              belong there) go to all ids
//	report exit                   penstock_fake_report() goes to stderr when the process ends
//	reset                         forgets rules, counts, violations and settings, and repairs ports
//
// penstock_fake_report() lists objects that are not destroyed ("leak qp #7 of fake0") and rules
// that were broken ("violation ibv_post_send: ..."): use after destroy, posting in a wrong state, a
// region gone under its windows, events never acknowledged. penstock_fake_count(name) says how
// often a function was called, or how many send_requests, recv_requests, completions, bytes,
// rnr_naks, retries and drops there were.
//
// raw_kernel are frames for which a device had no rule, raw_dry_0 and raw_dry_1 those for which a
// queue pair of a device had no receive.
//
// # What it cannot show
//
//   - More than one process, real networks, congestion, loss of single packets of reliable
//     connections, packets of one request interleaved with others.
//   - Reordering inside a connection: it executes requests of a queue pair strictly in order, so a
//     missing fence goes unseen; what a failed request wrote (nothing, here); the order in which
//     the bytes of one request become visible.
//   - DMA: bytes are read when a request is executed, in mode post before post_send returns, so a
//     buffer that is reused too early shows only in the modes wire and pump. Memory that was
//     unmapped while registered is a crash here, and silent on hardware.
//   - Of connections: time that a step takes, answers that cross each other, iWARP, and what a
//     kernel does when it is short of memory.
//   - Cost: neither time, nor cache effects, nor memory that really is pinned.
//   - Which of the statuses that the standard allows a given adapter prefers. Where the fake and
//     Soft-RoCE differ is a table in this package's tests, with the reasons: the same conformance
//     program ([Check]) runs on both.
//
// It is stricter than most hardware where strictness finds faults: slots of a send queue come back
// only when the completion is polled, queues hold exactly what was asked for, lkey and rkey differ,
// the fields of a failed completion that mean nothing hold nonsense, destroying what still has
// unacknowledged events fails after five seconds, and a device does not close under its objects.
package verbs
