package pathtest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Pair is two connected ends under test.
type Pair struct {
	A, B *Side
	t    testing.TB
	f    Factory
}

// Side is one end: its path, its exports, and the record of everything that Poll reported. It is
// used by one goroutine at a time, like the path itself.
type Side struct {
	Name    string
	Path    path.Path
	Exports *path.Exports
	// Notices are the notifications received and not yet taken.
	Notices []Notice
	// Down is the reason in EventDown, nil before it.
	Down error

	t       testing.TB
	pair    *Pair
	next    uint64
	ops     map[uint64]*Result
	pending int
	polls   int
	posts   int
	exports []*path.Export // to retire in the end
	closed  bool
	onEvent func(*path.Event) // sees each event before anything else happens
	buf     [32]path.Event
}

// Notice is a copy of an EventNotify.
type Notice struct {
	Imm, Bytes uint64
	Msg        []byte
}

// Result is what became of one operation.
type Result struct {
	path.Event
	Times int // EventDones seen; 1 in the end
}

// NewPair connects two ends with the given window (0: the default). Its cleanup closes both ends
// and checks that each accepted operation ended exactly once and that EventDown came last.
func NewPair(t testing.TB, f Factory, window int) *Pair {
	f = f.defaults()
	var ca, cb setup.Config
	ca.Window, cb.Window = window, window
	return newPairConfig(t, f, ca, cb)
}

func newPair(t testing.TB, f Factory) *Pair { return NewPair(t, f, 0) }

func newPairConfig(t testing.TB, f Factory, ca, cb setup.Config) *Pair {
	t.Helper()
	p := &Pair{t: t, f: f}
	ca.Exports, cb.Exports = new(path.Exports), new(path.Exports)
	ca.Rights, cb.Rights = path.Read|path.Write, path.Read|path.Write
	p.A = &Side{Name: "a", Exports: ca.Exports, t: t, pair: p, ops: map[uint64]*Result{}}
	p.B = &Side{Name: "b", Exports: cb.Exports, t: t, pair: p, ops: map[uint64]*Result{}}
	pa, pb := f.New(t, ca, cb)
	if pa == nil || pb == nil {
		t.Fatal("Factory.New returned no path")
	}
	p.A.Path, p.B.Path = pa, pb
	t.Cleanup(p.finish)
	return p
}

// Sides lists both ends.
func (p *Pair) Sides() [2]*Side { return [2]*Side{p.A, p.B} }

// here lists the ends inside this process.
func (p *Pair) here() []*Side {
	if p.B == nil {
		return []*Side{p.A}
	}
	return []*Side{p.A, p.B}
}

// Other is the opposite end.
func (s *Side) Other() *Side {
	if s == s.pair.A {
		return s.pair.B
	}
	return s.pair.A
}

// Poll polls once, records the events and checks that they are allowed now. It returns how many
// there were. Wrong events are reported by Errorf, so that any goroutine may call it.
func (s *Side) Poll() int {
	// The room for events changes, so that a path that reports more events than fit, or loses the
	// rest, shows.
	buf := s.buf[:1+s.polls*7%len(s.buf)]
	s.polls++
	n := s.Path.Poll(buf)
	if n < 0 || n > len(buf) {
		s.t.Errorf("side %s: Poll with room for %d events returned %d", s.Name, len(buf), n)
		return 0
	}
	s.record(buf[:n])
	return n
}

func (s *Side) record(events []path.Event) {
	for i := range events {
		e := &events[i]
		if s.Down != nil {
			s.t.Errorf("side %s: event kind %d token %d (%v) after EventDown", s.Name, e.Kind, e.Token, e.Err)
			continue
		}
		if s.onEvent != nil {
			s.onEvent(e)
		}
		switch e.Kind {
		case path.EventDone:
			r := s.ops[e.Token]
			if r == nil {
				s.t.Errorf("side %s: EventDone for token %d, which was never posted", s.Name, e.Token)
				continue
			}
			r.Times++
			if r.Times > 1 {
				s.t.Errorf("side %s: EventDone number %d for token %d", s.Name, r.Times, e.Token)
				continue
			}
			s.pending--
			r.Event = *e
		case path.EventNotify:
			s.Notices = append(s.Notices, Notice{Imm: e.Imm, Bytes: e.Bytes, Msg: bytes.Clone(e.Msg)})
		case path.EventDown:
			if !errors.Is(e.Err, path.ErrDown) && !errors.Is(e.Err, path.ErrProtocol) {
				s.t.Errorf("side %s: EventDown with error %v: expected one that wraps ErrDown", s.Name, e.Err)
			}
			s.Down = e.Err
			if s.Down == nil {
				s.Down = path.ErrDown
			}
		default:
			s.t.Errorf("side %s: event of unknown kind %d", s.Name, e.Kind)
		}
	}
}

