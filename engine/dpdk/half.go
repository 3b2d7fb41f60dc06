//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/mem/ring"
	"github.com/penstock-io/penstock/packet/burst"
)

// half is what a device receives into by one of its queues: mbufs of slots of a pool, or of memory
// of DPDK that is lent. The owner of the queue uses it; none does where no queue is.
type half struct {
	own   *cdpdk.Pool
	rx    *cdpdk.Rx
	depth int
	room  int // bytes for each mbuf, headroom included

	// Of slots of a pool.
	user    *mem.Pool
	cache   *mem.Cache
	src     *burst.Source // also of lent memory
	reg     mem.Registration
	handles []mem.Handle // of the slots that the device has, by number
	held    int          // how many it has
	target  int          // how many it should have
	grab    [cdpdk.MaxBurst]mem.Handle

	// Of a queue whose device splits headers off: what it receives them into, and their length. The
	// slots above take the rest.
	head *cdpdk.Pool
	at   int

	// Of lent memory.
	lent *lender
}

// newSlots makes a half of the slots of a pool.
func (p *Port) newSlots(pool *mem.Pool, depth int) (_ *half, err error) {
	h := &half{depth: depth, user: pool, src: burst.PoolSource(pool), handles: make([]mem.Handle, pool.Slots()),
		target: depth}
	if p.info.Bus != "vdev" || p.info.Driver == "net_tap" {
		// such a driver keeps its ring full, replaces what it hands over from the rest, and may
		// have two rings (vmxnet3)
		h.target = 2 * (p.receiveRing(h) + atOnce)
	}
	if h.reg, err = p.reach(pool.Region()); err != nil {
		return nil, err
	}
	h.room = min(pool.SlotSize(), 1<<16-1)
	base := address(pool.Region().All().Bytes()) + uintptr(pool.Span().Off)
	own, err := cdpdk.NewSlotPool(base, pool.Slots(), pool.Stride(), h.room, p.info.NUMA)
	if err == nil {
		h.own = own
		if h.rx, err = cdpdk.NewRx(p.dev, 0, own); err == nil {
			h.cache = pool.Cache()
			return h, nil
		}
		own.Close()
	}
	_ = h.reg.Release()
	return nil, err
}

// splits says why the device does not split headers off for a queue; "" where it does.
func (p *Port) splits(spec *engine.RxSpec) (why string) {
	switch data := spec.Pools[1]; {
	case p.info.Split < 2:
		return "the driver has no buffer split"
	case spec.SplitAt == 0:
		return "the device splits at a fixed place, which split_at says"
	case data.SlotSize()+spec.SplitAt < p.can.MaxPacket:
		return fmt.Sprintf("slots of %d bytes behind headers of %d do not hold the longest packet, of %d",
			data.SlotSize(), spec.SplitAt, p.can.MaxPacket)
	}
	return ""
}

