// Package burst holds bursts of packets by reference: segments, flow ids, timestamps, and the
// owners that take them back. A burst never holds payload; it says where payload lies. It does no
// I/O.
//
// # What is in a burst
//
// A Burst is a structure of arrays with room for a fixed number of packets and segments, allocated
// once and used again and again. Each packet has one or more segments, runs of bytes in a
// mem.Region: the whole frame, or a header and a payload apart (header/data split), or a chain of
// chunks that together are a jumbo frame. With each packet come its flow, its receive time, its
// connection and flags.
//
//	b := burst.New(64)
//	for {
//		if err := rx.Recv(ctx, b); err != nil { ... }
//		for i := range b.Len() {
//			use(b.Bytes(i, 0))
//		}
//		b.Release()
//	}
//
// # Who owns what
//
// The Burst value always stays with its maker; what moves is the packets in it. There is one rule:
// the caller that received or allocated packets into a burst owns them until Send, Forward or
// Release, and those take all of them whatever they return. The burst is empty then and ready for
// the next use. Views from Bytes end with the ownership.
//
// Memory comes from a Source and goes back to the Source's Owner, in one call per burst, from
// whatever goroutine releases it. The owner need not be a pool: a kernel block that holds many
// packets, a descriptor ring, and another library's buffers are owners as well.
//
// # Two consumers
//
// Shares.Clone makes a second burst of the same packets, without a copy. Each consumer releases,
// sends or forwards its own burst, and the memory goes back with the last reference. The bytes are
// read-only then. The same counts serve a queue whose device puts several packets into one buffer.
//
// # Finding mistakes
//
// Builds with -tags invariants remember who filled each burst (Leaks lists those that are not
// empty, with the stack), who emptied it (an access to an empty burst says so), panic when an owner
// is given something back twice, and the memory of a pool is overwritten on release.
package burst
