package reorder

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// add takes packet i of b into a pending burst, or drops it. It is false where the device does not
// reach its bytes.
func (d *device) add(b *burst.Burst, i int, now int64) bool {
	c := d.c
	n := b.PacketLen(i)
	if n < c.head {
		c.drops.Inc(engine.DropBadFrame)
		return true
	}
	f := d.begin()
	if f != nil && !d.fits(f, b, i) {
		d.flush()
		if f = d.begin(); f != nil && !d.fits(f, b, i) {
			return false
		}
	}
	if f == nil {
		c.drops.Inc(engine.DropDown)
		return true
	}
	head := c.front(b, i)
	if head != nil && d.decided == d.tail-1 && !f.hidden {
		seq, number := c.numbers(head)
		if d.place(f, b, i, seq, number, now) {
			b.Take(f.b, i) // fits has seen that there is room
			f.placed++
		}
		return true
	}
	// It waits for numbers that the device reads, its own or those before.
	if head == nil {
		f.hidden = true
		first := f.parts
		for k := range b.Segments(i) {
			d.addPart(f, b, i, k, 0, int(b.Segment(i, k).Len))
		}
		d.entry(f.at+looksAt, &f.looks, uint64(f.at+outsAt+8*f.b.Len()), uint32(f.at/kernels.PieceBytes+first),
			uint32(f.parts-first), uint32(n), 0)
	}
	need, _ := d.staged(f, b, i)
	f.reserved += need
	b.Take(f.b, i)
	return true
}

// source is where the kernel finds segment k of packet i: its number among the sources. ok is false
// where it does not.
func (d *device) source(f *pending, b *burst.Burst, i, k int) (src int, ok bool) {
	seg := b.Segment(i, k)
	if m := memoryOf(seg.Region); m != nil && m.Context() == d.ctx {
		for src := range f.from {
			if f.from[src] == nil {
				f.from[src] = m
			}
			if f.from[src] == m {
				return src, true
			}
		}
	}
	return stageSource, seg.Len == 0 || b.Bytes(i, k) != nil
}

// staged is how many bytes of the stage packet i may take. ok is false where the device does not
// reach some of it.
func (d *device) staged(f *pending, b *burst.Burst, i int) (n int, ok bool) {
	for k := range b.Segments(i) {
		src, ok := d.source(f, b, i, k)
		if !ok {
			return 0, false
		}
		if src == stageSource {
			n += int(b.Segment(i, k).Len) + 15
		}
	}
	if n > 0 && b.PacketLen(i)-d.c.plan.Offset > d.c.longest {
		return 0, true // it is too long, and is not placed
	}
	return n, true
}

// fits reports whether the pending burst has room for packet i of b, and the device reaches it.
func (d *device) fits(f *pending, b *burst.Burst, i int) bool {
	need, ok := d.staged(f, b, i)
	return ok && max(f.reserved, f.used)+2*need <= d.part && f.b.Room() > 0 && f.b.SegmentRoom() >= b.Segments(i)
}

// addPart adds n bytes of segment k of packet i, from skip on, to the parts of the pending burst.
func (d *device) addPart(f *pending, b *burst.Burst, i, k, skip, n int) {
	src, _ := d.source(f, b, i, k)
	off := b.Segment(i, k).Off + uint64(skip)
	if src == stageSource && n > 0 {
		f.used = (f.used + 15) &^ 15
		off = uint64(f.stage + f.used)
		f.used += copy(d.stage.bytes[off:], b.Bytes(i, k)[skip:][:n])
		d.c.copied.Add(uint64(n))
	}
	e := d.table.bytes[f.at+f.parts*kernels.PieceBytes:]
	binary.LittleEndian.PutUint64(e, off)
	binary.LittleEndian.PutUint32(e[8:], uint32(n))
	binary.LittleEndian.PutUint32(e[12:], uint32(src))
	f.parts++
}

// entry adds an entry to those from at on, of which there are n.
func (d *device) entry(at int, n *int, long uint64, words ...uint32) {
	e := d.table.bytes[at+*n*kernels.ReorderBytes:]
	binary.LittleEndian.PutUint64(e, long)
	for k, w := range words {
		binary.LittleEndian.PutUint32(e[8+4*k:], w)
	}
	*n++
}

