package reorder

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
)

// device moves the bytes of a collector by an accelerator. The collector decides, as it does for
// the processor: which batch, which place, what is late. A pending burst is what it has decided of
// a burst, or the burst itself while its numbers are not known, with a table for the kernel and an
// event.
//
// Pending bursts are a ring: those from head to tail-1 are under way, the oldest first; those
// before decided have places for their packets. A launch of the kernel places the packets of one
// burst, and reads the numbers of the packets of the next one, where the processor does not see
// them: one launch for each burst.
type device struct {
	c      *collector
	ctx    *gpu.Context
	dst    *gpu.Memory
	stream *gpu.Stream
	own    bool // stream is the plan's own
	module *gpu.Module
	call   *gpu.Call
	set    [kernels.ReorderSources]gpu.Span // sources of the call as it is
	plan   *gpu.Memory
	table  twin // a block for each pending burst, and behind them the bitmaps of batches, by the slot's index
	stage  twin // payload of host memory that kernels do not reach, a part for each pending burst
	group  uint32
	groups uint32
	part   int // bytes of the stage of a pending burst
	ops    []gpu.Op

	ring                []pending
	head, decided, tail uint64
	open                bool // the pending burst at tail-1 takes packets
	// which takes batches that leave, and slots of those that are dropped; nil: they wait for
	// nothing
	cur   *pending
	watch gpu.Watch
	err   error // of the device: nothing goes on
}

// twin is memory that both sides see: one, or where kernels do not reach host memory, one of each
// that is copied.
type twin struct {
	host, dev *gpu.Memory
	bytes     []byte
}

// pending is a burst that the device works on.
type pending struct {
	b        *burst.Burst
	ev       *gpu.Event
	at       int // of its block in the table
	stage    int // of its part of the stage
	parts    int // that are in the table
	moves    int
	gaps     int
	looks    int
	placed   int  // packets of b, the first ones, that have their places
	hidden   bool // numbers of its packets are read by the device
	reserved int  // bytes of its part of the stage, also for packets that have no place yet
	used     int  // that are used
	from     [stageSource]*gpu.Memory
	launched bool // of what it waits for now
	left     []*open
	dropped  []mem.Slot
}

const (
	inFlight    = 4                          // bursts
	stageSource = kernels.ReorderSources - 1 // the number of the stage among the sources
	maxParts    = 4*inParts + 2*burst.MaxSegments
	stageBytes  = 4 << 20 // of a pending burst, unless one packet takes more, or all of a burst less
)

// Where the parts of a pending burst's block are, in bytes.
const (
	partsAt = 0
	movesAt = partsAt + maxParts*kernels.PieceBytes
	looksAt = movesAt + inRoom*kernels.ReorderBytes
	outsAt  = looksAt + inRoom*kernels.ReorderBytes // 8 bytes for each packet that is read
	wrongAt = outsAt + inRoom*8
	gapsAt  = wrongAt + 64
)

// gapsRoom is how many batches can leave in one pending burst: one for each packet, and all that
// are open.
func (d *device) gapsRoom() int { return inRoom + len(d.c.open) + 1 }

func (d *device) block() int { return (gapsAt + d.gapsRoom()*kernels.ReorderBytes + 63) &^ 63 }
func (d *device) masks() int { return inFlight * d.block() }
func (d *device) words() int { return (d.c.per + 63) / 64 }

var elements = map[tensor.DType]kernels.Element{
	tensor.I8: kernels.I8, tensor.U8: kernels.U8, tensor.I16: kernels.I16, tensor.U16: kernels.U16,
	tensor.I32: kernels.I32, tensor.U32: kernels.U32,
	tensor.F16: kernels.F16, tensor.BF16: kernels.BF16, tensor.F32: kernels.F32, tensor.F64: kernels.F64,
	tensor.C64: kernels.F32, tensor.C128: kernels.F64,
}

