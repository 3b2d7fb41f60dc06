package reorder

import (
	"encoding/binary"
	"math/bits"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/vec"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/tensor/convert"
)

// Counts are those of a plan since its stage was made.
type Counts struct {
	Plan string
	// Whole and Partial are batches that left, TimedOut those of Partial that a timeout ended.
	Whole, Partial, TimedOut uint64
	// Lost are batches of which no packet came, but for those that a restart jumped over; Dropped
	// are those with gaps under Drop.
	Lost, Dropped uint64
	// Placed are packets that were placed, Short those of them that were shorter than their places.
	Placed, Short uint64
	// Restarts is how often the window went to strays.
	Restarts uint64
	// Drops are packets that were not placed, and those of dropped batches, by reason.
	Drops engine.Drops
}

// collector fills the batches of one plan.
type collector struct {
	plan    Plan
	w       window
	per     int // packets of a batch
	head    int // bytes of a packet that the fields need
	convert *convert.Converter
	unit    int // bytes of a payload that belong together
	dtype   tensor.DType
	cache   *mem.Cache
	owner   *owner
	src     *burst.Source
	open    []*open // by the lower bits of the id, at least as many as the window is large; nil: none
	spare   []*open
	opened  int   // of them
	learned int   // bytes of a place, as the packets so far say
	longest int   // bytes of the longest payload that a place can hold
	recent  *open // of the last packet that was placed, by recentN, its batch number; nil: none, or it has left
	recentN int64
	scratch []byte
	turned  []byte      // a payload that was converted, before its channels part
	out     func(*open) // takes a batch that leaves
	wake    func()      // wakes the owners of stages
	dev     *device     // moves the bytes; nil: the processor does

	whole, partial, timedOut, lost, dropped, placed, short, restarts, copied metrics.Counter
	drops                                                                    engine.DropCounters

	fresh struct{ placed, copied int } // what publish adds to the counters: once for a burst
}

// publish adds what was counted since the last call to the counters.
func (c *collector) publish() {
	c.placed.Add(uint64(c.fresh.placed))
	c.copied.Add(uint64(c.fresh.copied))
	c.fresh.placed, c.fresh.copied = 0, 0
}

func newCollector(p Plan, out func(*open), wake func()) (*collector, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	c := &collector{plan: p, per: p.perBatch(), head: max(p.Sequence.end(), p.Offset), learned: p.Payload, out: out,
		wake: wake}
	if p.Batch.Width > 0 {
		c.head = max(c.head, p.Batch.end())
	}
	c.unit, c.dtype = max(p.Channels, 1), tensor.U8
	if p.Convert != nil {
		c.convert, _ = convert.New(*p.Convert) // Check has made it
		c.unit, c.dtype = c.unit*c.convert.Unit(), p.Convert.To
	}
	size := p.Window
	if size == 0 {
		size = min(DefaultWindow, p.Reach())
	}
	width, shift := p.deciding()
	c.w = window{size: int64(size), modulus: 1 << width, shift: shift}
	c.open = make([]*open, 1<<bits.Len64(uint64(c.w.size-1)))
	if c.longest = p.Pool.SlotSize() / c.per; c.convert != nil {
		c.longest = c.convert.InLen(c.longest)
	}
	if p.Payload > 0 {
		c.longest = min(c.longest, p.Payload)
	}
	c.owner = &owner{pool: p.Pool, infos: make([]Batch, p.Pool.Slots())}
	words := (c.per + 63) / 64
	all := make([]uint64, words*len(c.owner.infos))
	for i := range c.owner.infos {
		c.owner.infos[i].Present = all[i*words : (i+1)*words : (i+1)*words]
	}
	if p.Executor == GPU {
		var err error
		if c.dev, err = newDevice(c); err != nil {
			return nil, err
		}
	}
	c.src = burst.NewSource(p.Pool.Region(), p.Pool.Region().All().Bytes(), c.owner)
	c.cache = p.Pool.Cache()
	return c, nil
}

