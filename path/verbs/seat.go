package verbs

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// turnMost is how much a path posts while others wait: requests, and one more for each 64 KiB of theirs.
const turnMost = 256

// seat is a path at a pool of initiators. It has one at most. It gives it up only when all of its requests are acknowledged, so what
// it posts later by another one comes behind them: requests of one initiator to one target stay in order, and so do those of a seat.
type seat struct {
	p      *Path
	pool   *pool
	i      *initiator // nil: none. While not busy, it may be another's already.
	busy   bool       // it is this seat's alone
	waits  bool       // in line
	late   bool       // called, before what the owner does now
	gone   bool
	out    int  // requests planned, or posted and not over
	turn   int  // what was posted since busy
	yields bool // others wait, and the turn is over. Changes with a request only: who has found room may post.
	aborts int  // counts those of abort

	set   bool // the queue of completions was armed, and its event not seen
	stray bool // it may have been armed before, and tell for no reason

	reqs []ibv.DCRequest
	sges []ibv.SGE
	wc   [pollBatch]ibv.WC

	called  atomic.Bool // granted is set
	inLine  bool        // guarded by pool.mu, as what follows
	granted *initiator
	waited  uint64
}

// sit gives a path its seats.
func (d *dynamic) sit(p *Path) {
	for _, q := range d.pools {
		p.seats = append(p.seats, &seat{p: p, pool: q, reqs: make([]ibv.DCRequest, batchMax+keepSmall), sges: make([]ibv.SGE, batchMax+keepSmall)})
	}
	p.seated = true
	d.paths.Add(1)
}

// ready says that this seat may post. If not, it is in line, or what is under way has to end because others are.
func (s *seat) ready() bool {
	if s.busy {
		if !s.yields {
			return true
		}
		if s.out > 0 {
			return false
		}
		s.rest()
	}
	if s.gone || s.waits && !s.called.Load() {
		return false
	}
	return s.hold() || s.lease()
}

// hold takes the initiator up again that rests here, if no other seat has taken it.
func (s *seat) hold() bool {
	if s.busy || s.i == nil {
		return s.busy
	}
	if !s.i.rests.CompareAndSwap(s, nil) {
		s.drop()
		return false
	}
	s.busy, s.turn, s.yields = true, 0, false
	return true
}

// lease takes one of the pool, or gets in line.
func (s *seat) lease() bool {
	i := s.pool.lease(s)
	s.waits = i == nil
	if s.waits {
		return false
	}
	s.i, s.busy, s.turn, s.yields, s.set, s.stray = i, true, 0, false, false, true
	fd := i.channel.FD()
	_, err := i.told() // what the one before was told and did not take in; it may have asked once more, which is stray
	if err == nil {
		err = s.p.ep.Add(fd, sys.EventIn, uint64(fd))
	}
	if err == nil && i.failed {
		err = i.mend()
	}
	if err != nil { // not here, in the middle of another call: Poll ends it
		s.p.fault = fmt.Errorf("verbs: %w: no initiator: %w", path.ErrDown, err)
		s.busy = false
		s.drop()
		s.pool.giveBack(i)
		return false
	}
	return true
}

// rest lets go of the initiator when nothing is under way: another seat may take it.
func (s *seat) rest() {
	if !s.busy || s.out > 0 {
		return
	}
	i := s.i
	s.busy = false
	i.rests.Store(s)
	if s.pool.waiting.Load() > 0 {
		s.pool.offer(false)
		if i.rests.Load() != s {
			s.drop()
		}
	}
}

// drop forgets an initiator that is another's now.
func (s *seat) drop() {
	s.p.ep.Remove(s.i.channel.FD())
	s.i, s.set, s.stray = nil, false, false
}

// leave gives everything back. What is under way ends here, so that nothing reads or writes memory of this side any more.
func (s *seat) leave() (err error) {
	if s.gone {
		return nil
	}
	s.gone, s.waits = true, false
	s.pool.quit(s)
	i := s.i
	if i == nil {
		return nil
	}
	mine := s.busy || i.rests.CompareAndSwap(s, nil)
	if mine && (s.out > 0 || i.failed) {
		err = i.mend()
	}
	s.busy, s.out = false, 0
	s.drop()
	if mine {
		s.pool.giveBack(i)
	}
	return err
}

// arm has the queue of completions report the next one.
func (s *seat) arm() error {
	if s.set {
		return nil
	}
	s.set = true
	return s.i.cq.Arm(false)
}

// calm takes the events of the queue of completions. Only the seat that has the initiator may: another takes what that one waits for.
func (s *seat) calm() error {
	if s.i != nil && !s.busy && s.i.rests.Load() != s {
		s.drop() // what another seat does not take in would keep this owner awake
	}
	if s.i == nil || !s.set && !s.stray || !s.hold() {
		return nil
	}
	told, err := s.i.told()
	if err != nil {
		return err
	}
	s.stray = s.set && s.stray || !told && (s.set || s.stray) // each arming tells once, at some time
	s.set = false
	return nil
}

// told takes the events of the queue of completions, for the seat that has the initiator.
func (i *initiator) told() (told bool, err error) {
	for {
		_, ok, err := i.channel.Next()
		if err != nil {
			return told, err
		}
		if !ok {
			break
		}
		told = true
	}
	if told {
		i.cq.Ack()
	}
	return told, nil
}

// settle is the end of what the owner called: what the path does not need is let go, also what came too late to be needed.
func (s *seat) settle() {
	if s.late && s.waits && s.called.Load() {
		s.lease()
	}
	s.late = false
	s.rest()
}

// settleSeats is the end of what the owner called.
func (p *Path) settleSeats() {
	for _, s := range p.seats {
		s.settle()
	}
}

