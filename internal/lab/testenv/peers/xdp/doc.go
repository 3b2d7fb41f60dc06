// Package xdp runs xdpref, a program in C on libxdp: the reference that Penstock's AF_XDP is
// measured against. It receives, sends and forwards on one queue of one or two interfaces, as a
// careful programmer writes it: libxdp's inline functions, batches, one UMEM for all, no system
// call that is not needed. The same program is the load and the sink at the other end of what is
// measured.
//
//	p, err := xdp.Start(host.Start, xdp.Config{Interfaces: []string{"eth0"}, Size: 64, CPU: 1})
//	if err != nil { ... }
//	defer p.Close()
//	r, err := p.Do(ctx, xdp.Command{Op: xdp.Receive, Check: true}) // what is in the ring, every byte checked
//	fmt.Println(r.Packets, r.CPU, r.RingFull)
//
// The program is compiled on first use and needs libxdp's and libbpf's headers (Debian: libxdp-dev,
// libbpf-dev), root or CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK, and an interface whose
// queue no other socket has. Its XDP program has five instructions and goes with the process;
// LibxdpProgram takes libxdp's own in its place.
//
// A packet is Ethernet, IPv4, UDP to port 5001, a sequence number of 8 bytes at offset 42, the
// number of the slot that it was made in at offset 50, and from offset 56 words that follow from
// that number. All integers are little-endian but for the headers.
package xdp