// Drive polls both sides until cond holds. It fails the test with both sides' state when nothing
// happens for too long.
func (p *Pair) Drive(what string, cond func() bool) {
	p.t.Helper()
	last := time.Now()
	for i := 0; !cond(); i++ {
		if p.poll() > 0 {
			last = time.Now()
			continue
		}
		if i%64 == 0 {
			runtime.Gosched()
			if p.t.Context().Err() != nil || time.Since(last) > p.f.Patience {
				p.t.Fatalf("waiting for %s: nothing happened for %v\n%s", what, p.f.Patience, p.Dump())
			}
		}
	}
}

// poll polls both sides once and returns how many events there were.
func (p *Pair) poll() (n int) {
	for _, s := range p.here() {
		n += s.Poll()
	}
	return n
}

// Pump polls both sides n times each.
func (p *Pair) Pump(n int) {
	for range n {
		p.poll()
	}
}

// take returns the notifications received so far and forgets them.
func (s *Side) take() []Notice {
	n := s.Notices
	s.Notices = nil
	return n
}

// Dump is the state of both sides in words, for when both are driven by the calling goroutine.
func (p *Pair) Dump() string {
	var b strings.Builder
	for _, s := range p.here() {
		b.WriteString(s.dump())
	}
	return b.String()
}

// dump is the state of one side, for its owner.
func (s *Side) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "side %s: %d operations outstanding, down: %v\n  stats: %+v\n", s.Name, s.pending, s.Down,
		s.Path.Stats())
	for _, l := range s.Path.Explain() {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	return b.String()
}

// dumpAlone is Dump while another goroutine owns the peer: of that it shows what any goroutine may
// read.
func (s *Side) dumpAlone() string {
	return fmt.Sprintf("%sside %s: stats: %+v\n", s.dump(), s.Other().Name, s.Other().Path.Stats())
}

// Post hands operations over, each with a token of its own, and pumps both sides whenever the
// window is full. An operation that Post refuses has its error in the Result at once.
func (s *Side) Post(ops ...path.Op) []*Result {
	s.t.Helper()
	var out []*Result
	for i := range ops {
		var r *Result
		ops[i], r = s.fresh(ops[i])
		out = append(out, r)
	}
	start := time.Now()
	for i := 0; i < len(ops); {
		n := s.post(ops[i:])
		if n > 0 {
			start = time.Now()
		}
		i += n
		if i < len(ops) {
			// post took out what was refused; the rest waits for room in the window.
			s.pair.Pump(1)
			if time.Since(start) > s.pair.f.Patience {
				s.t.Fatalf("side %s: Post accepts nothing for %v\n%s", s.Name, s.pair.f.Patience, s.pair.Dump())
			}
		}
	}
	return out
}

// fresh gives an operation its token and expects its end.
func (s *Side) fresh(op path.Op) (path.Op, *Result) {
	s.next++
	op.Token = s.next
	r := &Result{}
	s.ops[op.Token] = r
	s.pending++
	return op, r
}

// hand calls Post, or every other time PostNow of a path that has it.
func (s *Side) hand(ops []path.Op) (int, error) {
	now, ok := s.Path.(path.Immediate)
	if s.posts++; !ok || s.posts%2 == 0 {
		return s.Path.Post(ops)
	}
	buf := s.buf[:s.posts*7%len(s.buf)]
	n, done, err := now.PostNow(ops, buf)
	if done < 0 || done > len(buf) {
		s.t.Errorf("side %s: PostNow with room for %d events returned %d", s.Name, len(buf), done)
		return n, err
	}
	for _, e := range buf[:done] {
		if e.Kind != path.EventDone {
			s.t.Errorf("side %s: PostNow reported an event of kind %d: expected ends of operations only", s.Name,
				e.Kind)
		}
	}
	s.record(buf[:done])
	return n, err
}

// post calls Post, or PostNow, once and returns how many operations were dealt with: accepted, or
// the first one refused.
func (s *Side) post(ops []path.Op) int {
	s.t.Helper()
	return s.postBy(s.hand, ops)
}

