package device

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/mem/vec"
)

// pipelineTarget is what a pipeline of pieces is to reach of one plain copy of the same bytes.
const pipelineTarget = 0.95

// pipe moves e.size bytes between the device and the host in pieces, through a few slots of pinned
// memory. A slot is used again when the event behind its last copy has happened.
type pipe struct {
	e      *ends
	way    string
	piece  uint64
	slots  []*gpu.Memory
	events []*gpu.Event
	ops    [2]gpu.Op

	hands  int // goroutines that copy between e.heap and the slots; 0: the slots are neither filled nor emptied
	pieces chan part
	done   sync.WaitGroup // parts of the piece under way
	ended  sync.WaitGroup // of the hands
}

// part is a part of a piece that one hand copies.
type part struct {
	dst, src []byte
	total    int // bytes of all parts
}

func (e *ends) newPipe(way string, piece uint64, slots, hands int) (_ *pipe, err error) {
	p := &pipe{e: e, way: way, piece: piece, hands: hands}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for range slots {
		m, err := e.g.alloc(gpu.PinnedMemory, piece)
		if err != nil {
			return nil, err
		}
		p.slots = append(p.slots, m)
		v, err := e.g.c.NewEvent(gpu.EventOptions{Name: "slot"})
		if err != nil {
			return nil, err
		}
		p.events = append(p.events, v)
	}
	p.pieces = make(chan part)
	for range hands - 1 { // the caller is one
		p.ended.Go(func() {
			for x := range p.pieces {
				vec.CopyPart(x.dst, x.src, x.total)
				p.done.Done()
			}
		})
	}
	return p, nil
}

