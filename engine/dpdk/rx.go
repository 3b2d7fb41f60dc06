//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// rxQueue is a receive queue. It implements engine.RxDevice.
type rxQueue struct {
	engine.RxFront
	port *Port

	// hw is held by the one who uses the device: the owner, or the port that stops it.
	hw       sync.Mutex
	h        *half // nil until the port has started, for a queue that lends or copies
	steerer  *engine.Steerer
	kept     *burst.Burst // packets that found no room
	one      *burst.Burst // of one packet
	on       bool         // the device receives
	tooLong  uint64       // of the device's, as they were counted
	foreign  []uint64
	gathered []byte
	latest   int64 // time of a packet that the device has told: none of the queue's goes backwards

	// Where packets are copied to: those that the queue takes itself, and those that others bring.
	// nil for a queue without pools.
	direct, brought *engine.RxSlots
}

var _ engine.RxDevice = (*rxQueue)(nil)

// AddRxQueue implements engine.Port.
func (p *Port) AddRxQueue(spec engine.RxSpec) (engine.RxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if err := p.rx.Admit(&spec, &p.can); err != nil {
		return nil, fmt.Errorf("dpdk: %s: %w", p.name, err)
	}
	q, err := p.addRx(spec)
	if err != nil {
		return nil, fmt.Errorf("dpdk: %s: receive queue %v: %w", p.name, spec.ID, err)
	}
	return q, nil
}

