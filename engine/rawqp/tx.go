package rawqp

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// postAtOnce is the number of frames that are given to the device in one call, of which the last
// has a completion.
const postAtOnce = 32

// txQueue is a transmit queue: a queue pair that sends from where frames lie.
type txQueue struct {
	engine.TxFront
	port *Port
	spec engine.TxSpec
	out  *engine.Outbox

	mu     sync.Mutex // of what follows
	qp     *ibv.QP
	cq     *ibv.CQ
	chain  *ibv.SendChain
	depth  int
	posts  []posted // frames that the device has, a ring
	head   uint64
	tail   uint64
	owed   int // frames that are done, and that the Outbox is not told of yet
	armed  bool
	broken bool // it has failed, and flushes
	closed bool
	wc     [postAtOnce]ibv.WC
	sges   []ibv.SGE
	back   []burst.Handle // memory of src that is to go back
	src    *burst.Source

	packets, bytes metrics.Counter
	drops          engine.DropCounters
}

// posted is a frame that the device has.
type posted struct {
	parts [burst.MaxSegments]part
	n     int
	bytes int
}

type part struct {
	src *burst.Source
	h   burst.Handle
}

var _ engine.TxQueue = (*txQueue)(nil)

// AddTxQueue implements engine.Port.
func (p *Port) AddTxQueue(spec engine.TxSpec) (engine.TxQueue, error) {
	p.rx.Lock()
	defer p.rx.Unlock()
	if p.rx.Closed() {
		return nil, engine.ErrClosed
	}
	id, err := engine.TxID(spec.ID, maxQueues, p.txs)
	q := &txQueue{port: p}
	if err == nil {
		err = q.open(id, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: transmit queue %v of %s: %w", spec.ID, p.name, err)
	}
	p.txs = append(p.txs, q)
	p.dev.Own(q.cq, q.event)
	return q, nil
}

func (q *txQueue) open(id int, spec engine.TxSpec) error {
	p := q.port
	can := p.Capabilities()
	srcs, err := engine.CheckTx(&spec, &can)
	if err != nil {
		return err
	}
	pools, _, err := p.dev.Pools(spec.Pools)
	if err != nil {
		return err
	}
	if spec.SourceMAC && pools[0].Reg.Hidden() {
		return fmt.Errorf("pool %q is in memory that the CPU cannot reach, where it cannot write SourceMAC: %w",
			spec.Pools[0].Name(), engine.ErrUnsupported)
	}
	sges := min(p.dev.Attr.MaxSGE, burst.MaxSegments)
	q.spec, q.depth = spec, min(spec.Depth, p.o.SendDepth, p.dev.Attr.MaxQPWR)
	slots := engine.NewTxSlots(spec.Pools, srcs, spec.Headroom, p.longest())
	slots.Chain(sges, p.longest())
	q.posts, q.sges, q.back = make([]posted, q.depth), make([]ibv.SGE, 0, sges), make([]burst.Handle, 0, 64)
	if q.chain, err = ibv.NewSendChain(postAtOnce, postAtOnce*sges); err != nil {
		return err
	}
	if q.cq, err = p.dev.CreateCQ(ibv.CQSpec{Entries: q.depth + 1, Channel: p.dev.Sends}); err != nil {
		q.chain.Close()
		return unavailable(err)
	}
	q.qp, err = p.dev.PD.CreateQP(ibv.QPSpec{Type: ibv.RawPacket, SendCQ: q.cq, RecvCQ: q.cq, SendWRs: q.depth,
		SendSGEs: sges})
	if err != nil {
		err = refusal(p.dev.Name(), err)
	} else if err = p.ready(q.qp); err == nil {
		q.out, err = engine.NewOutbox((*device)(q), spec.Depth, true)
	}
	if err != nil {
		q.give()
		return err
	}
	if p.dev.Attr.RawChecksum {
		q.Offload(burst.ChecksumIPv4|burst.ChecksumL4, false)
	}
	if spec.SourceMAC {
		q.SourceMAC(func() packet.MAC { return p.info.MAC })
	}
	q.Start(id, slots, q.out, q.collect)
	return nil
}

// give gives up what the device has of the queue. It is false where the device does not let go, and
// may still read frames.
func (q *txQueue) give() bool {
	if q.qp != nil {
		if err := q.qp.Close(); err != nil {
			q.port.fail(fmt.Errorf("verbs: %s: closing transmit queue %d: %w", q.port.name, q.ID(), err))
			return false
		}
	}
	q.cq.Close()
	q.chain.Close()
	return true
}

// collect takes what the device has done, for a caller that needs descriptors now.
func (q *txQueue) collect() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reap()
}

