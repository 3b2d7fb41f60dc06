// Package pace sends packets at a rate or at given times, in software or by the kernel's qdisc. It
// stands between an engine.Outbox and the engine's own engine.Sink, and is a Sink itself: it passes
// on what may leave now, and says when to try again.
//
//	p, err := pace.New(device, pace.Options{Rate: 1e9})
//	out, err := engine.NewOutbox(p, depth, false)
//
// # Rate
//
// The rate is that of a token bucket (package internal/bucket): in any window of d seconds it lets
// at most Rate*d + Burst through, to the bit, and a queue that always has packets reaches Rate in
// the long run without drift, as long as the Burst covers the time by which a sleeper wakes up too
// late. It is the virtual scheduling form of the Generic Cell Rate Algorithm (ITU-T I.371, annex
// A). Options.Overhead adds what each packet takes on the wire beyond its bytes in memory.
//
// # Times
//
// With Options.SendAt a packet that has a time (burst.Burst.SetTime) leaves no earlier. Packets of
// one queue leave in order: one with an earlier time that stands behind one with a later time waits
// for it, and is late then. How late packets left is measured for each (AddStats); one
// that is later than tolerated is sent all the same, or dropped and counted as engine.DropLate with
// Options.DropLate. The time of a received packet is when it was received: a caller that forwards
// it through a queue with SendAt sets another, or none.
//
// Who waits is this package, the kernel, or the device:
//
//   - In software, a timer wakes the Outbox. A sleeper in Go is late by up to a millisecond, more
//     on a busy machine. With Options.Spin the Outbox sleeps until that long before the time, and
//     then looks at the clock again and again; packets are a few µs late then as long as a
//     processor is free, at the price of that processor. Nothing leaves early in either case.
//   - The kernel's qdiscs etf and fq hold packets of sockets with SO_TXTIME until their time. Probe
//     says whether the device has one that does, and if not, why; Support.Enable sets up the
//     socket, and the TxTime it returns makes the control message that goes with each packet
//     (Control), and reads what the qdisc could not send in time (ReadReports). Give it to New as
//     Options.Kernel: packets are handed over Options.Ahead of their time then. SO_TXTIME on a
//     device without such a qdisc is accepted by the kernel and does nothing, so it is not used
//     there.
//   - A device that sends at a time by itself is the inner Sink, with Options.Device.
//
// # Time
//
// Packet times are nanoseconds since 1970 by Options.Clock, the machine's (CLOCK_REALTIME) by
// default. When that clock is set, packets that wait follow it within a second. The rate goes by
// the monotonic clock. Both are virtual in testing/synctest.
package pace
