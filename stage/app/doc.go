// Package app runs the consumers of a receive queue: it passes packets to an engine.Consumer and
// counts them. The words of configuration files for consumers are a table, Kinds: count them, echo
// them, forward them to another queue, or sink them, into a tensor that the peers of a node get
// where one is described. A program adds its own. The package knows the contract of engines only,
// and does not know where its queues come from.
//
// An App is one goroutine, that of its Run, from one receiver to at most one transmit queue. It
// allocates nothing for a burst, and every packet that it takes is counted once: as sent, as taken,
// or as dropped by a reason (Drop). What happens behind the transmit queue is counted there.
//
// # A stream becomes a tensor
//
// A sink with a Tensor copies each payload from the slot where the engine placed it to its row, and
// nothing else copies it: the tensor is memory of the node, and a peer's get reads it where it
// lies. Which row it is follows from a number in the payload, or from the order of arrival. A
// tensor that is full, whose time has passed, or of whose successor a row has come is published
// under its name as the next generation. Rows that did not come are zero, and counted. Nothing is
// written to a tensor that peers can see: the next one is filled in another buffer, and the
// application reuses a buffer only when no peer can read it. A peer that still reads a tensor whose
// buffer is needed gets an error instead of two halves, and looks the name up again.
package app
