// Package netif reads and follows the network interface of a port: MTU, address, speed, queues,
// link state. It follows what changes.
//
//	i, err := netif.Open("eth0", 0)      // in the calling thread's network namespace
//	defer i.Close()
//	err = i.Watch(func() { ... })        // called in one goroutine after changes
//	if i.Up() && !i.Gone() { ... }       // any goroutine, no system call
//
// # What an interface is
//
// An Interface is the one device that had the name when it was opened, and no other one. When the
// device is renamed, Name follows. When it is deleted, or moved to another network namespace, it is
// Gone for good: one that is made under the same name afterwards, or one that comes back, is
// another one, and a caller that wants it opens it.
//
// The kernel reports changes (man 7 rtnetlink). It may lose some when there are very many: then the
// Interface asks for its state, so that what it knows in the end is right.
package netif
