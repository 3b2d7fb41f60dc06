// Package soak runs processes that transfer random bytes under injected faults, and accounts for
// every transfer.
//
//	func main() {
//		soak.Main() // does not return in a process that Run started as a worker
//		...
//		report, err := soak.Run(ctx, soak.Options{Duration: time.Hour, Seed: 7, Out: os.Stdout})
//	}
//
// Each worker is this program again, with a node of package transfer that listens, dials the
// others, exports memory, publishes tensors and takes pushed ones. Half of the sessions go over TLS
// with certificates of an authority that the run makes, the others over unix sockets without.
// Workers put, get, borrow, notify, push, fetch and fan out, in blocks, over every path, of 1 byte
// up to Options.MaxBytes, with digests, priorities, streams and security floors, cancel some of it,
// and revoke what they publish while others fetch it. Over links they do jobs: a download into a
// file, which goes on in the next life of the worker where the last one was killed, and stores.
// Meanwhile workers are killed with SIGKILL and started again, frozen and continued, leave in good
// order and come back, control and data connections are cut, stalled and half-closed, certificates
// are denied, rights taken away and given back, and limits and memory budgets are too small.
//
// A worker reports each transfer to this process before it begins, when it has ended, and when it
// was notified of one as receiver, with what it found when it checked the bytes. In the end the
// accounts must balance: each transfer ended exactly once, with success or a known reason; a
// receiver that lived on was notified of each success exactly once, with the same number of bytes,
// all of them right; no receiver was notified of a transfer twice, pieces of jobs included; the
// events and the totals of each node that was closed in order say the same as the futures; and
// regions, leases, registrations, descriptors, goroutines, processes, files and memory are back to
// what they were. Whatever does not balance is an error of Run.
//
// Memory that was written to is used again at once, also after a put into it failed or the session
// was lost: a write that comes late would be found as a wrong byte. Only another life of the writer
// gets exports of its own (see let), since no session ties it to the one before.
//
// All choices come from the seed. Which transfer meets which fault also depends on the machine's
// timing, so a run with the same seed has the same kind and mix of events, not the same
// interleaving.
package soak
