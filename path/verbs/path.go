package verbs

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// Sizes of queues. A control connection has as many receives as it may have to take messages from a peer that is ahead; rails take
// notifications only.
const (
	ctlDepth  = 136
	ctlSends  = 64
	msgDepth  = 64
	msgSends  = 32
	pollBatch = 32
	pollMax   = 8 // batches in one call
	asyncTurn = 1024
)

// queued is an event that Poll has not reported yet, and what it gives back.
type queued struct {
	path.Event
	work int32 // the operation, -1 for none
	link int32 // the receive that holds the message, -1 for none
	slot int32
}

// Path is one path over RDMA. It implements path.Path.
type Path struct {
	dev       *device
	dom       *domain
	peerReach path.Reach
	peer      params // what the other side said of itself
	transport Transport
	window    int
	o         *Options
	began     time.Time

	// With DC: what the device has for it, the seats for control and data, the way to the peer.
	dyn    *dynamic
	seats  []*seat
	seated bool // counted among the paths of dyn
	ah     *ibv.AH
	fault  error  // why there is no initiator: Poll ends the path with it
	nonce  uint64 // of the hello

	source  *domain // of what requests of this side read and write
	channel *ibv.Channel
	cq      *ibv.CQ // of receives, and of requests but with DC
	looks   uint64  // into cq
	emptyAt uint64  // the last one that found it empty
	ep      *sys.Epoll
	bell    int
	arena   arena
	ctl     *link
	rails   []*link
	links   []*link // ctl and rails
	inline  int
	wc      [pollBatch]ibv.WC
	frame   frame // being written
	in      frame // being read

	works     []work
	freeWorks []int32
	small     fifo
	bulk      fifo
	waiting   fifo // for an answer of the peer
	notes     fifo // for a frame that notifies the peer
	unseen    fifo // complete puts that the peer's accelerator does not see before a flush
	flushing  fifo // of these, the ones for which the peer was asked

	reaches map[path.Key]*reach
	last    *reach
	asks    []*reach
	asking  int
	givens  map[path.Key]*given
	binds   []*given
	answers []answer
	revoked []path.Key

	asked    bool      // the peer was asked for a flush, and has not answered
	owed     bool      // it asked for one, and has no answer yet
	verdict  uint8     // of the flush that it asked for
	untrue   error     // why a notification cannot be reported: the path ends with it
	flushers []flusher // of exports that the peer may write
	// unseenBefore is why an accelerator did not take what was written into an export that was fenced since.
	unseenBefore error

	locals    [localsMax]local
	lastLocal int32
	localsTop int    // no entry of locals from here on is in use
	ahead     uint64 // bytes of bulk operations at the adapter
	completed uint64 // since the tuner was told
	tuner     tuner  // of bulk operations
	cost      costMeter

	inlineTuner tuner // of short writes
	short       shortMeter

	events  []queued // ring
	evHead  int
	evCount int
	lent    []queued // whose messages the owner may still read

	timer   int       // descriptor that wakes the owner when silence is to be broken; -1 where there is no UC
	timerAt time.Time // what it is set to; zero: nothing

	armed bool
	rung  bool
	polls uint
	hello uint64 // the dialer's first frame is to be sent with it; 0: it was
	// greeting is what the dialer's first frame has to say, until it came; 0 afterwards, and on the dialing side.
	greeting uint64
	err      error
	closed   bool
	urgent   atomic.Uint32 // what happened to the device, for Poll

	watchTimer int // of the next look, -1 for none
	watchEvery time.Duration
	lookAt     time.Duration // since began
	heard      uint32        // messages of the control connection that had come at the last look
	waited     int           // looks since the peer owes an answer
	lost       error         // a message that came: the path ends with it
	probes     uint64        // requests that were made to see whether the adapter still ends them
	rewritten  uint64        // pieces that were lost, and written again
	probed     uint64        // questions into silence

	repairs  int // since an operation got on
	replaced uint64
	resumed  uint64
	why      error

	dirty bool
	st    path.Stats
	mu    sync.Mutex // guards what other goroutines may read
	pub   published
	lines []string
	// closedKeys are exports that the peer's adapter could not reach.
	closedKeys map[path.Key]struct{}
	remarks    []string
}

