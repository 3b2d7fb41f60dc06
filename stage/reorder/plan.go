package reorder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor/convert"
)

// Field is a number in a packet: Width bits, the most significant first, from bit Offset of the
// packet on. Bit 0 is the top bit of byte 0.
type Field struct{ Offset, Width int }

// end is how many bytes a packet must have.
func (f Field) end() int { return (f.Offset + f.Width + 7) / 8 }

// read is the number in p, which has end bytes.
func (f Field) read(p []byte) uint32 {
	first, end := f.Offset/8, f.end()
	if len(p)-first >= 8 {
		return uint32(binary.BigEndian.Uint64(p[first:]) << (f.Offset % 8) >> (64 - f.Width))
	}
	var v uint64
	for _, b := range p[first:end] { // 5 at most
		v = v<<8 | uint64(b)
	}
	return uint32(v >> (end*8 - f.Offset - f.Width) & (1<<f.Width - 1))
}

// Missing says what becomes of a batch with gaps.
type Missing uint8

const (
	Deliver Missing = iota // it leaves, and Batch.Present says what is there
	Drop                   // its packets are dropped
)

// Executor says what moves the bytes of a plan. The batches are the same.
type Executor uint8

const (
	CPU Executor = iota // the processor
	GPU                 // the accelerator whose memory Plan.Pool is
)

// The bounds of a Plan.
const (
	MaxPerBatch   = 1 << 16
	MaxWindow     = 1 << 10
	DefaultWindow = 4
	MaxChannels   = 1 << 16
	maxOffset     = 1 << 20 // bits
)

// Plan says how packets become batches. It is inert.
type Plan struct {
	Name  string
	Flows []uint32 // whose packets are meant; at least one
	// Sequence is the sequence number. Its Width is 1 to 32.
	Sequence Field
	// Batch is the number of the batch; Width 0: the sequence number divided by PerBatch.
	Batch Field
	// PerBatch is the number of packets of a batch, a power of two up to MaxPerBatch and to 2 to
	// the width of the sequence number. 0 with Batch: 2 to the difference of the two widths.
	PerBatch int
	// Offset is the number of bytes at the beginning of a packet that are left out.
	Offset int
	// Payload is the number of bytes of each place before conversion. 0: that of the longest first
	// packet of a batch so far. A shorter payload fills the front of its place, and the rest is
	// zero.
	Payload int
	// Convert is a conversion on the way; nil: bytes stay as they are.
	Convert *convert.Spec
	// Channels above 0 turns a batch on its corner: a payload is [channel][sample], and the batch
	// [channel][packet][sample], so that the samples of a channel lie one behind the other. All
	// payloads of a batch are as long as its first.
	Channels int
	Missing  Missing
	// Window is the number of batches that may be open, up to MaxWindow and Reach; 0:
	// DefaultWindow, or Reach if that is less.
	Window int
	// Timeout is how long a batch stays open after its first packet came; 0: without limit.
	Timeout time.Duration
	// Pool is where batches go, one in each slot. The executor must reach it. It stays open until
	// the stage is closed and its batches are released.
	Pool     *mem.Pool
	Executor Executor
	// Stream is where a GPU does its work, nil for a stream of the plan's own. It is of the context
	// of Pool, and stays open until the stage is closed. The caller does not use it while a queue
	// of the plan is received from.
	Stream *gpu.Stream
}

// ErrPlan is wrapped by what Check returns.
var ErrPlan = errors.New("reorder: wrong plan")

// Check says what is wrong with a plan; nil for nothing.
func (p *Plan) Check() error {
	if p.Pool == nil {
		return p.CheckFor("", 0, false)
	}
	reached := p.Pool.Region().All().Bytes() != nil
	if p.Executor == GPU {
		reached = memoryOf(p.Pool.Region()) != nil
	}
	return p.CheckFor(p.Pool.Name(), p.Pool.SlotSize(), reached)
}

// memoryOf is the memory of a region as kernels reach it, nil where they do not.
func memoryOf(r *mem.Region) *gpu.Memory {
	if m, ok := r.Handle().(*gpu.Memory); ok && m.Kind() != gpu.PinnedMemory {
		return m
	}
	return nil
}

