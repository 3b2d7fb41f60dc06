// Package tcp is the transfer path over TCP, encrypted by this process or by the kernel (kTLS).
//
//	d := tcp.New(tcp.Options{})
//	l, err := d.Listen()                       // once for each node; a node with a port of its own takes d.Receiver()
//	p, err := l.Accept(ctx, token, cfg)        // on one side, with a fresh random token
//	p, err := d.Dial(ctx, setup.Offer{Addr: l.Addr(), Token: token}, cfg) // on the other
//
// A path is a few connections between two nodes. Payload travels from the memory of the sender
// straight to its final place at the receiver: the sender hands the kernel the pieces of memory
// (sendmsg), the receiver reads each frame's payload where the frame says that it belongs, after
// package path's table of exports allowed it (readv). Frames of less than 16 KiB share reads of 32
// KiB: what comes with its header is copied once more and counted in Stats.BytesCopied. Large
// operations are cut into frames and dealt to all connections; small ones share a send on the first
// one. Each frame is covered by a CRC32C unless one side does not want it.
//
// Two sides that do not read never fill memory: what waits is bounded by the window, and a side
// whose owner fetches no notifications stops reading its sockets, so that TCP's own flow control
// holds the sender back. For the same reason small operations may overtake large ones; only
// notifications keep their order.
//
// The sockets are unknown to Go's network poller, and their calls are made without the scheduler's
// knowledge, because that is what a spinning owner's 99th percentile is made of. An owner that
// wants to sleep calls Arm and waits for FD.
//
// With two data connections or more the first one carries what is small, so that it never waits
// behind megabytes in the buffers of a socket, and one call moves little while both kinds travel.
//
// With Config.Secret everything after the 64 bytes of hello and answer travels in records of TLS
// 1.3 (package seal), with keys of its own for each connection and direction that depend on hello
// and answer too: no attacker on the way can read, change, replay, cut or downgrade anything
// without ending the path. The tag of a record takes the place of the CRC32C. It costs three passes
// over the bytes: a copy into the record and its encryption there at the sender, the decryption to
// its place at the receiver. Where the kernel has TLS of its own (kTLS) it does both, at either end
// or both; see Options.KTLS. Without a secret a side knows its peer by the token of the offer
// alone, and the driver refuses addresses other than loopback unless Options.Insecure is set. Where
// the addresses are loopback, the kernel also says which user is at the other end; see
// setup.Config.Users.
//
// The congestion control is the administrator's choice; see Options.CongestionControl. The wire
// format is in docs/protocol-tcp.md, the measurements behind the constants are in
// docs/measurements/tcp.md.
package tcp