// published is what other goroutines may read.
type published struct {
	stats             path.Stats
	cost              path.Cost
	tuned             Tuned
	replaced, resumed uint64
	why               error
	granted           int
	rewritten         uint64
	asked             uint64
	pieces            uint64
}

var errClosed = fmt.Errorf("verbs: closed on this side: %w", path.ErrDown)

// newPath makes the queue pairs of one end, which know their peer only after start.
func newPath(dev *device, cfg path.Config, o *Options, window, rails int, transport Transport) (_ *Path, err error) {
	p := &Path{dev: dev, peerReach: cfg.Reach(), window: window, o: o, transport: transport, bell: -1, timer: -1, watchTimer: -1, watchEvery: o.watch(), lookAt: o.watch(),
		began: time.Now(), lastLocal: -1, nonce: random64() | 1,
		reaches: map[path.Key]*reach{}, givens: map[path.Key]*given{}, small: newFIFO(), bulk: newFIFO(), waiting: newFIFO(), notes: newFIFO(), unseen: newFIFO(), flushing: newFIFO()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.release())
		}
	}()
	if p.dom, p.source, err = p.domains(); err != nil {
		return nil, err
	}
	p.tuner = newTuner(o)
	p.cost.init(dev.port.Speed)
	depth := o.ring()
	if n := dev.attr.MaxQPWR; n > 0 && depth > n {
		return nil, fmt.Errorf("verbs: %d requests in a queue: device %s has at most %d: %w", depth, dev.ctx.Name(), n, path.ErrUnavailable)
	}
	rails = min(rails, maxRails-transport.extra()) + transport.extra()
	if err = p.arena.open(p.dom, p.source, ctlDepth+ctlSends+rails*(msgDepth+msgSends)); err != nil {
		return nil, err
	}
	if p.channel, err = dev.ctx.CreateChannel(); err != nil {
		return nil, err
	}
	entries := ctlDepth + ctlSends + rails*(depth+1+max(msgDepth, transport.extra()*ucDepth))
	if p.cq, err = dev.ctx.CreateCQ(ibv.CQSpec{Entries: entries, Channel: p.channel}); err != nil {
		return nil, err
	}
	if err = p.open(); err != nil {
		return nil, err
	}
	if p.dyn != nil {
		p.dyn.sit(p)
	}
	for i := range rails + 1 {
		recvs, sends, ring := msgDepth, msgSends, depth
		if i == 0 {
			recvs, sends, ring = ctlDepth, ctlSends, ctlSends
		}
		l := &link{p: p, index: i, gen: 1, ring: make([]record, ring), plan: make([]request, 0, batchMax+keepSmall)}
		l.assign(rails)
		if p.dyn != nil {
			l.seat = p.seats[min(i, forData)]
		}
		first := 0
		if l.uc != nil { // it receives values only, and sends no frames
			recvs, sends = ucDepth, 0
		} else {
			first = p.arena.slots(recvs)
		}
		l.in, l.order = debt{depth: uint32(recvs)}, make([]int32, recvs)
		p.links = append(p.links, l)
		for s := range recvs {
			l.recvs = append(l.recvs, int32(first+s))
		}
		for s, first := 0, p.arena.slots(sends); s < sends; s++ {
			l.frames = append(l.frames, int32(first+s))
		}
		if l.seat == nil { // others have the seat's requests
			if l.chain, err = ibv.NewSendChain(ring+1, ring+1, 0); err != nil {
				return nil, err
			}
		}
		if l.rchain, err = ibv.NewRecvChain(recvs, recvs); err != nil {
			return nil, err
		}
		if err = p.makeQP(l); err != nil {
			return nil, err
		}
		l.restock(false)
		if err = p.err; err == nil && l.rail.failed {
			err = p.why
		}
		if err != nil {
			return nil, err
		}
	}
	if p.inlineTuner = newInlineTuner(o, p.inline); p.inlineTuner.fixed() {
		p.short.skip = math.MaxInt
	}
	p.pub.tuned = p.tuned()
	p.ctl, p.rails = p.links[0], p.links[1:]
	return p, nil
}

