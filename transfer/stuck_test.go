package transfer

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/account"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/digest"
	"github.com/penstock-io/penstock/transfer/inbox"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
	"github.com/penstock-io/penstock/transfer/sched"
)

// stuckBed is a node with two peers, of which one gets stuck in one way or another while the other
// one must go on.
type stuckBed struct {
	t         *testing.T
	n         *Node
	bad, good *Node
	toBad     *Peer // of n
	toGood    *Peer // of n
	atBad     *Peer // of bad: n
	atGood    *Peer // of good: n
	proxy     *fault.ProxyDriver
	deaf      atomic.Bool   // bad does not poll its paths
	slow      chan struct{} // n's OnTransfer waits for its end when it is called for bad
	src       *mem.Region
	giveUp    context.Context // ends before nothing may be left of what was begun with bad
	end       context.CancelFunc
}

const stuckSize = 2 << 20 // more than goes through the first connection

func newStuckBed(t *testing.T) *stuckBed {
	s := &stuckBed{t: t, slow: make(chan struct{}), src: region(t, stuckSize)}
	fill(s.src, 3)
	s.giveUp, s.end = context.WithCancel(context.Background())
	t.Cleanup(s.end)
	var err error
	if s.proxy, err = fault.NewProxyDriver(tcp.New(tcp.Options{}), fault.Plan{}); err != nil {
		t.Fatal(err)
	}
	peers := make(chan *Peer, 2)
	s.n = open(t, Options{Name: "n", Listen: []string{"tcp://127.0.0.1:0"},
		Paths: []setup.Driver{shm.Driver{}, s.proxy}, Window: 8,
		OnPeer: func(p *Peer) { peers <- p },
		OnTransfer: func(i Incoming) {
			if i.Peer.Name() == "bad" && len(i.Msg) > 0 {
				<-s.slow
			}
		}})
	polls := over("tcp")
	polls.poll = func(p path.Path, events []path.Event) int {
		if s.deaf.Load() {
			return 0
		}
		return p.Poll(events)
	}
	t.Cleanup(func() { close(s.slow) })
	dial := func(name string, drivers ...setup.Driver) (*Node, *Peer, *Peer) {
		x := open(t, Options{Name: name, Paths: drivers})
		p, err := x.Dial(ctx(t), s.n.Addrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		select {
		case back := <-peers:
			return x, p, back
		case <-ctx(t).Done():
			t.Fatal("the node was not told of its peer")
			return nil, nil, nil
		}
	}
	s.bad, s.atBad, s.toBad = dial("bad", polls)
	s.good, s.atGood, s.toGood = dial("good")
	return s
}

// goesOn has the other peer and the node do everything that they can do with each other, and the
// node what concerns all peers.
func (s *stuckBed) goesOn() {
	t := s.t
	t.Helper()
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{stuckSize}}
	want := s.src.All().Bytes()
	for _, name := range paths {
		o := PutOptions{Paths: []string{name}}
		for _, o.Digest = range []bool{false, true} {
			got := receive(ctx(t), s.n, "pushed")
			x, err := s.atGood.SendTensor(ctx(t), "pushed", d, s.src.All(), o)
			wait(t, x, err)
			if a := arrived(t, got); a.err != nil || !bytes.Equal(a.r.Span.Bytes(), want) {
				t.Fatalf("a pushed tensor: %v", a.err)
			} else {
				a.r.Release()
			}
			for _, from := range []*Node{s.n, s.good} {
				to := s.atGood // from good
				if from == s.good {
					to = s.toGood
				}
				dst := region(t, stuckSize)
				e := export(t, from, s.src, "read", path.Read)
				r := lookup(t, to, "read")
				x, err = to.Get(ctx(t), []path.Copy{r.At(0, dst.All())}, o)
				wait(t, x, err)
				if !bytes.Equal(dst.All().Bytes(), want) {
					t.Error("other bytes came")
				}
				if err := e.Revoke(ctx(t)); err != nil {
					t.Fatalf("revoke: %v", err)
				}
			}
		}
	}
	if _, err := s.atGood.List(ctx(t), ""); err != nil {
		t.Error(err)
	}
	if _, err := s.atGood.Status(ctx(t)); err != nil {
		t.Error(err)
	}
	third := open(t, Options{Name: "third"})
	p, err := third.Dial(ctx(t), s.n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := s.toBad.Err(); err != nil {
		t.Errorf("the stuck peer was lost, which is no test: %v", err)
	}
	s.end()
	nothingReceived(t, s.n)
}

// fullWindow has the node put to the stuck peer until no more may be outstanding.
func (s *stuckBed) fullWindow(stick func()) {
	s.t.Helper()
	dst := region(s.t, stuckSize)
	export(s.t, s.bad, dst, "sink", path.Write)
	r := lookup(s.t, s.toBad, "sink")
	x, err := s.atBad.Notify(ctx(s.t), nil, PutOptions{}) // it dials, so that the path goes through the proxy
	wait(s.t, x, err)
	stick()
	var all []*Transfer
	for range 16 {
		x, err := s.toBad.Put(context.Background(), []path.Copy{r.At(0, s.src.All())}, PutOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, x)
	}
	small, _ := s.src.Span(0, 64)
	for range 16 {
		x, err := s.toBad.Put(context.Background(), []path.Copy{r.At(0, small)}, PutOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		all = append(all, x)
	}
	ended := 0
	for _, x := range all {
		select {
		case <-x.Done():
			ended++
		default:
		}
	}
	if ended == len(all) {
		s.t.Fatal("nothing is stuck")
	}
}

// What one peer does or does not do is no reason for another one to wait.
func TestStuckPeers(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s *stuckBed)
	}{
		{"NeverPolls", func(s *stuckBed) {
			s.fullWindow(func() { s.deaf.Store(true) })
			s.t.Cleanup(func() { s.deaf.Store(false) })
		}},
		{"Stalled", func(s *stuckBed) { // the network holds everything of its data connections
			s.fullWindow(func() {
				for _, p := range s.proxy.Proxies() {
					p.Stall(fault.Both)
				}
			})
		}},
		{"SlowCallback", func(s *stuckBed) { // the application's callback never returns
			for i := range 3 * inbox.Max {
				x, err := s.atBad.Notify(context.Background(), []byte("slow"), PutOptions{})
				if err != nil {
					s.t.Fatal(err)
				}
				if i == 0 {
					wait(s.t, x, nil)
				}
			}
			for end := ctx(s.t); ; {
				if s.toBad.inbox.Len() >= inbox.Max {
					return
				}
				if end.Err() != nil {
					s.t.Fatal("the peer is not held back")
				}
				time.Sleep(time.Millisecond)
			}
		}},
		{"NeverAnswers", func(s *stuckBed) { // its hashing never has its turn, and its lookups take for ever
			stop := make(chan struct{})
			s.t.Cleanup(func() { close(stop) })
			dst := region(s.t, 4096)
			export(s.t, s.bad, dst, "sink", path.Read|path.Write)
			r := lookup(s.t, s.toBad, "sink")
			for range cap(s.bad.hashing) {
				s.bad.hashing <- struct{}{}
			}
			s.t.Cleanup(func() {
				for range cap(s.bad.hashing) {
					<-s.bad.hashing
				}
			})
			s.bad.OnLookup(func(c context.Context, _ *Peer, _ string) {
				select {
				case <-stop:
				case <-c.Done():
				}
			})
			local, _ := s.src.Span(0, 4096)
			for range 2 * digest.MaxAsked {
				if _, err := s.toBad.Put(context.Background(), []path.Copy{r.At(0, local)},
					PutOptions{Digest: true}); err != nil {
					s.t.Fatal(err)
				}
				go s.toBad.Lookup(context.Background(), "sink")
			}
		}},
		{"NeverReads", func(s *stuckBed) { // who listens to events
			s.n.Events(context.Background(), 1)
			s.n.callOnEvent(func(observe.Event) { <-s.slow })
			for range 3 * eventBuffer {
				x, err := s.toBad.Notify(ctx(s.t), nil, PutOptions{})
				wait(s.t, x, err)
			}
		}},
		{"NeverPuts", func(s *stuckBed) { // what it offered, and what it invited to
			s.n.AcceptQueues("")
			for range 4 {
				if _, err := s.atBad.OpenQueue(ctx(s.t), QueueOptions{}); err != nil {
					s.t.Fatal(err)
				}
			}
			d := tensor.Desc{DType: tensor.U8, Shape: []int64{64}}
			desc, err := d.AppendBinary(nil)
			if err != nil {
				s.t.Fatal(err)
			}
			for range 4 {
				if _, err := s.atBad.request(ctx(s.t),
					&control.OpenPath{Path: "tcp", Streams: 1, Window: 8}); err != nil {
					s.t.Fatal(err)
				}
				receive(s.giveUp, s.n, "never")
				if _, err := s.atBad.request(ctx(s.t),
					&control.Offer{ID: s.bad.nextID(), Name: "never", Size: 64, Tensor: desc}); err != nil {
					s.t.Fatal(err)
				}
				go s.atBad.request(context.Background(),
					&control.Offer{ID: s.bad.nextID(), Name: "unwanted", Size: 64, Tensor: desc})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStuckBed(t)
			c.do(s)
			s.goesOn()
		})
	}
}

// A revocation waits only for the peers that could reach the memory: a queue that its owner does
// not poll any more is no reason to lose the tensors of other peers.
func TestPushBesideAQueueThatNobodyPolls(t *testing.T) {
	s := newStuckBed(t)
	s.n.AcceptQueues("")
	var end []*Queue
	q, err := s.atBad.OpenQueue(ctx(t), QueueOptions{Path: "tcp"})
	if err != nil {
		t.Fatal(err)
	}
	end = append(end, q)
	if q, err = s.n.AcceptQueue(ctx(t), ""); err != nil {
		t.Fatal(err)
	}
	end = append(end, q)
	for _, name := range paths {
		got := receive(ctx(t), s.n, "pushed")
		x, err := s.atGood.SendTensor(ctx(t), "pushed", tensor.Desc{DType: tensor.U8, Shape: []int64{stuckSize}},
			s.src.All(), PutOptions{Paths: []string{name}})
		wait(t, x, err)
		a := arrived(t, got)
		if a.err != nil {
			t.Fatal(a.err)
		}
		a.r.Release()
	}
	for _, q := range end {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	nothingReceived(t, s.n)
}

// A peer cannot agree to so small a window that fences wait for it.
func TestWindowHasRoomForFences(t *testing.T) {
	p := newPair(t, Options{Window: fenceRoom + 1})
	x, err := p.ab.Notify(ctx(t), nil, PutOptions{Paths: []string{"tcp"}})
	wait(t, x, err)
	p.ab.mu.Lock()
	for _, l := range p.ab.paths {
		if l.caps.Window != fenceRoom+1 || len(l.slots) != 1 {
			t.Errorf("a window of %d with %d slots", l.caps.Window, len(l.slots))
		}
	}
	p.ab.mu.Unlock()
	d := over("tcp")
	narrow := &narrowDriver{d}
	s := open(t, Options{Name: "narrow", Paths: []setup.Driver{narrow}})
	to, err := s.Dial(ctx(t), p.b.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	x, err = to.Notify(ctx(t), nil, PutOptions{Paths: []string{"tcp"}})
	if err == nil {
		err = x.Wait(ctx(t))
	}
	if !errors.Is(err, path.ErrProtocol) {
		t.Errorf("over a path with a window of 1: %v", err)
	}
}

// narrowDriver agrees to a window of 1, whatever it was given.
type narrowDriver struct{ *fakeDriver }

func (d *narrowDriver) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	cfg.Window = 1
	return d.fakeDriver.Dial(ctx, o, cfg)
}

// A canceled transfer whose connection has stalled gives everything back although the peer lives,
// and others go on by a new path.
func TestCancelOnStalledPath(t *testing.T) {
	for _, kind := range []path.OpKind{path.Put, path.Get} {
		t.Run(account.KindName(kind), func(t *testing.T) {
			d, err := fault.NewProxyDriver(tcp.New(tcp.Options{CongestionControl: tcp.CongestionSystem}), fault.Plan{})
			if err != nil {
				t.Fatal(err)
			}
			p := newPair(t, Options{Paths: []setup.Driver{d},
				Limits: Limits{Node: Quota{Out: sched.Limits{Transfers: 2}}}})
			p.ignore(t)
			p.a.patience = time.Second // for the other side too, to say that it closed the path
			const size = 64 << 20      // more than the buffers hold
			src, dst := region(t, size), region(t, size)
			fill(src, 5)
			local, remote, begin := src, dst, p.ab.Put
			if kind == path.Get {
				local, remote, begin = dst, src, p.ab.Get
			}
			export(t, p.b, remote, "x", path.Read|path.Write)
			r := lookup(t, p.ab, "x")
			x, err := p.ab.Notify(ctx(t), nil, PutOptions{})
			wait(t, x, err)
			for _, q := range d.Proxies() {
				q.Stall(fault.Both)
			}
			x, err = begin(context.Background(), []path.Copy{r.At(0, local.All())}, PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			y, err := begin(context.Background(), []path.Copy{r.At(0, local.All())}, PutOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := begin(context.Background(), []path.Copy{r.At(0, local.All())}, PutOptions{}); !errors.Is(err,
				sched.ErrTooMany) {
				t.Fatalf("the third one: %v", err)
			}
			for end := ctx(t); !outstanding(x); runtime.Gosched() {
				if end.Err() != nil {
					t.Fatal("not posted")
				}
			}
			x.Cancel()
			if err := x.Wait(ctx(t)); !errors.Is(err, path.ErrCanceled) {
				t.Errorf("%v", err)
			}
			wait(t, y, nil) // on a new path
			if !bytes.Equal(src.All().Bytes(), dst.All().Bytes()) {
				t.Error("other bytes arrived")
			}
			x, err = begin(context.Background(), []path.Copy{r.At(0, local.All())}, PutOptions{})
			wait(t, x, err)
		})
	}
}

// outstanding reports whether something of a transfer was handed to a path and has not ended.
func outstanding(x *Transfer) bool {
	ch := x.currentChannel()
	if ch == nil {
		return false
	}
	ch.mu.Lock()
	defer ch.unlock()
	return x.m.Outstanding() > 0
}