// Forward implements engine.TxQueue. The device fetches frames from where they lie; memory that it
// does not know yet is registered when the first frame of it comes.
func (q *txQueue) Forward(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	if q.IsShut() { // the device may be given up: nothing is registered any more
		b.Release()
		return 0, engine.ErrClosed
	}
	if err := q.port.dev.RegisterAll(b); err != nil {
		b.Release()
		return 0, fmt.Errorf("verbs: %w", err)
	}
	return q.ForwardAny(b)
}

// Stats implements engine.TxQueue.
func (q *txQueue) Stats(s *engine.TxStats) {
	*s = engine.TxStats{Packets: q.packets.Load(), Bytes: q.bytes.Load()}
	q.drops.AddTo(&s.Drops)
	q.AddStats(s)
}

// Close implements engine.TxQueue. What the device has it still sends, for a while.
func (q *txQueue) Close() error {
	p := q.port
	q.Shut()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	for end := time.Now().Add(flushing); q.flying() > 0 && time.Now().Before(end) && p.failed.Load() == nil; {
		q.reap()
		runtime.Gosched()
	}
	q.closed = true
	gone := q.give()
	for q.flying() > 0 {
		if !gone { // the device may still read: their memory stays where it is
			q.posts[q.head%uint64(len(q.posts))].n = 0
		}
		q.retire(engine.DropClosed)
	}
	q.giveBack()
	q.mu.Unlock()
	p.rx.Lock()
	defer p.rx.Unlock()
	p.dev.Disown(q.cq)
	p.txs, p.gone = engine.RetireTx(q, p.txs, p.gone, &p.past)
	return nil
}

func (q *txQueue) flying() int { return int(q.tail - q.head) }

// event takes the event that the device has done something.
func (q *txQueue) event() {
	q.mu.Lock()
	if !q.closed {
		q.armed = false
		q.reap()
		q.watch()
	}
	q.mu.Unlock()
	q.out.Kick()
}

// watch asks for an event, where the device still has frames and was not asked.
func (q *txQueue) watch() {
	if q.armed || q.flying() == 0 {
		return
	}
	if q.armed = q.cq.Arm(false) == nil; q.armed {
		q.reap() // no event comes for what was done before
	}
}

// reap takes what the device has done.
func (q *txQueue) reap() {
	if q.closed || q.flying() == 0 {
		return
	}
	for {
		n, err := q.cq.Poll(q.wc[:])
		if err != nil {
			q.port.fail(fmt.Errorf("verbs: %s: %w: %w", q.port.name, engine.ErrDown, err))
			break
		}
		for i := range n {
			wc := &q.wc[i]
			ok := wc.Status() == ibv.Success
			// One completion stands for those in front of it, which had none because they
			// succeeded.
			for q.head < wc.ID() && q.flying() > 0 {
				q.retire(engine.NumDrops)
			}
			if q.head == wc.ID() && q.flying() > 0 {
				why := engine.NumDrops
				if !ok {
					why, q.broken = engine.DropDown, true
					if wc.Status() != ibv.WRFlushErr {
						why = engine.DropRefused
					}
				}
				q.retire(why)
			}
		}
		if n < len(q.wc) {
			break
		}
	}
	q.giveBack()
	if q.broken && q.flying() == 0 {
		if err := q.port.ready(q.qp); err != nil {
			q.port.fail(fmt.Errorf("verbs: %s: %w: %w", q.port.name, engine.ErrDown, err))
			return
		}
		q.broken = false
	}
}

// fault takes back what the device has, whether it was sent or not, because it will not tell of all
// of it.
func (q *txQueue) fault() {
	_ = q.qp.Err() // ready says whether it can go on
	q.broken = true
	if q.reap(); q.flying() == 0 {
		return // all came back, and it is ready again
	}
	q.broken = false
	if err := q.port.ready(q.qp); err != nil {
		q.port.fail(fmt.Errorf("verbs: %s: %w: %w", q.port.name, engine.ErrDown, err))
	}
	for q.flying() > 0 { // a queue pair that was reset reads nothing more
		q.retire(engine.DropDown)
	}
	q.giveBack()
}

// giveBack gives the memory of retired frames to its owner, and then tells the box of
// them.
func (q *txQueue) giveBack() {
	if len(q.back) > 0 {
		q.src.Reclaim(q.back)
		q.back = q.back[:0]
	}
	if q.owed > 0 {
		q.out.Complete(q.owed)
		q.owed = 0
	}
}