func (p *Path) open() (err error) {
	if p.ep, err = sys.NewEpoll(); err != nil {
		return err
	}
	if p.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	if err = p.openTimer(); err != nil {
		return err
	}
	for _, fd := range []int{p.bell, p.channel.FD(), p.dev.ctx.AsyncFD(), p.timer} {
		if fd < 0 { // a timer is for UC alone
			continue
		}
		if err = p.ep.Add(fd, sys.EventIn, uint64(fd)); err != nil {
			return err
		}
	}
	return nil
}

// start connects all queue pairs to those of the peer.
func (p *Path) start(peer params) error {
	p.peer = peer
	p.window = min(p.window, int(peer.window))
	for i, l := range p.links {
		to, depth := peer.control, uint32(peer.ctlDepth)
		if i > 0 {
			to, depth = peer.rail[i-1], l.depthOf(&peer)
		}
		l.out = credits{depth: depth}
		if err := p.join(l, to); err != nil {
			return err
		}
	}
	p.works = make([]work, p.window)
	for k := range p.works {
		p.freeWorks = append(p.freeWorks, int32(p.window-1-k))
	}
	notices := ctlDepth + len(p.rails)*msgDepth
	p.events = make([]queued, p.window+notices+1)
	p.lent = make([]queued, 0, notices)
	p.explain()
	p.dev.enter(p)
	return nil
}

// params are what this side says of itself.
func (p *Path) params(window int) params {
	d := p.dev
	q := params{gid: d.raw, lid: d.port.LID, window: uint32(window), ctlDepth: ctlDepth, msgDepth: msgDepth, rails: uint8(len(p.rails)),
		mtu: uint8(d.port.ActiveMTU), reads: uint8(min(d.attr.MaxRdAtomic, 16)), control: endpoint{p.ctl.num(), p.ctl.psn}}
	for i, l := range p.rails {
		q.rail[i] = endpoint{l.num(), l.psn}
	}
	if d.memory.Able() {
		q.flags |= flagDevices
	}
	switch p.transport {
	case UC:
		q.flags |= flagUC
	case DC:
		q.flags |= flagDC
	}
	return q
}

// Name is "verbs".
func (p *Path) Name() string { return Name }

// Capabilities are those of the adapter, which places the bytes; over UC a put is done when the peer's Poll has confirmed it. Nothing is encrypted: only what the adapter turns round stays on this machine.
func (p *Path) Capabilities() path.Capabilities {
	c := path.Capabilities{OneSided: true, Proof: path.ProofICRC, Window: p.window, MaxMessage: path.MaxMessage}
	if p.peer.gid == p.dev.raw {
		c.Security = path.SecurityHost
	}
	return c
}

// Reaches accepts every export: whether its memory can be registered, the peer's adapter says when it is used first.
func (p *Path) Reaches(path.Desc) error { return nil }

// FD is the epoll instance that holds the completion channel and the device's events; -1 after Close.
func (p *Path) FD() int {
	if p.closed {
		return -1
	}
	return p.ep.FD()
}

