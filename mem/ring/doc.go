// Package ring passes items between goroutines, threads or processes through bounded lock-free
// rings.
//
// # Which one
//
//	SPSC[T]                        one producer, one consumer, in this process
//	MPSC[T]                        many producers, one consumer
//	MPMC[T]                        many producers, many consumers
//	MessagesWriter, MessagesReader one producer, one consumer, small messages in
//	                               memory shared by two processes, for the lowest
//	                               latency
//	Descriptors                    many producers, many consumers, descriptors of
//	                               packets in memory that processes, or a CPU and
//	                               an accelerator, share
//
// No call waits. Put answers false when the ring is full and Get answers false
// when it is empty; how to wait (spin, park on an event) is the caller's choice.
// The batch calls take what fits and say how much that was; the rest stays with
// the caller.
//
// # How they work
//
// Producers and consumers count tickets: 64-bit numbers that only grow. Ticket t
// lives in slot t mod capacity, so a ring of N slots holds N items, and "full"
// and "empty" are differences of tickets, which stay right when the numbers wrap
// around. What producers write and what consumers write lies at least 128 bytes
// apart, because processors fetch lines of 64 bytes in pairs.
//
// In the rings with many producers each slot carries a sequence word that says
// for which ticket the slot is free or filled (D. Vyukov, "Bounded MPMC queue",
// 1024cores.net). Claiming a ticket, publishing a slot and releasing a slot are
// three steps: a claim never passes what has been published, a slot is never
// reused before its release, and looking at an empty ring changes nothing.
//
// A Put between its claim and its publication hides the items behind it: in MPSC
// and MPMC, Get may answer false while a Put that began earlier has not returned,
// even though a later one has. Likewise Put on an MPMC may answer false while a
// Get that holds the oldest slot has not returned. A caller that parks after such
// an answer loses no wake-up as long as every producer signals after its own Put
// returned, and every consumer after its own Get.
//
// # Shared memory
//
// The other process of a ring of messages is not trusted ([Descriptors] says what
// holds there). Geometry comes from the caller, never from
// the shared bytes; each side keeps its own ticket in private memory; every
// number read from the mapping is checked before use, and one that cannot be
// right makes the ring answer [ErrCorrupt] from then on. Payload is copied into
// private memory, and its content is the peer's word: check it after Get, not
// before. Both processes run on one machine, so words are in its byte order.
//
// The mapping must stay mapped, and must not shrink, while a side is in use:
// Go cannot recover from a fault on it (see the seals of package mem).
package ring
