package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

var errCut = fmt.Errorf("%w: cut by the test", path.ErrDown)

// twoPaths is two nodes that have the paths alpha and beta between them; alpha is the one that they
// take.
type twoPaths struct {
	a, b                   *Node
	p                      *Peer
	alphaA, alphaB         *fakeDriver
	rem                    *Remote
	src, dst               *mem.Region
	mode                   atomic.Int32  // what is wrong with alpha at a
	deafAfter, reported    atomic.Uint64 // bytes that alpha reports before a does not poll it any more; 0: it goes on
	hold                   atomic.Bool   // b does not poll alpha
	cut                    atomic.Bool   // every path goes down at a when it is to carry a put
	heard                  atomic.Int64  // by b
	heardBytes, heardTwice atomic.Uint64
}

const (
	well  = iota
	deaf  // a does not poll it
	stuck // operations do not complete: they end when the path does
)

func newTwoPaths(t *testing.T, size int) *twoPaths {
	s := &twoPaths{alphaA: over("alpha"), alphaB: over("alpha"), src: region(t, size), dst: region(t, size)}
	slow := path.Cost{Latency: 1 << 40, BytesPerSec: 1}
	betaA, betaB := over("beta"), over("beta")
	betaA.cost, betaB.cost = slow, slow
	s.alphaA.poll = func(p path.Path, events []path.Event) int {
		mode := s.mode.Load()
		if mode == deaf {
			return 0
		}
		n := p.Poll(events)
		for i := range events[:n] {
			if limit := s.deafAfter.Load(); limit > 0 && events[i].Kind == path.EventDone {
				if s.reported.Add(events[i].Bytes) >= limit {
					s.deafAfter.Store(0)
					s.mode.Store(deaf)
				}
			}
			if mode == stuck && events[i].Kind == path.EventDone {
				events[i].Err = errCut
			}
		}
		return n
	}
	s.alphaB.poll = func(p path.Path, events []path.Event) int {
		if s.hold.Load() {
			return 0
		}
		return p.Poll(events)
	}
	s.alphaA.post = func(p path.Path, ops []path.Op) (int, error) {
		if s.cut.Load() && ops[0].Kind == path.Put {
			p.Close()
		}
		return p.Post(ops)
	}
	betaA.post = s.alphaA.post
	seen := map[observe.ID]bool{}
	s.b = open(t, Options{Listen: []string{"tcp://127.0.0.1:0"}, Paths: []setup.Driver{s.alphaB, betaB},
		OnTransfer: func(i Incoming) {
			if seen[i.ID] {
				s.heardTwice.Add(1)
			}
			seen[i.ID] = true
			s.heardBytes.Add(i.Bytes)
			s.heard.Add(1)
		}})
	s.a = open(t, Options{Paths: []setup.Driver{s.alphaA, betaA}})
	var err error
	if s.p, err = s.a.Dial(ctx(t), s.b.Addrs()[0]); err != nil {
		t.Fatal(err)
	}
	export(t, s.b, s.dst, "dst", path.Read|path.Write)
	s.rem = lookup(t, s.p, "dst")
	fill(s.src, 7)
	for _, name := range []string{"beta", "alpha"} { // both are set up, so that their costs are known
		x, err := s.p.Notify(ctx(t), nil, PutOptions{Paths: []string{name}})
		wait(t, x, err)
	}
	return s
}

// nodeChannel is the node's side of a path of that name.
func nodeChannel(t *testing.T, n *Node, name string) *channel {
	t.Helper()
	for _, p := range n.Peers() {
		p.mu.Lock()
		for _, l := range p.paths {
			if l.p.Name() == name {
				p.mu.Unlock()
				return l
			}
		}
		p.mu.Unlock()
	}
	t.Fatalf("no path %s", name)
	return nil
}

