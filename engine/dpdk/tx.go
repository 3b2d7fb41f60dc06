//go:build dpdk

package dpdk

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/cdpdk"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

const (
	// headers is the number of segments that a device has of one queue, at most.
	headers = 2048
	// bounceBuffers are those of one queue, at least.
	bounceBuffers = 512
	// sendAtOnce is the number of packets that are given to the driver in one call.
	sendAtOnce = 64
	// sendRing are the descriptors of a queue of the device to which no goroutine sends yet.
	sendRing = 512
	// sendAgain is the pause when the driver takes no more, and at most reapSlow that between two
	// looks at what it has sent.
	sendAgain = 50 * time.Microsecond
	reapSlow  = 10 * time.Millisecond
)

// txQueue is a transmit queue.
type txQueue struct {
	engine.TxFront
	port  *Port
	spec  engine.TxSpec
	out   *engine.Outbox
	pacer *pace.Pacer // nil without a rate and times
	n     int         // the number of the device's queue
	ring  int         // descriptors that it has at most
	tx    *cdpdk.Tx
	held  bool   // the device holds packets until their time
	cuts  uint64 // kinds of packets that the device segments
	mbps  int    // a rate that the device may keep, 0 for none

	mu      sync.Mutex // of what follows, and of the device's queue
	started bool       // the device sends by this queue
	free    []uint32   // headers that the driver does not have
	parts   []part     // by header: what it points at
	regs    map[*mem.Region]mem.Registration
	// memory of DPDK, for packets that the device cannot send from where they lie; nil until there
	// is one
	bounce   *mem.Pool
	from     *burst.Source
	owed     int // packets that are done, and that the Outbox is not told of yet
	timer    *time.Timer
	pause    time.Duration
	ticking  bool
	closed   bool
	finished bool           // all was given back
	back     []burst.Handle // memory of src that is to go back
	src      *burst.Source
	layers   packet.Layers
	seen     struct { // what parse puts packets of several segments in
		sync.Mutex
		bytes []byte
	}

	packets, bytes, copied metrics.Counter
	drops                  engine.DropCounters
}

// part is a segment that the driver has.
type part struct {
	src  *burst.Source
	h    burst.Handle
	last bool // of its packet
}

var _ engine.TxQueue = (*txQueue)(nil)

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, p.can.TxQueues, p.txs)
	q := &txQueue{port: p, n: p.freeSender(), regs: map[*mem.Region]mem.Registration{}}
	if err == nil {
		err = q.open(id, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("dpdk: transmit queue %v of %s: %w", spec.ID, p.name, err)
	}
	return q, nil
}

func (q *txQueue) open(id int, spec engine.TxSpec) (err error) {
	p := q.port
	if err := Spec.TxDefaults(p.spec.Address, &spec); err != nil {
		return err
	}
	o, paced, err := pace.Of(&spec)
	if err != nil {
		return err
	}
	srcs, err := engine.CheckTx(&spec, &p.can)
	if err != nil {
		return err
	}
	q.spec = spec
	defer func() {
		if err != nil {
			err = errors.Join(err, q.finish())
		}
	}()
	for _, pool := range spec.Pools {
		if err := q.know(pool.Region()); err != nil {
			return err
		}
	}
	q.ring = p.senderRing(&spec)
	slots := engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, p.can.MaxPacket)
	if slots.Chain(burst.MaxSegments, p.can.MaxPacket); p.can.TxSegmentation == "device" {
		slots.Chain(burst.MaxSegments, longest)
	}
	var sink engine.Sink = (*device)(q)
	if paced {
		o.Complete = func(n int) { q.out.Complete(n) }
		q.held = spec.SendAt && p.can.SendAtIn == "device"
		o.Device = q.held
		if o.Rate%1e6 == 0 && o.Rate/1e6 <= math.MaxInt32 && o.Burst == 0 && o.Overhead == 0 {
			q.mbps = int(o.Rate / 1e6)
		}
		if q.pacer, err = pace.New(sink, o); err != nil {
			return err
		}
		sink = q.pacer
	}
	if q.out, err = engine.NewOutbox(sink, spec.Depth, true); err != nil {
		return err
	}
	if p.offloads()&checksums == checksums {
		does := burst.ChecksumIPv4 | burst.ChecksumL4
		if p.can.TxSegmentation == "device" {
			does |= burst.Segmented
			q.cuts = p.offloads() & (cdpdk.TxCutTCP | cdpdk.TxCutUDP)
		}
		q.Offload(does, false)
		q.Except(q.not)
	}
	if spec.SourceMAC {
		q.SourceMAC(p.mac)
	}
	if q.tx, err = cdpdk.NewTx(p.dev, q.n, headers, p.info.Driver == "net_ring"); err != nil {
		return err
	}
	if !p.chains || !p.reads {
		if err := q.bounces(); err != nil {
			return err
		}
	}
	q.parts = make([]part, headers)
	for i := range q.parts {
		q.free = append(q.free, uint32(i))
	}
	q.back = make([]burst.Handle, 0, 64)
	q.timer = time.AfterFunc(time.Hour, q.tick)
	q.timer.Stop()
	q.Start(id, slots, q.out, q.collect)
	p.txs = append(p.txs, q)
	if err := p.due(); err != nil {
		p.txs = p.txs[:len(p.txs)-1]
		q.Shut()
		return err
	}
	return nil
}

