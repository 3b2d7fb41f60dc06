package verbs

import (
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdma"
	"github.com/penstock-io/penstock/path"
)

// kind is what a request is for.
type kind uint8

const (
	kindFrame  kind = iota + 1 // a frame of the protocol
	kindNotify                 // a frame that notifies the peer for an operation
	kindWrite
	kindRead
	kindWriteImm // the one write of an operation, which notifies the peer as well
	kindBind     // a window for the peer
	kindNudge    // nothing: a write or a read of no bytes, of an adapter that is still at work
	kindMark     // nothing: its completion shows that everything before it is over
	kindShot     // a numbered write on an unreliable connection; the peer says whether it came
	kindProbe    // a number without bytes behind it
)

// record is a request that is posted and whose end is not known. Requests of a queue pair end in order.
type record struct {
	kind  kind
	work  int32  // -1: none
	slot  int32  // of the frame; -1: none
	local int32  // entry of Path.locals; -1: none
	no    uint32 // of the message
	bytes uint64 // of a bulk operation
	short bool   // a write that may travel in the request, of an operation that is none
	given *given
}

// request is one to be posted.
type request struct {
	record
	sge    ibv.SGE
	inline bool
	raddr  uint64
	rkey   uint32
	imm    uint32
	mw     *ibv.MW
	window ibv.Window
}

// link is one queue pair with its receives: number 0 is for control, the others are rails.
type link struct {
	p     *Path
	index int
	gen   uint32 // of the queue pair, as both sides count
	epoch uint32 // counts the queue pairs of this side, for the numbers of requests
	qp    *ibv.QP
	psn   uint32 // the first sequence number; of a target its key
	// In place of qp, with DC:
	seat   *seat
	srq    *ibv.SRQ
	target *ibv.DCTarget // nil when it is closed
	shutAt uint64        // Path.looks then
	to     ibv.DCAddress // the peer's
	// serves is what operations of the peer may do by it: write, read, both, or nothing (control).
	serves path.Rights
	uc     *unreliable // nil for a reliable one

	ring       []record // a power of two
	head, tail uint32   // posted, ended
	unmarked   bool     // the last request posted is not signalled
	plan       []request
	chain      *ibv.SendChain
	out        credits
	frames     []int32 // free slots for sending

	recvs    []int32 // slots to be posted
	order    []int32 // slots at the queue pair as they were posted, a ring from first on
	first    int
	rchain   *ibv.RecvChain
	posted   int // slots at the queue pair
	held     int // slots with a message that the owner has not given back
	in       debt
	received uint32 // messages that came, by all queue pairs of this rail
	sent     uint32 // messages that went; corrected when a queue pair is replaced

	rail  rail
	watch rdma.Watch
}

const (
	recvBit    = 1 << 63
	epochMask  = 1<<23 - 1
	epochShift = 40
	indexShift = 32
)

// id is the number of a request at the adapter: receive or not, which queue pair of which link, and a sequence or slot number.
func (l *link) id(seq uint32) uint64 {
	return uint64(l.epoch&epochMask)<<epochShift | uint64(l.index)<<indexShift | uint64(seq)
}

// room is how many requests can be posted, those of the plan not counted. With DC it asks for an initiator where there is none: call it when
// nothing else is in the way.
func (l *link) room() int {
	n := len(l.ring) - l.queued()
	if s := l.seat; s != nil {
		if n <= 0 || !s.ready() {
			return 0
		}
		n = min(n, s.pool.depth-s.out)
	}
	return n
}

// queued is how many requests are planned, or posted and not over.
func (l *link) queued() int { return int(l.head-l.tail) + len(l.plan) }

// add plans a request; there is room.
func (l *link) add(r request) {
	l.plan = append(l.plan, r)
	if s := l.seat; s != nil {
		s.out++
		s.turn += 1 + int(r.sge.Length>>16)
		s.yields = s.turn >= turnMost && s.pool.waiting.Load() > 0
	}
}

// unplan loses what is planned from the n-th request on.
func (l *link) unplan(n int) {
	for i := range l.plan[n:] {
		l.p.lose(l, &l.plan[n+i].record)
	}
	if l.seat != nil {
		l.seat.out -= len(l.plan) - n
	}
	l.plan = l.plan[:0]
}

