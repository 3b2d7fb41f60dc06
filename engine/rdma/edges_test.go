package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// taken is a pool of which all slots are out, and what brings them back.
func taken(t *testing.T, slots int) (*mem.Pool, func()) {
	t.Helper()
	p := pool(t, 2048, slots)
	all := make([]mem.Handle, slots)
	if n := p.GetBatch(all); n != slots {
		t.Fatalf("%d of %d slots", n, slots)
	}
	return p, func() { p.PutBatch(all) }
}

// TestCreditBeforeReady: a channel is ready while its receiver has no buffer, and a credit
// announces the first ones. It can overtake the record that says that the channel is ready, since
// they come by different ways. Then what waits is sent, and the driver learns when it has left.
func TestCreditBeforeReady(t *testing.T) {
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{}, Options{every: time.Hour})
	slots, back := taken(t, 16)
	in, out := rx(t, s, engine.RxSpec{Depth: 16, Pools: []*mem.Pool{slots}}), tx(t, c, engine.TxSpec{})
	k := c.conns.Main()
	until(t, "the channel to be ready", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.out != nil && k.out.ready
	})
	k.mu.Lock()
	k.out.ready = false // as if the record were still on its way
	late := &record{kind: kindReady, channel: k.out.id}
	k.mu.Unlock()
	back()
	if n, err := in.TryRecv(burst.New(1)); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	until(t, "the credit to be seen", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.out.w.limit == 16 && !k.out.armed
	})
	put(t, out, 0, "a", "b")
	if err := k.ready(late); err != nil {
		t.Fatal(err)
	}
	got(t, in, 2)
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
}

// TestFirstCreditLost: a sender that may not send anything yet loses its first credit. The receiver
// repeats it.
func TestFirstCreditLost(t *testing.T) {
	for tr, script := range map[Transport]string{RC: "drop recv 1", UC: "loss 100%", UD: "loss 100%"} {
		t.Run(tr.String(), func(t *testing.T) {
			f := onFake(t, "")
			s, c, _ := f.pair(t, Options{Transport: tr}, Options{Transport: tr, every: often})
			slots, back := taken(t, 16)
			in, out := rx(t, s, engine.RxSpec{Depth: 16, Pools: []*mem.Pool{slots}}), tx(t, c, engine.TxSpec{})
			k := c.conns.Main()
			until(t, "the channel to be ready", func() bool {
				k.mu.Lock()
				defer k.mu.Unlock()
				return k.out != nil && k.out.ready
			})
			f.run(t, script)
			back()
			if n, err := in.TryRecv(burst.New(1)); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			if n := s.Counts().Credits; n != 1 {
				t.Fatalf("%d credits", n)
			}
			f.run(t, "loss 0%")
			put(t, out, 0, "a")
			got(t, in, 1)
			if st := stats(s).Rx; st.Drops.Total() != 0 {
				t.Errorf("drops: %v", &st.Drops)
			}
		})
	}
}

