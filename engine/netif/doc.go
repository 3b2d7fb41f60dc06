// Package netif is what a port of an engine knows of its network interface: number and name, MTU, address, speed, NUMA node, queues, and
// whether it is up, or gone. It follows what changes.
//
//	i, err := netif.Open("eth0", 0)      // in the calling thread's network namespace
//	defer i.Close()
//	err = i.Watch(func() { ... })        // called in one goroutine after changes
//	if i.Up() && !i.Gone() { ... }       // any goroutine, no system call
//
// # What an interface is
//
// An Interface is the one device that had the name when it was opened, and no other one. When the device is renamed, Name follows. When it is
// deleted, or moved to another network namespace, it is Gone for good: one that is made under the same name afterwards, or one that
// comes back, is another one, and whoever wants it opens it.
//
// Changes are told by the kernel (man 7 rtnetlink). Some may be lost when there are very many: then the kernel is asked, so that
// what is known in the end is right.
package netif
