// Package fault injects seeded faults into connections and paths.
//
// A [Plan] is a seed and rules; it prints as text and is read back from it, so that a failure can
// be run again:
//
//	plan, err := fault.Parse("seed=7; cut up at=4096; delay down every=~1000 for=2ms; corrupt down at=~500")
//
// Positions are counted in what a thing carries: bytes of one direction of a connection, or
// operations of a path. They never depend on time or on how reads and writes were cut, so the
// same plan does the same to the same traffic.
//
//	Proxy    stands between two real sockets (TCP, Unix streams)
//	Path     a path.Path whose completions come late, in another order, or with errors; Driver makes such paths
//
// Both can also be disturbed by hand while they run (Cut, Stall, Resume; a Proxy also HalfClose),
// and count what they did.
//
// A Path keeps the contract of package path: what it accepts ends exactly once. The kinds [Drop],
// [Duplicate] and [Corrupt] break it, for tests that must notice; package transfer/path/pathtest
// has finer ways to break a path.
package fault