// retire counts the oldest frame that the device has as sent, or dropped. Its memory goes back with
// the next giveBack.
func (q *txQueue) retire(why engine.Drop) {
	x := &q.posts[q.head%uint64(len(q.posts))]
	q.head++
	for _, t := range x.parts[:x.n] {
		if t.h == burst.NoHandle {
			continue
		}
		if t.src != q.src || len(q.back) == cap(q.back) {
			q.giveBack()
			q.src = t.src
		}
		q.back = append(q.back, t.h)
	}
	if why == engine.NumDrops {
		q.packets.Inc()
		q.bytes.Add(uint64(x.bytes))
	} else {
		q.drops.Inc(why)
	}
	q.owed++
}

// device is the sink of a queue.
type device txQueue

// Transmit implements engine.Sink.
func (d *device) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	q := (*txQueue)(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flying() > 0 {
		q.reap()
	}
	for from < to {
		if !q.port.dev.Link().Up || q.port.failed.Load() != nil {
			for ; from < to; from++ {
				q.refuse(b, from, engine.DropDown)
			}
			break
		}
		next, more := q.post(b, from, to)
		q.watch()
		if from = next; !more && from < to {
			if q.flying() == 0 {
				continue // it has all come back meanwhile
			}
			return from, time.Time{}
		}
	}
	return to, time.Time{}
}

// refuse gives up one packet.
func (q *txQueue) refuse(b *burst.Burst, i int, why engine.Drop) {
	if b.Segments(i) > 0 {
		b.Builder().ReleasePart(i, i+1)
		q.drops.Inc(why)
		q.out.Complete(1)
	}
}

// post gives up to postAtOnce frames to the device, and returns the first that it did not get, and
// whether the device takes more.
func (q *txQueue) post(b *burst.Burst, from, to int) (next int, more bool) {
	room := min(q.depth-q.flying(), postAtOnce)
	if q.broken {
		room = 0 // until all is back
	}
	q.chain.Reset()
	var chosen [postAtOnce]int
	n := 0
	for next = from; next < to && (n < room || b.Segments(next) == 0); next++ {
		k := b.Segments(next)
		if k == 0 {
			continue
		}
		if why := q.fit(b, next); why != engine.NumDrops {
			if n > 0 {
				// those in front of it may come back from the device, and it would be refused a
				// second time behind them
				break
			}
			q.refuse(b, next, why)
			continue
		}
		x := &q.posts[(q.tail+uint64(n))%uint64(len(q.posts))]
		x.n, x.bytes = k, b.PacketLen(next)
		for i := range k {
			part0 := b.Builder().Part(next, i)
			x.parts[i] = part{part0.Source, part0.Handle}
		}
		flags := ibv.SendFlags(0)
		if q.port.o.Checksum || b.Flags(next)&burst.Requests != 0 {
			flags = ibv.IPChecksum
		}
		q.chain.Send(q.tail+uint64(n), flags, q.sges...)
		chosen[n] = next
		n++
	}
	if n == 0 {
		return next, room > 0
	}
	q.chain.Flag(n-1, ibv.Signaled)
	done, err := q.qp.PostSend(q.chain)
	for _, i := range chosen[:done] {
		b.Builder().ForgetPart(i, i+1)
	}
	q.tail += uint64(done)
	switch {
	case done == n:
		return next, true
	case done > 0: // the last of them has no completion
		q.fault()
		return chosen[done], true
	}
	if err != nil && q.flying() == 0 { // nothing will change that
		q.refuse(b, chosen[0], engine.DropRefused)
		return chosen[0] + 1, true
	}
	return chosen[0], false
}

// headerLen is the length of a frame's Ethernet header with its VLAN tags, of which there are two
// at most.
func headerLen(frame []byte) int {
	n := packet.EthernetLen
	for range 2 {
		if len(frame) < n {
			break
		}
		if t := packet.EtherType(binary.BigEndian.Uint16(frame[n-2:])); t != packet.EtherTypeVLAN &&
			t != packet.EtherTypeQinQ {
			break
		}
		n += packet.VLANLen
	}
	return n
}

// fit says why a packet cannot be sent, NumDrops if it can; its pieces are in q.sges then.
func (q *txQueue) fit(b *burst.Burst, i int) engine.Drop {
	k, n := b.Segments(i), b.PacketLen(i)
	switch {
	case n > q.port.info.MTU+headerLen(b.Bytes(i, 0)):
		return engine.DropTooLong
	case n < packet.EthernetLen:
		return engine.DropBadFrame
	case k > cap(q.sges):
		return engine.DropRefused
	}
	q.sges = q.sges[:0]
	for s := range k {
		g := b.Builder().Part(i, s)
		reg, err := q.port.dev.Registered(b.Segment(i, s).Region)
		if err != nil {
			return engine.DropRefused
		}
		if g.Len > 0 {
			q.sges = append(q.sges, reg.SGE(g.Off, g.Len))
		}
	}
	return engine.NumDrops
}
