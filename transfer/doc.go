// Package transfer moves spans of memory and named tensors between nodes: processes on this machine today, machines later.
//
// A [Node] listens, dials and exports memory. A [Peer] is another node that this one is connected to: one control
// connection (package transfer/control) and, opened when first needed, the paths that both sides have (package path). Every
// transfer takes the path that is expected to be fastest for its size and that reaches the memory; [Transfer.Explain] says
// which one, why, what the others would have cost, where the time went and how often the bytes were copied.
//
//	node, err := transfer.Open(ctx, transfer.Options{Name: "worker"})
//	peer, err := node.Dial(ctx, "tcp://127.0.0.1:7070")
//	remote, err := peer.Lookup(ctx, "weights")          // memory that the peer exports
//	t, err := peer.Put(ctx, []path.Copy{remote.At(0, region.All())}, transfer.PutOptions{})
//	err = t.Wait(ctx)                                   // the bytes are in the peer's memory, verified
//	fmt.Println(t.Explain())
//
// Ownership: the spans of a transfer and the slice that lists them belong to the transfer until it is done; the node holds
// leases on the regions for that long. A destination's bytes are undefined until the transfer is done without an error.
//
// Completion: a transfer ends exactly once. Without an error all bytes are in place at the receiver, checked there as
// Explanation.Proof says, and the receiver's OnTransfer was or will be called once. With an error (also after Cancel) no
// further byte is written at either end.
//
// [Queue] is the layer below for callers that count nanoseconds: one path of their own, batches in, events out, no
// allocation, no lock, no goroutine.
package transfer
