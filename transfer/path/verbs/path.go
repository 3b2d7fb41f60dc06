package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Sizes of queues. A control connection has as many receives as it may have to take messages from a
// peer that is ahead; queue pairs take notifications only.
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
	qp   int32 // the receive that holds the message, -1 for none
	slot int32
}

// Path is one path over RDMA. It implements path.Path.
type Path struct {
	dev       *device
	dom       *domain
	peerReach path.Reach
	peer      description
	window    int
	o         *Options
	began     time.Time

	channel *ibv.Channel
	cq      *ibv.CQ
	ep      *sys.Epoll
	bell    int
	arena   arena
	ctl     *queuePair
	data    []*queuePair
	qps     []*queuePair // ctl and queue pairs
	inline  int
	wc      [pollBatch]ibv.WC
	frame   frame // being written
	in      frame // being read

	works     []work
	freeWorks []int32
	lists

	reaches map[path.Key]*reach
	last    *reach
	asks    []*reach
	asking  int
	givens  map[path.Key]*given
	binds   []*given
	answers []answer
	revoked []path.Key

	owed     bool                // the peer asked for a flush, and has no answer yet
	verdict  uint8               // of the flush that it asked for
	untrue   error               // why a notification cannot be reported: the path ends with it
	flushers map[mem.Flusher]int // flushes that exports need which the peer may write: for how many
	// unseenBefore is why an accelerator did not take what was written into an export that was
	// fenced since.
	unseenBefore error

	locals     map[part]*local // those that requests use
	lastLocal  *local
	freeLocals []*local
	ahead      uint64 // bytes of bulk operations at the adapter
	completed  uint64 // since the tuner was told
	tuner      tuner  // of bulk operations

	inlineTuner tuner // of short writes
	short       shortMeter

	events  []queued // ring
	evHead  int
	evCount int
	lent    []queued // whose messages the owner may still read

	armed    bool
	rung     bool
	polls    uint
	greeting greeting
	err      error
	closed   bool
	urgent   atomic.Pointer[error] // why the device cannot go on, for Poll

	watchTimer int // of the next look, -1 for none
	watchEvery time.Duration
	lookAt     time.Duration // since began
	heard      uint32        // messages of the control connection that had come at the last look
	waited     int           // looks since the peer owes an answer
	lost       error         // a message that came: the path ends with it
	probes     uint64        // requests that were made to see whether the adapter still ends them

	repairs int // since an operation got on

	published // as the owner knows it
	dirty     bool
	mu        sync.Mutex // guards what other goroutines may read
	pub       published
	lines     []string
	// closedKeys are exports that the peer's adapter could not reach.
	closedKeys map[path.Key]struct{}
	remarks    []string
}

// published is what other goroutines may read.
type published struct {
	st       path.Stats
	found    tuned
	replaced uint64 // queue pairs
	resumed  uint64 // operations
	why      error  // the last queue pair was replaced
}

var errClosed = fmt.Errorf("verbs: closed on this side: %w", path.ErrDown)

// newPath makes the queue pairs of one end, which know their peer only after start.
func newPath(dev *device, cfg setup.Config, o *Options, window, qps int) (_ *Path, err error) {
	looks := cmp.Or(o.looks, rdmadev.WatchEvery)
	p := &Path{dev: dev, peerReach: cfg.Reach(), window: window, o: o, bell: -1, watchTimer: -1, watchEvery: looks,
		lookAt: looks,
		began:  time.Now(), locals: map[part]*local{},
		reaches: map[path.Key]*reach{}, givens: map[path.Key]*given{}, flushers: map[mem.Flusher]int{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.release())
		}
	}()
	if p.dom, err = dev.domain(); err != nil {
		return nil, err
	}
	p.tuner = newTuner(o)
	depth := o.ring()
	if n := dev.attr.MaxQPWR; n > 0 && depth > n {
		return nil, fmt.Errorf("verbs: %d requests in a queue: device %s has at most %d: %w", depth, dev.ctx.Name(), n,
			path.ErrUnavailable)
	}
	if err = p.arena.open(p.dom, ctlDepth+ctlSends+qps*(msgDepth+msgSends)); err != nil {
		return nil, err
	}
	if p.channel, err = dev.ctx.CreateChannel(); err != nil {
		return nil, err
	}
	entries := ctlDepth + ctlSends + qps*(depth+1+msgDepth)
	if p.cq, err = dev.ctx.CreateCQ(ibv.CQSpec{Entries: entries, Channel: p.channel}); err != nil {
		return nil, err
	}
	if err = p.open(); err != nil {
		return nil, err
	}
	for i := range qps + 1 {
		recvs, sends, ring := msgDepth, msgSends, depth
		if i == 0 {
			recvs, sends, ring = ctlDepth, ctlSends, ctlSends
		}
		l := &queuePair{p: p, index: i, gen: 1, ring: make([]record, ring),
			plan: make([]request, 0, batchMax+keepSmall)}
		first := p.arena.slots(recvs)
		l.in, l.order = debt{depth: uint32(recvs)}, make([]int32, recvs)
		p.qps = append(p.qps, l)
		for s := range recvs {
			l.recvs = append(l.recvs, int32(first+s))
		}
		for s, first := 0, p.arena.slots(sends); s < sends; s++ {
			l.frames = append(l.frames, int32(first+s))
		}
		if l.chain, err = ibv.NewSendChain(ring+1, ring+1); err != nil {
			return nil, err
		}
		if l.rchain, err = ibv.NewRecvChain(recvs, recvs); err != nil {
			return nil, err
		}
		if err = p.makeQP(l); err != nil {
			return nil, err
		}
		l.restock(false)
		if err = p.err; err == nil && l.repl.failed {
			err = p.why
		}
		if err != nil {
			return nil, err
		}
	}
	if p.inlineTuner = newInlineTuner(o, uint64(p.inline)); p.inlineTuner.fixed() {
		p.short.skip = math.MaxInt
	}
	p.pub.found = p.tuned()
	p.ctl, p.data = p.qps[0], p.qps[1:]
	return p, nil
}