// newSplit makes a half of the slots of a pool, in front of which headers go into memory of DPDK:
// they are copied into their slots, which may be too short for what a driver leaves free in front
// of them.
func (p *Port) newSplit(spec *engine.RxSpec) (*half, error) {
	h, err := p.newSlots(spec.Pools[1], spec.Depth)
	if err != nil {
		return nil, err
	}
	h.at = spec.SplitAt
	if h.head, _, err = cdpdk.NewOwnPool(2*p.receiveRing(h)+8*atOnce, headroom+h.at, p.info.NUMA); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// receiveRing is the number of descriptors that receive into a half. Of a pool the ring has a
// quarter of the slots at most.
func (p *Port) receiveRing(h *half) int {
	want := p.ring(h.depth)
	if h.user != nil {
		want = min(want, 1<<max(bits.Len(uint(h.user.Slots()/4))-1, 0))
	}
	return descriptors(want, p.info.MinRxDesc, p.info.MaxRxDesc, p.info.RxDescAlign)
}

// newLent makes a half of memory of DPDK.
func (p *Port) newLent(depth int) (*half, error) {
	room := headroom + max(2048, p.can.MaxPacket)
	if p.info.RxOffloads&cdpdk.RxScatter != 0 {
		room = headroom + 2048
	}
	room = min(room, 1<<16-1)
	own, memory, err := cdpdk.NewOwnPool(max(2*depth+512, depth+4096), room, p.info.NUMA)
	if err != nil {
		return nil, fmt.Errorf("memory of DPDK for %d packets: %w: the option memory is how much there is", depth, err)
	}
	h := &half{depth: depth, room: room, own: own}
	l := &lender{}
	region, err := mem.Adopt(p.name+" (DPDK)", memory, func() error { own.Close(); return nil })
	if err == nil {
		l.region, h.lent = region, l
		l.base = address(memory)
		h.src = burst.NewSource(region, memory, l)
		if l.back, err = ring.NewMPMC[uint32](own.Size()); err == nil {
			if h.rx, err = cdpdk.NewRx(p.dev, 0, own); err == nil {
				return h, nil
			}
		}
	}
	own.Close()
	return nil, err
}

// supply writes numbers of mbufs that the driver may have where the next burst hands them over, and
// returns how many.
func (h *half) supply() int {
	to := h.rx.Slots()
	if h.lent != nil {
		return h.lent.back.GetBatch(to[:])
	}
	want := min(h.target-h.held, len(h.grab))
	if want <= 0 || want < 32 && want < h.target/2 {
		return 0
	}
	n := h.cache.GetBatch(h.grab[:want])
	for i, x := range h.grab[:n] {
		s := uint32(x)
		h.handles[s], to[i] = x, s
	}
	h.held += n
	return n
}

// atOnce is the number of packets that are asked of a driver at once, at most: some want memory for
// all of them, or give none.
const atOnce = 64

// most is the number of packets that the driver can be asked for.
func (h *half) most() int {
	if h.lent != nil {
		return atOnce
	}
	return min(h.held, atOnce)
}

// fits reports whether slots of that size take packets where the driver puts them: behind its
// headroom, in one piece or in chains.
func (p *Port) fits(slot int) bool {
	if p.info.RxOffloads&cdpdk.RxScatter != 0 {
		return slot >= headroom+max(p.info.MinRxBuf, 512)
	}
	return slot >= headroom+p.can.MaxPacket
}

// fill gives the driver all that it should have.
func (h *half) fill() {
	for n := h.supply(); n > 0; n = h.supply() {
		h.rx.Give(n)
	}
}

// took is the handle and the offset in the source of a segment that was received.
func (h *half) took(d *cdpdk.Desc) (mem.Handle, uint64) {
	if h.lent != nil {
		h.lent.out.Add(1)
		return mem.Handle(d.Slot), d.Addr - uint64(h.lent.base)
	}
	h.held--
	return h.handles[d.Slot], h.user.Span().Off + uint64(d.Slot)*uint64(h.user.Stride()) + uint64(d.Off)
}

// tookRows is took for segments that are packets, behind the driver's headroom each.
func (h *half) tookRows(d []cdpdk.Desc, rows *burst.Rows) {
	if h.lent != nil {
		h.lent.out.Add(int64(len(d)))
		for i := range d {
			rows.Set(i, mem.Handle(d[i].Slot), d[i].Addr-uint64(h.lent.base), uint32(d[i].Len))
		}
		return
	}
	h.held -= len(d)
	handles, off, stride := h.handles, h.user.Span().Off+headroom, uint64(h.user.Stride())
	for i := range d {
		s := d[i].Slot
		rows.Set(i, handles[s], off+uint64(s)*stride, uint32(d[i].Len))
	}
}

// untake undoes took.
func (h *half) untake(*cdpdk.Desc) {
	if h.lent != nil {
		h.lent.out.Add(-1)
		return
	}
	h.held++
}

// put gives back what took took.
func (h *half) put(x mem.Handle) {
	h.grab[0] = x
	h.src.Reclaim(h.grab[:1])
}

// takeBack takes back what is in the mempools of a stopped driver. It is false where the driver
// still has some.
func (h *half) takeBack() bool {
	if h.lent != nil {
		return false // its memory stays until the device is gone
	}
	for back := h.rx.TakeBack(); len(back) > 0; back = h.rx.TakeBack() {
		for _, s := range back {
			h.put(h.handles[s])
		}
		h.held -= len(back)
	}
	return h.held == 0 && (h.head == nil || h.head.Free() == h.head.Size())
}

// close gives everything back. No driver has any of its mbufs.
func (h *half) close() error {
	if h.lent != nil {
		h.rx.Close()
		return h.lent.close()
	}
	whole := h.takeBack()
	h.rx.Close()
	h.cache.Close()
	err := h.reg.Release()
	if !whole {
		return fmt.Errorf("dpdk: the driver kept %d slots of pool %q, or headers", h.held, h.user.Name())
	}
	h.own.Close()
	if h.head != nil {
		h.head.Close()
	}
	return err
}

// lender is the owner of lent memory. It outlives the port.
type lender struct {
	region *mem.Region
	base   uintptr
	back   *ring.MPMC[uint32] // mbufs that were released, for the driver
	out    atomic.Int64       // mbufs that are lent
}

// Reclaim implements burst.Owner.
func (l *lender) Reclaim(handles []burst.Handle) {
	for _, h := range handles {
		l.back.Put(uint32(h))
	}
	if l.out.Add(-int64(len(handles))) == gone {
		_ = l.region.Close()
	}
}

// gone is what lender.out counts down to when the port is closed.
const gone = -1 << 62

// close frees the memory, now or when all of it has come back.
func (l *lender) close() error {
	if l.out.Add(gone) == gone {
		return l.region.Close()
	}
	return nil
}

// place makes what the device receives into: that of the live queues, in their order, or of the
// port where there is none. The caller holds the set's lock, and the device is stopped.
func (p *Port) place(live []*rxQueue, n int) error {
	var halves []*half
	for i := range n {
		switch {
		case p.inPlace && i < len(live):
			halves = append(halves, live[i].h)
		case !p.inPlace && i < len(p.halves):
			halves = append(halves, p.halves[i])
		case i >= len(live) && i < len(p.halves) && !p.ours(p.halves[i]):
			halves = append(halves, p.halves[i])
		default:
			depth := p.depth
			if i < len(live) {
				depth = p.ring(live[i].Spec().Depth)
			}
			h, err := p.spare(depth)
			if err != nil {
				return err
			}
			halves = append(halves, h)
		}
	}
	for i, h := range halves {
		h.rx.Move(i)
		if !p.inPlace && i < len(live) {
			live[i].h = h
		}
		if h.lent == nil {
			h.fill()
		}
	}
	for _, h := range p.halves { // of no queue any more; those of queues that close are theirs to put there
		if h.lent != nil && !slices.Contains(halves, h) && !slices.Contains(p.left, h) {
			p.left = append(p.left, h)
		}
	}
	p.halves = halves
	return nil
}

// spare is a half of memory of DPDK that no queue has: one that is left of another, or a new one.
func (p *Port) spare(depth int) (*half, error) {
	for i, h := range p.left {
		if h.lent != nil && h.depth == depth && !p.ours(h) && h.own.Free() > depth+2*atOnce {
			p.left = slices.Delete(slices.Clone(p.left), i, i+1)
			return h, nil
		}
	}
	return p.newLent(depth)
}

// ours reports whether a half is that of a queue, also of one that is being closed.
func (p *Port) ours(h *half) bool {
	return h.lent == nil || slices.ContainsFunc(p.rx.Live(), func(q *rxQueue) bool {
		return q.h == h
	}) || p.closing == h
}

// served reports whether the device receives for each live queue. In lent memory a queue takes over
// what is there.
func (p *Port) served(live []*rxQueue) bool {
	if len(live) > len(p.halves) {
		return false
	}
	for i, q := range live {
		switch {
		case q.h == nil && !p.inPlace:
			q.hw.Lock()
			q.h, q.on = p.halves[i], !p.away
			q.hw.Unlock()
		case q.h != p.halves[i]:
			return false
		}
	}
	return true
}
