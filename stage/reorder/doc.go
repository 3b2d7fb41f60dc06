// Package reorder is a stage that places payloads into batches by sequence number, converted on the
// way. Each payload is copied once, from where the engine received it to its place in one slot of a
// pool. One packet of the stage is one batch.
//
// # Numbers
//
// A packet has a sequence number; its remainder by the packets of a batch is the place in the
// batch. The number of the batch is the quotient, or a field of its own (Plan.Batch). Numbers may
// begin again at 0 at any time that their width makes them.
//
// A number that has come back means the packet that is nearest to the newest one: where the
// quotient is the number of the batch, a packet may come up to half of all sequence numbers early,
// and less than that late, also where one batch has them all. With Plan.Batch that holds for
// numbers of batches, and packets of a batch may come in any order. A packet that is further away
// than half of all numbers is taken for another one: nothing in it says otherwise. A plan whose
// numbers do not tell a packet that was overtaken from one of the next batch is refused.
//
// # The window
//
// Up to Plan.Window batches are open at a time, and batches leave in the order of their numbers. A
// batch leaves when it is whole and all before it have left, when a packet of a batch comes that is
// Window batches ahead, when Plan.Timeout has passed since its first packet, and when the queue
// ends. Places without a packet are zero, and Batch.Present says which they are. Each packet that
// is not placed is counted:
//
//   - late: its batch has left. A packet up to four windows behind is late.
//   - duplicate: its place is taken. The first packet counts.
//   - stray: its number is further away, ahead or behind. After eight in a row that are close
//     together the sender has restarted, or the network was down: all open batches leave, and the
//     window goes there.
//   - bad frame: it is shorter than its fields and the payload's offset, or its payload is no whole
//     number of samples.
//   - too long: its payload is longer than a place.
//   - no buffers: the pool had no slot for its batch.
//   - incomplete: Plan.Missing is Drop, and a packet of its batch is missing.
//
// A batch of which no packet came is lost: it does not leave, and is counted, unless the window
// restarted meanwhile.
//
// Packets of flows without a plan pass as they are. Between them and batches no order is kept.
package reorder