// place has the kernel place packet i of b, which is in the pending burst or will be, or drops it:
// then it is false.
func (d *device) place(f *pending, b *burst.Burst, i int, seq, number uint32, now int64) bool {
	c := d.c
	size := b.PacketLen(i) - c.plan.Offset
	d.cur = f
	defer func() { d.cur = nil }()
	x, place, why := c.admit(seq, number, size, now)
	if why != engine.NumDrops {
		c.drops.Inc(why)
		return false
	}
	first, skip := f.parts, c.plan.Offset
	for k := range b.Segments(i) {
		n := int(b.Segment(i, k).Len)
		if skip >= n {
			skip -= n
			continue
		}
		d.addPart(f, b, i, k, skip, n-skip)
		skip = 0
	}
	if f.parts == first {
		d.addPart(f, b, i, 0, 0, 0)
	}
	row := x.Place
	if x.Channels > 0 {
		row /= x.Channels
	}
	d.entry(f.at+movesAt, &f.moves, d.c.plan.Pool.Offset(x.slot.Handle())+uint64(place*row),
		uint32(f.at/kernels.PieceBytes+first), uint32(f.parts-first), uint32(size), uint32(x.Place))
	c.copied.Add(uint64(x.Place))
	c.mark(x, place, b, i, size)
	return true
}

// leave takes a batch that leaves: it is out when the burst is over.
func (d *device) leave(x *open) {
	if d.err != nil {
		d.c.fell(x, engine.DropDown)
		return
	}
	f := d.cur
	mask := d.masks() + 8*d.words()*x.slot.Index()
	for k, w := range x.Present {
		binary.LittleEndian.PutUint64(d.table.bytes[mask+8*k:], w)
	}
	x.Mask = gpu.Span{Memory: d.table.dev, Off: uint64(mask), Len: uint64(8 * d.words())}
	if x.Packets < x.PerBatch {
		d.entry(f.at+gapsAt, &f.gaps, d.c.plan.Pool.Offset(x.slot.Handle()), uint32(mask), 0, uint32(x.Place), 0)
	}
	f.left = append(f.left, x)
}

// keep takes the slot of a batch that is dropped, where the device may write to it yet: it goes
// back when the burst is over.
func (d *device) keep(s mem.Slot) bool {
	if d.cur == nil || d.err != nil {
		return false
	}
	d.cur.dropped = append(d.cur.dropped, s)
	return true
}

// flush launches what is ready: the packets that have places, and the numbers of the last pending
// burst, together where there is one of each.
func (d *device) flush() {
	if d.err != nil {
		return
	}
	if d.open {
		f := d.pending(d.tail - 1)
		if d.open = false; f.b.Len() == 0 && len(f.left) == 0 && len(f.dropped) == 0 {
			d.tail--
		} else if !f.hidden && d.decided == d.tail-1 { // every packet has its place
			d.decided = d.tail
		}
	}
	var placing, looking *pending
	for n := d.head; n != d.decided; n++ {
		if f := d.pending(n); !f.launched {
			if placing != nil {
				d.launch(placing, nil)
			}
			placing = f
		}
	}
	if d.decided != d.tail && !d.pending(d.tail-1).launched {
		looking = d.pending(d.tail - 1)
	}
	if d.err == nil && (placing != nil || looking != nil) {
		d.launch(placing, looking)
	}
}

// launch puts one launch of the kernel into the stream, for the places of one pending burst and the
// numbers of another; either may be nil.
func (d *device) launch(placing, looking *pending) {
	d.ops = d.ops[:0]
	last := looking
	if last == nil {
		last = placing
	}
	var moves, gaps, looks, refused uint64
	var nmoves, ngaps, nlooks int
	for _, f := range []*pending{placing, looking} {
		if f == nil {
			continue
		}
		refused = uint64(f.at + wrongAt)
		d.give(&d.table, f.at, f.parts*kernels.PieceBytes)
		d.give(&d.stage, f.stage, f.used)
	}
	if placing != nil {
		moves, gaps, nmoves, ngaps, refused = uint64(placing.at+movesAt), uint64(placing.at+gapsAt), placing.moves,
			placing.gaps, uint64(placing.at+wrongAt)
		d.give(&d.table, int(moves), nmoves*kernels.ReorderBytes)
		d.give(&d.table, int(gaps), ngaps*kernels.ReorderBytes)
		for _, x := range placing.left {
			d.give(&d.table, int(x.Mask.Off), int(x.Mask.Len))
		}
	}
	if looking != nil {
		looks, nlooks = uint64(looking.at+looksAt), looking.looks
		d.give(&d.table, int(looks), nlooks*kernels.ReorderBytes)
	}
	err := d.sources(last)
	for i, a := range []gpu.Arg{gpu.U64(moves), gpu.U32(uint32(nmoves)), gpu.U64(gaps), gpu.U32(uint32(ngaps)),
		gpu.U64(looks), gpu.U32(uint32(nlooks)), gpu.U64(refused)} {
		if err == nil {
			err = d.call.Set(kernels.ReorderMoves+i, a)
		}
	}
	if err != nil {
		d.fail(err)
		return
	}
	groups := max(uint32(nmoves), (uint32(nlooks)+d.group-1)/d.group)
	if ngaps > 0 {
		groups = max(groups, uint32(d.c.per))
	}
	d.ops = append(d.ops, gpu.LaunchOp(d.call, gpu.Grid{Groups: min(groups, d.groups), Group: d.group}))
	d.fetch(&d.table, int(refused), 4)
	if looking != nil {
		d.fetch(&d.table, looking.at+outsAt, 8*looking.b.Len())
	}
	for _, f := range []*pending{placing, looking} {
		if f != nil {
			f.launched = true
			d.ops = append(d.ops, gpu.RecordOp(f.ev))
		}
	}
	if _, err := d.stream.Enqueue(d.ops); err != nil {
		d.fail(err)
	}
}