// CheckFor is Check with a pool that is not there yet: its name, "" for none, the bytes of its
// slots, and whether the executor reaches it.
func (p *Plan) CheckFor(pool string, slot int, reached bool) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w %q: %s", ErrPlan, p.Name, fmt.Sprintf(format, a...))
	}
	for _, f := range []struct {
		name string
		Field
		least int
	}{{"Sequence", p.Sequence, 1}, {"Batch", p.Batch, 0}} {
		if f.Width < f.least || f.Width > 32 || f.Offset < 0 || f.Offset > maxOffset {
			return bad("%s: %d bits from bit %d on: expected %d to 32 from 0 to %d", f.name, f.Width, f.Offset, f.least,
				maxOffset)
		}
	}
	n := p.perBatch()
	switch {
	case len(p.Flows) == 0:
		return bad("no flows")
	case p.Batch.Width > 0 && p.PerBatch == 0 && p.Batch.Width > p.Sequence.Width:
		return bad("the batch number has %d bits and the sequence number %d: expected fewer, or PerBatch",
			p.Batch.Width, p.Sequence.Width)
	case n < 1 || n > MaxPerBatch || n&(n-1) != 0 || bits.Len(uint(n))-1 > p.Sequence.Width:
		return bad("%d packets of a batch: expected a power of two up to %d and 2 to the width of the sequence number",
			n, MaxPerBatch)
	case p.Offset < 0 || p.Payload < 0 || p.Window < 0 || p.Window > MaxWindow || p.Timeout < 0 || p.Missing > Drop:
		return bad("offset %d, payload %d, window %d, timeout %v: expected none below 0, and a window up to %d",
			p.Offset, p.Payload, p.Window, p.Timeout, MaxWindow)
	case p.Reach() < max(p.Window, 2):
		field, width := "Sequence", p.Sequence.Width
		if p.Batch.Width > 0 {
			field, width = "Batch", p.Batch.Width
		}
		return bad("%s: %d bits tell %d batches of %d packets apart, packets that overtake each other among them: "+
			"expected %d bits for a window of %d", field, width, p.Reach(), n, p.Width(p.Window), max(p.Window, 2))
	case p.Channels < 0 || p.Channels > MaxChannels:
		return bad("%d channels: expected 0 to %d", p.Channels, MaxChannels)
	case pool == "":
		return bad("no pool for batches")
	case p.Executor > GPU:
		return bad("executor %d: expected CPU or GPU", p.Executor)
	case !reached && p.Executor == GPU:
		return bad("kernels of a GPU do not reach the memory %q: expected memory of kind device or host_pinned", pool)
	case !reached:
		return bad("the processor does not reach the memory %q: expected memory of kind host, huge or host_pinned",
			pool)
	}
	per := 1
	if p.Convert != nil {
		c, err := convert.New(*p.Convert)
		if err != nil {
			return bad("%v", err)
		}
		if p.Payload%c.Unit() != 0 {
			return bad("a payload of %d bytes: expected a multiple of %d, as samples of %d bits fill", p.Payload,
				c.Unit(), p.Convert.From.Bits)
		}
		unit := c.Unit() * max(p.Channels, 1)
		if p.Payload%unit != 0 {
			return bad("a payload of %d bytes: expected a multiple of %d, whole samples of %d channels", p.Payload,
				unit, p.Channels)
		}
		per = max(c.OutLen(max(p.Payload, unit)), 1)
	} else {
		if p.Channels > 0 && p.Payload%p.Channels != 0 {
			return bad("a payload of %d bytes: expected a multiple of %d channels", p.Payload, p.Channels)
		}
		per = max(p.Payload, p.Channels, 1)
	}
	if need := uint64(n) * uint64(per); need > uint64(slot) {
		return bad("a batch of %d packets has %d bytes or more, and a slot of %q %d", n, need, pool, slot)
	}
	return nil
}

// BatchBytes is the number of bytes of each batch of a plan without errors; 0 where the payloads of
// packets decide.
func (p *Plan) BatchBytes() int {
	payload := p.Payload
	if p.Convert != nil {
		if c, err := convert.New(*p.Convert); err == nil {
			payload = c.OutLen(payload)
		}
	}
	return p.perBatch() * payload
}

func (p *Plan) perBatch() int {
	if p.PerBatch == 0 && p.Batch.Width > 0 && p.Batch.Width <= p.Sequence.Width {
		return 1 << (p.Sequence.Width - p.Batch.Width)
	}
	return p.PerBatch
}

// deciding is the width of the numbers that tell batches apart, and shift how far one of them is
// shifted to be that of its batch.
func (p *Plan) deciding() (width, shift int) {
	if p.Batch.Width > 0 {
		return p.Batch.Width, 0
	}
	return p.Sequence.Width, bits.Len(uint(p.perBatch())) - 1
}

// Reach is how many batches can be open at most. A number that has come back means the batch that
// is nearest to those that are open: it can be late, or early, by less than half of all numbers.
func (p *Plan) Reach() int {
	width, shift := p.deciding()
	return int(reach(1<<width, shift))
}

// Width is the smallest width of Batch, or of Sequence where the number of a batch follows from it,
// with which Reach is open or more, and 2 or more: with less a packet that was overtaken is not
// told from a later one. It is 33 where no width suffices.
func (p *Plan) Width(open int) int {
	_, shift := p.deciding()
	width := 1
	for width <= 32 && reach(1<<width, shift) < int64(max(open, 2)) {
		width++
	}
	return width
}
