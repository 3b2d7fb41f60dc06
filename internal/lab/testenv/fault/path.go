package fault

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
)

// reorderFor is how long a completion is held back at most when later ones do not come.
const reorderFor = 50 * time.Millisecond

// Path is a path under a plan. It keeps the contract of path.Path with every kind but Drop,
// Duplicate and Corrupt; with Refuse it departs from one reading of package pathtest, that a fresh
// path accepts exactly its window in a row. Like every path it has one owner; Stall, Resume and Log
// may be called from any goroutine.
type Path struct {
	path.Path
	s       *script
	rec     recorder
	ep      *sys.Epoll
	window  int
	pending int // accepted and not reported
	inner   int // of these, not yet ended by the wrapped path

	now      effects // what happens to the operation at the script's position
	resolved bool    // now is valid
	marks    []mark  // what is to happen to completions
	held     []heldEvent
	down     *path.Event // waits for what is held
	single   uint64      // so many polls report one event
	closed   bool
	gone     bool // EventDown was reported
	hidden   bool // the wrapped path's descriptor is not watched: it is stalled

	posted, failed, full atomic.Uint64 // what the wrapped path does not know of

	mu      sync.Mutex // guards what follows
	bell    int        // eventfd; -1 when it is closed
	timer   *time.Timer
	stalled bool
	until   time.Time // end of a planned stall
}

// effects are what the plan wants of one operation.
type effects struct {
	mark
	cut, refuse, fail bool
	any               bool
}

// mark is what is to happen to the completion of an operation.
type mark struct {
	token          uint64
	wait           time.Duration
	polls, after   uint64 // held back for so many polls, or later completions
	lose, twice    bool
	damage         uint64
	bits           uint64
	span           mem.Span
	marked         bool
	reorder, delay bool
}

// heldEvent is a completion that is reported later.
type heldEvent struct {
	e            path.Event
	due          time.Time // zero: no wait for time
	polls, after uint64
	late         bool // until later ones have passed
}

// NewPath wraps a path, which belongs to the result from then on, also when there is an error.
// number is what rules call conn, from 1.
func NewPath(p path.Path, plan Plan, number int) (*Path, error) {
	w := p.Capabilities().Window
	x := &Path{Path: p, s: plan.script(Operations, number, Up), bell: -1, window: w,
		marks: make([]mark, 0, w), held: make([]heldEvent, 0, 2*w+1)}
	err := plan.Check(Operations)
	if err == nil {
		err = x.open()
	}
	if err != nil {
		x.closeEvents()
		return nil, errors.Join(err, p.Close())
	}
	return x, nil
}

func (p *Path) open() (err error) {
	if p.ep, err = sys.NewEpoll(); err != nil {
		return err
	}
	if p.bell, err = sys.Eventfd(); err != nil {
		return err
	}
	if err = p.ep.Add(p.bell, sys.EventIn, 0); err != nil {
		return err
	}
	p.timer = time.AfterFunc(time.Hour, p.ring)
	p.timer.Stop()
	return p.ep.Add(p.Path.FD(), sys.EventIn, 1)
}

func (p *Path) closeEvents() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.bell >= 0 {
		sys.Close(p.bell)
		p.bell = -1
	}
	if p.ep != nil {
		p.ep.Close()
		p.ep = nil
	}
}

// ring makes FD readable until the next Poll.
func (p *Path) ring() {
	p.mu.Lock()
	if p.bell >= 0 {
		sys.Ring(p.bell)
	}
	p.mu.Unlock()
}

// resolve finds out what is to happen at the position of the next operation.
func (p *Path) resolve() {
	if p.resolved {
		return
	}
	p.resolved, p.now = true, effects{}
	f := &p.now
	for {
		_, e, ok := p.s.step(0)
		if !ok {
			return
		}
		p.rec.add(e)
		f.any = true
		switch e.Kind {
		case Cut:
			f.cut = true
		case Refuse:
			f.refuse = true
		case Fail:
			f.fail = true
		case Stall:
			p.stall(e.For)
		case Short:
			p.single = e.N
		case Delay:
			f.marked, f.delay, f.wait = true, true, e.For
			if e.For == 0 {
				f.polls = e.N
			}
		case Reorder:
			f.marked, f.reorder, f.after, f.wait = true, true, e.N, e.For
			if e.For == 0 {
				f.wait = reorderFor
			}
		case Drop:
			f.marked, f.lose = true, true
		case Duplicate:
			f.marked, f.twice = true, true
		case Corrupt:
			f.marked, f.damage, f.bits = true, e.N, e.Bits
		}
	}
}

