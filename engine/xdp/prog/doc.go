// Package prog generates, loads and attaches the XDP program that carries out flow rules for the
// engine xdp. There is no compiler and no object file.
//
//	p, err := prog.Load(prog.Spec{Interface: ifindex, Queues: 4, Slots: 8, Rules: rules, Isolation: isolation, Metadata: true})
//	err = p.Set(0, 3, fd)            // the AF_XDP socket of NIC queue 0 for logical queue 3
//	err = p.Attach(prog.Auto)        // native if the driver can, else generic
//	err = p.Apply(rules, isolation)  // other rules, from one packet to the next
//	err = p.Counters(&counts)
//	err = p.Close()                  // the interface is as it was before
//
// # What the program does with a packet
//
// It reads the headers as packet.Parse does, byte for byte with the same limits, finds the rule as
// flow.Classifier does, and ends in one of four ways, each counted (see [Counts]): the packet goes
// to the AF_XDP socket of its NIC queue and logical queue; it is left to the kernel; a rule drops
// it; or there is no socket where it should go, and it is dropped. Transformations (VLAN tags,
// tunnels) are not in the program: [Capabilities] says so to flow.Check.
//
// The program sees frames as they are in memory: a VLAN tag that the NIC has taken off ("ethtool -K
// IF rxvlan off" leaves it), or that a sender on the same machine has left to the device, is not
// there for it, and the frame counts as untagged. Info.Notes says when that can be.
//
// Sockets stand in an XSKMAP at index NIC queue * slots + logical queue, because the kernel gives a
// socket only packets of the NIC queue that it is bound to.
//
// # How it finds the rule
//
// As package flow does, with bit vectors (Lakshman and Stiliadis, SIGCOMM 1998): each field of the
// packet selects a vector of the rules that accept it, and the first bit of the intersection is the
// rule. Fields are cut into pieces of 16 or 8 bits, each of which is one lookup in a table (two
// levels for 16 bits), so that prefixes, ranges and masks all become intervals or sets of small
// numbers. The program's length depends on which fields the rules ask for, hardly on how many rules
// there are: there is no chain of comparisons for the verifier to follow.
//
// # Changing rules
//
// [Program.Apply] builds a new program with tables of its own and puts it in the place of the old
// one with one update of the link: a packet sees the old set or the new one, never a mixture, and
// there is no moment without a program. Sockets and counters are in maps that both share. Tables
// could be changed in place instead, but a packet would see half of a change, and other fields need
// other instructions anyway.
//
// # What stays behind
//
// Nothing. Program, maps and link live as long as file descriptors of this process do; nothing is
// pinned. They are gone when the process ends, also when it is killed.
//
// # What it needs
//
// Linux 5.18 (bpf_xdp_load_bytes, bpf_xdp_get_buff_len), CAP_NET_ADMIN and CAP_BPF, and CAP_PERFMON
// as soon as there are rules: without it the verifier takes no pointers that are computed from what
// is in a packet. Capabilities count only outside of user namespaces.
package prog
