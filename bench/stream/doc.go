// Package stream measures a stream of numbered packets between two ends over any engine: rate,
// loss, order, latency and cost. The generator and analyser is one end; the other is a sink or a
// reflector, in this process or in another one (Serve). Both work through the engine contract, so
// every engine is measured by the same loops.
//
//	r, err := stream.Run(ctx, stream.Options{Engines: []string{"socket"}, Sizes: []int{64, 1518}})
//	r.Table(os.Stdout) // or r.Write(file), for penstock bench compare
//
// # What is sent
//
// Each packet carries a Header of 18 bytes: which trial, which stream, which number in it, when it
// was due. What follows are bytes of a pattern that both ends know, and the receiver compares all
// of them. A Header and the headers of Ethernet, IPv4 and UDP fill a frame of 64 bytes exactly, the
// smallest one that there is.
//
// # What is counted
//
// For each stream the receiver keeps one bit for each number, so that the counts are exact: sent =
// received + lost, where received are different numbers that came whole. Duplicates, reordered
// packets (RFC 4737, section 3.3), damaged ones and those that belong to nothing here are counted
// apart. The receiver's counts never come from the sender's.
//
// # When
//
// Packets are sent by a schedule that does not wait for anything (an open loop). Latency is counted
// from the time at which the schedule says that a packet is due, so that what a stalled sender
// sends late counts as late: coordinated omission cannot hide it. One-way times need one clock at
// both ends, the same machine; otherwise a reflector sends packets back.
//
// # Searching
//
// Search looks for the highest rate without loss by halving (RFC 2544, section 26.1), with the loss
// verification of ETSI GS NFV-TST 009, section 12.3.3, and repeats the found rate until it has held
// as often as asked for. LossTable is section 26.3, BackToBack section 26.4. They know nothing of
// packets: a function runs the trials.
package stream