// Post hands operations to the wrapped path, as far as the plan lets it.
func (p *Path) Post(ops []path.Op) (int, error) {
	n := 0
	for n < len(ops) {
		if p.gone || p.closed {
			k, err := p.Path.Post(ops[n:])
			return n + k, err
		}
		if p.pending >= p.window {
			p.full.Add(1)
			return n, path.ErrFull
		}
		p.resolve()
		f := &p.now
		if f.refuse && p.pending > 0 {
			f.refuse = false
			p.full.Add(1)
			return n, fmt.Errorf("%w: %w", path.ErrFull, ErrInjected)
		}
		if f.cut {
			f.cut = false
			p.Path.Close()
			p.ring()
		}
		if f.fail {
			p.fail(&ops[n])
			n++
			continue
		}
		run := 1
		if !f.any {
			run = int(min(p.s.clear(), uint64(len(ops)-n), uint64(p.window-p.pending)))
		}
		k, err := p.Path.Post(ops[n : n+run])
		if k > 0 {
			if f.marked {
				f.token = ops[n].Token
				if len(ops[n].Copies) > 0 && ops[n].Kind == path.Get {
					f.span = ops[n].Copies[0].Local
				}
				p.marks = append(p.marks, f.mark)
			}
			p.accepted(k)
			p.inner += k
			n += k
		}
		if k < run {
			return n, err
		}
	}
	return n, nil
}

func (p *Path) accepted(k int) {
	p.s.step(uint64(k))
	p.rec.passed(Up, k)
	p.resolved = false
	p.pending += k
}

// fail accepts an operation that is not carried out.
func (p *Path) fail(op *path.Op) {
	p.posted.Add(1)
	p.accepted(1)
	p.held = append(p.held, heldEvent{e: path.Event{Kind: path.EventDone, Token: op.Token,
		Err: fmt.Errorf("%w: %w", path.ErrIntegrity, ErrInjected)}})
	p.ring()
}

// Poll reports what the wrapped path reports, but not always when it does.
func (p *Path) Poll(events []path.Event) int {
	p.mu.Lock()
	if p.bell >= 0 {
		sys.Unring(p.bell)
	}
	p.mu.Unlock()
	if len(events) == 0 || p.waits() {
		return 0
	}
	if p.single > 0 {
		p.single--
		events = events[:1]
	}
	for i := range p.held {
		p.held[i].polls -= min(p.held[i].polls, 1)
	}
	n := p.release(events)
	if n < len(events) && !p.gone && p.down == nil {
		k := p.Path.Poll(events[n:])
		end := n
		for _, e := range events[n : n+k] {
			if p.keep(&e) {
				continue
			}
			events[end] = e
			end++
		}
		n = end
		n += p.release(events[n:])
	}
	if n < len(events) && p.down != nil && len(p.held) == 0 {
		events[n] = *p.down
		p.down, p.gone = nil, true
		n++
	}
	for _, e := range events[:n] {
		if e.Kind == path.EventDone {
			p.pending--
		}
	}
	p.schedule()
	return n
}

// keep takes an event away from what is reported now.
func (p *Path) keep(e *path.Event) bool {
	switch e.Kind {
	case path.EventDown:
		down := *e
		p.down = &down
		return true
	case path.EventDone:
	default:
		return false
	}
	p.inner--
	for i := range p.held {
		p.held[i].after -= min(p.held[i].after, 1)
	}
	for i := range p.marks {
		m := p.marks[i]
		if m.token != e.Token {
			continue
		}
		p.marks = append(p.marks[:i], p.marks[i+1:]...)
		if m.damage > 0 && e.Err == nil && m.span.Region != nil {
			b := m.span.Bytes()
			for k := range min(m.damage, uint64(len(b))) {
				b[(m.bits+k)%uint64(len(b))] ^= 1
			}
		}
		if m.lose {
			p.pending--
			return true
		}
		if m.twice {
			p.pending++
			p.held = append(p.held, heldEvent{e: *e})
		}
		if !m.delay && !m.reorder {
			return false
		}
		h := heldEvent{e: *e, polls: m.polls, after: m.after, late: m.reorder}
		if m.wait > 0 {
			h.due = time.Now().Add(m.wait)
		}
		p.held = append(p.held, h)
		return true
	}
	return false
}

// release reports held events whose time has come.
func (p *Path) release(events []path.Event) (n int) {
	var now time.Time
	for i := 0; i < len(p.held) && n < len(events); {
		h := &p.held[i]
		if now.IsZero() && !h.due.IsZero() {
			now = time.Now()
		}
		if !p.due(h, now) {
			i++
			continue
		}
		events[n] = h.e
		n++
		if errors.Is(h.e.Err, ErrInjected) {
			p.failed.Add(1)
		}
		p.held = append(p.held[:i], p.held[i+1:]...)
	}
	return n
}

