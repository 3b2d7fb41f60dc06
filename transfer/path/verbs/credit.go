package verbs

// A queue pair whose receives run out answers "receiver not ready", and after a few of these its
// connection is dead. So no side sends what the other one has no receive for: the sender counts
// what it sent, the receiver tells how many receives it has posted again. All counters are
// cumulative and wrap around: a report that is repeated or late does no harm.

// credits is the sender's side.
type credits struct {
	depth uint32 // receives that the peer posted in the beginning
	sent  uint32
	freed uint32 // receives that the peer has posted again, as it told
}

// left is the number of receives that the peer has for us.
func (c *credits) left() uint32 { return c.depth - (c.sent - c.freed) }

// told takes in the peer's counter.
func (c *credits) told(freed uint32) error {
	if freed-c.freed > c.sent-c.freed {
		return malformed("it says that it has taken %d messages in, of %d that were sent", freed, c.sent)
	}
	c.freed = freed
	return nil
}

// debt is the receiver's side.
type debt struct {
	depth uint32 // receives in all
	freed uint32 // posted again, since the beginning
	said  uint32 // of which this side has told the peer
}

// due says that it is time to tell the peer: a quarter of the receives is free again and it does
// not know. Several messages cost one report, so two sides that only report to each other fall
// silent.
func (d *debt) due() bool { return d.freed-d.said >= max(d.depth/4, 2) }

// What the control queue pair keeps back, so that both sides can always report and say goodbye: a
// report needs more than reportReserve, everything else more than plainReserve. A side that has
// used up its last report has told all that it knew then; it needs another one only after messages
// of the peer, and those carry the peer's own report.
const (
	byeReserve    = 0
	reportReserve = 1
	plainReserve  = 4
)
