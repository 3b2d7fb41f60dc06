package verbs

import (
	"cmp"
	"fmt"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/transfer/path"
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
)

// record is a request that is posted and whose end is not known. Requests of a queue pair end in
// order.
type record struct {
	kind  kind
	work  int32  // -1: none
	slot  int32  // of the frame; -1: none
	local *local // that it reads or writes
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

// queuePair is one queue pair with its receives: number 0 is for control, the others are for data.
type queuePair struct {
	p     *Path
	index int
	gen   uint32 // counts its replacements, as both sides do
	epoch uint32 // counts those that this side made, for the numbers of requests
	qp    *ibv.QP
	psn   uint32 // the first sequence number

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
	received uint32 // messages that came, by those that it replaced as well
	sent     uint32 // messages that went; corrected when it is replaced

	repl  replacement
	watch rdmadev.Watch
}

const (
	recvBit    = 1 << 63
	epochMask  = 1<<23 - 1
	epochShift = 40
	indexShift = 32
)

// id is the number of a request at the adapter: receive or not, epoch and index of the queue pair,
// and a sequence or slot number.
func (l *queuePair) id(seq uint32) uint64 {
	return uint64(l.epoch&epochMask)<<epochShift | uint64(l.index)<<indexShift | uint64(seq)
}

// room is how many requests can be posted, those of the plan not counted.
func (l *queuePair) room() int { return len(l.ring) - l.queued() }

// queued is how many requests are planned, or posted and not over.
func (l *queuePair) queued() int { return int(l.head-l.tail) + len(l.plan) }

// add plans a request; there is room.
func (l *queuePair) add(r request) { l.plan = append(l.plan, r) }

// unplan loses what is planned from the n-th request on.
func (l *queuePair) unplan(n int) {
	for i := range l.plan[n:] {
		l.p.lose(l, &l.plan[n+i].record)
	}
	l.plan = l.plan[:0]
}

// flags are those of a request of the plan.
func (l *queuePair) flags(i, interval int) (f ibv.SendFlags) {
	r := &l.plan[i]
	if i == len(l.plan)-1 || (i+1)%interval == 0 || r.kind == kindFrame || r.kind == kindNotify || r.kind == kindBind {
		f |= ibv.Signaled
	}
	if r.inline {
		f |= ibv.Inline
	}
	return f
}

// flush posts the plan in one call of the library; every interval-th request and the last are
// signalled.
func (l *queuePair) flush(interval int) {
	if len(l.plan) == 0 || l.qp == nil {
		return
	}
	n, err := l.enchain(interval)
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

// enchain posts the plan.
func (l *queuePair) enchain(interval int) (int, error) {
	l.chain.Reset()
	for i := range l.plan {
		r := &l.plan[i]
		flags, id := l.flags(i, interval), l.id(l.head+uint32(i))
		switch r.kind {
		case kindFrame, kindNotify:
			l.chain.Send(id, flags, r.sge)
		case kindWrite:
			l.chain.Write(id, flags, r.raddr, r.rkey, r.sge)
		case kindWriteImm:
			l.chain.WriteImm(id, flags, r.imm, r.raddr, r.rkey, r.sge)
		case kindRead:
			l.chain.Read(id, flags, r.raddr, r.rkey, r.sge)
		case kindNudge:
			l.chain.Write(id, flags, 0, 0)
		case kindBind:
			l.chain.BindMW(id, flags, r.mw, r.rkey, r.window)
		}
	}
	return l.qp.PostSend(l.chain)
}

// ended takes in the completion of the request with this number; those before it without one have
// ended as well.
func (l *queuePair) ended(seq uint32, wc *ibv.WC) {
	if seq-l.tail >= l.head-l.tail {
		l.p.broken(l, malformedID(wc))
		return
	}
	ok := wc.Status() == ibv.Success
	for l.tail != seq {
		l.retire(!l.repl.failed)
	}
	if ok && !l.repl.failed {
		l.retire(true)
		return
	}
	if !l.repl.failed {
		// The first that failed. Everything behind it comes back unexecuted, or neither side knows
		// whether it was executed.
		l.repl.failed = true
		l.blame(wc)
	}
	l.retire(false)
	l.p.broken(l, wc.Err())
}

func malformedID(wc *ibv.WC) error {
	return fmt.Errorf("a completion with the number %#x, which belongs to no request", wc.ID())
}

// blame finds the operation, or the export, whose request broke the queue pair.
func (l *queuePair) blame(wc *ibv.WC) {
	r := &l.ring[l.tail&uint32(len(l.ring)-1)]
	switch s := wc.Status(); {
	case s == ibv.WRFlushErr:
	case r.kind == kindBind:
		r.given.refused++
	case r.work < 0:
	case s == ibv.RetryExcErr || s == ibv.RNRRetryExcErr:
		l.noteStuck()
	default:
		l.p.works[r.work].blamed = wc.Err()
	}
}

// noteStuck notes that the queue pair breaks without getting past the operation whose request is
// the oldest. That may be no fault of the operation.
func (l *queuePair) noteStuck() {
	if r := &l.ring[l.tail&uint32(len(l.ring)-1)]; l.tail != l.head && r.work >= 0 {
		w := &l.p.works[r.work]
		w.stuck++
		l.repl.stuck = w.stuck
	}
}

// retire takes the oldest request out of the ring.
func (l *queuePair) retire(ok bool) {
	r := &l.ring[l.tail&uint32(len(l.ring)-1)]
	l.tail++
	if ok {
		l.p.over(l, r)
	} else {
		l.p.lose(l, r)
	}
	r.given, r.local = nil, nil
}

// restock posts the receives that are free; count says to tell the peer of them.
func (l *queuePair) restock(count bool) {
	if len(l.recvs) == 0 || l.qp == nil || l.repl.failed {
		return
	}
	l.rchain.Reset()
	for _, s := range l.recvs {
		l.rchain.Recv(l.id(uint32(s))|recvBit, l.p.arena.sge(int(s), frameSize))
	}
	n, err := l.qp.PostRecv(l.rchain)
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
func (l *queuePair) giveBack(slot int32) {
	l.held--
	l.recvs = append(l.recvs, slot)
}

// idle says that the adapter knows of nothing on this queue pair.
func (l *queuePair) idle() bool { return l.head == l.tail && l.posted == 0 }

func (l *queuePair) destroy() error {
	if l.qp == nil {
		return nil
	}
	err := l.qp.Close()
	l.qp = nil
	return err
}

func (l *queuePair) free() error {
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

// makeQP makes a queue pair that can take receives. The control queue pair gives no access to
// memory.
func (p *Path) makeQP(l *queuePair) (err error) {
	l.epoch++
	l.head, l.tail, l.unmarked, l.first, l.watch = 0, 0, false, 0, rdmadev.Watch{}
	s := ibv.QPSpec{Type: ibv.RC, SendCQ: p.cq, RecvCQ: p.cq, SendWRs: len(l.ring) + 1, RecvWRs: int(l.in.depth),
		SendSGEs: 1, RecvSGEs: 1}
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
	if l.index > 0 {
		a.Access = remote(path.Read | path.Write)
	}
	return l.qp.Init(a)
}

// join connects a queue pair to the peer's.
func (p *Path) join(l *queuePair, to qpAddress) error {
	mtu := min(p.dev.port.ActiveMTU, ibv.MTU(p.peer.mtu))
	reads := min(p.dev.attr.MaxRdAtomic, 16)
	err := l.qp.ReadyToReceive(ibv.RTRAttr{To: p.dev.way(&p.peer), RemoteQPN: to.qpn, PSN: to.psn, PathMTU: mtu,
		MaxDestRdAtomic: uint8(reads), MinRNRTimer: 12})
	if err != nil {
		return err
	}
	return l.qp.ReadyToSend(ibv.RTSAttr{PSN: l.psn, Timeout: uint8(cmp.Or(p.o.Timeout, DefaultTimeout)),
		RetryCount: retries, RNRRetry: 6,
		MaxRdAtomic: uint8(min(p.dev.attr.MaxInitRdAtomic, 16, int(p.peer.reads)))})
}
