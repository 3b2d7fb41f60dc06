// Package ntuple translates the rules of package flow into n-tuple rules of a network card, where
// they fit exactly. See networking/scaling.rst ("RSS and aRFS") of the kernel, and struct
// ethtool_rx_flow_spec in linux/ethtool.h.
//
//	entries, err := ntuple.Compile(rules, ntuple.Limits{Queues: 4}) // opens nothing; the error is flow.Problems
//	t, err := ntuple.OpenTable(device)
//	in, err := t.Insert(specs, nil) // with their places
//	err = t.Delete(in[0])
//
// # What fits
//
// Ethernet destination with everything; source and type without IP fields; one VLAN identifier from
// 1; IPv4 and IPv6 addresses in blocks; a protocol; ports of UDP and TCP, ranges as several entries
// under masks; the actions queue and drop. A rule about UDP that names no address takes an entry
// for IPv4 and one for IPv6. What does not fit is refused with the reason, all of a set or none: a
// rule that is left out could have had precedence over one that is not.
//
// Entries are in the order of precedence, and Insert puts them into ascending places of the card's
// table, of which the lowest wins. Cards that choose places themselves are given only sets in which
// no two rules disagree about a packet.
//
// # What a card may see otherwise
//
// An entry about ports sees no fragments; package flow reads the ports of a first one. Cards differ
// in how many VLAN tags and IPv6 extension headers they look behind. So the card's choice says
// where a packet arrives, and not yet what it is: the receiver still classifies. Install reads each
// entry back, and refuses a card that keeps less than it was given.
//
// N-tuple rules stay in the card when the process ends. Package card keeps a record of them.
package ntuple
