// Package flow describes steering rules as data, validates them, and classifies packets in
// software.
//
// # Rules
//
// A [Rule] is a [Match] (an AND of fields; a field that is absent matches anything) and a list of
// [Action]s. Rules are plain values: they open nothing, compare with Equal, copy with Clone, and go
// through JSON and through a text form that people write and read in tools and errors:
//
//	r, err := flow.ParseRule("name video udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 3")
//	fmt.Println(r) // the same
//
// An engine turns rules into what it has: this package's [Classifier], a program, or entries of a
// network card. What an engine can do is a [Capabilities] value; [Check] names each rule that is
// beyond it, and why.
//
// # Which rule wins
//
// The highest Priority. Among equal priorities the earlier rule of the set wins, and [Validate]
// reports the pair as ambiguous if the two can meet in one packet and disagree about it.
//
// # What a match sees
//
// The outermost headers, as [packet.Parse] finds them: a tunnel's content is payload. EtherType and
// IP fields are those behind the VLAN tags. A field that the packet does not have (ports in a later
// fragment, flex words behind the end of the payload) matches only rules that do not ask for it.
// Ethernet padding is never matched.
//
// # Classifying
//
// [Compile] makes an immutable [Classifier] that any number of goroutines share. For each field it
// finds, with one table lookup, the set of rules that accept the packet's value, as a bit vector
// with an aggregate of its words; the first bit of the intersection is the rule (T. V. Lakshman and
// D. Stiliadis, "High-speed policy-based packet forwarding using efficient multi-dimensional range
// matching", SIGCOMM 1998; F. Baboescu and G. Varghese, "Scalable packet classification", SIGCOMM
// 2001). Time depends on the number of fields in use, hardly on the number of rules. A [Cache], one
// per goroutine, keeps answers for repeated traffic; its key is what the rules can see, and no
// more.
//
//	var l packet.Layers
//	if packet.Parse(frame, &l) == packet.OK {
//		d := c.Classify(frame, &l)
//		deliver(d.Verdict, d.Queue, frame)
//	}
//
// # Changing rules
//
// Packets carry the ID of their rule, or its Mark: a number of the user's own.
//
// A [Table] takes batches of changes, all or nothing, and publishes a new [Snapshot] for each;
// readers never wait. [Counters] count packets and bytes per rule, one handle per poller.
//
// Transformations (VLAN tags, tunnels) run in software with [Transform].
package flow