func (p *pipe) close() error {
	if p.pieces != nil {
		close(p.pieces)
		p.ended.Wait()
	}
	p.e.g.idle()
	var errs []error
	for _, v := range p.events {
		errs = append(errs, v.Close())
	}
	for _, m := range p.slots {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// copyByHand copies a piece with all hands.
func (p *pipe) copyByHand(dst, src []byte) {
	n := len(dst)
	step := (n/p.hands + vec.PartAlign - 1) / vec.PartAlign * vec.PartAlign
	from := 0
	for k := 1; k < p.hands && from+step < n; k++ {
		p.done.Add(1)
		p.pieces <- part{dst[from : from+step], src[from : from+step], n}
		from += step
	}
	vec.CopyPart(dst[from:], src[from:], n)
	p.done.Wait()
}

// once moves everything.
func (p *pipe) once(ctx context.Context) error {
	count, ahead := int(p.e.size/p.piece), len(p.slots)
	for i := range count + ahead {
		slot, event := p.slots[i%ahead], p.events[i%ahead]
		if i >= ahead { // what the slot was used for must be over
			if err := happened(ctx, event); err != nil {
				return err
			}
			if at := uint64(i-ahead) * p.piece; p.hands > 0 && p.way == fromDevice {
				p.copyByHand(p.e.heap[at:at+p.piece], slot.Bytes())
			}
		}
		if i >= count {
			continue
		}
		at := uint64(i) * p.piece
		if p.hands > 0 && p.way == toDevice {
			p.copyByHand(slot.Bytes(), p.e.heap[at:at+p.piece])
		}
		on := gpu.Span{Memory: p.e.dev, Off: at, Len: p.piece}
		if p.way == toDevice {
			p.ops[0] = gpu.CopyOp(on, slot.All())
		} else {
			p.ops[0] = gpu.CopyOp(slot.All(), on)
		}
		p.ops[1] = gpu.RecordOp(event)
		if _, err := p.e.g.st.Enqueue(p.ops[:]); err != nil {
			return err
		}
	}
	return nil
}

// looks is how often the owner of a slot asks for its event before it sleeps.
const looks = 1 << 10

func happened(ctx context.Context, e *gpu.Event) error {
	for range looks {
		if done, err := e.Query(); done || err != nil {
			return err
		}
	}
	return e.Wait(ctx)
}

// mover is the pipe as a mover. With hands all bytes go from the heap to the device or back.
// Without them each slot has a pattern of its own, which is then in every piece that went through
// it; of what comes from the device only the last pieces are still in the slots, and are what is
// checked.
func (p *pipe) mover(how string) *mover {
	m := &mover{way: p.way, how: how, size: p.e.size, hot: true}
	m.run = func(ctx context.Context, n int) error {
		for range n {
			if err := p.once(ctx); err != nil {
				return err
			}
		}
		return nil
	}
	g, all, slots := p.e.g, p.e.dev.All(), uint64(len(p.slots))
	switch {
	case p.way == toDevice && p.hands > 0:
		m.fill = func(seed uint64) error { pattern(p.e.heap, seed); return nil }
		m.check = func(seed uint64) (uint64, error) { return p.e.size, g.holds(all, seed) }
	case p.hands > 0:
		m.fill = func(seed uint64) error { return g.fill(all, seed) }
		m.check = func(seed uint64) (uint64, error) { return p.e.size, verify(p.e.heap, seed, 0) }
	case p.way == toDevice:
		m.fill = func(seed uint64) error {
			for i, s := range p.slots {
				pattern(s.Bytes(), seed+uint64(i))
			}
			return nil
		}
		m.check = func(seed uint64) (uint64, error) {
			for i := range p.e.size / p.piece {
				if err := g.holds(gpu.Span{Memory: p.e.dev, Off: i * p.piece, Len: p.piece}, seed+i%slots); err != nil {
					return 0, fmt.Errorf("piece %d: %w", i, err)
				}
			}
			return p.e.size, nil
		}
	default:
		m.fill = func(seed uint64) error { return g.fill(all, seed) }
		m.check = func(seed uint64) (uint64, error) {
			count := p.e.size / p.piece
			for i := count - min(count, slots); i < count; i++ {
				if err := verify(p.slots[i%slots].Bytes(), seed, i*p.piece); err != nil {
					return 0, fmt.Errorf("piece %d: %w", i, err)
				}
			}
			return min(count, slots) * p.piece, nil
		}
	}
	return m
}

// shapes of pipelines: as many slots as pieces may be on their way.
var shapes = []struct {
	slots int
	part  uint64 // of the total
}{{2, 16}, {4, 64}}

// pipelines measures pipelines beside plain copies of the same bytes, as interleaved pairs.
func (g *rig) pipelines(ctx context.Context) (err error) {
	total := g.o.Total &^ (leastTotal - 1)
	if !g.fits(total) {
		g.missing("pipelines of %s: %s has room for %s", bench.FormatSize(total), g.dev, bench.FormatSize(g.most))
		return nil
	}
	e, err := g.newEnds(total)
	if err != nil {
		return fmt.Errorf("pipelines of %s: %w", bench.FormatSize(total), err)
	}
	defer func() { err = errors.Join(err, e.close()) }()
	top, err := g.ceilings(total)
	if err != nil {
		return err
	}
	defer top.close()
	for _, way := range []string{toDevice, fromDevice} {
		plain := e.copier(way, "pinned", e.dev, e.pin)
		if way == fromDevice {
			plain = e.copier(way, "pinned", e.pin, e.dev)
		}
		for _, s := range shapes {
			name := fmt.Sprintf("pipeline %s %s, %d slots of %s", way, bench.FormatSize(total), s.slots,
				bench.FormatSize(total/s.part))
			if err := g.pipeline(ctx, top, e, name, way, total/s.part, s.slots, 0, pipelineTarget,
				[]*mover{plain}); err != nil {
				return err
			}
		}
		// By way of the processor: what memory costs that no card and no driver reaches by itself.
		last := shapes[len(shapes)-1]
		for _, hands := range g.hands() {
			name := fmt.Sprintf("staged %s %s, %d slots of %s, %s copy", way, bench.FormatSize(total), last.slots,
				bench.FormatSize(total/last.part), cores(hands))
			if err := g.pipeline(ctx, top, e, name, way, total/last.part, last.slots, hands, 1,
				[]*mover{e.pageable(way), plain}); err != nil {
				return err
			}
		}
	}
	return nil
}

// hands are numbers of cores that copy into slots.
func (g *rig) hands() []int {
	if g.card && maxProcs() >= 8 {
		return []int{1, 4}
	}
	return []int{1}
}

// pipeline measures one.
func (g *rig) pipeline(ctx context.Context, top *ceilings, e *ends, name, way string, piece uint64, slots, hands int,
	target float64, rivals []*mover) (err error) {
	p, err := e.newPipe(way, piece, slots, hands)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	how := "pipeline"
	if hands > 0 {
		how = "staged"
	}
	plan := paired.Plan{Name: name, Unit: paired.GBs, Pairs: g.o.Pairs, Target: target,
		Ceiling: top.of(way, true, false)}
	if plan.Ours, err = g.contender(ctx, name, p.mover(how)); err != nil {
		return err
	}
	for _, m := range rivals {
		c, err := g.contender(ctx, "one "+m.how+" copy", m)
		if err != nil {
			return err
		}
		plan.Theirs = append(plan.Theirs, c)
	}
	return g.measure(ctx, plan, func(x *paired.Row) error {
		x.What, x.Mode, x.Size, x.Blocks = way, how, e.size, int(e.size/piece)
		return nil
	})
}
