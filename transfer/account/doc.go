// Package account counts the transfers, requests and paths of a node for its snapshots and metrics,
// and announces them as events.
//
// Each transfer that began is entered in the account of its peer ([Peer.Begun]) and leaves it once
// ([Peer.Ended]); a call that was refused before anything began is counted apart. Accounts are
// merged into the past of the [Node] when their peer is gone and their last transfer has ended, so
// that the totals only grow and each transfer is in them once.
//
// The mutexes, in the order in which they are taken: that of the Node, that of a Peer; then the
// leaves: those of a histogram, of the bus. Nothing here calls anything with one of its own held
// but Path.Stats and Path.Name. So all may be called with any mutex of package transfer held, but
// Node.Snapshot, which calls back.
package account
