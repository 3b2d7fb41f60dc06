// Package transfer moves memory and named tensors between nodes: processes of one machine or of
// several.
//
// A [Node] listens, dials and exports memory. A [Peer] is another node that this one is connected
// to: one control connection (package transfer/control) and, opened when first needed, the paths
// that both sides have (package path). Every transfer takes the path that is expected to be fastest
// for its size and that reaches the memory; [Transfer.Explain] says which one, why, what the others
// would have cost, where the time went and how often the bytes were copied.
//
//	node, err := transfer.Open(ctx, transfer.Options{Name: "worker"})
//	peer, err := node.Dial(ctx, "tcp://127.0.0.1:7070")
//	remote, err := peer.Lookup(ctx, "weights")          // memory that the peer exports
//	t, err := peer.Put(ctx, []path.Copy{remote.At(0, region.All())}, transfer.PutOptions{})
//	err = t.Wait(ctx)                                   // the bytes are in the peer's memory, verified
//	fmt.Println(t.Explain())
//
// Ownership: the spans of a transfer and the slice that lists them belong to the transfer until it
// is done; the node holds leases on the regions for that long. A destination's bytes are undefined
// until the transfer is done without an error.
//
// Completion: a transfer ends exactly once. Without an error all bytes are in place at the
// receiver, checked there as Explanation.Proof says, and the receiver's OnTransfer was or will be
// called once. With an error (also after Cancel) no further byte is written at either end.
//
// Package transfer/job is the layer above: jobs that go on over many sessions, and one put to many
// peers.
//
// [Peer.Prepare] checks a list of blocks once and posts it many times. A [Remote] is an io.ReaderAt
// and io.WriterAt for callers that have slices of Go, and goes on in the next session by
// [Remote.In]. A message travels with a transfer ([PutOptions].Msg) or alone ([Peer.Notify]);
// [Node.OnTag] has a handler get those of its tag.
//
// What a node knows of itself: [Node.Snapshot] (counts that add up, peers, paths, transfers under
// way), [Node.Events], [Node.Metrics] for exporters, and [Peer.Status] for the snapshot of another
// node. docs/observability.md explains them.
//
// Trust: with [Options.Identity] (package transfer/identity) every TCP connection is TLS 1.3 with
// certificates on both sides, the data connections are encrypted with keys of that session, and
// each peer has the rights that the policy gives to its name. Without one, addresses beyond this
// machine are refused ([Options.Insecure]). docs/security.md says what is defended.
//
// Faults: a transfer whose path goes down goes on by another one of the same session, never below
// its security floor, and only when nothing can come by the old one any more.
//
// Proof: with PutOptions.Digest the SHA-256 of a whole transfer is compared end to end, from memory
// to memory, whatever the paths between check themselves.
//
// Errors: everything that is asked of a peer (a transfer, a borrow, a queue, a look-up, a list, a
// call, a tensor, a job) ends with an error by the same rule, which one function applies
// (Peer.outcome). Match with errors.Is; what caused the error is wrapped by it as well.
//
//	what happened                                       errors.Is(err, ...)                          Retriable
//	the peer's process died or was stopped, its         ErrPeerLost                                  yes
//	  machine went, the control connection was lost,
//	  or the peer closed the session
//	this side called Node.Close or Peer.Close           ErrClosed, never ErrPeerLost                 no
//	the context of a transfer or job met its deadline   path.ErrCanceled, context.DeadlineExceeded   no
//	the context of anything else met its deadline       context.DeadlineExceeded                     yes
//	that context was canceled                           context.Canceled, its cause; transfers and   no
//	                                                    jobs also path.ErrCanceled
//	Transfer.Cancel, Job.Cancel                         path.ErrCanceled, context.Canceled           no
//	the peer revoked the export, before the transfer    path.ErrRevoked                              yes
//	  or during it
//	the key is not of an export that the peer named     path.ErrKey                                  no
//	paths went down, and the peer lives                 path.ErrDown, never ErrPeerLost              yes
//	a job gave up                                       ErrGaveUp, the last error, and ErrPeerLost   as those
//	                                                    if a session was lost since the progress
//
// When a process dies its paths may be seen to go down before the session: then the peer is asked
// for a sign of life before the error is given. So a [Queue] reports the end of its path when the
// answer, or its absence, is known; until then Post fails with path.ErrDown. An error of the
// request itself (rights, bounds, integrity) stays what it is when the peer is lost as well. Wait
// of a future returns the error of its own context while what it waits for goes on.
//
// Turns: transfers of a peer that want the same path take turns, by bytes and by
// PutOptions.Priority, so that a small one does not wait for a large one and none starves. They
// have no order unless they are of one PutOptions.Stream. Options.Limits bounds what is under way
// at once, and how fast.
//
// Devices: local spans and exports may be memory that the CPU cannot reach (mem.Device). Where no
// path reaches it either, the bytes take the way through pinned host memory at that side;
// docs/staging.md says how, and Explanation what it was.
//
// [Queue] is the layer below for callers that count nanoseconds: one path of their own, batches in,
// events out, no allocation, no lock, no goroutine.
package transfer
