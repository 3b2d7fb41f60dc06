// Package path defines transfer paths: ways to move bytes between local memory and memory that a
// peer exports.
//
// A path joins exactly two nodes. Work is handed over in batches and completes asynchronously:
//
//	n, err := p.Post([]path.Op{{Kind: path.Put, Token: 7, Copies: copies}})
//	...
//	for { // the owner polls, or waits on FD after Arm
//		k := p.Poll(events)
//		for _, e := range events[:k] { ... e.Token, e.Err ... }
//	}
//
// Three rules make every implementation interchangeable (package transfer/path/pathtest checks
// them):
//
//   - One owner. Post, Poll, Arm, Cancel and Close are called by one goroutine at a time. A path
//     has no goroutine of its own and makes progress only inside these calls, also for what the
//     peer asks of this side; so a path costs nothing while idle and the caller decides between
//     spinning and sleeping. Package transfer gives every path such an owner.
//   - A completion is proof. EventDone without an error means that all bytes are placed and visible
//     at their destination, checked as Event.Proof says. EventDone with or without an error means
//     also that no further byte of the operation will be written anywhere: there are no zombie
//     writes. Until then the destination's bytes are undefined.
//   - Nothing is lost. Every operation that Post accepted yields exactly one EventDone, also when
//     the path breaks: then the outstanding ones complete with an error and EventDown follows,
//     once, as the last event.
//
// Exports are the only memory that a peer can name. The table in this package checks every
// reference that arrives: key, epoch, rights and bounds, in 64-bit arithmetic that cannot overflow.
package path
