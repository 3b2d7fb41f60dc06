// Package bounce moves bytes of memory that no path reaches through bounce buffers: slots of pinned
// host memory. It moves nothing between nodes: a transfer gives it a [Carrier], which moves pieces
// between slots.
//
// [Memory] is a node's slots. A [Peer] is what a session is lent and lends: it answers the requests
// of the other side, and [Peer.Carry] brings the bytes of one transfer: it cuts them into pieces;
// each takes the slots that it needs, is loaded into them, moved by the Carrier, and stored from
// them. Several pieces are under way at once. [Peer.CarryOne] carries work of one piece without
// another goroutine. docs/staging.md tells how all of it works.
//
// Why it cannot hang: a piece takes a slot of the peer's lease first, and one of this node's slots
// last. A piece with the last waits for nothing but copies, a path and the peer's answer about
// bytes that are in a slot already, for which the peer takes nothing more; all of these end. So
// slots of a node always come back, then those of leases do, and then leases. A holder of memory
// that others wait for never waits for memory that comes earlier in this order, on whatever nodes
// the two are.
package bounce