// num is the number by which the peer names what receives here.
func (l *link) num() uint32 {
	if l.seat != nil {
		return l.target.Num()
	}
	return l.qp.Num()
}

// stop has nothing of the peer land by this link any more.
func (l *link) stop() error {
	if l.seat != nil {
		return l.shut()
	}
	return l.qp.Err()
}

// flags are those of a request of the plan.
func (l *link) flags(i, interval int) (f ibv.SendFlags) {
	r := &l.plan[i]
	if i == len(l.plan)-1 || (i+1)%interval == 0 || r.kind == kindFrame || r.kind == kindNotify || r.kind == kindBind {
		f |= ibv.Signaled
	}
	if r.inline {
		f |= ibv.Inline
	}
	return f
}

// flush posts the plan in one call of the library; every interval-th request and the last are signalled.
func (l *link) flush(interval int) {
	if len(l.plan) == 0 || l.qp == nil && (l.seat == nil || !l.seat.busy) {
		return
	}
	var n int
	var err error
	if l.seat != nil {
		n, err = l.initiate(interval)
	} else {
		n, err = l.enchain(interval)
	}
	for i := range l.plan[:n] {
		l.ring[(l.head+uint32(i))&uint32(len(l.ring)-1)] = l.plan[i].record
	}
	l.head += uint32(n)
	// What was not taken is lost in the same way as what a broken queue pair gives back.
	rest := len(l.plan) - n
	if rest > 0 {
		l.unmarked = true
	}
	l.unplan(n)
	if err != nil {
		l.p.broken(l, fmt.Errorf("posting %d requests: %w", rest, err))
	}
}

// enchain posts the plan by the link's queue pair.
func (l *link) enchain(interval int) (int, error) {
	l.chain.Reset()
	for i := range l.plan {
		r := &l.plan[i]
		flags, id := l.flags(i, interval), l.id(l.head+uint32(i))
		switch r.kind {
		case kindFrame, kindNotify:
			l.chain.Send(id, flags, r.sge)
		case kindWrite:
			l.chain.Write(id, flags, r.raddr, r.rkey, r.sge)
		case kindProbe:
			l.chain.SendImm(id, flags, r.no)
		case kindShot:
			l.chain.WriteImm(id, flags, r.no, r.raddr, r.rkey, r.sge)
		case kindWriteImm:
			l.chain.WriteImm(id, flags, r.imm, r.raddr, r.rkey, r.sge)
		case kindRead:
			l.chain.Read(id, flags, r.raddr, r.rkey, r.sge)
		case kindNudge:
			if l.serves&path.Write != 0 { // on both sides
				l.chain.Write(id, flags, 0, 0)
			} else {
				l.chain.Read(id, flags, 0, 0)
			}
		case kindBind:
			l.chain.BindMW(id, flags, r.mw, r.rkey, r.window)
		}
	}
	return l.qp.PostSend(l.chain)
}

// ended takes in the completion of the request with this number; those before it without one have ended as well.
func (l *link) ended(seq uint32, wc *ibv.WC) {
	if seq-l.tail >= l.head-l.tail {
		l.p.broken(l, malformedID(wc))
		return
	}
	ok := wc.Status() == ibv.Success
	for l.tail != seq {
		l.retire(!l.rail.failed)
	}
	if ok && !l.rail.failed {
		l.retire(true)
		return
	}
	if !l.rail.failed {
		// The first that failed. Everything behind it comes back unexecuted, or neither side knows whether it was executed.
		l.rail.failed = true
		l.blame(wc)
	}
	l.retire(false)
	if l.seat != nil {
		l.seat.i.failed = true
	}
	l.p.broken(l, wc.Err())
}

func malformedID(wc *ibv.WC) error {
	return fmt.Errorf("a completion with the number %#x, which belongs to no request", wc.ID())
}

// blame finds the operation whose request broke the queue pair.
func (l *link) blame(wc *ibv.WC) {
	r := &l.ring[l.tail&uint32(len(l.ring)-1)]
	if r.kind == kindShot && !l.uc.flies(r.no) {
		return // it is over: the peer said so before the adapter
	}
	if s := wc.Status(); r.work < 0 || s == ibv.WRFlushErr || s == ibv.RetryExcErr || s == ibv.RNRRetryExcErr {
		return
	}
	l.p.works[r.work].blamed = wc.Err()
}

