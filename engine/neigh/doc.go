// Package neigh resolves where packets go: routes, neighbours (ARP, ND), and headers ready to be
// put before a payload.
//
// # Parts
//
//	Kernel      asks the kernel (rtnetlink): routes, neighbours
//	Machine     speaks ARP (RFC 826) and neighbour discovery (RFC 4861) itself: bytes and times in, bytes and deadlines out
//	Resolver    a Machine, a port that frames go through, and the callers that wait for an answer
//	Endpoint    a destination with prebuilt headers
//
// Where an interface has the addresses that packets are sent from, Kernel.Resolve is enough: the
// kernel knows its neighbours, and asks for those that it does not know. A port that has addresses
// of its own, which the kernel does not know, uses a Resolver: it asks with ARP and neighbour
// solicitations, and with MachineOptions.Answer answers those for its own addresses.
//
// # Errors
//
// ErrNoRoute: there is no route to the address. ErrNoAnswer: the next hop does not answer. Both say
// which address and what to look at.
package neigh