// senderRing is the number of descriptors of the device's queue. Some drivers free what they have
// sent only when a descriptor is used again (em, virtio), so they may keep as many packets for
// ever: half of what the queue has is left to send the next with. For a virtual device it is always
// the same: a port starts again for another one, which net_memif 22.11 does not survive while its
// peer connects.
func (p *Port) senderRing(spec *engine.TxSpec) int {
	most := 2 * sendRing
	if !p.lazy {
		return p.sendRing(most)
	}
	most = min(most, spec.Depth)
	if len(spec.Pools) > 0 {
		slots := 0
		for _, pool := range spec.Pools {
			slots += pool.Slots()
		}
		most = min(most, slots)
	}
	return p.sendRing(most)
}

// sendRing is a ring for half of so many packets.
func (p *Port) sendRing(packets int) int {
	ring := 1 << max(bits.Len(uint(packets/2))-1, 0)
	return descriptors(min(ring, p.depth), p.info.MinTxDesc, p.info.MaxTxDesc, p.info.TxDescAlign)
}

// bounces makes bounce buffers in memory of DPDK.
func (q *txQueue) bounces() error {
	size := (q.port.can.MaxPacket + 63) &^ 63
	n := max(bounceBuffers, 2*q.ring) // more than a driver keeps that frees only what it needs again
	memory, free, err := cdpdk.Alloc(n * size)
	if err != nil {
		return err
	}
	r, err := mem.Adopt(q.port.name+" (bounce)", memory, free)
	if err != nil {
		return errors.Join(err, free())
	}
	if q.bounce, err = mem.NewPool(mem.PoolOptions{Name: r.Name(), Region: r, SlotSize: size, Slots: n}); err != nil {
		return errors.Join(err, r.Close())
	}
	q.from = burst.PoolSource(q.bounce)
	return nil
}

// know lets the device reach a region from now on. The caller holds no lock of the queue.
func (q *txQueue) know(r *mem.Region) error {
	if q.port.regs == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.regs[r]; ok || q.closed {
		return nil
	}
	reg, err := q.port.reach(r)
	if err == nil {
		q.regs[r] = reg
	}
	return err
}

// collect takes what the device has done, for a caller that needs descriptors now.
func (q *txQueue) collect() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reap()
}

// Forward implements engine.TxQueue. The device sends packets from where they lie; memory that it
// does not know yet is registered when the first packet of it comes.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	if b != nil && q.port.regs != nil && !q.IsShut() {
		for i := range b.Len() {
			for k := range b.Segments(i) {
				if err := q.know(b.Segment(i, k).Region); err != nil {
					b.Release()
					return 0, fmt.Errorf("dpdk: %w", err)
				}
			}
		}
	}
	return q.ForwardReached(b)
}

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load(), Copied: q.copied.Load()}
	q.drops.AddTo(&s.Drops)
	q.AddStats(s)
	q.pacer.AddStats(s)
}

