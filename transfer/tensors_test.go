package transfer

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

type arrival struct {
	r   *Received
	err error
}

func receive(c context.Context, n *Node, name string) <-chan arrival {
	out := make(chan arrival, 1)
	go func() {
		r, err := n.Receive(c, name)
		out <- arrival{r, err}
	}()
	return out
}

func arrived(t testing.TB, c <-chan arrival) arrival {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-ctx(t).Done():
		t.Fatal("Receive does not return")
		return arrival{}
	}
}

// waiting waits until k receivers are registered for a name.
func waiting(t testing.TB, n *Node, name string, k int) {
	t.Helper()
	for end := ctx(t); ; {
		n.mu.Lock()
		have, more := len(n.waiting[name]), n.wanted
		n.mu.Unlock()
		if have == k {
			return
		}
		select {
		case <-more:
		case <-time.After(10 * time.Millisecond): // a receiver that leaves is not announced
		case <-end.Done():
			t.Fatalf("%d receivers wait, expected %d", have, k)
		}
	}
}

// nothingReceived checks that no landing memory and no offer is left.
func nothingReceived(t testing.TB, n *Node) {
	t.Helper()
	for end := ctx(t); ; {
		n.mu.Lock()
		offers, waiting, exports := len(n.offers), len(n.waiting), len(n.byKey)
		n.mu.Unlock()
		used := n.pool.Stats().InUse
		if offers == 0 && waiting == 0 && exports == 0 && used == 0 {
			return
		}
		select { // memory comes back when fences are done, in the background
		case <-time.After(5 * time.Millisecond):
		case <-end.Done():
			t.Fatalf("%d offers, %d names waited for, %d exports, %d bytes are left", offers, waiting, exports, used)
		}
	}
}

func TestTensorOfNoBytes(t *testing.T) {
	for _, name := range paths {
		p := newPair(t, Options{})
		d := tensor.Desc{DType: tensor.F32, Shape: []int64{3, 0}}
		got := receive(ctx(t), p.b, "empty")
		x, err := p.ab.SendTensor(ctx(t), "empty", d, region(t, 64).All(), PutOptions{Paths: []string{name}})
		wait(t, x, err)
		a := arrived(t, got)
		if a.err != nil || a.r.Span.Len != 0 || !a.r.Desc.Equal(d) || a.r.Path != name {
			t.Fatalf("received %+v, %v", a.r, a.err)
		}
		a.r.Release()
		nothingReceived(t, p.b)
	}
}

func TestTwoReceiversOfOneName(t *testing.T) {
	p := newPair(t, Options{})
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{100}}
	src := region(t, 200)
	fill(src, 1)
	var got []<-chan arrival
	for k := range 2 {
		got = append(got, receive(ctx(t), p.b, "x"))
		waiting(t, p.b, "x", k+1)
	}
	for k := range 2 { // the first to wait is the first to be served
		s, _ := src.Span(uint64(k)*100, 100)
		x, err := p.ab.SendTensor(ctx(t), "x", d, s, PutOptions{})
		wait(t, x, err)
		a := arrived(t, got[k])
		if a.err != nil || !bytes.Equal(a.r.Span.Bytes(), s.Bytes()) {
			t.Fatalf("receiver %d: %v", k, a.err)
		}
		a.r.Release()
	}
	nothingReceived(t, p.b)
}

// A receiver gives up at any moment: nothing is left, and the next one gets the tensor.
func TestReceiveCanceled(t *testing.T) {
	p := newPair(t, Options{})
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{1 << 20}}
	src := region(t, 1<<20)
	fill(src, 2)
	for i := range 60 {
		c, cancel := context.WithCancel(ctx(t))
		got := receive(c, p.b, "x")
		waiting(t, p.b, "x", 1)
		sent := make(chan error, 1)
		s, stop := context.WithCancel(ctx(t))
		go func() {
			x, err := p.ab.SendTensor(s, "x", d, src.All(), PutOptions{Paths: []string{paths[i%2]}})
			if err == nil {
				err = x.Wait(ctx(t))
			}
			sent <- err
		}()
		<-time.After(time.Duration(i*20) * time.Microsecond)
		cancel()
		a := arrived(t, got)
		if a.err == nil {
			a.r.Release()
			if err := <-sent; err != nil {
				t.Errorf("received, but the sender failed with %v", err)
			}
		} else if !errors.Is(a.err, context.Canceled) {
			t.Errorf("Receive ended with %v", a.err)
		} else {
			stop() // the offer may wait for the next receiver
			<-sent
			p.ab.Lookup(ctx(t), "nothing") // the withdrawal has arrived
		}
		stop()
	}
	nothingReceived(t, p.b)
	got := receive(ctx(t), p.b, "x")
	x, err := p.ab.SendTensor(ctx(t), "x", d, src.All(), PutOptions{})
	wait(t, x, err)
	a := arrived(t, got)
	if a.err != nil || !bytes.Equal(a.r.Span.Bytes(), src.All().Bytes()) {
		t.Fatal(a.err)
	}
	a.r.Release()
}

