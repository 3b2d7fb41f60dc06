package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
	"github.com/penstock-io/penstock/tensor/synth"
)

const (
	reorderPayload = 8 << 10  // bytes of a packet
	reorderBurst   = 64       // packets
	reorderSmall   = 1 << 20  // bytes of a batch, where the device is the processor
	reorderMemory  = 64 << 20 // and on a card, whose cache may hold a smaller one
)

// samplesOf is the conversion of the rows: the output has as many bytes as the payload.
var samplesOf = convert.Spec{From: convert.Format{Bits: 16, BigEndian: true}, To: tensor.F16}

// reorders measures package reorder's kernel, and what a burst costs besides its bytes.
func (g *rig) reorders(ctx context.Context) error {
	size := uint64(reorderSmall)
	if g.card {
		size = reorderMemory
	}
	size = min(size, g.o.Total)
	size = 1 << (bits.Len64(size) - 1)
	if !g.fits(size) {
		g.missing("batches of %s: %s has room for %s", bench.FormatSize(size), g.dev, bench.FormatSize(g.most))
		return nil
	}
	return errors.Join(g.reorderKernel(ctx, size), g.reorderBursts(ctx))
}

// reorderKernel is the kernel, which places the packets of a whole batch in an order of its own,
// beside a copy of as many bytes.
func (g *rig) reorderKernel(ctx context.Context, size uint64) (err error) {
	e, err := g.newEnds(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	top, err := g.ceilings(size)
	if err != nil {
		return err
	}
	defer top.close()
	per := int(size / reorderPayload)
	moves := (per*kernels.PieceBytes + 63) &^ 63
	table := make([]byte, moves+per*kernels.ReorderBytes+64) // the last word says that an entry was refused
	refused := len(table) - 64
	le := binary.LittleEndian
	at := func(k int) int { return k * 7 % per } // where packet k goes: per is a power of two
	for k := range per {
		part, move := table[k*kernels.PieceBytes:], table[moves+k*kernels.ReorderBytes:]
		le.PutUint64(part, uint64(k*reorderPayload))
		le.PutUint32(part[8:], reorderPayload)
		le.PutUint64(move, uint64(at(k)*reorderPayload))
		for i, v := range []uint32{uint32(k), 1, reorderPayload, reorderPayload} {
			le.PutUint32(move[8+4*i:], v)
		}
	}
	var held []*gpu.Memory
	defer func() {
		g.idle()
		for _, m := range held {
			err = errors.Join(err, m.Close())
		}
	}()
	plan := kernels.ReorderPlan{Per: per, Bits: samplesOf.From.Bits, BigEndian: true, To: kernels.F16, Scale: 1,
		SeqWidth: 32}
	for _, b := range [][]byte{table, plan.Encode()} {
		m, err := g.alloc(gpu.DeviceMemory, uint64(len(b)))
		if err != nil {
			return err
		}
		held = append(held, m)
		if err := g.st.Write(m.All(), b); err != nil {
			return err
		}
	}
	if e.mod, err = g.c.Load(kernels.Reorder); err != nil {
		return err
	}
	k, err := e.mod.Kernel("reorder")
	if err != nil {
		return err
	}
	args := []gpu.Arg{gpu.Buffer(e.two.All()), gpu.U64(size), gpu.Buffer(e.dev.All()), gpu.U64(size)}
	for range kernels.ReorderSources - 1 {
		args = append(args, gpu.Buffer(gpu.Span{Memory: held[0]}), gpu.U64(0))
	}
	args = append(args, gpu.Buffer(held[0].All()), gpu.Buffer(held[1].All()), gpu.U64(uint64(moves)),
		gpu.U32(uint32(per)), gpu.U64(0), gpu.U32(0), gpu.U64(0), gpu.U32(0), gpu.U64(uint64(refused)))
	call, err := k.Prepare(args...)
	if err != nil {
		return err
	}
	e.calls = append(e.calls, call)
	// as package reorder has it
	grid := gpu.Grid{Groups: min(uint32(per), 2048, g.info.MaxGroups), Group: min(128, g.info.MaxGroup)}
	m := e.streamed(&mover{way: onDevice, how: "reorder", size: size, kernel: true},
		slices.Repeat([]gpu.Op{gpu.LaunchOp(call, grid)}, batch), e.two.All(), e.dev.All())
	c, err := convert.New(samplesOf)
	if err != nil {
		return err
	}
	got, in, want := make([]byte, size), make([]byte, reorderPayload), make([]byte, reorderPayload)
	m.check = func(seed uint64) (uint64, error) {
		if err := g.aux.Read(got, e.two.All()); err != nil {
			return 0, err
		}
		for k := range per {
			synth.FillAt(in, seed, uint64(k*reorderPayload))
			if c.Convert(want, in); !bytes.Equal(got[at(k)*reorderPayload:][:reorderPayload], want) {
				return 0, fmt.Errorf("%w: the place of packet %d of %d is wrong", paired.ErrFailed, k, per)
			}
		}
		return size, nil
	}
	ours, err := g.contender(ctx, m.name(), m)
	if err != nil {
		return err
	}
	theirs, err := g.contender(ctx, "one copy on the device", e.copier(onDevice, "copy", e.two, e.dev))
	if err != nil {
		return err
	}
	name := fmt.Sprintf("reorder int16 to f16, batch of %s, packets of %s", bench.FormatSize(size),
		bench.FormatSize(reorderPayload))
	return g.measure(ctx, paired.Plan{Name: name, Unit: paired.GBs, Pairs: g.o.Pairs, Ours: ours,
		Theirs: []paired.Contender{theirs}, Ceiling: top.of(onDevice, false, true)}, func(x *paired.Row) error {
		x.What, x.Mode, x.Size = onDevice, "reorder", size
		return nil
	})
}

// few is a queue that gives one burst of packets when it is asked, header and payload in memories
// of their own.
type few struct {
	heads, body *mem.Pool
	srcs        [2]*burst.Source
	seq         uint32
	due         bool
}

func (q *few) TryRecv(b *burst.Burst) (int, error) {
	if !q.due {
		return 0, nil
	}
	q.due = false
	for range reorderBurst {
		head, err := q.heads.Get()
		if err != nil {
			return 0, err
		}
		body, err := q.body.Get()
		if err != nil {
			return 0, err
		}
		binary.BigEndian.PutUint32(head.Bytes(), q.seq)
		q.seq++
		b.Builder().Add(q.srcs[0], burst.Segment{Handle: head.Handle(), Off: q.heads.Offset(head.Handle()), Len: 64})
		b.Builder().AddSegment(q.srcs[1], burst.Segment{Handle: body.Handle(), Off: q.body.Offset(body.Handle()),
			Len: reorderTiny})
	}
	return reorderBurst, nil
}

func (q *few) Arm(*engine.Waker) bool { return q.due }

const reorderTiny = 64 // bytes of a payload whose bytes cost nothing

// reorderBursts is what the stage takes for one burst with hardly any bytes, which is one batch:
// places are chosen, one launch, its event, the batch, and all slots back.
func (g *rig) reorderBursts(ctx context.Context) (err error) {
	p, err := gpumem.New(g.c, gpumem.Options{Name: "bench", Streams: 1, Bounce: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	q := &few{}
	var batches *mem.Pool
	for _, x := range []struct {
		at   **mem.Pool
		name string
		kind mem.Kind
		size int
	}{{&q.heads, "heads", mem.Host, 64}, {&q.body, "payloads", mem.Device, reorderTiny},
		{&batches, "batches", mem.Device, reorderBurst * reorderTiny}} {
		o := mem.PoolOptions{Name: x.name, SlotSize: x.size, Slots: 4 * reorderBurst, Memory: mem.Options{Kind: x.kind}}
		if x.kind == mem.Device {
			o.Memory.Provider = p
		}
		if *x.at, err = mem.NewPool(o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*x.at).Close()) }()
	}
	q.srcs = [2]*burst.Source{burst.PoolSource(q.heads), burst.PoolSource(q.body)}
	s, err := reorder.New(q, engine.StageSpec{Queue: "bench"},
		reorder.Plan{Name: "bench", Flows: []uint32{0}, Sequence: reorder.Field{Width: 32}, PerBatch: reorderBurst,
			Offset:  64,
			Payload: reorderTiny, Convert: &samplesOf, Pool: batches, Executor: reorder.GPU})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out := burst.New(1)
	once := func() (time.Duration, error) {
		q.due = true
		for begin := time.Now(); ; {
			if n, err := s.TryRecv(out); n > 0 || err != nil {
				took, whole := time.Since(begin), n == 1 && reorder.Of(out, 0).Whole()
				if out.Release(); err == nil && !whole {
					err = fmt.Errorf("%w: a batch is not whole", paired.ErrFailed)
				}
				return took, err
			}
			if err := ctx.Err(); err != nil {
				return 0, err
			}
		}
	}
	return g.timed(ctx, fmt.Sprintf("reorder, burst of %d packets of %d B, launched and released", reorderBurst,
		reorderTiny), "launch", 0, once)
}
