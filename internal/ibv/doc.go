// Package ibv calls RDMA verbs (libibverbs) without cgo: devices, memory, completion queues, queue
// pairs.
//
// [Load] loads the library, [Library.Devices] lists the devices, [Device.Open] opens one. A
// [Context] makes everything else: protection domains ([PD]), registered memory ([MR], [MW]),
// completion queues ([CQ]) with channels that wake their owners, queue pairs ([QP]), shared receive
// queues ([SRQ]) and address handles ([AH]). What is missing on a machine is [ErrUnavailable] with
// what to do; what a device lacks is [ErrUnsupported].
//
//	pd, _ := ctx.AllocPD()
//	cq, _ := ctx.CreateCQ(ibv.CQSpec{Entries: 64})
//	mr, _ := pd.RegMR(ibv.MRSpec{Addr: addr, Length: n, Access: ibv.LocalWrite | ibv.RemoteWrite})
//	qp, _ := pd.CreateQP(ibv.QPSpec{Type: ibv.RC, SendCQ: cq, RecvCQ: cq, SendWRs: 32, RecvWRs: 32, SendSGEs: 1, RecvSGEs: 1})
//	// Init, ReadyToReceive with the peer's attributes, ReadyToSend; then
//	chain.Write(id, ibv.Signaled, raddr, rkey, mr.SGE(0, 4096))
//	qp.PostSend(chain)
//	n, _ := cq.Poll(wc)
//
// Requests are built in chains ([SendChain], [RecvChain]) outside the Go heap and posted by one
// call of the library for the whole chain. Posting and polling allocate nothing. The caller's
// numbers of requests (ids) come back unchanged, also of requests that failed.
//
// # Ownership
//
// The caller that makes an object closes it. Objects know what they were made of: closing one that
// is still used is [ErrInUse] and names the user; closing twice does nothing. Registered memory is
// the caller's, lies outside the Go heap (package mem), and stays mapped until the region is
// closed. Close must not run while another goroutine posts to or polls the same object.
//
// # The library's memory
//
// Programs in C are compiled with the layouts of libibverbs' structures, and post and poll through
// a table of functions in one of them. This package has the same layouts as Go types (layout.go). A
// test compares them with the installed header; the running library is compared with them as far as
// it can be: known answers of functions at load (check.go), the structure of a device when it is
// opened, and the links of each object when it is made. What does not fit is [ErrLayout], and
// nothing is called.
//
// # Threads
//
// Everything may be called by several goroutines, except that a chain has one user at a time, a
// [CQ] one poller, and changes of a [QP]'s state come one after the other.
package ibv
