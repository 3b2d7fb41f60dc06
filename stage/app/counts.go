package app

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
)

// Drop is the reason why an application let go of a packet that it should have sent or placed.
type Drop uint8

// The reasons.
const (
	DropNoRoom     Drop = iota // the transmit queue had no descriptor
	DropNoBuffers              // the transmit queue had no memory for a copy
	DropRefused                // the transmit queue failed
	DropGroup                  // a frame to a group or to all: its answer would come from a group
	DropNoAnswer               // a frame too short to be turned round
	DropNoPayload              // nothing that belongs into the tensor: no UDP, or too short for its number
	DropTooLong                // a payload longer than a row
	DropLate                   // a row of a tensor that was published already
	DropDuplicate              // a row that is there already
	DropStray                  // a number far away from all others
	DropOther                  // bytes of another connection than the one that fills the tensor
	DropDiskSlow               // the files of a recording are written too slowly
	DropDiskFull               // there is no room for them
	DropDiskError              // they cannot be written
	DropUnreadable             // a recording cannot read it: it is in memory of an accelerator
	NumDrops
)

var dropNames = [NumDrops]string{"no-room", "no-buffers", "refused", "group", "no-answer", "no-payload", "too-long",
	"late", "duplicate", "stray", "other-connection", "disk-slow", "disk-full", "disk-error", "unreadable"}

// String is the reason as tables and metrics show it.
func (d Drop) String() string { return dropNames[min(d, NumDrops-1)] }

// Drops are numbers of packets by reason.
type Drops [NumDrops]uint64

// Total is the number of packets dropped for any reason.
func (d *Drops) Total() (n uint64) {
	for _, k := range d {
		n += k
	}
	return n
}

// maxFlows is how many flows are counted apart; packets of others count as those of no flow.
const maxFlows = 256

// sizeClasses are the upper ends of the classes of packet sizes in bytes; the last class has none.
var sizeClasses = [...]int{64, 128, 256, 512, 1024, 2048, 4096}

// outcome is what became of packets; its consumer writes it.
type outcome struct {
	sent, sentBytes metrics.Counter
	taken           metrics.Counter
	drops           [NumDrops]metrics.Counter
}

// Report implements Reporter.
func (c *outcome) Report(s *Snapshot) {
	s.Sent, s.SentBytes, s.Taken = c.sent.Load(), c.sentBytes.Load(), c.taken.Load()
	for i := range c.drops {
		s.Drops[i] = c.drops[i].Load()
	}
}

// counts are what an application received; its goroutine writes them.
type counts struct {
	bursts, packets, bytes metrics.Counter
	sizes                  [len(sizeClasses) + 1]metrics.Counter
	flows                  [maxFlows]flowCount
	last                   int // flow of the last packet: most have the same
}

// flowCount counts the packets of one flow; one writer.
type flowCount struct {
	id             atomic.Uint64 // 1 more than the flow's id; 0: not used
	packets, bytes atomic.Uint64
}

// received counts a burst as it came.
func (c *counts) received(b *burst.Burst) {
	n := b.Len()
	c.bursts.Inc()
	c.packets.Add(uint64(n))
	c.bytes.Add(uint64(b.TotalLen()))
	// Runs of packets of one flow and of one size are counted at once: an atomic store for each
	// packet would be felt.
	var flow uint32
	var packets, bytes uint64
	class, run := 0, uint64(0)
	for i := range n {
		size := b.PacketLen(i)
		if f := b.Flow(i); f != flow || packets == 0 {
			c.ofFlow(flow, packets, bytes)
			flow, packets, bytes = f, 0, 0
		}
		packets++
		bytes += uint64(size)
		if k := sizeClass(size); k != class || run == 0 {
			c.sizes[class].Add(run)
			class, run = k, 0
		}
		run++
	}
	c.ofFlow(flow, packets, bytes)
	c.sizes[class].Add(run)
}

// sizeClass is the class of a size: 64 and less, 65 to 128, and so on.
func sizeClass(n int) int {
	return min(max(bits.Len(uint(max(n, 1)-1)), 6)-6, len(sizeClasses))
}

func (c *counts) ofFlow(id uint32, packets, bytes uint64) {
	if packets == 0 {
		return
	}
	f := &c.flows[c.last]
	if f.id.Load() != uint64(id)+1 {
		f = c.flow(id)
	}
	f.packets.Store(f.packets.Load() + packets)
	f.bytes.Store(f.bytes.Load() + bytes)
}

// flow finds the place of a flow's counts, or gives it one. The first place is that of flow 0, and
// of those that find none.
func (c *counts) flow(id uint32) *flowCount {
	const odd = 0x9e3779b1 // spreads ids that follow each other
	c.last = 0
	if id != 0 {
		at := int(id * odd >> 24)
		for k := range maxFlows - 1 {
			i := 1 + (at+k)%(maxFlows-1)
			if has := c.flows[i].id.Load(); has == 0 || has == uint64(id)+1 {
				c.last = i
				break
			}
		}
	}
	f := &c.flows[c.last]
	if c.last == 0 {
		id = 0
	}
	f.id.Store(uint64(id) + 1)
	return f
}

// FlowCount is what came of one flow: of the rule with that id, or of none (0).
type FlowCount struct {
	ID      uint32 `json:"id"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// flowCounts are the counts of the flows of which anything came, by their ids.
func (c *counts) flowCounts() (out []FlowCount) {
	for i := range c.flows {
		if id := c.flows[i].id.Load(); id > 0 {
			out = append(out, FlowCount{uint32(id - 1), c.flows[i].packets.Load(), c.flows[i].bytes.Load()})
		}
	}
	slices.SortFunc(out, func(x, y FlowCount) int { return cmp.Compare(x.ID, y.ID) })
	return out
}

// SizeCount is what came of one class of sizes.
type SizeCount struct {
	UpTo    int    `json:"up_to,omitempty"` // bytes; 0: any
	Packets uint64 `json:"packets"`
}