// take places packet i of b, or says why not; NumDrops: it is placed. ok is false where the
// processor does not reach its bytes.
func (c *collector) take(b *burst.Burst, i int, now int64) (why engine.Drop, ok bool) {
	n := b.PacketLen(i)
	if n < c.head {
		return engine.DropBadFrame, true
	}
	head := c.front(b, i)
	if head == nil {
		return 0, false
	}
	seq, number := c.numbers(head)
	size := n - c.plan.Offset
	x, place, why := c.admit(seq, number, size, now)
	if why != engine.NumDrops {
		return why, true
	}
	if c.plan.Channels > 0 {
		if !c.turn(x, place, b, i, size) {
			return 0, false
		}
	} else if dst := x.bytes[place*x.Place : (place+1)*x.Place]; len(head) == n { // one segment, nearly always
		c.fresh.copied += c.write(dst, head[c.plan.Offset:])
	} else if !c.fill(dst, b, i, size) {
		return 0, false
	}
	c.mark(x, place, b, i, size)
	return engine.NumDrops, true
}

// takeRun places packets of b from i on, to to-1 at most, each of which is in one piece and has a
// free place in the batch of the packet before it: nearly all. It returns how many; the next one is
// for take.
func (c *collector) takeRun(b *burst.Burst, i, to int) (n int) {
	x, field := c.recent, c.plan.Sequence
	first := field.Offset / 8
	if x == nil || !c.w.clear(x.ID) || c.plan.Channels > 0 || x.in+c.plan.Offset < max(c.head, first+8) ||
		b.Segments(i) == 0 {
		return 0
	}
	run := b.Builder().Run(b.Builder().Part(i, 0).Source, i, min(to, i+c.per-x.Packets)) // a batch that is whole leaves
	shift, low, size, offset := uint(field.Offset%8), 64-uint(field.Width), x.in, c.plan.Offset
	place, present, bytes, top := x.Place, x.Present, x.bytes, 0
	for ; n < run.Len(); n++ {
		p := run.Bytes(n)
		if len(p) != size+offset {
			break
		}
		seq := uint32(binary.BigEndian.Uint64(p[first:]) << (shift & 63) >> (low & 63)) // see Field.read
		number := int64(seq) >> (uint(c.w.shift) & 63)
		if c.plan.Batch.Width > 0 {
			number = int64(c.plan.Batch.read(p))
		}
		at := int(seq) & (c.per - 1)
		word, bit := &present[at/64], uint64(1)<<(at%64)
		if number != c.recentN || *word&bit != 0 {
			break
		}
		*word |= bit
		top = max(top, at)
		c.fresh.copied += c.write(bytes[at*place:(at+1)*place], p[offset:])
	}
	if n > 0 {
		c.w.saw(x.ID, top)
		c.accept(x, b, i, n)
	}
	return n
}

// front is the front of packet i, which has the fields; nil where the processor does not reach it.
func (c *collector) front(b *burst.Burst, i int) []byte {
	head := b.Bytes(i, 0)
	if len(head) < c.head {
		if c.scratch = grow(c.scratch, c.head); b.CopyTo(c.scratch, i) < c.head {
			return nil
		}
		head = c.scratch
	}
	return head
}

// numbers are the sequence number of a packet and that of its batch, as the packet has them.
func (c *collector) numbers(head []byte) (seq, batch uint32) {
	seq = c.plan.Sequence.read(head)
	if c.plan.Batch.Width > 0 {
		batch = c.plan.Batch.read(head)
	}
	return seq, batch
}

