// Package card configures a network card for an AF_XDP port (n-tuple rules, RSS table) and records
// each change so that it is undone after a crash.
//
//	c, err := card.Open(device, card.Options{Interface: "eth0", Queues: []int{2, 3}, Have: 4, Identity: id})
//	report, err := c.Set(card.Want{Rules: rules, All: true})
//	err = c.Close() // the card is as it was before
//
// # Two lines
//
// The XDP program is the line that is always right: it looks at each packet, and every receive
// queue has a socket on each of the port's queues of the card. What the card does only decides on
// which of these a packet arrives. So a rule that the card does not take stays in software, alone,
// and Report.Software says which and why; and no rule that drops is given to the card, because the
// program counts what it drops.
//
// It matters for what is right only where the port uses some of the card's queues and not all: the
// kernel gets what arrives on the others. Then the table of RSS is set to the port's queues, unless
// all that the port takes is steered to them by n-tuple rules.
//
// # What a killed process leaves
//
// Rules and table stay in the card when a process is killed, and nothing in the card says whose
// they are: there is no owner's mark in an n-tuple rule, places are few and other people's as well,
// and some drivers choose them. So what is about to be changed is first written into a file, a
// record: the rules with their places, and the table before and after. The process that opens the
// card next finds the record and takes back what is still as it says, and nothing else: a rule at
// another place or another table is another program's. That the owner is dead needs no look at
// processes: an interface has one XDP program, so a port that has its program there is the only
// one; Open is to be called after that. Without a directory for records nothing is changed.
//
// Records are in a directory that ends with the boot, as the card's settings do, and are of one
// boot and one network namespace.
package card
