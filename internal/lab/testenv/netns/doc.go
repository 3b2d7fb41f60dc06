// Package netns makes hosts in network namespaces, joined by links with an MTU, queues, addresses
// and a rate.
//
//	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{MTU: 9000, Queues: 4}}) // two hosts, one veth pair
//	a, b := n.Hosts[0], n.Hosts[1]
//	l, err := b.Listen(ctx, "tcp", b.Link().IPv4.String()+":0")  // a socket of host b, usable from anywhere
//	c, err := a.Dial(ctx, "tcp", l.Addr().String())
//	out, err := a.Output(ctx, "ip", "-6", "neigh")
//	err = a.Do(func() error { ... })                             // whatever opens sockets itself
//	err = a.Link().Down()                                        // the cable is cut, and a knows when this returns
//
// A link with a delay, losses or a queue ([LinkSpec]) is carried by this process between two tap
// devices, for a kernel without netem.
//
// [New] needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN; without them the test is skipped with the
// kernel's answer, and fails where CI is set. Without root, "unshare -Urm go test ./..." gives a
// shell's worth of both. [Open] is for programs.
//
// A host has no name in the file system. It is held by one thread of this process, so it ends with
// the process, however that ends: the kernel removes the namespace with its devices, and kills what
// [Host.Start] started there. A watcher, a second copy of this program, kills what those had
// started in their turn; a program that is no test has one if it calls [Main].
//
// In a host /sys shows the host's devices; everything else of the file system is the machine's.
// Abstract unix sockets belong to a network namespace, those with a path do not.
package netns