// Close implements engine.TxQueue. Memory that the driver still has goes back when the port is
// closed.
func (q *txQueue) Close() error {
	q.Shut()
	p := q.port
	p.rx.Lock()
	defer p.rx.Unlock()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.reap()
	out := q.tx.Out()
	q.mu.Unlock()
	p.txs, p.gone = engine.RetireTx(q, p.txs, p.gone, &p.pastTx)
	if out > 0 && p.state == portStarted && p.dev.RunTx(q.n, false) == nil && p.dev.RunTx(q.n, true) == nil {
		// a driver frees what a queue has that stops
		q.collect()
		out = q.tx.Out()
	}
	if out > 0 && p.state == portStarted {
		if err := p.start(); err != nil {
			return err
		}
	}
	if q.collect(); q.tx.Out() > 0 {
		p.leftTx = append(p.leftTx, q)
		return nil
	}
	return q.finish()
}

// finish gives everything back. No driver sends any more, or it has sent all.
func (q *txQueue) finish() (err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.finished {
		return nil
	}
	q.closed, q.finished = true, true
	if q.timer != nil {
		q.timer.Stop()
	}
	q.reap()
	for i := range q.parts {
		if q.parts[i].src != nil {
			q.retire(uint32(i))
		}
	}
	q.giveBack()
	if q.tx != nil && q.tx.Out() == 0 { // else another port has headers of it: net_ring hands them over
		q.tx.Close()
	}
	q.tx = nil
	for _, reg := range q.regs {
		err = errors.Join(err, reg.Release())
	}
	if q.bounce != nil {
		err = errors.Join(err, q.bounce.Close(), q.bounce.Region().Close())
	}
	return err
}

// freeSender is the lowest number of a queue of the device that none of ours has.
func (p *Port) freeSender() int {
	for n := 0; ; n++ {
		has := func(q *txQueue) bool { return q.n == n }
		if !slices.ContainsFunc(p.txs, has) && !slices.ContainsFunc(p.leftTx, has) {
			return n
		}
	}
}

// reap takes back what the driver has sent. The caller holds mu.
func (q *txQueue) reap() {
	for q.tx != nil && q.tx.Out() > 0 {
		done := q.tx.Reap(q.started)
		if len(done) == 0 {
			break
		}
		q.retireAll(done)
	}
	q.giveBack()
}

// retireAll retires headers and frees them. giveBack comes after it.
func (q *txQueue) retireAll(done []uint32) {
	for _, i := range done {
		q.retire(i)
	}
	q.free = append(q.free, done...)
}

// retire notes that the device no longer uses the memory that a header points at.
func (q *txQueue) retire(i uint32) {
	x := &q.parts[i]
	if x.h != burst.NoHandle {
		if x.src != q.src || len(q.back) == cap(q.back) {
			q.reclaim()
			q.src = x.src
		}
		q.back = append(q.back, x.h)
	}
	if x.last {
		q.owed++
	}
	*x = part{}
}

func (q *txQueue) reclaim() {
	if len(q.back) > 0 {
		q.src.Reclaim(q.back)
		q.back = q.back[:0]
	}
}

// giveBack gives the memory of retired headers to its owner, and then tells the box of it.
func (q *txQueue) giveBack() {
	q.reclaim()
	if q.owed > 0 {
		q.out.Complete(q.owed)
		q.owed = 0
	}
}

// tick looks at what the driver has sent, and again later while it has more: no event tells of it.
func (q *txQueue) tick() {
	q.mu.Lock()
	q.ticking = false
	if !q.closed {
		before := q.tx.Out()
		q.reap()
		if q.tx.Out() < before {
			q.pause = sendAgain
		} else {
			q.pause = min(2*q.pause, reapSlow)
		}
		q.watch()
	}
	q.mu.Unlock()
	q.out.Kick()
}

