// Package rteflow translates the rules of package flow into those of DPDK's generic flow API
// (rte_flow), as data.
//
//	for _, c := range rteflow.Compile(rules, rteflow.Options{Queue: number}) {
//		fmt.Println(c) // in the words of testpmd: priority 0 pattern eth / ipv4 / udp dst spec 5000 dst mask 65535 / end actions mark id 1 / queue index 3 / end
//	}
//
// # What a device may decide
//
// A rule has two translations. Whole carries out all of it and marks the packet with the rule's ID,
// so that software does not look at the packet again. Steer only brings the packet to its queue: it
// has no mark, and software classifies it as if the device had no rules. So a rule may be Whole
// only where each packet that the device takes for it is the rule's, and that takes more than
// matching: a device matches less than flow does (not behind extension headers of IPv6, and not
// surely behind VLAN tags that the rule does not name), so a packet of a rule of higher precedence
// that the device missed must not be marked by another one. Compile decides that for each pair of
// rules that can meet.
//
// # What stays in software
//
// Lengths, eCPRI, overlapping flex words, a range of ports that falls into more than MaxPatterns
// prefixes, encapsulation, decapsulation of GRE, and what is for the kernel. Compiled.Why says
// which.
//
// Sources: DPDK Programmer's Guide, "Generic flow API (rte_flow)"; rte_flow.h of DPDK 22.11.
package rteflow