// admit is the batch and the place of a packet with these numbers and a payload of size bytes, or
// says why it has none; NumDrops: it has.
func (c *collector) admit(seq, batch uint32, size int, now int64) (x *open, place int, why engine.Drop) {
	number := int64(seq)
	if c.plan.Batch.Width > 0 {
		number = int64(batch)
	}
	place = int(int64(seq) & int64(c.per-1))
	if x = c.recent; x == nil || number>>c.w.shift != c.recentN || size != x.in || !c.w.clear(x.ID) {
		if c.unit > 1 && size%c.unit != 0 {
			return nil, 0, engine.DropBadFrame
		}
		if size > c.longest {
			return nil, 0, engine.DropTooLong
		}
		if x, why = c.batch(number, size, now); x == nil {
			return nil, 0, why
		}
	} else {
		c.w.saw(x.ID, place)
	}
	switch {
	case x.Has(place):
		return nil, 0, engine.DropDuplicate
	case size > x.in:
		return nil, 0, engine.DropTooLong
	case c.plan.Channels > 0 && size < x.in: // its channels would not be where those of the others are
		return nil, 0, engine.DropBadFrame
	}
	return x, place, engine.NumDrops
}

// mark notes that packet i of b is placed.
func (c *collector) mark(x *open, place int, b *burst.Burst, i, size int) {
	if size < x.in {
		c.short.Inc()
	}
	x.Present[place/64] |= 1 << (place % 64)
	c.accept(x, b, i, 1)
}

// accept counts n packets of b, from i on, that are marked in x.
func (c *collector) accept(x *open, b *burst.Burst, i, n int) {
	if first, last, ok := b.Times(i, i+n); ok {
		if x.First == 0 || first < x.First {
			x.First = first
		}
		x.Last = max(x.Last, last)
	}
	x.Packets += n
	c.fresh.placed += n
	if x.Packets == c.per {
		c.leaveWhole()
	}
}

// batch is the batch that a packet belongs to, which may begin with it; nil, and why not.
func (c *collector) batch(number int64, size int, now int64) (*open, engine.Drop) {
	id, why := c.see(number)
	if why != engine.NumDrops {
		return nil, why
	}
	at := &c.open[c.at(id)]
	if *at == nil {
		if c.plan.Channels > 0 && size < c.learned { // it would open a batch and have no place in it
			return nil, engine.DropBadFrame
		}
		if *at = c.begin(id, size, now); *at == nil {
			return nil, engine.DropNoBuffers
		}
	}
	c.recent, c.recentN = *at, number>>c.w.shift
	return *at, engine.NumDrops
}

// see is the id of the batch that a packet belongs to, after batches have left to make room for it.
func (c *collector) see(number int64) (id int64, why engine.Drop) {
	at, v := c.w.see(number)
	id = at >> c.w.shift
	switch v {
	case late:
		return 0, engine.DropLate
	case stray:
		return 0, engine.DropStray
	case far:
		c.leaveAll()
		c.w.begin(at)
		c.restarts.Inc()
	case fits:
		if low := c.w.low(); low > c.w.base {
			c.leave(low)
			c.leaveWhole()
		}
	}
	return id, engine.NumDrops
}

func (c *collector) at(id int64) int { return int(id) & (len(c.open) - 1) }

// begin opens a batch; nil where the pool has no slot.
func (c *collector) begin(id int64, size int, now int64) *open {
	slot, err := c.cache.Get()
	if err != nil {
		return nil
	}
	var x *open
	if n := len(c.spare); n > 0 {
		x, c.spare = c.spare[n-1], c.spare[:n-1]
	} else {
		x = new(open)
	}
	if c.plan.Payload == 0 {
		c.learned = max(c.learned, size)
	}
	info := &c.owner.infos[slot.Index()]
	clear(info.Present)
	*info = Batch{Plan: c.plan.Name, ID: id, Present: info.Present, PerBatch: c.per, Place: c.learned,
		Channels: c.plan.Channels, DType: c.dtype}
	if c.convert != nil {
		info.Place = c.convert.OutLen(c.learned)
	}
	*x = open{Batch: info, slot: slot, in: c.learned}
	if c.dev == nil {
		x.bytes = slot.Bytes()
	}
	if c.plan.Timeout > 0 {
		x.until = now + int64(c.plan.Timeout)
	}
	c.opened++
	return x
}

