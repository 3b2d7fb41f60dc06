package transfer

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/transfer/bounce"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
)

// Explanation is the account of one transfer.
type Explanation struct {
	ID     observe.ID
	Kind   string // "put" or "get"
	Peer   string
	Bytes  uint64 // asked for
	Moved  uint64 // known to be in place
	Pieces int    // operations it was cut into
	Blocks int    // copies it was given

	Path       string      // the path taken; "" if none was
	Carrier    string      // of a path over an adapter: which one, and how, such as "mlx5_0 port 1, RC"
	Why        string      // one sentence
	Failovers  []Failover  // paths that went down under it, in order
	Candidates []Candidate // every path that was considered
	Setup      []string    // how that path is set up: what was chosen and measured

	Security path.Security // of the path
	Floor    path.Security // below which no path was taken

	UserCopies   int    // payload copies per byte in user space, by design of the path
	KernelCopies int    // payload copies per byte in the kernel
	Staged       uint64 // bytes copied once more, beyond the design: those of Local and Remote together
	// Local and Remote say how bytes got to and from memory that the CPU of this side, or of the
	// peer, cannot reach. They are zero where the transfer has no such memory, or its path reaches
	// it.
	Local, Remote Staging

	Proof path.Proof
	// Digest is the SHA-256 of the local bytes where PutOptions.Digest asked for it; without an
	// error that of the other side is the same. All zero otherwise.
	Digest [32]byte
	Times  Times
	Err    error
}

// Staging is what one side did to reach memory of a device that no path of the peer reaches: it
// copied the bytes between the device and slots of pinned host memory, beside the path.
type Staging struct {
	Device   string // whose memory it is, for people; "" where nothing was staged
	Bytes    uint64 // copied; each byte once
	SlotSize uint64 // bytes
	Slots    int    // pieces that were under way at once, at most
}

// add counts a piece that was copied, if it was.
func (s *Staging) add(c *bounce.Copied, bytes uint64) {
	if c.Slot == 0 {
		return
	}
	s.Device, s.SlotSize = c.Device, c.Slot
	s.Bytes += bytes
	s.Slots = max(s.Slots, c.Under)
}

func (s *Staging) describe(b *strings.Builder, side string) {
	if s.Device != "" {
		fmt.Fprintf(b, "\n  staged %s: no path reaches memory of %s: %d bytes copied by way of up to %d slots of %d "+
			"bytes of host memory",
			side, s.Device, s.Bytes, s.Slots, s.SlotSize)
	}
}

// DeviceCopies is how often each byte was copied between memory of a device and host memory: once
// at each side that staged.
func (e *Explanation) DeviceCopies() (n int) {
	for _, s := range []Staging{e.Local, e.Remote} {
		if s.Bytes > 0 {
			n++
		}
	}
	return n
}

// Candidate is one path that was considered for a transfer.
type Candidate struct {
	Path     string
	Usable   bool
	Reason   string        // why not, or what the estimate is based on: "prior" or "measured"
	Cost     path.Cost     // what the path is taken to cost
	Estimate time.Duration // for this many bytes

	err   error    // why it is not usable, for errors.Is
	again bool     // it could not be set up a moment ago, and may be soon
	ch    *channel // from survey until it is ranked: whose cost it is
}

// Times says where the time of a transfer went. The parts add up to Total.
type Times struct {
	Parse    time.Duration // checking the request; of a few blocks it is so short that it counts as Register
	Register time.Duration // leases and registration of local memory
	Open     time.Duration // choosing, and setting the path up if it was not
	Queue    time.Duration // waiting for its turn: batching and window
	Transfer time.Duration // from hand-over to the path until the last byte was proven in place
	Complete time.Duration // from there until the future resolved
	Total    time.Duration

	begin, mark time.Duration // by clock
}

func (t *Times) start(now time.Duration) { t.begin, t.mark = now, now }

// lap gives the time since the last mark to the part d.
func (t *Times) lap(d *time.Duration, now time.Duration) {
	*d += now - t.mark
	t.mark = now
}

func (t *Times) finish(now time.Duration) {
	t.lap(&t.Complete, now)
	t.Total = now - t.begin
}

// noted is what a transfer notes for its explanation; chosen gives what was chosen from.
type noted struct {
	Path      string
	Failovers []Failover
	Times     Times
	Blocks    int32
	Pieces    int32
	Proof     path.Proof
	atOnce    bool // it resolves when its last byte was proven in place: Complete is nothing

	rest *Explanation // what few transfers have; see more
}

// more is where everything else is noted: that is larger than the rest of a small transfer.
func (r *noted) more() *Explanation {
	if r.rest == nil {
		r.rest = new(Explanation)
	}
	return r.rest
}

// explanation is what is noted, in a copy.
func (r *noted) explanation() (e Explanation) {
	if r.rest != nil {
		e = *r.rest
		e.Candidates = slices.Clone(e.Candidates)
	}
	e.Path, e.Blocks, e.Pieces, e.Failovers, e.Proof, e.Times = r.Path, int(r.Blocks), int(r.Pieces), r.Failovers,
		r.Proof, r.Times
	return e
}

// String is the account in words, several lines.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d bytes (%d blocks, %d operations) with %s", e.Kind, e.Bytes, e.Blocks, e.Pieces, e.Peer)
	if e.Path == "" {
		fmt.Fprintf(&b, ": no path")
	} else {
		fmt.Fprintf(&b, " over %s", e.Path)
		if e.Carrier != "" {
			fmt.Fprintf(&b, " (%s)", e.Carrier)
		}
		fmt.Fprintf(&b, ": %s", e.Why)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "\n  failed after %d bytes: %v", e.Moved, e.Err)
	}
	for _, f := range e.Failovers {
		fmt.Fprintf(&b, "\n  %s went down after %d bytes: %v", f.From, f.Moved, f.Cause)
	}
	for _, c := range e.Candidates {
		if c.Usable {
			fmt.Fprintf(&b, "\n  %-4s expected %v (%s: %v + %.1f GB/s)", c.Path, c.Estimate, c.Reason, c.Cost.Latency,
				c.Cost.BytesPerSec/1e9)
		} else {
			fmt.Fprintf(&b, "\n  %-4s not usable: %s", c.Path, c.Reason)
		}
	}
	for _, s := range e.Setup {
		fmt.Fprintf(&b, "\n  %s", s)
	}
	fmt.Fprintf(&b, "\n  copies per byte: %d in user space, %d in the kernel", e.UserCopies, e.KernelCopies)
	if e.Staged > 0 {
		fmt.Fprintf(&b, "; %d bytes staged", e.Staged)
	}
	e.Local.describe(&b, "here")
	e.Remote.describe(&b, "at the peer")
	fmt.Fprintf(&b, "\n  proof: %v, security: %v (floor: %v)", e.Proof, e.Security, e.Floor)
	if e.Digest != ([32]byte{}) {
		fmt.Fprintf(&b, "; sha-256 %x", e.Digest)
		if e.Err == nil {
			b.WriteString(" of the memory on both sides")
		}
	}
	t := e.Times
	fmt.Fprintf(&b, "\n  time: parse %v, register %v, open %v, queue %v, transfer %v, complete %v; total %v",
		t.Parse, t.Register, t.Open, t.Queue, t.Transfer, t.Complete, t.Total)
	return b.String()
}