// The sender gives up before the peer has answered its offer: the receiver is free for another one.
func TestOfferWithdrawn(t *testing.T) {
	p := newPair(t, Options{})
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{64}}
	src := region(t, 64)
	c, cancel := context.WithCancel(ctx(t))
	sent := make(chan error, 1)
	go func() {
		_, err := p.ab.SendTensor(c, "x", d, src.All(), PutOptions{})
		sent <- err
	}()
	for p.ba.peerRequests() == 0 {
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("SendTensor ended with %v", err)
	}
	if _, err := p.ab.Lookup(ctx(t), "nothing"); err == nil { // what was sent before has arrived
		t.Error("found nothing")
	}
	got := receive(ctx(t), p.b, "x")
	x, err := p.ab.SendTensor(ctx(t), "x", d, src.All(), PutOptions{})
	wait(t, x, err)
	a := arrived(t, got)
	if a.err != nil || a.r.ID != x.ID() {
		t.Fatalf("received %+v, %v", a.r, a.err)
	}
	a.r.Release()
	nothingReceived(t, p.b)
}

// A receiver whose answer to an offer is late does not wait for the tensor for ever.
func TestOfferAnsweredTooLate(t *testing.T) {
	p := newPair(t, Options{DeadAfter: time.Minute}) // the clock of a session jumps here
	d := tensor.Desc{DType: tensor.U8, Shape: []int64{64}}
	src := region(t, 64)
	got := make(chan *Received, 1)
	go func() {
		for c := ctx(t); ; {
			if r, err := p.b.Receive(c, "x"); err == nil || c.Err() != nil {
				got <- r
				return
			}
		}
	}()
	waiting(t, p.b, "x", 1)
	p.b.mu.Lock() // it cannot answer
	sent := make(chan error, 1)
	go func() {
		_, err := p.ab.SendTensor(ctx(t), "x", d, src.All(), PutOptions{})
		sent <- err
	}()
	for p.ba.peerRequests() == 0 {
		<-time.After(time.Millisecond)
	}
	p.ab.mu.Lock()
	for now, end := time.Now(), time.Now().Add(2*requestTimeout); now.Before(end); now = now.Add(time.Second / 10) {
		p.ab.session.Alive(now)
		p.ab.session.Tick(now)
	}
	p.ab.mu.Unlock()
	p.ab.wake()
	err := <-sent
	p.b.mu.Unlock()
	if !errors.Is(err, control.Timeout) {
		t.Fatalf("SendTensor ended with %v", err)
	}
	var x *Transfer
	for c := ctx(t); ; { // until the receiver waits for it
		if x, err = p.ab.SendTensor(c, "x", d, src.All(), PutOptions{}); !errors.Is(err, control.Busy) {
			break
		}
	}
	wait(t, x, err)
	r := <-got
	if r == nil || r.ID != x.ID() {
		t.Fatalf("received %+v", r)
	}
	r.Release()
	nothingReceived(t, p.b)
}

// peerRequests is the number of the peer's requests that were not answered yet.
func (p *Peer) peerRequests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session.Open()
}

func TestSenderLostMidway(t *testing.T) {
	for _, name := range paths {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, Options{})
			size := int64(8 * PieceSize)
			d := tensor.Desc{DType: tensor.U8, Shape: []int64{size}}
			src := region(t, int(size))
			got := receive(ctx(t), p.b, "x")
			x, err := p.ab.SendTensor(ctx(t), "x", d, src.All(), PutOptions{Paths: []string{name}})
			if err != nil {
				t.Fatal(err)
			}
			p.a.Close()
			soon(t, x.Done(), "the end of the transfer")
			if a := arrived(t, got); a.err == nil {
				a.r.Release() // it was faster
			} else if !errors.Is(a.err, ErrPeerLost) && !errors.Is(a.err, control.Down) &&
				!errors.Is(a.err, control.Shutdown) && !errors.Is(a.err, path.ErrDown) {
				t.Errorf("Receive ended with %v", a.err)
			}
			nothingReceived(t, p.b)
		})
	}
}

// A tensor that does not fit beside another one is refused; the receiver goes on waiting for one
// that does.
func TestTensorOverBudgetForNow(t *testing.T) {
	p := newPair(t, Options{Budget: 4 << 20})
	big := tensor.Desc{DType: tensor.U8, Shape: []int64{4 << 20}}
	small := tensor.Desc{DType: tensor.U8, Shape: []int64{100}}
	src := region(t, 4<<20)
	span, _ := src.Span(0, 100)
	got := receive(ctx(t), p.b, "first")
	x, err := p.ab.SendTensor(ctx(t), "first", small, span, PutOptions{})
	wait(t, x, err)
	first := arrived(t, got)
	if first.err != nil {
		t.Fatal(first.err)
	}
	got = receive(ctx(t), p.b, "second")
	waiting(t, p.b, "second", 1)
	if _, err := p.ab.SendTensor(ctx(t), "second", big, src.All(), PutOptions{}); !errors.Is(err, control.OverBudget) {
		t.Errorf("a tensor beyond what is left: %v", err)
	}
	x, err = p.ab.SendTensor(ctx(t), "second", small, span, PutOptions{})
	wait(t, x, err)
	second := arrived(t, got)
	if second.err != nil {
		t.Fatal(second.err)
	}
	second.r.Release()
	first.r.Release()
	nothingReceived(t, p.b)
}