// Post hands operations over and posts requests for them. See path.Path.
func (p *Path) Post(ops []path.Op) (n int, err error) {
	for n < len(ops) {
		if p.err != nil {
			err = p.err
			break
		}
		if len(p.freeWorks) == 0 {
			p.st.WindowFull++
			p.dirty = true
			err = path.ErrFull
			break
		}
		if err = p.checkOp(&ops[n]); err != nil {
			break
		}
		p.accept(&ops[n])
		n++
	}
	if n > 0 {
		p.cost.posted(p, ops[:n])
		p.move()
		p.ring()
	}
	p.settleSeats()
	p.publish()
	if invariants.Enabled {
		p.verify()
	}
	return n, err
}

// move does what can be done without news: bindings, frames, requests.
func (p *Path) move() {
	if p.err != nil {
		return
	}
	if len(p.binds) > 0 {
		p.bind()
	}
	p.issue()
	if p.err == nil {
		p.control()
	}
}

// ring makes FD readable if a call while armed left something for Poll. The owner who sleeps is also to look whether what was posted gets on.
func (p *Path) ring() {
	switch {
	case !p.armed || p.rung:
	case p.evCount > 0 || p.err == nil && p.unfinished():
		p.rung = true
		sys.Ring(p.bell)
	case p.err == nil:
		p.guard()
	}
}

// Poll makes progress and reports events. See path.Path.
func (p *Path) Poll(events []path.Event) int {
	if p.closed {
		return p.report(events)
	}
	if p.armed {
		p.disarm()
	}
	p.takeBack()
	n := p.report(events)
	if p.err == nil {
		if p.polls++; p.polls%asyncTurn == 0 {
			p.dev.async()
			p.look()
		}
		if u := p.urgent.Load(); u != 0 {
			p.alarm()
		}
		if p.err == nil {
			p.collect()
		}
		if p.fault != nil && p.err == nil {
			p.down(p.fault)
		}
		if p.untrue == nil {
			p.untrue = p.lost
		}
		if p.untrue != nil && p.err == nil {
			p.goodbye()
			p.down(p.untrue)
		}
		if p.err == nil {
			p.repair()
			for _, l := range p.links {
				l.restock(true)
			}
			p.probe()
			p.move()
		}
		p.settleSeats()
		n += p.report(events[n:])
	}
	p.cost.reported(p, events[:n])
	p.publish()
	if invariants.Enabled {
		p.verify()
	}
	return n
}

// disarm empties what woke the owner.
func (p *Path) disarm() {
	p.armed = false
	if p.rung || p.seats != nil { // a call may ring after it was heard
		p.rung = false
		sys.Unring(p.bell)
	}
	for {
		_, ok, err := p.channel.Next()
		if err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return
		}
		if !ok {
			break
		}
	}
	for _, s := range p.seats {
		if err := s.calm(); err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return
		}
	}
	if p.err == nil {
		p.cq.Ack()
		p.dev.async()
		if p.watchTimer >= 0 {
			p.look()
		}
	}
}

// collect takes completions in, a bounded number in one call. It returns how many.
func (p *Path) collect() (total int) {
	if p.seats != nil {
		if total = p.ended(); p.err != nil {
			return total
		}
	}
	for range pollMax {
		p.looks++
		n, err := p.cq.Poll(p.wc[:])
		if err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return total
		}
		for i := range p.wc[:n] {
			p.completion(&p.wc[i])
			if p.err != nil {
				return total
			}
		}
		total += n
		if n < len(p.wc) {
			p.emptyAt = p.looks
			break
		}
	}
	if p.completed > 0 {
		p.tuner.moved(p.completed, time.Since(p.began))
		p.completed = 0
	} else if p.ahead == 0 {
		p.tuner.idle()
	}
	return total
}