func (p *Path) due(h *heldEvent, now time.Time) bool {
	switch {
	case p.closed, p.down != nil:
		return true
	case h.polls > 0:
		return false
	case h.due.IsZero():
		return true
	case !now.Before(h.due):
		return true
	}
	// Held until later ones have passed: there are none to come, or they came.
	return h.late && (h.after == 0 || p.inner == 0)
}

// waits reports whether the path is stalled, and watches the wrapped path's descriptor only when it
// is not.
func (p *Path) waits() bool {
	p.mu.Lock()
	if p.stalled && !p.until.IsZero() && !time.Now().Before(p.until) {
		p.stalled = false
	}
	s := p.stalled && !p.closed
	p.mu.Unlock()
	if s != p.hidden && p.ep != nil {
		p.hidden = s
		var what uint32
		if !s {
			what = sys.EventIn
		}
		p.ep.Set(p.Path.FD(), what, 1) // fails when the path is down, which rang
	}
	return s
}

// schedule sets the timer for the first thing that waits for time.
func (p *Path) schedule() {
	var first time.Time
	for i := range p.held {
		if d := p.held[i].due; !d.IsZero() && (first.IsZero() || d.Before(first)) {
			first = d
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled && !p.until.IsZero() && (first.IsZero() || p.until.Before(first)) {
		first = p.until
	}
	if p.bell >= 0 && !first.IsZero() {
		p.timer.Reset(max(time.Until(first), 0))
	}
}

// Arm prepares for sleeping; see path.Path.
func (p *Path) Arm() bool {
	if p.waits() {
		p.schedule()
		return false
	}
	now := time.Now()
	for i := range p.held {
		if h := &p.held[i]; h.polls > 0 || p.due(h, now) {
			return true
		}
	}
	if p.down != nil || p.single > 0 && p.pending > 0 {
		return true
	}
	if p.gone || p.closed {
		return p.Path.Arm()
	}
	p.schedule()
	return p.Path.Arm()
}

// FD is the descriptor to wait for; -1 after Close.
func (p *Path) FD() int {
	if p.ep == nil {
		return -1
	}
	return p.ep.FD()
}

// Cancel cancels an operation; one whose completion is held back has ended, and is only not
// reported yet.
func (p *Path) Cancel(token uint64) bool {
	for i := range p.held {
		if p.held[i].e.Token == token {
			return true
		}
	}
	return p.Path.Cancel(token)
}

// Borrow passes on to the wrapped path if it lends.
func (p *Path) Borrow(key path.Key, off, n uint64) (path.View, error) {
	b, ok := p.Path.(path.Borrower)
	if !ok {
		return path.View{}, fmt.Errorf("%s cannot lend: %w", p.Name(), path.ErrUnreachable)
	}
	return b.Borrow(key, off, n)
}

// Exposed are the exports that the peer of a closed path may still reach; see shm.Path.Exposed.
func (p *Path) Exposed() []path.Key {
	if x, ok := p.Path.(interface{ Exposed() []path.Key }); ok {
		return x.Exposed()
	}
	return nil
}

// ExposedFD is that of the wrapped path; see shm.Path.ExposedFD.
func (p *Path) ExposedFD() int {
	if x, ok := p.Path.(interface{ ExposedFD() int }); ok {
		return x.ExposedFD()
	}
	return -1
}

// Forget has the wrapped path give up what it keeps to answer Exposed; see shm.Path.Forget.
func (p *Path) Forget() {
	if x, ok := p.Path.(interface{ Forget() }); ok {
		x.Forget()
	}
}

// Stats are those of the wrapped path and of the operations that were kept from it.
func (p *Path) Stats() path.Stats {
	s := p.Path.Stats()
	s.OpsPosted += p.posted.Load()
	s.OpsFailed += p.failed.Load()
	s.WindowFull += p.full.Load()
	return s
}

// Explain adds what was done to the path.
func (p *Path) Explain() []string {
	return append(p.Path.Explain(), "under injected faults: "+p.Log().Counts.String())
}

// Close ends the path. What was held back is reported by the next polls.
func (p *Path) Close() error {
	if p.closed {
		return p.Path.Close()
	}
	p.closed = true
	err := p.Path.Close()
	p.closeEvents()
	return err
}

// Stall stops the path's progress until Resume: Poll does nothing.
func (p *Path) Stall() {
	p.rec.add(Event{Kind: Stall, Dir: Up})
	p.stall(0)
	p.ring()
}

func (p *Path) stall(d time.Duration) {
	p.mu.Lock()
	p.stalled, p.until = true, time.Time{}
	if d > 0 {
		p.until = time.Now().Add(d)
	}
	p.mu.Unlock()
}

// Resume ends a stall, also a planned one.
func (p *Path) Resume() {
	p.mu.Lock()
	p.stalled = false
	p.mu.Unlock()
	p.ring()
}

// Log is what was done until now.
func (p *Path) Log() Log { return p.rec.snapshot() }