// write writes a payload to dst, and zeros behind it. It returns how many bytes the payload became.
func (c *collector) write(dst, from []byte) (n int) {
	if c.convert != nil {
		n = c.convert.Convert(dst, from)
	} else {
		n = vec.Copy(dst, from)
	}
	if n < len(dst) {
		clear(dst[n:])
	}
	return n
}

// fill writes the payload of packet i to dst, and zeros behind it. It is false where the processor
// does not reach the bytes.
func (c *collector) fill(dst []byte, b *burst.Burst, i, size int) bool {
	written := 0
	skip := c.plan.Offset
	if c.convert != nil && b.Segments(i) > 1 {
		if c.scratch = grow(c.scratch, skip+size); b.CopyTo(c.scratch, i) < skip+size {
			return false
		}
		written = c.convert.Convert(dst, c.scratch[skip:])
		c.fresh.copied += size
	} else {
		for k := range b.Segments(i) {
			from := b.Bytes(i, k)
			if from == nil && b.Segment(i, k).Len > 0 {
				return false
			}
			if skip >= len(from) {
				skip -= len(from)
				continue
			}
			if from, skip = from[skip:], 0; c.convert != nil {
				written += c.convert.Convert(dst, from)
			} else {
				vec.Copy(dst[written:], from)
				written += len(from)
			}
		}
	}
	c.fresh.copied += written
	clear(dst[written:])
	return true
}

// turn writes the payload of packet i to the parts of its place, one in each channel. It is false
// where the processor does not reach the bytes.
func (c *collector) turn(x *open, place int, b *burst.Burst, i, size int) bool {
	from := b.Bytes(i, 0)
	if b.Segments(i) > 1 {
		if c.scratch = grow(c.scratch, c.plan.Offset+size); b.CopyTo(c.scratch, i) < c.plan.Offset+size {
			return false
		}
		from = c.scratch
		c.fresh.copied += size
	} else if from == nil && size > 0 {
		return false
	}
	from = from[c.plan.Offset:]
	if c.convert != nil { // all channels at once: a channel may have few samples
		c.turned = grow(c.turned, x.Place)
		c.convert.Convert(c.turned, from)
		from = c.turned
	}
	if out := x.Place / x.Channels; out > 0 {
		vec.Scatter(x.bytes[place*out:], c.per*out, from, out)
	}
	c.fresh.copied += x.Place
	return true
}

// zero clears the places from to to-1.
func (x *open) zero(from, to int) {
	if x.Channels == 0 {
		clear(x.bytes[from*x.Place : to*x.Place])
		return
	}
	out := x.Place / x.Channels
	for k := range x.Channels {
		clear(x.bytes[(k*x.PerBatch+from)*out : (k*x.PerBatch+to)*out])
	}
}

// leaveWhole lets batches leave that are whole, as long as no number is missing before them.
func (c *collector) leaveWhole() {
	for x := c.open[c.at(c.w.base)]; x != nil && x.Packets == c.per; x = c.open[c.at(c.w.base)] {
		c.leave(c.w.base + 1)
	}
}

// leave lets all batches below id leave, in order, and counts those that never came.
func (c *collector) leave(id int64) {
	for k := c.w.base; k < id; k++ {
		at := &c.open[c.at(k)]
		if x := *at; x != nil && x.ID == k {
			*at = nil
			c.opened--
			c.recent = nil
			c.close(x)
		} else if k >= c.w.first {
			c.lost.Inc()
		}
	}
	c.w.pass(id)
}

// end lets all open batches leave when nothing more comes.
func (c *collector) end() {
	if c.dev != nil {
		c.dev.with(c.leaveAll)
		return
	}
	c.leaveAll()
}