func newDevice(c *collector) (*device, error) {
	d := &device{c: c, dst: memoryOf(c.plan.Pool.Region()), stream: c.plan.Stream}
	d.watch.Wake = c.wake
	d.ctx = d.dst.Context()
	if err := d.start(); err != nil {
		return nil, fmt.Errorf("reorder: plan %q: %w", c.plan.Name, errors.Join(err, d.close()))
	}
	return d, nil
}

func (d *device) start() (err error) {
	p, info := &d.c.plan, d.ctx.Info()
	if p.Pool.Stride()%8 != 0 {
		return fmt.Errorf("%w: slots of %q are %d bytes apart: expected a multiple of 8", ErrPlan, p.Pool.Name(),
			p.Pool.Stride())
	}
	if d.own = d.stream == nil; d.own {
		if d.stream, err = d.ctx.NewStream(gpu.StreamOptions{Name: p.Name}); err != nil {
			return err
		}
	}
	if d.table, err = d.twin("table", d.masks()+8*d.words()*p.Pool.Slots()); err != nil {
		return err
	}
	packet := d.c.head + p.Offset + d.c.longest + 16*burst.MaxSegments
	d.part = (max(min(inRoom*packet, stageBytes), 2*packet) + 63) &^ 63
	if d.stage, err = d.twin("stage", inFlight*d.part); err != nil {
		return err
	}
	if d.plan, err = d.ctx.Alloc(gpu.MemoryOptions{Name: p.Name + " plan",
		Size: kernels.ReorderPlanBytes}); err != nil {
		return err
	}
	k := kernels.ReorderPlan{Per: d.c.per, Channels: p.Channels, SeqOff: p.Sequence.Offset, SeqWidth: p.Sequence.Width,
		BatchOff: p.Batch.Offset, BatchWidth: p.Batch.Width, Scale: 1}
	if s := p.Convert; s != nil {
		k.To, k.Bits, k.Unsigned, k.BigEndian, k.Offset = elements[s.To], s.From.Bits, s.From.Unsigned,
			s.From.BigEndian, s.Offset
		if s.Scale != 0 {
			k.Scale = s.Scale
		}
	}
	if err := d.stream.Write(d.plan.All(), k.Encode()); err != nil {
		return err
	}
	if d.module, err = d.ctx.Load(kernels.Reorder); err != nil {
		return err
	}
	kernel, err := d.module.Kernel("reorder")
	if err != nil {
		return err
	}
	none := gpu.Span{Memory: d.table.dev}
	args := []gpu.Arg{gpu.Buffer(d.dst.All()), gpu.U64(d.dst.Size())}
	for k := range d.set {
		d.set[k] = none
		args = append(args, gpu.Buffer(none), gpu.U64(0))
	}
	args = append(args, gpu.Buffer(d.table.dev.All()), gpu.Buffer(d.plan.All()), gpu.U64(0), gpu.U32(0), gpu.U64(0),
		gpu.U32(0), gpu.U64(0), gpu.U32(0), gpu.U64(0))
	if d.call, err = kernel.Prepare(args...); err != nil {
		return err
	}
	d.group, d.groups = min(128, info.MaxGroup), min(2048, info.MaxGroups)
	d.ring = make([]pending, inFlight)
	for i := range d.ring {
		f := &d.ring[i]
		f.b, f.at, f.stage = burst.NewSegmented(inRoom, inParts), i*d.block(), i*d.part
		if f.ev, err = d.ctx.NewEvent(gpu.EventOptions{Name: p.Name}); err != nil {
			return err
		}
	}
	d.ops = make([]gpu.Op, 0, 16)
	return nil
}

// twin makes memory of both sides.
func (d *device) twin(name string, size int) (t twin, err error) {
	o := gpu.MemoryOptions{Name: d.c.plan.Name + " " + name, Kind: gpu.MappedMemory, Size: uint64(size)}
	if !d.ctx.Info().Capabilities.Has(gpu.CapMapped) {
		o.Kind = gpu.PinnedMemory
	}
	if t.host, err = d.ctx.Alloc(o); err != nil {
		return t, err
	}
	t.bytes, t.dev = t.host.Bytes(), t.host
	clear(t.bytes)
	if o.Kind == gpu.PinnedMemory {
		o.Kind = gpu.DeviceMemory
		if t.dev, err = d.ctx.Alloc(o); err == nil {
			err = d.stream.Fill(t.dev.All(), 0, 1)
		}
	}
	return t, err
}