func (p *Path) open() (err error) {
	if p.ep, err = sys.NewEpoll(); err != nil {
		return err
	}
	if p.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	for _, fd := range []int{p.bell, p.channel.FD(), p.dev.ctx.AsyncFD()} {
		if err = p.ep.Add(fd, sys.EventIn, uint64(fd)); err != nil {
			return err
		}
	}
	return nil
}

// start connects all queue pairs to those of the peer.
func (p *Path) start(peer description) error {
	p.peer = peer
	p.window = min(p.window, int(peer.window))
	for i, l := range p.qps {
		to, depth := peer.control, uint32(peer.ctlDepth)
		if i > 0 {
			to, depth = peer.data[i-1], uint32(peer.msgDepth)
		}
		l.out = credits{depth: depth}
		if err := p.join(l, to); err != nil {
			return err
		}
	}
	p.works = make([]work, p.window)
	msgs := make([]byte, p.window*path.MaxMessage)
	for k := range p.works {
		p.works[k].msg = msgs[k*path.MaxMessage : (k+1)*path.MaxMessage]
		p.freeWorks = append(p.freeWorks, int32(p.window-1-k))
	}
	notices := ctlDepth + len(p.data)*msgDepth
	p.events = make([]queued, p.window+notices+1)
	p.lent = make([]queued, 0, notices)
	p.explain()
	p.dev.enter(p)
	return nil
}

// Name is "verbs".
func (p *Path) Name() string { return Name }

// Carrier is the adapter and the service that carries puts. It makes the path a path.Carrier.
func (p *Path) Carrier() string {
	return fmt.Sprintf("%s port %d, RC", p.dev.ctx.Name(), p.dev.port.Port)
}

// Capabilities are those of the adapter, which places the bytes. Nothing is encrypted: only what
// the adapter turns round stays on this machine.
func (p *Path) Capabilities() path.Capabilities {
	c := path.Capabilities{OneSided: true, Proof: path.ProofICRC, Window: p.window, MaxMessage: path.MaxMessage}
	if p.peer.gid == p.dev.raw {
		c.Security = path.SecurityHost
	}
	return c
}

// Reaches accepts every export: whether its memory can be registered, the peer's adapter says when
// it is used first.
func (p *Path) Reaches(path.Desc) error { return nil }

// FD is the epoll instance that holds the completion channel and the device's events; -1 after
// Close.
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
		p.move()
		p.ring()
	}
	p.publish()
	return n, err
}

// move does what can be done without more news: repairs, bindings, frames, requests. Repairs come
// first: Arm may have taken in that the peer is ready on a new queue pair, and that it asks for an
// export there. The peer asks once, so the answer must have the key.
func (p *Path) move() {
	if p.err == nil {
		p.repair()
	}
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

// publish ends a call: other goroutines see what changed.
func (p *Path) publish() {
	if invariants.Enabled {
		p.verify()
	}
	if !p.dirty {
		return
	}
	p.dirty = false
	p.found = p.tuned()
	p.mu.Lock()
	p.pub = p.published
	p.mu.Unlock()
}

// Stats may be called from any goroutine.
func (p *Path) Stats() path.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pub.st
}