// completion acts on one completion.
func (p *Path) completion(wc *ibv.WC) {
	id := wc.ID()
	index, epoch := int(id>>indexShift&0xff), uint32(id>>epochShift)&epochMask
	if index >= len(p.links) || p.links[index].epoch&epochMask != epoch {
		p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, malformedID(wc)))
		return
	}
	l := p.links[index]
	if id&recvBit == 0 {
		l.ended(uint32(id), wc)
		return
	}
	slot := int32(uint32(id))
	inOrder := l.came(slot)
	if wc.Status() != ibv.Success {
		l.recvs = append(l.recvs, slot)
		p.broken(l, wc.Err())
		return
	}
	if !inOrder {
		p.gap(l)
	}
	if p.lost != nil && l.index == 0 { // frames mean something in their order only
		l.recvs = append(l.recvs, slot)
		return
	}
	p.arrived(l, slot, wc.Len(), wc.Imm(), wc.Flags()&ibv.FlagImm != 0, wc.Opcode() == ibv.OpRecvWrite)
}

// queue keeps an event for the owner; there is room for all that can be.
func (p *Path) queue(q queued) {
	p.events[(p.evHead+p.evCount)%len(p.events)] = q
	p.evCount++
}

// report hands events out.
func (p *Path) report(events []path.Event) int {
	n := 0
	for ; n < len(events) && p.evCount > 0; n++ {
		q := &p.events[p.evHead]
		p.evHead = (p.evHead + 1) % len(p.events)
		p.evCount--
		events[n] = q.Event
		if q.work >= 0 {
			w := &p.works[q.work]
			w.used, w.op.Copies = false, nil
			p.freeWorks = append(p.freeWorks, q.work)
		}
		if q.link >= 0 {
			p.lent = append(p.lent, *q)
		}
		q.Event = path.Event{}
	}
	return n
}

// takeBack takes the messages back that the owner was lent until now.
func (p *Path) takeBack() {
	for i := range p.lent {
		p.links[p.lent[i].link].giveBack(p.lent[i].slot)
	}
	p.lent = p.lent[:0]
}

// Arm prepares for sleeping. See path.Path.
func (p *Path) Arm() bool {
	if p.err != nil || p.closed {
		return p.evCount > 0
	}
	if p.evCount > 0 || len(p.lent) > 0 {
		return true
	}
	if !p.armed {
		if err := p.cq.Arm(false); err != nil {
			p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
			return true
		}
		p.armed = true
		for _, s := range p.seats {
			if !s.busy {
				continue
			}
			if err := s.arm(); err != nil {
				p.down(fmt.Errorf("verbs: %w: %w", path.ErrDown, err))
				return true
			}
		}
	}
	// No event reports what came before it was armed.
	n := p.collect()
	if n > 0 || p.err != nil || p.unfinished() {
		return true
	}
	p.guard()
	p.setTimer()
	return false
}

// unfinished says that Poll has something to do without any news.
func (p *Path) unfinished() bool {
	for _, l := range p.links {
		if len(l.recvs) > 0 && !l.rail.failed && l.rail.state != railDrain {
			return true
		}
		if l.index > 0 && l.rail.state == railDrain && l.held == 0 && (l.idle() || l.srq != nil && l.head == l.tail) { // idle when Poll finds no more
			return true
		}
	}
	return p.urgent.Load() != 0 || p.fault != nil
}

// Cancel asks to end an operation early. See path.Path.
func (p *Path) Cancel(token uint64) bool {
	if p.err != nil && p.evCount == 0 || !p.cancelToken(token) {
		return false
	}
	p.settleSeats()
	p.ring()
	p.publish()
	if invariants.Enabled {
		p.verify()
	}
	return true
}

// publish lets other goroutines see what changed.
func (p *Path) publish() {
	if !p.dirty {
		return
	}
	p.dirty = false
	p.mu.Lock()
	p.pub = published{p.st, p.cost.cost, p.tuned(), p.replaced, p.resumed, p.why, len(p.givens), p.rewritten, p.probed, p.pieceLimit()}
	p.mu.Unlock()
}

// Stats may be called from any goroutine.
func (p *Path) Stats() path.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pub.stats
}

// Cost may be called from any goroutine.
func (p *Path) Cost() path.Cost {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pub.cost
}
