package transfer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/fence"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/sched"
	"github.com/penstock-io/penstock/transfer/state"
)

// The time of a transfer that waits for the rate has come while another one, canceled already, is
// on its way to the channel: the first is posted all the same. Nothing is outstanding that would
// bring the channel back to it.
func TestCanceledArrivalHidesNoTimer(t *testing.T) {
	p := newPair(t, Options{Paths: []setup.Driver{over("tcp")}})
	l, err := newLimits("test", Quota{Out: sched.Limits{Rate: 16 << 10, Burst: 4 << 10}}, p.a.limits)
	if err != nil {
		t.Fatal(err)
	}
	export(t, p.b, region(t, 16<<10), "dst", path.Write)
	rem, src := lookup(t, p.ab, "dst"), region(t, 16<<10)
	put := func(n uint64) *Transfer {
		local, _ := src.Span(0, n)
		x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	wait(t, put(64), nil)
	ch := channelOf(t, p.ab, "tcp")
	ch.mu.Lock()
	p.ab.limits = l
	ch.unlock()
	var x *Transfer
	until(t, "a transfer that waits for the rate", func() bool { // a machine may be so slow that it has paid already
		wait(t, put(4<<10), nil)
		ch.mu.Lock()
		slow := make(chan *Transfer)
		go func() { slow <- put(16 << 10) }() // put leaves it to the goroutine that holds the channel
		x = <-slow
		ch.unlock()
		ch.mu.Lock()
		if x.item.Queued() && ch.inflight == 0 && ch.timer != nil && ch.timer.Stop() {
			return true
		}
		ch.unlock()
		wait(t, x, nil)
		return false
	})
	gone := put(64)
	gone.because.Store(&context.Canceled)
	ch.payTill = time.Time{} // the time has come
	ch.again()               // as the timer does
	ch.unlock()
	soon(t, gone.Done(), "the end of the canceled transfer")
	wait(t, x, nil)
}

// A path that the peer says is down before this side, which dialed it, has taken it up is not taken
// up: what it carried would be written after this side has told the peer that nothing more comes by
// it.
func TestPathDownWhileItIsDialed(t *testing.T) {
	d := over("tcp")
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	var first sync.Once
	d.dialed = func() {
		first.Do(func() {
			held <- struct{}{}
			<-hold
		})
	}
	p := newPair(t, Options{Paths: []setup.Driver{d}})
	dst := region(t, 4096)
	export(t, p.a, dst, "dst", path.Write)
	rem := lookup(t, p.ba, "dst")
	opened := make(chan error, 1)
	go func() {
		_, err := p.ab.channel(ctx(t), "tcp")
		opened <- err
	}()
	<-held
	var ch *channel
	until(t, "the path of the accepting side", func() bool {
		ch, _ = p.ba.openedChannel("tcp")
		return ch != nil
	})
	src := region(t, 4096)
	fill(src, 7)
	x, err := p.ba.Put(ctx(t), []path.Copy{rem.At(0, src.All())}, PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the post", func() bool { return ch.p.Stats().OpsPosted > 0 })
	x.Cancel() // so that it does not go on by another path; what was sent of it is on its way
	ch.shut(path.ErrDown)
	if err := p.ba.fenceRemote(ctx(t), ch); err != nil {
		t.Fatal(err)
	}
	clear(dst.All().Bytes())
	close(hold)
	if err := <-opened; err == nil {
		t.Error("a path was taken up that is down")
	}
	<-x.Done()
	p.ab.mu.Lock()
	left := len(p.ab.coming)
	p.ab.mu.Unlock()
	if left != 0 {
		t.Errorf("%d paths are still on their way", left)
	}
	if !bytes.Equal(dst.All().Bytes(), make([]byte, 4096)) {
		t.Error("bytes came by a path that the peer was told is closed")
	}
}

// offerOf is what a peer sends to push a tensor of n bytes.
func offerOf(t testing.TB, id observe.ID, name string, n uint64, digest bool) control.Offer {
	t.Helper()
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{int64(n)}}
	b, err := d.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return control.Offer{ID: id, Name: name, Size: n, Tensor: b, Digest: digest}
}

// receiving has a node wait for a tensor; the result comes by the channel.
func receiving(t testing.TB, c context.Context, n *Node, name string) <-chan error {
	t.Helper()
	before := waiters(n, name)
	done := make(chan error, 1)
	go func() {
		_, err := n.Receive(c, name)
		done <- err
	}()
	until(t, "somebody who waits", func() bool { return waiters(n, name) > before })
	return done
}

func waiters(n *Node, name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.waiting[name])
}

// A peer offers a tensor and is gone before the offer is answered: the answer ends, and the
// receiver goes on waiting.
func TestOfferOfAPeerThatIsGone(t *testing.T) {
	p := newPair(t, Options{})
	c, stop := context.WithCancel(ctx(t))
	done := receiving(t, c, p.b, "w")
	q := offerOf(t, observe.NewID(p.a.instance, 1<<20), "w", 4096, false)
	p.ba.Close()
	answered := make(chan struct{})
	go func() {
		p.ba.answerOffer(&q)
		close(answered)
	}()
	soon(t, answered, "the end of the answer")
	if n := waiters(p.b, "w"); n != 1 {
		t.Errorf("%d wait for the tensor, 1 should", n)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A peer makes the same offer twice at once: one of them is refused. Both receptions would have one
// place in the table, so one of them could not end any more.
func TestSameOfferTwiceAtOnce(t *testing.T) {
	const size = 32 << 20
	p := newPair(t, Options{Budget: 1 << 30})
	for i := range uint64(4) {
		c, stop := context.WithCancel(ctx(t))
		one, two := receiving(t, c, p.b, "w"), receiving(t, c, p.b, "w")
		// a digest: then the memory is cleared first, which takes its time
		q := offerOf(t, observe.NewID(p.a.instance, 1<<20+i), "w", size, true)
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := p.ba.answerOffer(&q)
				errs <- err
			}()
		}
		a, b := <-errs, <-errs
		if a == nil {
			a, b = b, a
		}
		if !errors.Is(a, control.Exists) || b != nil {
			t.Errorf("the same offer twice: %v and %v", a, b)
		}
		stop()
		for _, done := range []<-chan error{one, two} {
			select {
			case err := <-done:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("a Receive does not end although its context has")
			}
		}
	}
}