// sources sets the sources of the call to those of a pending burst.
func (d *device) sources(f *pending) error {
	for k := range d.set {
		want := gpu.Span{Memory: d.table.dev}
		if k == stageSource {
			want = d.stage.dev.All()
		} else if m := f.from[k]; m != nil {
			want = m.All()
		}
		if want == d.set[k] {
			continue
		}
		if err := d.call.Set(kernels.ReorderSource+2*k, gpu.Buffer(want)); err != nil {
			return err
		}
		if err := d.call.Set(kernels.ReorderSource+2*k+1, gpu.U64(want.Len)); err != nil {
			return err
		}
		d.set[k] = want
	}
	return nil
}

// poll takes in what is over: batches are out, bursts go back, and packets whose numbers are there
// get their places.
func (d *device) poll(now int64) {
	for d.err == nil && d.head != d.decided {
		f := d.pending(d.head)
		if !d.happened(f) {
			break
		}
		d.retire(f)
		d.head++
	}
	for d.err == nil && d.decided != d.tail && d.happened(d.pending(d.decided)) {
		f := d.pending(d.decided)
		if d.decided != d.head && !d.pending(d.decided-1).launched {
			d.launch(d.pending(d.decided-1), nil)
		}
		f.launched = false
		d.decided++
		out := d.table.bytes[f.at+outsAt:]
		for i := f.placed; i < f.b.Len(); i++ {
			if head := d.c.front(f.b, i); head != nil {
				seq, number := d.c.numbers(head)
				d.place(f, f.b, i, seq, number, now)
			} else {
				d.place(f, f.b, i, binary.LittleEndian.Uint32(out[8*i:]), binary.LittleEndian.Uint32(out[8*i+4:]), now)
			}
		}
	}
}

// happened reports whether the device has done what a pending burst waits for.
func (d *device) happened(f *pending) bool {
	if !f.launched {
		return false
	}
	done, err := f.ev.Query()
	if err == nil && done && binary.LittleEndian.Uint32(d.table.bytes[f.at+wrongAt:]) != 0 {
		err = fmt.Errorf("the kernel refused an entry of its table: %w", engine.ErrInternal)
	}
	if err != nil {
		d.fail(err)
		return false
	}
	return done
}

// retire ends a pending burst that is over.
func (d *device) retire(f *pending) {
	f.b.Release()
	for _, s := range f.dropped {
		d.c.cache.Put(s)
	}
	left := f.left
	f.left, f.dropped = f.left[:0], f.dropped[:0]
	for _, x := range left {
		d.c.out(x)
	}
}

// fail ends the device: what was under way and what is open is dropped.
func (d *device) fail(err error) {
	if d.err != nil {
		return
	}
	d.err = fmt.Errorf("reorder: plan %q: %s: %w", d.c.plan.Name, d.ctx.Device(), err)
	d.cur, d.open = nil, false
	_ = d.stream.Wait(context.Background()) // a device that is lost moves nothing more
	for ; d.head != d.tail; d.head++ {
		f := d.pending(d.head)
		if d.head >= d.decided {
			d.c.drops.Add(engine.DropDown, uint64(f.b.Len()-f.placed))
		}
		f.b.Release()
		for _, s := range f.dropped {
			d.c.cache.Put(s)
		}
		for _, x := range f.left {
			d.c.fell(x, engine.DropDown)
		}
		f.left, f.dropped = f.left[:0], f.dropped[:0]
	}
	d.decided = d.tail
	d.c.dropAll(engine.DropDown)
}

// drain waits until nothing is under way.
func (d *device) drain() {
	for d.err == nil && d.busy() {
		d.await()
	}
}