// TestCloseShared: connections that share buffers may count on more than there are, and when their
// queue closes a message may wait for one. It is dropped like the others: its sender is not kept
// waiting, and the connections go on with the next queue.
func TestCloseShared(t *testing.T) {
	f := onFake(t, "mode wire")
	s, c, _ := f.pair(t, Options{}, Options{})
	other := f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", Options{})
	until(t, "both connections", func() bool { return len(s.Conns()) == 2 })
	in := rx(t, s, engine.RxSpec{Depth: 8})
	outs := []engine.TxQueue{tx(t, c, engine.TxSpec{}), tx(t, other, engine.TxSpec{})}
	k := c.conns.Main()
	until(t, "the first connection to count on all buffers", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.out != nil && k.out.ready && k.out.w.room() >= 8
	})
	q := in.(*rxQueue)
	for i := range 8 {
		put(t, outs[1], 0, fmt.Sprint(i))
	}
	until(t, "all buffers to be used", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.look()
		return q.n == 8
	})
	for i := range 8 {
		put(t, outs[0], 0, fmt.Sprint(i))
	}
	until(t, "a message to wait for a buffer", func() bool { return f.count(t, "rnr_naks") > 0 })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	<-q.over
	for _, out := range outs {
		if err := out.Drain(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if st := stats(s).Rx; st.Drops[engine.DropClosed] != 16 || st.Drops.Total() != 16 {
		t.Errorf("drops: %v", &st.Drops)
	}
	in = rx(t, s, engine.RxSpec{Depth: 8})
	for _, out := range outs {
		put(t, out, 0, "next")
		if g := got(t, in, 1); !strings.HasSuffix(g[0], " next") {
			t.Errorf("%q", g)
		}
	}
}

// TestSmallCQ: a device whose completion queues hold less than its shared receive queues gets no
// more buffers than their completions fit.
func TestSmallCQ(t *testing.T) {
	f := onFake(t, "mode wire; limit max_cqe 32")
	s, c, _ := f.pair(t, Options{SendDepth: 8}, Options{SendDepth: 8})
	in, out := rx(t, s, engine.RxSpec{Depth: 64}), tx(t, c, engine.TxSpec{Depth: 128})
	for i := range 64 {
		put(t, out, 0, fmt.Sprint(i))
	}
	k := c.conns.Main()
	until(t, "the sender to stop", func() bool {
		i, ok := c.Conn(k.ID)
		return !ok || i.Flying == 0 && i.Room == 0
	})
	got(t, in, 64)
}

// TestManagedOverran: a connection by rdma_cm does not go to a queue whose completion queue is of
// no use any more.
func TestManagedOverran(t *testing.T) {
	f, w := onManager(t, "mode wire")
	gone := newEnds()
	s := w.server(t, Options{Options: conns.Options{OnConn: gone.on}})
	broken := rx(t, s, engine.RxSpec{Depth: 16})
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	rx(t, c, engine.RxSpec{Depth: 16})
	out := tx(t, c, engine.TxSpec{})
	if _, err := c.Connect(within(t), s.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	gone.next(t, true)
	f.run(t, fmt.Sprintf("overrun 0 %#x", receiving(broken).Num()))
	gone.next(t, false)
	in := rx(t, s, engine.RxSpec{Depth: 16})
	id, err := c.Connect(within(t), s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	put(t, out, id, "a")
	got(t, in, 1)
}

// TestManagedDatagramsClosed: a connection for datagrams ends while the way to its peer is asked
// for, which can take a while. The way goes as well: else the port could not close.
func TestManagedDatagramsClosed(t *testing.T) {
	_, w := onManager(t, "mode wire")
	s := w.open(t, "roce://"+w.host+":0?listen=1&connect=cm&transport=UD", Options{})
	rx(t, s, engine.RxSpec{Depth: 16})
	c := w.open(t, "roce://"+w.own+"?connect=cm&transport=UD", Options{})
	rx(t, c, engine.RxSpec{Depth: 16})
	if _, err := c.Connect(within(t), s.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	k := s.conns.List()[0]
	k.mu.Lock()
	x := k.out.x
	k.mu.Unlock()
	l, to := k.ch.(*link), ibv.Address{SGIDIndex: s.gidOf(k.Local.Addr()), DGID: k.Remote.Addr()}
	if err := s.CloseConn(k.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.address(k, x, to, nil); !errors.Is(err, io.EOF) {
		t.Errorf("the way of a connection that has ended: %v", err)
	}
}

// unanswered is a connector in which a peer does not answer.
type unanswered struct {
	overTCP
	begun chan struct{}
}

func (u unanswered) dial(ctx context.Context, _, _ netip.AddrPort) (session, error) {
	close(u.begun)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCloseWhileConnecting: a port that closes ends the calls of Connect that wait for a peer that
// does not answer.
func TestCloseWhileConnecting(t *testing.T) {
	f := onFake(t, "")
	c := f.open(t, "roce://127.0.0.1?device=fake1", Options{Options: conns.Options{ConnectTimeout: time.Hour}})
	u := unanswered{begun: make(chan struct{})}
	c.connector = u
	result := make(chan error, 1)
	go func() {
		_, err := c.Connect(within(t), netip.MustParseAddrPort("192.0.2.7:7"))
		result <- err
	}()
	<-u.begun
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, engine.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestPeerDoesNotRead: a connection whose peer does not read its records ends for a fault, and not
// as one that the peer has closed.
func TestPeerDoesNotRead(t *testing.T) {
	f := onFake(t, "")
	gone := newEnds()
	s := f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0", Options{Options: conns.Options{OnConn: gone.on}})
	ch, err := overTCP{}.dial(within(t), s.a.remote, s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer ch.wait()
	defer ch.close()
	ch.send(&record{kind: kindHello})
	gone.next(t, true)
	k := s.conns.List()
	for more := true; more; {
		k[0].ch.send(&record{kind: kindOffer, channel: 1, pair: pairInfo{mtu: 1024}})
		s.mu.Lock()
		more = !k[0].Over
		s.mu.Unlock()
	}
	if v := gone.next(t, false); !errors.Is(v.Err, engine.ErrDown) || s.Counts().Broken != 1 {
		t.Errorf("%v, %d broken", v.Err, s.Counts().Broken)
	}
}

// TestLostFailure: the completion of a request that failed is lost. Those behind it are flushed,
// which no other word comes to explain: the connection ends, and what waits is dropped.
func TestLostFailure(t *testing.T) {
	f := onFake(t, "")
	theirs := newEnds()
	s, c, _ := f.pair(t, Options{}, Options{Options: conns.Options{OnConn: theirs.on}, every: often})
	in, out := rx(t, s, engine.RxSpec{Depth: 16}), tx(t, c, engine.TxSpec{})
	put(t, out, 0, "a")
	got(t, in, 1)
	until(t, "it to be over", func() bool { return stats(c).Tx.Packets == 1 })
	f.run(t, "status send 1 REM_OP_ERR; drop send 1")
	put(t, out, 0, "b", "c", "d")
	if v := theirs.next(t, false); !errors.Is(v.Err, engine.ErrDown) || !strings.Contains(v.Err.Error(), "flushed") {
		t.Errorf("the end of the connection: %v", v.Err)
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if st := stats(c).Tx; f.count(t, "drops") != 1 || st.Packets+st.Drops[engine.DropDown] != 4 {
		t.Errorf("%d completions were lost; %d packets left, drops %v", f.count(t, "drops"), st.Packets, &st.Drops)
	}
}