func (s *Side) postBy(post func([]path.Op) (int, error), ops []path.Op) int {
	s.t.Helper()
	n, err := post(ops)
	switch {
	case n < 0 || n > len(ops):
		s.t.Fatalf("side %s: Post of %d operations returned %d", s.Name, len(ops), n)
	case n == len(ops) && err != nil:
		s.t.Errorf("side %s: Post accepted all %d operations, but returned %v", s.Name, n, err)
	case n < len(ops) && err == nil:
		s.t.Fatalf("side %s: Post accepted %d of %d operations without an error", s.Name, n, len(ops))
	case n < len(ops) && !errors.Is(err, path.ErrFull):
		r := s.ops[ops[n].Token]
		r.Event = path.Event{Kind: path.EventDone, Token: ops[n].Token, Err: err}
		r.Times = 1
		s.pending--
		n++
	}
	return n
}

// Do posts one operation and drives both sides until it ended.
func (s *Side) Do(op path.Op) path.Event {
	s.t.Helper()
	r := s.Post(op)[0]
	s.pair.Drive(fmt.Sprintf("side %s: operation kind %d of %d bytes", s.Name, op.Kind, op.Bytes()), func() bool {
		return r.Times > 0
	})
	return r.Event
}

// MustDo is Do for an operation that must succeed; it checks what EventDone says about it.
func (s *Side) MustDo(op path.Op) {
	s.t.Helper()
	e := s.Do(op)
	s.checkDone(&op, e)
}

func (s *Side) checkDone(op *path.Op, e path.Event) {
	s.t.Helper()
	if e.Err != nil {
		s.t.Fatalf("side %s: operation kind %d of %d bytes in %d blocks: %v\n%s", s.Name, op.Kind, op.Bytes(),
			len(op.Copies), e.Err, s.pair.Dump())
	}
	if e.Bytes != op.Bytes() {
		s.t.Errorf("side %s: EventDone says %d bytes, the operation had %d", s.Name, e.Bytes, op.Bytes())
	}
	if want := s.Path.Capabilities().Proof; op.Bytes() > 0 && e.Proof != want {
		s.t.Errorf("side %s: EventDone says proof %v, the path's capabilities say %v", s.Name, e.Proof, want)
	}
}

// Region allocates memory that lives until the end of the test. Its pages appear when first used.
func (s *Side) Region(size int) *mem.Region {
	s.t.Helper()
	r, err := mem.Alloc(mem.Options{Name: "pathtest-" + s.Name, Size: size, Lazy: true})
	if err != nil {
		s.t.Fatal(err)
	}
	// Cleanups run last in, first out, but a region must outlive the paths, which were made before
	// it: see finish.
	s.pair.t.Cleanup(func() { s.pair.shut(); r.Close() })
	return r
}

// Export exports a whole region.
func (s *Side) Export(r *mem.Region, rights path.Rights) *path.Export {
	s.t.Helper()
	e, err := s.Exports.Add(r.All(), rights)
	if err != nil {
		s.t.Fatal(err)
	}
	s.exports = append(s.exports, e)
	return e
}

// shut closes both ends and drains them.
func (p *Pair) shut() {
	p.t.Helper()
	for _, s := range p.here() {
		if !s.closed {
			s.Close()
		}
	}
}

// Close closes this end.
func (s *Side) Close() {
	s.t.Helper()
	s.closed = true
	if err := s.Path.Close(); err != nil {
		s.t.Errorf("side %s: Close: %v", s.Name, err)
	}
}

// Drain polls this side alone until EventDown.
func (s *Side) Drain() {
	s.t.Helper()
	start := time.Now()
	for s.Down == nil {
		if s.Poll() == 0 {
			runtime.Gosched()
			if time.Since(start) > s.pair.f.Patience {
				s.t.Errorf("side %s: no EventDown within %v\n%s", s.Name, s.pair.f.Patience, s.pair.Dump())
				return
			}
		}
	}
}

// finish ends the pair and checks what must hold after every test.
func (p *Pair) finish() {
	p.t.Helper()
	p.shut()
	if p.t.Failed() {
		return
	}
	for _, s := range p.here() {
		s.Drain()
		for range 3 {
			s.Poll() // record complains about anything after EventDown
		}
		for token, r := range s.ops {
			if r.Times != 1 {
				p.t.Errorf("side %s: the operation with token %d had %d EventDones by the end", s.Name, token, r.Times)
			}
		}
		if err := s.Path.Close(); err != nil {
			p.t.Errorf("side %s: second Close: %v", s.Name, err)
		}
		for _, e := range append(s.exports, s.Exports.All()...) {
			s.Exports.Revoke(e)
			s.Exports.Retire(e)
		}
	}
}