// watch has tick called while the driver has something.
func (q *txQueue) watch() {
	if !q.ticking && q.tx.Out() > 0 {
		q.ticking = true
		q.timer.Reset(max(q.pause, sendAgain))
	}
}

// longest is the length of the longest frame that a device segments: with an IP packet of 65535
// bytes.
const longest = packet.EthernetLen + 2*packet.VLANLen + 1<<16 - 1

// parse finds the headers of a packet, which are in its first segment; it is false where they are
// not.
func (q *txQueue) parse(b *burst.Burst, i int, l *packet.Layers) bool {
	p := b.Bytes(i, 0)
	first := len(p)
	if n := b.PacketLen(i); n > first { // the parser wants to see its length
		q.seen.Lock()
		defer q.seen.Unlock()
		if len(q.seen.bytes) < n {
			q.seen.bytes = make([]byte, max(n, longest)) // once
		}
		copy(q.seen.bytes[:n], p[:min(first, 512)])
		p = q.seen.bytes[:n]
	}
	return packet.Parse(p, l) == packet.OK && l.HasPorts && !l.IsFragment() && int(l.Payload) <= min(first, 512)
}

// not is what the device does not do of what a packet asks for. A driver may write into packets for
// which it computes checksums.
func (q *txQueue) not(b *burst.Burst, i int) burst.Flags {
	for k := range b.Segments(i) {
		if b.Builder().Part(i, k).Source.Shared() {
			return burst.Requests
		}
	}
	var l packet.Layers
	if !q.parse(b, i, &l) {
		return burst.Requests
	}
	kind := uint64(cdpdk.TxCutUDP)
	if l.Proto == packet.ProtoTCP {
		kind = cdpdk.TxCutTCP
	}
	if size := b.SegmentSize(i); size > 0 && (q.cuts&kind == 0 || int(l.End)-int(l.Payload) <= size ||
		int(l.End) < b.PacketLen(i) || size > 1<<16-1) {
		return burst.Segmented
	}
	return 0
}

// ask asks the device for what not leaves to it.
func (q *txQueue) ask(b *burst.Burst, i int, want burst.Flags, s *cdpdk.Seg) {
	l := &q.layers
	if !q.parse(b, i, l) {
		return
	}
	s.L2, s.L3 = uint8(l.L3), uint8(l.L4-l.L3)
	s.Flags = cdpdk.AskIPv6
	if l.IPVersion == 4 {
		s.Flags = cdpdk.AskIPv4
		if want&burst.ChecksumIPv4 != 0 {
			s.Flags |= cdpdk.AskIPv4Checksum
		}
	}
	checksum, cut := uint64(cdpdk.AskUDPChecksum), uint64(cdpdk.AskCutUDP)
	if l.Proto == packet.ProtoTCP {
		checksum, cut = cdpdk.AskTCPChecksum, cdpdk.AskCutTCP
	}
	if want&burst.ChecksumL4 != 0 {
		s.Flags |= checksum
	}
	if want&burst.Segmented != 0 {
		s.Flags |= cut
		s.L4, s.Cut = uint8(l.Payload-l.L4), uint16(b.SegmentSize(i))
	}
}

// limit has the device keep the rate of the queue, if it can. The caller holds the lock of the set
// of queues.
func (q *txQueue) limit() {
	p := q.port
	if q.mbps == 0 && !p.limited[q.n] {
		return
	}
	err := p.dev.LimitRate(q.n, q.mbps)
	if p.limited == nil {
		p.limited = map[int]bool{}
	}
	p.limited[q.n] = err == nil && q.mbps > 0
	if q.mbps > 0 {
		q.pacer.LeaveRate(err == nil)
		who := "the device"
		if err != nil {
			who = "software"
		}
		p.tell(fmt.Sprintf("transmit queue %d: %s keeps the rate of %d Mbit/s", q.ID(), who, q.mbps))
	}
}