// As many requests wait for their answers as a session can have, and a path goes down: its
// transfers go on by another one, and the session stays.
func TestPathDownWhileRequestsAreFull(t *testing.T) {
	s := newTwoPaths(t, 4<<20)
	release := make(chan struct{})
	remove, err := s.b.Handle("slow", func(context.Context, *Peer, []byte) ([]byte, error) {
		<-release
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	calls := make(chan error, control.MaxPendingRequests)
	for range control.MaxPendingRequests {
		go func() {
			_, err := s.p.Call(ctx(t), "slow", nil)
			calls <- err
		}()
	}
	until(t, "the calls", func() bool {
		s.p.mu.Lock()
		defer s.p.mu.Unlock()
		return s.p.session.Pending()+len(calls) == control.MaxPendingRequests
	})
	s.mode.Store(deaf)
	x := s.put(t)
	nodeChannel(t, s.a, "alpha").shut(errCut)
	wait(t, x, nil)
	if err := s.p.Err(); err != nil {
		t.Error(err)
	}
	close(release)
	full := 0
	for range control.MaxPendingRequests {
		if err := <-calls; errors.Is(err, control.ErrPending) {
			full++
		} else if err != nil {
			t.Error(err)
		}
	}
	if full != keptRequests {
		t.Errorf("%d calls were not taken, expected %d", full, keptRequests)
	}
}

// exposing is a path whose peer may still reach an export after it was closed.
type exposing struct {
	path.Path
	mu   sync.Mutex
	keys []path.Key
}

func (x *exposing) Exposed() []path.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.keys)
}

func (x *exposing) Forget()        {}
func (x *exposing) ExposedFD() int { return -1 }

func (x *exposing) letGo() {
	x.mu.Lock()
	x.keys = nil
	x.mu.Unlock()
}

// meanwhile is a path that was closed, and something that happens when it is asked for a fence.
type meanwhile struct {
	path.Path
	kept bool
	then func()
}

func (m *meanwhile) Exposed() []path.Key {
	if !m.kept {
		m.kept = true
		return make([]path.Key, 1)
	}
	m.then()
	return nil
}

func (m *meanwhile) Forget()        {}
func (m *meanwhile) ExposedFD() int { return -1 }

// A queue is closed while an export is revoked: the revocation waits for the peer that still has
// the memory mapped, wherever the queue was found.
func TestQueueClosedWhileAnExportIsRevoked(t *testing.T) {
	p := newPair(t, Options{})
	e := export(t, p.b, region(t, 4096), "x", path.Read|path.Write)
	c := make(chan *Queue, 1)
	p.b.AcceptQueues("")
	go func() {
		q, _ := p.b.AcceptQueue(ctx(t), "")
		c <- q
	}()
	theirs, err := p.ab.OpenQueue(ctx(t), QueueOptions{Path: "tcp"})
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	q := <-c
	x := &exposing{Path: q.p, keys: []path.Key{e.Key()}}
	q.p = x
	p.b.exposed.Keep(&fence.Path{Mu: new(sync.Mutex), Refund: func() {},
		Path: &meanwhile{then: func() { q.Close() }}})
	done := make(chan error, 1)
	go func() { done <- e.Revoke(ctx(t)) }()
	select {
	case err := <-done:
		t.Errorf("the revocation did not wait: %v", err)
		return
	case <-time.After(200 * time.Millisecond): // what should not happen, does not happen in this time
	}
	x.letGo()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The digester of a transfer that has nothing left to post may know the outcome before the channel
// has taken the transfer from its arrivals.
func TestDigesterIsFaster(t *testing.T) {
	for _, canceled := range []bool{false, true} {
		p := newPair(t, Options{Paths: []setup.Driver{over("tcp")}})
		export(t, p.b, region(t, 4096), "dst", path.Write)
		rem, src := lookup(t, p.ab, "dst"), region(t, 4096)
		local, _ := src.Span(0, 64)
		first, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{})
		wait(t, first, err)
		ch := channelOf(t, p.ab, "tcp")
		ch.mu.Lock()
		slow := make(chan *Transfer)
		go func() {
			x, err := p.ab.Put(ctx(t), []path.Copy{rem.At(0, local)}, PutOptions{})
			if err != nil {
				t.Error(err)
			}
			slow <- x
		}()
		x := <-slow // put leaves it to the goroutine that holds the channel
		x.m = state.New(path.Put, x.m.Copies(), x.bytes, true, false)
		x.m.Carried()
		x.m.Route()
		x.digest = p.ab.asks.New(digest.Work{ID: p.a.nextID(), Kind: path.Put}, (*compared)(x))
		x.digest.Start()
		until(t, "the outcome", func() bool { // it waits for the channel
			known, _ := x.digest.Outcome()
			return known
		})
		if canceled {
			x.because.Store(&context.Canceled)
		}
		ch.mu.Unlock()
		ch.again()
		soon(t, x.Done(), "the end of the transfer")
		if err := x.Err(); err != nil && !(canceled && errors.Is(err, path.ErrCanceled)) {
			t.Error(err)
		}
		x.digest.Cancel()
	}
}
