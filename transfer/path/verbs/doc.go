// Package verbs is the transfer path over RDMA: adapters read and write the peer's memory directly.
//
//	d := verbs.New(verbs.Options{})                      // libibverbs and a device are found at run time
//	a, err := d.Endpoint(cfg, nil)                       // on the side that asks for the path, which sends a.Description()
//	b, err := d.Endpoint(cfg, a.Description())           // on the other side, which sends b.Description() back
//	p, err := a.Connect(ctx, b.Description())            // and b.Connect there
//
// # How it works
//
// The session of two nodes carries the descriptions of both ends (endpoint.go). Each end has one
// reliable connection for control and one or more for data (queuepair.go). All of them complete
// into one queue, whose descriptor an owner can sleep on. Frames on the control connection ask for
// exports, answer, notify, and replace what broke (wire.go, control.go). A put is a list of RDMA
// writes, a get one of reads; lists go to the adapter in one call, and one in many requests is
// signalled (data.go). How large pieces are, how many are signalled, how much is at the adapter and
// what travels in the request itself is found out by trying (tune.go). Neither side ever sends what
// the other has no receive for (credit.go).
//
// # What a peer can reach
//
// An export is registered as exactly its bytes when a peer asks for it first and the table of
// exports lets it (given.go). The region itself has no remote rights. The peer gets a memory window
// of type 2B, which is good on its own queue pair only, with its own rights. Where the device has
// no windows, each peer has a protection domain for itself. A Fence closes the windows before it
// completes. What was under way is then refused by the adapter, which ends the connection that
// carried it: that one queue pair is replaced (repair.go), and everything else that it carried
// restarts.
//
// # What it is not
//
// RDMA is not encrypted, and a path to another machine has no security at all: it needs
// Options.Insecure, and transfers with a security floor do not take it. The session vouches for the
// description of an end, which names an adapter and queue pairs; nothing vouches for what they
// send. A peer that dies without a word is noticed when something is sent to it, and not before:
// the session's heartbeat is for that.
//
// docs/verbs.md says more; docs/verbs-tests.md has what only hardware can show.
package verbs