// retire takes the oldest request out of the ring.
func (l *link) retire(ok bool) {
	r := &l.ring[l.tail&uint32(len(l.ring)-1)]
	l.tail++
	if l.seat != nil {
		l.seat.out--
	}
	if ok {
		l.p.over(l, r)
	} else {
		l.p.lose(l, r)
	}
	r.given = nil
}

// restock posts the receives that are free; count says to tell the peer of them.
func (l *link) restock(count bool) {
	if len(l.recvs) == 0 || l.qp == nil && l.srq == nil || l.rail.failed {
		return
	}
	l.rchain.Reset()
	for _, s := range l.recvs {
		if l.uc != nil {
			l.rchain.Recv(l.id(uint32(s)) | recvBit)
			continue
		}
		l.rchain.Recv(l.id(uint32(s))|recvBit, l.p.arena.sge(int(s), frameSize))
	}
	var n int
	var err error
	if l.srq != nil {
		n, err = l.srq.PostRecv(l.rchain)
	} else {
		n, err = l.qp.PostRecv(l.rchain)
	}
	for _, s := range l.recvs[:n] {
		l.order[(l.first+l.posted)%len(l.order)] = s
		l.posted++
	}
	if count {
		l.in.freed += uint32(n)
	}
	copy(l.recvs, l.recvs[n:])
	l.recvs = l.recvs[:len(l.recvs)-n]
	if err != nil {
		l.p.broken(l, fmt.Errorf("posting receives: %w", err))
	}
}

// giveBack takes the slot of a message back from the owner.
func (l *link) giveBack(slot int32) {
	l.held--
	l.recvs = append(l.recvs, slot)
}

// idle says that the adapter knows of nothing on this link.
func (l *link) idle() bool { return l.head == l.tail && (l.posted == 0 || l.seen()) }

func (l *link) destroy() error {
	if l.seat != nil {
		return l.destroyTarget()
	}
	if l.qp == nil {
		return nil
	}
	err := l.qp.Close()
	l.qp = nil
	return err
}

func (l *link) free() error {
	err := l.destroy()
	if l.chain != nil {
		l.chain.Close()
	}
	if l.rchain != nil {
		l.rchain.Close()
	}
	l.chain, l.rchain = nil, nil
	return err
}

// makeQP makes a queue pair that can take receives, or a target.
func (p *Path) makeQP(l *link) (err error) {
	l.epoch++
	l.head, l.tail, l.unmarked, l.first, l.watch = 0, 0, false, 0, rdma.Watch{}
	if l.seat != nil {
		p.inline = p.dyn.inline
		return p.makeTarget(l)
	}
	s := ibv.QPSpec{Type: l.kind(), SendCQ: p.cq, RecvCQ: p.cq, SendWRs: len(l.ring) + 1, RecvWRs: int(l.in.depth), SendSGEs: 1, RecvSGEs: 1}
	for _, n := range p.o.inlines() { // a device cannot be asked how much it takes
		if s.Inline = n; n > p.inline && p.inline > 0 {
			continue
		}
		if l.qp, err = p.dom.pd.CreateQP(s); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if p.inline == 0 {
		p.inline = s.Inline
	}
	l.psn = randomPSN()
	a := ibv.InitAttr{Port: uint8(p.dev.port.Port)}
	a.Access = remote(l.serves)
	if l.uc != nil {
		l.uc.reset(p)
	}
	return l.qp.Init(a)
}

// join connects a queue pair to the peer's.
func (p *Path) join(l *link, to endpoint) error {
	if l.seat != nil {
		return p.aim(l, to)
	}
	mtu := min(p.dev.port.ActiveMTU, ibv.MTU(p.peer.mtu))
	reads := min(p.dev.attr.MaxRdAtomic, 16)
	err := l.qp.ReadyToReceive(ibv.RTRAttr{To: p.dev.way(&p.peer), RemoteQPN: to.qpn, PSN: to.psn, PathMTU: mtu, MaxDestRdAtomic: uint8(reads), MinRNRTimer: 12})
	if err != nil {
		return err
	}
	return l.qp.ReadyToSend(ibv.RTSAttr{PSN: l.psn, Timeout: p.o.timeout(), RetryCount: retries, RNRRetry: 6,
		MaxRdAtomic: uint8(min(p.dev.attr.MaxInitRdAtomic, 16, int(p.peer.reads)))})
}