func (p *Port) addRx(spec engine.RxSpec) (q *rxQueue, err error) {
	q = &rxQueue{port: p, steerer: engine.NewSteerer(p.table, p.spec.Isolated, &p.counts),
		kept: burst.NewSegmented(cdpdk.MaxBurst, cdpdk.MaxDescs), one: burst.NewSegmented(1, burst.MaxSegments)}
	for _, pool := range spec.Pools {
		if pool.Region().All().Bytes() == nil {
			return nil, fmt.Errorf("pool %q is in memory that the CPU does not reach: %w", pool.Name(),
				engine.ErrUnsupported)
		}
	}
	q.Start(spec, q)
	if p.inPlace {
		why := ""
		if len(spec.Pools) == 2 {
			if why = p.splits(&spec); why != "" && p.info.Split > 1 {
				p.tell(fmt.Sprintf("receive queue %v: software splits headers from data: %s", spec.ID, why))
			}
		}
		switch {
		case len(spec.Pools) == 1 && p.fits(spec.Pools[0].SlotSize()):
			q.h, err = p.newSlots(spec.Pools[0], spec.Depth)
		case len(spec.Pools) == 2 && why == "":
			q.h, err = p.newSplit(&spec)
		// headers are split off by copying, short slots are filled by copying, and without a pool
		// nothing is copied
		default:
			q.h, err = p.newLent(spec.Depth)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(spec.Pools) > 0 {
		q.direct, q.brought = engine.NewRxSlots(&q.RxFront), engine.NewRxSlots(&q.RxFront)
	}
	p.rx.Add(q)
	if err = p.due(); err != nil {
		_, _ = p.rx.Remove(q)
		return nil, err
	}
	if !p.inPlace && q.h != nil {
		p.counts.Drop(engine.DropNoQueue, q.flush()) // what came while there was no queue
	}
	return q, nil
}

// stays reports whether the queue's packets stay where the device wrote them.
func (q *rxQueue) stays() bool { return q.h.lent == nil && q.h.head == nil || q.direct == nil }

// split reports whether the device has split the header off a packet.
func (q *rxQueue) split(d []cdpdk.Desc) bool {
	return q.h.head != nil && d[0].Foreign && int(d[0].Len) <= q.h.at && (len(d) == 1 || len(d) == 2 && !d[1].Foreign)
}

// Collect implements engine.RxDevice.
func (q *rxQueue) Collect(b *burst.Burst) error {
	q.hw.Lock()
	defer q.hw.Unlock()
	if !q.on {
		return nil
	}
	if q.kept.Len() > 0 {
		_, dropped := engine.MoveKept(b, q.kept, q.one)
		q.Drop(engine.DropTooLong, uint64(dropped))
		if q.kept.Len() > 0 {
			return nil
		}
	}
	live := q.port.rx.Live()
	classify := q.steerer.Begin()
	for b.Room() > 0 && q.kept.Len() == 0 && q.Waiting() == 0 {
		give := q.h.supply()
		most := min(b.Room(), q.h.most())
		n, d := q.h.rx.Burst(give, most)
		if n == 0 {
			break
		}
		if classify || n != len(d) || !q.rows(b, d) {
			q.each(b, d, live, classify)
		}
		if n < min(most, 32) {
			break
		}
	}
	if t := q.h.rx.TooLong(); t != q.tooLong {
		q.Drop(engine.DropTooLong, t-q.tooLong)
		q.tooLong = t
	}
	return nil
}

// barrier returns when the one who uses the device now has finished: until then it may go by the
// rules from before.
func (q *rxQueue) barrier() {
	q.hw.Lock()
	defer q.hw.Unlock()
}

// rows adds packets of one segment each that stay where they are. It is false, and nothing has
// happened, where they are others.
func (q *rxQueue) rows(b *burst.Burst, d []cdpdk.Desc) bool {
	if !q.stays() || q.steps() {
		return false
	}
	for i := range d {
		if d[i].Foreign || d[i].Off != headroom {
			return false
		}
	}
	rows := b.Builder().Rows(q.h.src, len(d), burst.Segment{Cap: uint32(q.h.room - headroom)})
	if rows.Len() < len(d) {
		return false
	}
	from := b.Len()
	q.h.tookRows(d, &rows)
	b.Builder().AddRows(len(d))
	for i := range d {
		if d[i].Flags&(cdpdk.ChecksumsGood|cdpdk.HashValid) != 0 {
			q.note(q.Spec(), b, from+i, &d[i])
		}
	}
	return true
}

// steps reports whether each packet is looked at by itself.
func (q *rxQueue) steps() bool { return q.Spec().Timestamps || q.Spec().HardwareTime }

// checksumFlags are those of a burst for those of an mbuf.
func checksumFlags(mbuf uint64) burst.Flags {
	switch {
	case mbuf&cdpdk.ChecksumL4Mask == cdpdk.ChecksumL4None:
		return burst.ChecksumPartial
	case mbuf&cdpdk.ChecksumsMask == cdpdk.ChecksumsGood:
		return burst.ChecksumGood
	}
	return 0
}

// note notes what the device said of a packet for a queue that asks for times, or not.
func (q *rxQueue) note(to *engine.RxSpec, b *burst.Burst, i int, d *cdpdk.Desc) {
	var flags burst.Flags
	var ns int64
	flags |= checksumFlags(d.Flags)
	switch {
	case to.HardwareTime && d.Time != 0:
		flags |= burst.HasTime | burst.HardwareTime
		q.latest = max(q.latest, q.port.clock.ns(d.Time))
		ns = q.latest
	case to.Timestamps || to.HardwareTime:
		flags |= burst.HasTime
		ns = time.Now().UnixNano()
	}
	b.Builder().SetReceived(i, 0, flags|b.Flags(i)&burst.Truncated, ns)
	if d.Flags&cdpdk.HashValid != 0 && q.port.can.Hash {
		b.Builder().SetHash(i, d.Hash)
	}
}

// each passes on packets one by one.
func (q *rxQueue) each(b *burst.Burst, d []cdpdk.Desc, live []*rxQueue, classify bool) {
	for len(d) > 0 {
		n := int(d[0].Segs)
		q.pass(b, d[:n:n], live, classify)
		d = d[n:]
	}
	cdpdk.FreeForeign(q.foreign)
	q.foreign = q.foreign[:0]
}

// pass passes on one packet.
func (q *rxQueue) pass(b *burst.Burst, d []cdpdk.Desc, live []*rxQueue, classify bool) {
	to, id := q, uint32(0)
	var typ burst.Type
	var frame []byte
	decided := false // by the device
	if classify && d[0].Flags&cdpdk.Marked != 0 {
		var v flow.Decision
		if v, decided = q.steerer.ByID(d[0].Mark); decided {
			q.steerer.Count(v, int(d[0].PktLen))
			id = v.ID
		}
	}
	if classify && !decided {
		frame = q.frame(d)
		v := q.steerer.Classify(frame)
		typ = engine.TypeOf(&q.steerer.Layers)
		q.steerer.Count(v, int(d[0].PktLen))
		where, ok := q.steerer.Queue(v)
		switch {
		case !ok:
			q.giveBack(d)
			return
		case where == engine.First:
			if len(live) == 1 || q.port.rss() == 0 {
				to = live[0] // with RSS it stays where it came
			}
		default:
			if to = q.port.rx.Find(where); to == nil {
				q.port.counts.Drop(engine.DropNoQueue, 1)
				q.giveBack(d)
				return
			}
			id = v.ID
			if v.Transform {
				var l packet.Layers
				if p, ok := packet.FindPartial(frame, &l); ok && checksumFlags(d[0].Flags) == burst.ChecksumPartial {
					p.Complete(frame)
				}
				d[0].Flags &^= cdpdk.ChecksumsMask // of what is inside of a tunnel nothing was verified
				if frame = q.steerer.Transform(v.Rule, frame); frame == nil {
					q.port.counts.Drop(engine.DropTransform, 1)
					q.giveBack(d)
					return
				}
				typ = 0
				q.copyTo(b, to, d, frame, id, typ)
				return
			}
		}
	}
	if to == q && q.split(d) {
		q.keep(b, d, id, typ)
		return
	}
	same := to == q || q.h.head == nil && q.h.lent == nil && len(to.Spec().Pools) == 1 &&
		to.Spec().Pools[0] == q.h.user || q.h.lent != nil && to.direct == nil
	if !same || !q.stays() || d[0].Foreign {
		if frame == nil {
			frame = q.frame(d)
		}
		q.copyTo(b, to, d, frame, id, typ)
		return
	}
	if to == q {
		if !q.add(b, q, d, id, typ) && !q.add(q.kept, q, d, id, typ) {
			q.Drop(engine.DropTooLong, 1)
			q.giveBack(d)
		}
		return
	}
	other := to.Bring()
	if other == nil {
		to.Drop(engine.DropClosed, 1)
		q.giveBack(d)
		return
	}
	if !q.add(other, to, d, id, typ) {
		to.Drop(engine.DropQueueFull, 1)
		q.giveBack(d)
	}
	to.Brought()
}

// keep adds a packet whose header the device has split off.
func (q *rxQueue) keep(b *burst.Burst, d []cdpdk.Desc, id uint32, typ burst.Type) {
	var rest *burst.Segment
	if len(d) == 2 {
		x, off := q.h.took(&d[1])
		rest = &burst.Segment{Handle: x, Off: off, Len: uint32(d[1].Len), Cap: uint32(q.h.room) - uint32(d[1].Off),
			Role: burst.Payload}
	}
	head := bytesAt(d[0].Addr, int(d[0].Len))
	i := q.direct.PutSplit(b, head, q.h.src, rest)
	if i == engine.NoRoom {
		b = q.kept
		i = q.direct.PutSplit(b, head, q.h.src, rest)
	}
	q.foreign = append(q.foreign, d[0].Mbuf)
	if i >= 0 {
		q.finish(b, q, i, d, id, typ)
		return
	}
	if i == engine.NoRoom {
		q.Drop(engine.DropTooLong, 1)
	}
	if rest != nil {
		q.h.put(rest.Handle)
	}
}

// add adds a packet that stays where it is to a burst of a queue.
func (q *rxQueue) add(b *burst.Burst, to *rxQueue, d []cdpdk.Desc, id uint32, typ burst.Type) bool {
	if b.Room() < 1 || b.SegmentRoom() < len(d) {
		return false
	}
	for i := range d {
		x, off := q.h.took(&d[i])
		g := burst.Segment{Handle: x, Off: off, Len: uint32(d[i].Len), Cap: uint32(q.h.room) - uint32(d[i].Off)}
		if i == 0 {
			if b.Builder().Add(q.h.src, g) < 0 { // too many memories
				q.h.untake(&d[i])
				return false
			}
		} else {
			b.Builder().AddSegment(q.h.src, g)
		}
	}
	q.finish(b, to, b.Len()-1, d, id, typ)
	return true
}

func (q *rxQueue) finish(b *burst.Burst, to *rxQueue, i int, d []cdpdk.Desc, id uint32, typ burst.Type) {
	q.note(to.Spec(), b, i, &d[0])
	if typ != 0 {
		b.Builder().SetType(i, typ)
	}
	if id != 0 {
		b.Builder().SetFlow(i, id)
	}
}

// copyTo copies a packet, whose bytes are frame, into the pools of a queue, and gives its mbufs
// back.
func (q *rxQueue) copyTo(b *burst.Burst, to *rxQueue, d []cdpdk.Desc, frame []byte, id uint32, typ burst.Type) {
	defer q.giveBack(d)
	slots, why := to.direct, engine.DropTooLong
	if to != q {
		slots, why = to.brought, engine.DropQueueFull
		if b = to.Bring(); b == nil {
			to.Drop(engine.DropClosed, 1)
			return
		}
		defer to.Brought()
	}
	if slots == nil { // it lends, and this is in memory of others
		to.Drop(engine.DropNoBuffers, 1)
		return
	}
	i := slots.Put(b, frame, false)
	if i == engine.NoRoom && to == q {
		b = q.kept
		i = slots.Put(b, frame, false)
	}
	switch {
	case i == engine.NoRoom:
		to.Drop(why, 1)
	case i >= 0:
		q.finish(b, to, i, d, id, typ)
	}
}

// frame is the bytes of a packet, gathered if it is in several segments.
func (q *rxQueue) frame(d []cdpdk.Desc) []byte {
	if len(d) == 1 {
		return bytesAt(d[0].Addr, int(d[0].Len))
	}
	q.gathered = q.gathered[:0]
	for i := range d {
		q.gathered = append(q.gathered, bytesAt(d[i].Addr, int(d[i].Len))...)
	}
	return q.gathered
}

// giveBack gives back the mbufs of a packet that no queue gets.
func (q *rxQueue) giveBack(d []cdpdk.Desc) {
	for i := range d {
		if d[i].Foreign {
			q.foreign = append(q.foreign, d[i].Mbuf)
			continue
		}
		x, _ := q.h.took(&d[i])
		q.h.put(x)
	}
}

// flush throws away what the device has received, and returns how many packets that were.
func (q *rxQueue) flush() (packets int) {
	q.hw.Lock()
	defer q.hw.Unlock()
	if !q.on {
		return 0
	}
	for range 64 {
		give := q.h.supply()
		n, d := q.h.rx.Burst(give, q.h.most())
		if n == 0 {
			break
		}
		packets += n
		q.giveBack(d)
		cdpdk.FreeForeign(q.foreign)
		q.foreign = q.foreign[:0]
	}
	return packets
}

// Flush implements engine.RxDiscarder.
func (q *rxQueue) Flush() int {
	n := q.flush()
	q.hw.Lock()
	defer q.hw.Unlock()
	n += q.kept.Len()
	q.kept.Release()
	return n
}

// Watch implements engine.RxDevice: nothing tells of packets but a look.
func (q *rxQueue) Watch(*engine.Waker) engine.Armed {
	q.hw.Lock()
	defer q.hw.Unlock()
	if !q.on {
		return engine.ArmedPoll
	}
	if q.kept.Len() == 0 {
		give := q.h.supply()
		if n, d := q.h.rx.Burst(give, min(q.h.most(), 32)); n > 0 {
			q.each(q.kept, d, q.port.rx.Live(), q.steerer.Begin())
		}
	}
	if q.kept.Len() > 0 || q.Waiting() > 0 {
		return engine.ArmedReady
	}
	return engine.ArmedPoll
}

// Stop implements engine.RxDevice. The device receives for the other queues from then on.
func (q *rxQueue) Stop(why engine.Drop) (err error) {
	p := q.port
	if !p.makes {
		q.Drop(why, uint64(q.Flush()))
	}
	q.hw.Lock()
	h := q.h
	q.on = false
	q.hw.Unlock()
	if q.direct != nil {
		q.direct.Close()
		q.brought.Close()
	}
	q.steerer.Close()
	if !p.inPlace || h == nil { // it is the port's
		return p.install(p.table.Snapshot().Rules(), p.rx.Live())
	}
	if p.state == portStarted && !p.suspend(h) {
		p.closing = h
		err = p.start()
		p.closing = nil
	}
	if i := slices.Index(p.halves, h); i >= 0 { // the port could not start again, or is being closed
		p.halves = slices.Delete(slices.Clone(p.halves), i, i+1)
	}
	if h.lent == nil && h.takeBack() {
		return errors.Join(err, h.close())
	}
	if !slices.Contains(p.left, h) {
		p.left = append(p.left, h)
	}
	return err
}

// Close implements engine.RxQueue.
func (q *rxQueue) Close() error { return q.port.rx.Close(q) }