// give copies n bytes from off to the device, where that is needed; fetch copies them back.
func (d *device) give(t *twin, off, n int) {
	if t.host != t.dev && n > 0 {
		d.ops = append(d.ops, gpu.CopyOp(gpu.Span{Memory: t.dev, Off: uint64(off), Len: uint64(n)},
			gpu.Span{Memory: t.host, Off: uint64(off), Len: uint64(n)}))
	}
}

func (d *device) fetch(t *twin, off, n int) {
	if t.host != t.dev && n > 0 {
		d.ops = append(d.ops, gpu.CopyOp(gpu.Span{Memory: t.host, Off: uint64(off), Len: uint64(n)},
			gpu.Span{Memory: t.dev, Off: uint64(off), Len: uint64(n)}))
	}
}

// room reports whether a burst is free, full that no packets can be added now.
func (d *device) room() bool { return d.tail-d.head < inFlight }
func (d *device) full() bool { return !d.open && !d.room() && d.err == nil }

// busy reports whether bursts are under way, undecided whether packets have no places yet.
func (d *device) busy() bool { return d.head != d.tail }
func (d *device) undecided() bool {
	return d.decided != d.tail && !(d.open && d.decided == d.tail-1 && !d.pending(d.tail-1).hidden)
}

func (d *device) pending(n uint64) *pending { return &d.ring[n%inFlight] }

// begin returns the pending burst that packets and batches go to, and waits for one where none is
// free.
func (d *device) begin() *pending {
	if d.open {
		return d.pending(d.tail - 1)
	}
	for !d.room() && d.err == nil {
		d.await()
	}
	if d.err != nil {
		return nil
	}
	f := d.pending(d.tail)
	f.parts, f.moves, f.gaps, f.looks, f.placed, f.hidden, f.reserved, f.used, f.launched = 0, 0, 0, 0, 0, false, 0, 0,
		false
	f.from = [stageSource]*gpu.Memory{}
	if d.tail != d.head { // one launch for both, where the one before is not launched
		if last := d.pending(d.tail - 1); !last.launched {
			f.from = last.from
		}
	}
	d.tail++
	d.open = true
	return f
}

// await waits for the oldest pending burst.
func (d *device) await() {
	if d.flush(); d.err == nil && d.busy() {
		if err := d.pending(d.head).ev.Wait(context.Background()); err != nil {
			d.fail(err)
			return
		}
		d.poll(d.c.now())
	}
}

// wake has the owners woken when the device has done something. It is true where it has.
func (d *device) wake() bool {
	if !d.busy() {
		return d.err != nil
	}
	if d.happened(d.pending(d.head)) || d.err != nil {
		return true
	}
	d.watch.For(d.pending(d.head).ev)
	return false
}

// with has batches leave that no packet pushes.
func (d *device) with(leave func()) {
	if d.cur = d.begin(); d.cur != nil {
		leave()
	}
	d.cur = nil
}

// close gives back what the device has. Nothing is under way.
func (d *device) close() (err error) {
	d.watch.Close()
	for i := range d.ring {
		if ev := d.ring[i].ev; ev != nil {
			err = errors.Join(err, ev.Close())
		}
	}
	if d.call != nil {
		err = errors.Join(err, d.call.Close())
	}
	if d.module != nil {
		err = errors.Join(err, d.module.Close())
	}
	if d.own && d.stream != nil {
		err = errors.Join(err, d.stream.Close())
	}
	for _, m := range []*gpu.Memory{d.plan, d.table.host, d.table.dev, d.stage.host, d.stage.dev} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}