func (s *twoPaths) put(t *testing.T) *Transfer {
	t.Helper()
	x, err := s.p.Put(ctx(t), []path.Copy{s.rem.At(0, s.src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// putPart begins a put and returns when so many bytes of it are in place, and no more are reported
// by alpha.
func (s *twoPaths) putPart(t *testing.T, bytes uint64) *Transfer {
	t.Helper()
	s.deafAfter.Store(bytes)
	x := s.put(t)
	until(t, "the first pieces", func() bool { return x.moved.Load() >= bytes })
	return x
}

// nodeChannelOr is the node's side of a path of that name, or another channel when it is down
// already.
func nodeChannelOr(n *Node, name string, other *channel) *channel {
	for _, p := range n.Peers() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, l := range p.paths {
			if l.p.Name() == name {
				return l
			}
		}
	}
	return other
}

// check waits for a put and that it arrived once and whole, after its path went down times under
// it.
func (s *twoPaths) check(t *testing.T, x *Transfer, via string, times int) {
	t.Helper()
	wait(t, x, nil)
	e := x.Explain()
	if len(e.Failovers) != times || e.Path != via {
		t.Errorf("%d failovers, path %q; expected %d, %q\n%v", len(e.Failovers), e.Path, times, via, e)
	}
	for _, f := range e.Failovers {
		if f.From != "alpha" || !errors.Is(f.Cause, path.ErrDown) || f.Moved > x.Bytes() {
			t.Errorf("a failover from %s after %d bytes: %v", f.From, f.Moved, f.Cause)
		}
	}
	if times > 0 && !strings.Contains(e.String(), "alpha went down after") {
		t.Errorf("the explanation does not tell:\n%v", e)
	}
	if !bytes.Equal(s.src.All().Bytes(), s.dst.All().Bytes()) {
		t.Error("the bytes differ")
	}
	// The receiver gets what follows on the same path after it.
	last, err := s.p.Notify(ctx(t), nil, PutOptions{Paths: []string{e.Path}})
	wait(t, last, err)
	until(t, "the last notification", func() bool { return s.heard.Load() >= 4 })
	if s.heard.Load() != 4 || s.heardTwice.Load() != 0 || s.heardBytes.Load() != x.Bytes() {
		t.Errorf("b heard of %d transfers, %d twice, %d bytes", s.heard.Load(), s.heardTwice.Load(),
			s.heardBytes.Load())
	}
}

// TestFailover cuts the path in the middle of a large put, at either end: the rest goes by the
// other one.
func TestFailover(t *testing.T) {
	for _, end := range []string{"sender", "receiver"} {
		t.Run(end, func(t *testing.T) {
			s := newTwoPaths(t, 5*PieceSize+12345)
			n := s.a
			if end == "receiver" {
				n = s.b
			}
			l := nodeChannel(t, n, "alpha")
			x := s.putPart(t, 1)
			l.shut(errCut)
			s.mode.Store(well)
			s.a.loop.Kick(nodeChannelOr(s.a, "alpha", l))
			s.check(t, x, "beta", 1)
			if f := x.Explain().Failovers[0]; f.Moved == 0 {
				t.Errorf("what was in place is not counted: %+v", f)
			}
		})
	}
}

// TestFailoverResumes checks that pieces which are in place are not sent again.
func TestFailoverResumes(t *testing.T) {
	const pieces = 6
	s := newTwoPaths(t, pieces*PieceSize)
	l := nodeChannel(t, s.a, "alpha")
	var sent [2]atomic.Uint64
	x := s.putPart(t, 2*PieceSize)
	l.shut(errCut)
	s.check(t, x, "beta", 1)
	beta := nodeChannel(t, s.a, "beta").p.Stats().BytesPut
	sent[1].Store(beta)
	if moved := x.Explain().Failovers[0].Moved; beta != x.Bytes()-moved {
		t.Errorf("%d bytes were in place, and %d of %d went by the second path", moved, beta, x.Bytes())
	}
}

// TestFailoverAfterDelivery takes the path down when the receiver has everything but the sender
// does not know: the transfer is complete, and the sender does not repeat it.
func TestFailoverAfterDelivery(t *testing.T) {
	s := newTwoPaths(t, 64<<10)
	s.mode.Store(deaf)
	l := nodeChannel(t, s.a, "alpha")
	x := s.put(t)
	until(t, "the delivery", func() bool { return s.heard.Load() == 3 })
	s.mode.Store(stuck)
	l.shut(errCut)
	wait(t, x, nil)
	s.mode.Store(well)
	s.check(t, x, "alpha", 0)
	if n := nodeChannel(t, s.a, "beta").p.Stats().BytesPut; n != 0 {
		t.Errorf("%d bytes were sent again", n)
	}
}

// TestFailoverBeforeDelivery takes the path down while the put lies unread in the receiver's
// socket: it is done again by the other path, and what lies there never appears.
func TestFailoverBeforeDelivery(t *testing.T) {
	s := newTwoPaths(t, 256<<10)
	s.hold.Store(true)
	l, theirs := nodeChannel(t, s.a, "alpha"), nodeChannel(t, s.b, "alpha")
	x := s.put(t)
	until(t, "the put to be under way", func() bool { return l.p.Stats().Syscalls > 0 && x.channel == l })
	// The receiver does not notice the end of the path by itself.
	l.mu.Lock()
	l.down = errCut
	l.mu.Unlock()
	go l.shut(errCut)
	until(t, "the fence", func() bool {
		theirs.mu.Lock()
		defer theirs.mu.Unlock()
		return theirs.gone || !s.hold.Load()
	})
	s.hold.Store(false)
	s.check(t, x, "beta", 1)
}

// TestFailoverGivesUp takes every path down as soon as it is used: the transfer fails once, after
// as many paths as are allowed, with nothing left behind.
func TestFailoverGivesUp(t *testing.T) {
	s := newTwoPaths(t, 64<<10)
	y := s.put(t)
	wait(t, y, nil)
	leases := s.src.Leases() // what is registered stays so
	s.cut.Store(true)
	x := s.put(t)
	var calls atomic.Int64
	done := make(chan struct{})
	x.OnDone(func(*Transfer) { calls.Add(1); close(done) })
	err := x.Wait(ctx(t))
	soon(t, done, "the callback")
	e := x.Explain()
	if !errors.Is(err, path.ErrDown) || len(e.Failovers) != maxFailovers || calls.Load() != 1 {
		t.Errorf("%v after %d failovers, %d callbacks\n%v", err, len(e.Failovers), calls.Load(), e)
	}
	if n := s.src.Leases(); n != leases {
		t.Errorf("%d leases, %d before", n, leases)
	}
	s.cut.Store(false)
	y = s.put(t) // the peer is as good as before
	wait(t, y, nil)
}

// TestFenceWithoutAnswer checks what happens when the other end does not say that it closed a path:
// the session ends, so that what it may still write is fenced by the next one, before the transfers
// end.
func TestFenceWithoutAnswer(t *testing.T) {
	s := newTwoPaths(t, 64<<10)
	s.a.patience = 20 * time.Millisecond
	s.mode.Store(deaf)
	l, theirs := nodeChannel(t, s.a, "alpha"), nodeChannel(t, s.b, "alpha")
	theirs.mu.Lock() // it cannot close the path
	x := s.put(t)
	go l.shut(errCut)
	err := x.Wait(ctx(t))
	lost := s.p.Err()
	remembered := s.p.hasLostSessions()
	theirs.unlock()
	if !errors.Is(err, ErrPeerLost) || !errors.Is(lost, ErrPeerLost) || !remembered {
		t.Errorf("the put ended with %v, the session with %v; remembered as lost: %v", err, lost, remembered)
	}
}

// TestCancelInFailover cancels while the transfer is between two paths.
func TestCancelInFailover(t *testing.T) {
	s := newTwoPaths(t, 64<<10)
	entered, leave := make(chan struct{}), make(chan struct{})
	beta := s.a.driver("beta").(*fakeDriver)
	nodeChannel(t, s.a, "beta").shut(errCut)
	until(t, "the end of beta", func() bool { ch, _ := s.p.openedChannel("beta"); return ch == nil })
	beta.dial = func(ctx context.Context) error {
		close(entered)
		select {
		case <-leave:
		case <-ctx.Done():
		}
		return errCut
	}
	s.cut.Store(true)
	x := s.put(t)
	soon(t, entered, "the second path")
	if !x.Cancel() {
		t.Error("it had ended already")
	}
	if err := x.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
		t.Errorf("ended with %v", err)
	}
	close(leave)
}

// TestPathDownBeforeItIsUp checks that a path that was taken down while it was set up never carries
// anything.
func TestPathDownBeforeItIsUp(t *testing.T) {
	s := newTwoPaths(t, 4096)
	r, err := s.p.request(ctx(t), &control.OpenPath{Path: "alpha"})
	if err != nil {
		t.Fatal(err)
	}
	offer, err := control.Parse[control.PathOffer](r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.p.request(ctx(t), &control.PathDown{PathID: offer.PathID, Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	pth, err := s.alphaA.Dial(ctx(t), offer.Offer, s.p.pathConfig(0, 0, false))
	if err != nil {
		return // it is refused already
	}
	defer pth.Close()
	var ev [8]path.Event
	until(t, "the end of the path", func() bool {
		for _, e := range ev[:pth.Poll(ev[:])] {
			if e.Kind == path.EventDown {
				return true
			}
		}
		return false
	})
}

// A piece of a job can fail because its path is down at the other side only. The path is fenced all
// the same.
func TestFenceOfPathThatIsUp(t *testing.T) {
	pair := newPair(t, Options{})
	export(t, pair.b, region(t, 4096), "x", path.Write)
	p := pair.ab
	r := lookup(t, p, "x")
	x, err := p.Put(ctx(t), []path.Copy{r.At(0, region(t, 4096).All())}, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	ch := x.currentChannel()
	if ch == nil {
		t.Fatal("the put has no path")
	}
	if err := p.fenceRemote(ctx(t), ch); err != nil {
		t.Fatal(err)
	}
}