// abort ends what is at the data initiator, since a request failed or a rail went. What became of the rest is not known, so each rail that had a
// part in it is replaced.
func (s *seat) abort(why error) error {
	if !s.busy || s.out == 0 && !s.i.failed {
		return nil
	}
	s.aborts++
	if err := s.i.mend(); err != nil {
		return err
	}
	hit := uint32(0)
	for _, l := range s.p.rails {
		if l.head != l.tail || len(l.plan) > 0 {
			hit |= 1 << l.index
		}
		l.unplan(0)
		for l.tail != l.head {
			l.retire(false)
		}
	}
	for _, l := range s.p.rails {
		if hit&(1<<l.index) != 0 {
			l.rail.failed = true
			s.p.broken(l, why)
		}
	}
	return nil
}

// initiate posts the plan of a link.
func (l *link) initiate(interval int) (int, error) {
	s := l.seat
	for len(s.reqs) < len(l.plan) {
		s.reqs, s.sges = append(s.reqs, ibv.DCRequest{}), append(s.sges, ibv.SGE{})
	}
	for i := range l.plan {
		r, q := &l.plan[i], &s.reqs[i]
		s.sges[i] = r.sge
		*q = ibv.DCRequest{ID: l.id(l.head + uint32(i)), Flags: l.flags(i, interval), To: l.to, RemoteAddr: r.raddr, RKey: r.rkey, SGEs: s.sges[i : i+1]}
		switch r.kind {
		case kindFrame, kindNotify:
			q.Op = ibv.DCSend
		case kindWrite:
			q.Op = ibv.DCWrite
		case kindWriteImm:
			q.Op, q.Imm = ibv.DCWriteImm, r.imm
		case kindRead:
			q.Op = ibv.DCRead
		case kindNudge:
			q.Op, q.SGEs = ibv.DCWrite, nil
		}
	}
	if l.p.armed { // who waits for this already sleeps as if it were not there
		if err := s.arm(); err != nil {
			return 0, err
		}
	}
	if err := s.i.dci.Post(s.reqs[:len(l.plan)]); err != nil {
		return 0, err
	}
	return len(l.plan), nil
}

// ended takes in what the initiators have done, and returns how many completions there were.
func (p *Path) ended() (total int) {
	for _, s := range p.seats {
		for k := 0; k < pollMax && s.busy && s.out > 0; k++ {
			n, err := s.i.cq.Poll(s.wc[:])
			if err != nil {
				s.i.failed = true
				p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
				return total
			}
			total += n
			aborts := s.aborts
			for j := 0; j < n && s.aborts == aborts; j++ { // behind an abort come only those that it has counted as lost
				p.completion(&s.wc[j])
				if p.err != nil {
					return total
				}
			}
			if n < len(s.wc) {
				break
			}
		}
	}
	return total
}

// makeTarget makes what the peer's requests for a link reach: a target with receives of its own.
func (p *Path) makeTarget(l *link) (err error) {
	if l.srq, err = p.dom.pd.CreateSRQ(ibv.SRQSpec{WRs: int(l.in.depth), SGEs: 1}); err != nil {
		return err
	}
	l.psn = uint32(random64())
	if l.gen == 1 && l.epoch == 1 { // a hello by the connection manager has no room for it
		l.psn = cmKey(p.nonce, l.index)
	}
	l.target, err = p.dyn.dc.CreateTarget(p.dom.pd, ibv.DCTargetSpec{SRQ: l.srq, CQ: p.cq, Key: uint64(l.psn), Access: remote(l.serves), Port: uint8(p.dev.port.Port),
		SGIDIndex: uint8(p.dev.gid.Index), PathMTU: p.dev.port.ActiveMTU, MinRNRTimer: 12})
	return err
}

// aim directs a link's requests to the peer's target.
func (p *Path) aim(l *link, to endpoint) error {
	switch {
	case to.qpn == 0:
		return malformed("target 0 of link %d", l.index)
	case p.dev.port.ActiveMTU != ibv.MTU(p.peer.mtu):
		return fmt.Errorf("the MTU here is %s and the peer's %s, and initiators serve all peers with one: set both to the same, or take RC: %w",
			p.dev.port.ActiveMTU, ibv.MTU(p.peer.mtu), path.ErrUnavailable)
	}
	if p.ah == nil {
		var err error
		if p.ah, err = p.dyn.dom.pd.CreateAH(ibv.AHSpec{To: p.dev.way(&p.peer)}); err != nil {
			return err
		}
	}
	l.to = ibv.DCAddress{AH: p.ah, Target: to.qpn, Key: uint64(to.psn)}
	return nil
}

// shut closes a link's target: nothing lands through it any more. What had arrived is among the completions, and all of it was seen when their
// queue was once found empty afterwards. The receives that were not used stay at the shared queue until that is closed.
func (l *link) shut() error {
	if l.target == nil {
		return nil
	}
	err := l.target.Close()
	if err == nil {
		l.target, l.shutAt = nil, l.p.looks
	}
	return err
}

// seen says that all that came by the link's target, which is closed, was taken in.
func (l *link) seen() bool { return l.srq != nil && l.target == nil && l.p.emptyAt > l.shutAt }

// destroyTarget gives the target and its receives back.
func (l *link) destroyTarget() error {
	if err := l.shut(); err != nil {
		return err
	}
	if l.srq == nil {
		return nil
	}
	err := l.srq.Close()
	l.srq = nil
	for ; l.posted > 0; l.posted-- {
		l.recvs = append(l.recvs, l.order[l.first])
		l.first = (l.first + 1) % len(l.order)
	}
	return err
}