// leaveAll lets all open batches leave.
func (c *collector) leaveAll() {
	for k := c.w.base; c.opened > 0; k++ {
		if x := c.open[c.at(k)]; x != nil && x.ID == k {
			c.leave(k + 1)
		}
	}
}

// expire lets batches leave whose time has passed, with all before them, and returns when the next
// one's has; 0: never.
func (c *collector) expire(now int64) (next int64) {
	if c.plan.Timeout == 0 || c.opened == 0 {
		return 0
	}
	if d := c.dev; d != nil && (d.undecided() || !d.open && !d.room()) {
		return 0 // packets that came in time have no places yet; the device wakes the owner
	}
	last, found := int64(0), false
	for _, x := range c.open {
		if x != nil && x.until <= now {
			x.TimedOut = true
			if !found || x.ID > last {
				last, found = x.ID, true
			}
		}
	}
	if found && c.dev != nil {
		c.dev.with(func() { c.leave(last + 1); c.leaveWhole() })
	} else if found {
		c.leave(last + 1)
		c.leaveWhole()
	}
	for _, x := range c.open {
		if x != nil && (next == 0 || x.until < next) {
			next = x.until
		}
	}
	return next
}

// close ends a batch that leaves.
func (c *collector) close(x *open) {
	switch {
	case x.Packets == c.per:
		x.TimedOut = false
		c.whole.Inc()
	case c.plan.Missing == Drop:
		c.dropped.Inc()
		c.drop(x, engine.DropIncomplete)
		return
	default:
		c.partial.Inc()
		if x.TimedOut {
			c.timedOut.Inc()
		}
		if c.dev == nil {
			x.missing(x.zero)
		}
	}
	if c.dev != nil {
		c.dev.leave(x)
		return
	}
	c.out(x)
}

// drop gives a batch's slot back.
func (c *collector) drop(x *open, why engine.Drop) {
	c.drops.Add(why, uint64(x.Packets))
	c.fresh.placed -= x.Packets
	if c.dev == nil || !c.dev.keep(x.slot) {
		c.cache.Put(x.slot) // it is out: this cannot fail
	}
	c.recycle(x)
}

func (c *collector) recycle(x *open) {
	*x = open{}
	c.spare = append(c.spare, x)
}

// shut ends the collector: what is open is dropped. An accelerator has no work of it any more.
func (c *collector) shut() (err error) {
	c.dropAll(engine.DropClosed)
	c.publish()
	c.cache.Close()
	if c.dev != nil {
		err = c.dev.close()
	}
	return err
}

// fell drops a batch that has left and that no receiver gets.
func (c *collector) fell(x *open, why engine.Drop) {
	if minus := ^uint64(0); x.Packets == c.per {
		c.whole.Add(minus)
	} else {
		c.partial.Add(minus)
		if x.TimedOut {
			c.timedOut.Add(minus)
		}
	}
	c.drop(x, why)
}

// now is the time that deadlines count in, where the plan has any.
func (c *collector) now() int64 {
	if c.plan.Timeout == 0 {
		return 0
	}
	return int64(time.Since(epoch))
}

// dropAll drops the batches that are open.
func (c *collector) dropAll(why engine.Drop) {
	for i, x := range c.open {
		if x != nil {
			c.open[i] = nil
			c.opened--
			c.drop(x, why)
		}
	}
}

func (c *collector) counts() Counts {
	n := Counts{Plan: c.plan.Name, Whole: c.whole.Load(), Partial: c.partial.Load(), TimedOut: c.timedOut.Load(),
		Lost: c.lost.Load(), Dropped: c.dropped.Load(),
		Placed: c.placed.Load(), Short: c.short.Load(), Restarts: c.restarts.Load()}
	c.drops.AddTo(&n.Drops)
	return n
}

// grow is a slice of n bytes, in b's memory if there is room.
func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
