// Package soak runs real processes that move random bytes to each other for a given time while everything that can fail is made
// to fail, and then accounts for every transfer.
//
//	func main() {
//		soak.Main() // does not return in a process that Run started as a worker
//		...
//		report, err := soak.Run(ctx, soak.Options{Duration: time.Hour, Seed: 7, Out: os.Stdout})
//	}
//
// Each worker is this program again, with a node of package transfer that listens, dials the others, exports memory, publishes
// tensors and takes pushed ones. Workers put, get, borrow, notify, push and fetch, in blocks, over every path, of 1 byte up to
// Options.MaxBytes, cancel some of it, and revoke what they publish while others fetch it. Meanwhile workers are killed with
// SIGKILL and started again, frozen and continued, leave in good order and come back, control and data connections are cut,
// stalled and half-closed, and memory budgets are too small.
//
// A worker tells this process of each transfer before it begins, when it has ended, and when it heard of one as the receiver, with
// what it found when it checked the bytes. In the end the books must balance: each transfer ended exactly once, with success
// or a known reason; each success was heard of exactly once wherever the receiver lived on, with the same number of bytes, all
// of them right; and regions, leases, descriptors, goroutines, processes and memory are back to what they were. Whatever does
// not balance is an error of Run.
//
// All choices come from the seed. Which transfer meets which fault also depends on the machine's timing, so a run with the
// same seed has the same kind and mix of events, not the same interleaving.
package soak
