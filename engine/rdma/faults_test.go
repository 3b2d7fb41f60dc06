package rdma

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// ends collects how connections end.
type ends struct{ c chan ConnEvent }

func newEnds() ends { return ends{make(chan ConnEvent, 4096)} }

func (e ends) on(v ConnEvent) { e.c <- v }

// next is the next event that says that a connection has come, or has gone.
func (e ends) next(t testing.TB, up bool) ConnEvent {
	t.Helper()
	for {
		select {
		case v := <-e.c:
			if v.Up == up {
				return v
			}
		case <-within(t).Done():
			t.Fatalf("no event: up %v", up)
		}
	}
}

func stats(p *Port) (s engine.PortStats) {
	p.Stats(&s)
	return s
}

// TestKilled: a queue pair that goes into error ends its connection on both sides, with the reason,
// and no other.
func TestKilled(t *testing.T) {
	gone, theirs := newEnds(), newEnds()
	f := onFake(t, "mode wire")
	s, c, _ := f.pair(t, Options{Options: conns.Options{OnConn: gone.on}},
		Options{Options: conns.Options{OnConn: theirs.on}})
	other := f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", Options{})
	in := rx(t, s, engine.RxSpec{Depth: 64})
	out, rest := tx(t, c, engine.TxSpec{}), tx(t, other, engine.TxSpec{})
	put(t, out, 0, "a")
	put(t, rest, 0, "b")
	got(t, in, 2)
	c.mu.Lock()
	peer := c.conns.Main()
	c.mu.Unlock()
	peer.mu.Lock()
	qpn := peer.out.x.qp.Num()
	peer.mu.Unlock()
	f.run(t, fmt.Sprintf("kill 1 %#x", qpn))
	v := theirs.next(t, false)
	var e *ConnError
	if !errors.As(v.Err, &e) || !errors.Is(v.Err, engine.ErrDown) || e.Err == nil {
		t.Errorf("the end of a connection whose queue pair was killed: %v", v.Err)
	}
	if v := gone.next(t, false); !errors.Is(v.Err, engine.ErrDown) ||
		!strings.Contains(v.Err.Error(), "gave the connection up") {
		t.Errorf("what the other side hears: %v", v.Err)
	}
	put(t, rest, 0, "still here")
	if s := got(t, in, 1); !strings.HasSuffix(s[0], " still here") {
		t.Errorf("%q", s)
	}
	if n := c.Counts().Broken; n != 1 {
		t.Errorf("%d broken connections, expected 1", n)
	}
	// What is sent on it now is counted as dropped, not lost.
	put(t, out, 0, "x", "y")
	until(t, "drops", func() bool { return stats(c).Tx.Drops[engine.DropDown] == 2 })
}

// TestCableCut: a peer that does not answer any more ends the connection when the retries are used
// up, and every packet is accounted for.
func TestCableCut(t *testing.T) {
	theirs := newEnds()
	f := onFake(t, "mode wire; timers instant")
	s, c, _ := f.pair(t, Options{}, Options{Options: conns.Options{OnConn: theirs.on}})
	in := rx(t, s, engine.RxSpec{Depth: 64})
	out := tx(t, c, engine.TxSpec{Depth: 128})
	put(t, out, 0, "a", "b", "c")
	got(t, in, 3)
	f.run(t, "cable 1 cut")
	for range 40 {
		put(t, out, 0, "lost")
	}
	v := theirs.next(t, false)
	if !errors.Is(v.Err, engine.ErrDown) || !strings.Contains(v.Err.Error(), "retries") {
		t.Errorf("the end of a connection without a cable: %v", v.Err)
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if st := stats(c).Tx; st.Packets != 3 || st.Drops[engine.DropDown] != 40 {
		t.Errorf("%d packets left, drops: %v; expected 3 and 40 times down", st.Packets, &st.Drops)
	}
	f.run(t, "cable 1 mend")
}

// TestForeignWrite: a peer that writes with an immediate value, which takes a buffer as a message
// does, loses its connection for that reason. The buffer comes back, and other connections go on.
func TestForeignWrite(t *testing.T) {
	for _, tr := range []Transport{RC, UC} {
		t.Run(tr.String(), func(t *testing.T) {
			gone, theirs := newEnds(), newEnds()
			f := onFake(t, "")
			s, c, _ := f.pair(t, Options{Transport: tr, Options: conns.Options{OnConn: gone.on}},
				Options{Transport: tr, Options: conns.Options{OnConn: theirs.on}})
			other := f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", Options{Transport: tr})
			in := rx(t, s, engine.RxSpec{Depth: 64})
			out, rest := tx(t, c, engine.TxSpec{}), tx(t, other, engine.TxSpec{})
			put(t, out, 0, "a")
			put(t, rest, 0, "b")
			got(t, in, 2)
			chain, err := ibv.NewSendChain(1, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer chain.Close()
			chain.WriteImm(0, 0, 7, 0, 0) // no bytes, so that no key is needed, and no word when it is over
			if _, err := sending(c).PostSend(chain); err != nil {
				t.Fatal(err)
			}
			if n, err := in.TryRecv(burst.New(1)); n != 0 || err != nil {
				t.Errorf("%d packets, %v", n, err)
			}
			q := in.(*rxQueue)
			q.mu.Lock()
			posted := q.recvs.Posted()
			q.mu.Unlock()
			if posted != 64 {
				t.Errorf("%d of 64 buffers are posted", posted)
			}
			if v := gone.next(t, false); !errors.Is(v.Err, engine.ErrDown) ||
				!strings.Contains(v.Err.Error(), "immediate value") {
				t.Errorf("the end of the connection: %v", v.Err)
			}
			if v := theirs.next(t, false); !errors.Is(v.Err, engine.ErrDown) ||
				!strings.Contains(v.Err.Error(), "immediate value") {
				t.Errorf("what the peer hears: %v", v.Err)
			}
			put(t, rest, 0, "still here")
			if g := got(t, in, 1); !strings.HasSuffix(g[0], " still here") {
				t.Errorf("%q", g)
			}
			if st := stats(s).Rx; st.Packets != 3 || st.Drops.Total() != 0 || s.Counts().Broken != 1 {
				t.Errorf("%d packets, drops %v, %d broken", st.Packets, &st.Drops, s.Counts().Broken)
			}
		})
	}
}

// TestPortDown: the port tells that its link is down, and when it is up again.
func TestPortDown(t *testing.T) {
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{}, Options{})
	if !s.Info().Up || !c.Info().Up {
		t.Fatal("the ports are not up")
	}
	w := engine.NewWaker()
	if l := s.LinkState(w); !l.Up || l.Changes != 0 {
		t.Errorf("%+v", l)
	}
	f.run(t, "port 0 down")
	<-w.C()
	until(t, "the port to be down", func() bool { return !s.Info().Up })
	if l := s.LinkState(w); l.Up || l.Changes != 1 {
		t.Errorf("%+v", l)
	}
	f.run(t, "port 0 up")
	until(t, "the port to be up", func() bool { return s.Info().Up })
	if st := stats(s); st.LinkChanges != 2 {
		t.Errorf("%d changes of the link, expected 2", st.LinkChanges)
	}
}

// TestStalled: a consumer that stands still stops its sender, without a single request that finds
// no receive; when it goes on, everything comes.
func TestStalled(t *testing.T) {
	f := onFake(t, "mode wire")
	s, c, _ := f.pair(t, Options{}, Options{})
	in := rx(t, s, engine.RxSpec{Depth: 16})
	out := tx(t, c, engine.TxSpec{Depth: 256})
	before := f.count(t, "rnr_naks")
	const n = 200
	for i := range n {
		put(t, out, 0, fmt.Sprint(i))
	}
	until(t, "the sender to stop", func() bool {
		i, ok := c.Conn(c.conns.Main().ID)
		return ok && i.Flying == 0 && i.Waiting == n-16 && i.Room == 0
	})
	if w := c.Counts().Waits; w == 0 {
		t.Error("the sender waits, and it is not counted")
	}
	for i, text := range got(t, in, n) {
		if !strings.HasSuffix(text, fmt.Sprint(" ", i)) {
			t.Fatalf("packet %d: %q", i, text)
		}
	}
	if k := f.count(t, "rnr_naks") - before; k != 0 {
		t.Errorf("%d messages found no receive", k)
	}
	if low := s.Counts().Low; low == 0 {
		t.Error("the receive queue ran dry, and it is not counted")
	}
	if st := stats(c).Tx; st.Drops.Total() != 0 {
		t.Errorf("drops: %v", &st.Drops)
	}
}

// TestTooLong: a message that the receiver's buffers do not hold is dropped where it is sent, and
// the connection lives.
func TestTooLong(t *testing.T) {
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{}, Options{})
	in := rx(t, s, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{pool(t, 64, 32)}})
	out := tx(t, c, engine.TxSpec{})
	put(t, out, 0, strings.Repeat("x", 64), strings.Repeat("y", 65), strings.Repeat("z", 2048), "end")
	if g := got(t, in, 2); !strings.HasSuffix(g[1], " end") || !strings.HasSuffix(g[0], strings.Repeat("x", 64)) {
		t.Errorf("%q", g)
	}
	until(t, "the drops", func() bool { return stats(c).Tx.Drops[engine.DropTooLong] == 2 })
}

// TestRefusals: what cannot be had is an error that says what and why, and nothing is left of the
// attempt.
func TestRefusals(t *testing.T) {
	opened := func(address string, o Options) func(*testing.T, *fake) error {
		return func(t *testing.T, f *fake) error {
			o.ConnectTimeout = 1 << 40
			p, err := f.engine.OpenPort(within(t), engine.PortSpec{Address: address, Options: o})
			if err == nil {
				p.Close()
			}
			return err
		}
	}
	queue := func(t *testing.T, f *fake) error {
		s, _, _ := f.pair(t, Options{}, Options{})
		_, err := s.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool(t, 2048, 64)}})
		return err
	}
	for _, c := range []struct {
		name, script string
		do           func(*testing.T, *fake) error
		is           error
		want         []string
	}{
		{"GID", "", opened("roce://127.0.0.1:0?listen=1&device=fake0&gid=77", Options{}), engine.ErrUnavailable, []string{"no GID at place 77", "fake0"}},
		{"device", "", opened("roce://127.0.0.1:0?listen=1&device=mlx5_9", Options{}), engine.ErrNotFound, []string{`"mlx5_9"`, `["fake0" "fake1"]`}},
		{"address", "", opened("roce://127.0.0.1:0?listen=1", Options{}), engine.ErrUnavailable, []string{"127.0.0.1", "fake0", "fake1", "device="}},
		{"port", "", opened("roce://127.0.0.1:0?listen=1&device=fake0", Options{Port: 9}), engine.ErrUnavailable, []string{"fake0"}},
		{"memlock", "memlock 8K", queue, engine.ErrUnavailable, []string{"RLIMIT_MEMLOCK"}},
		{"SRQ", "absent srq", queue, engine.ErrUnavailable, []string{"receive queue 0"}},
		{"CQ", "fail ibv_create_cq * ENOMEM", queue, engine.ErrUnavailable, []string{"completion queue"}},
		{"PD", "fail ibv_alloc_pd * ENOMEM", opened("roce://127.0.0.1:0?listen=1&device=fake0", Options{}), engine.ErrUnavailable, []string{"fake0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do(t, onFake(t, c.script))
			if !errors.Is(err, c.is) {
				t.Errorf("%v: expected %v", err, c.is)
			}
			for _, w := range c.want {
				if err != nil && !strings.Contains(err.Error(), w) {
					t.Errorf("%v: expected %q in it", err, w)
				}
			}
		})
	}
}

// TestNoQueuePair: a side that cannot make a queue pair gives the connection up, and the other side
// gets the reason.
func TestNoQueuePair(t *testing.T) {
	gone, theirs := newEnds(), newEnds()
	f := onFake(t, "")
	s, _, _ := f.pair(t, Options{Options: conns.Options{OnConn: gone.on}},
		Options{Options: conns.Options{OnConn: theirs.on}})
	f.run(t, "fail ibv_create_qp * ENOMEM")
	rx(t, s, engine.RxSpec{Depth: 8})
	if v := gone.next(t, false); !errors.Is(v.Err, engine.ErrUnavailable) ||
		!strings.Contains(v.Err.Error(), "queue pair") {
		t.Errorf("the one who cannot: %v", v.Err)
	}
	if v := theirs.next(t, false); !errors.Is(v.Err, engine.ErrDown) || !strings.Contains(v.Err.Error(), "queue pair") {
		t.Errorf("the other one: %v", v.Err)
	}
}

// TestUnknownClients: a client that speaks another protocol at the port's address is refused,
// and the others go on.
func TestUnknownClients(t *testing.T) {
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{Options: conns.Options{MaxConns: 3}}, Options{})
	in, out := rx(t, s, engine.RxSpec{}), tx(t, c, engine.TxSpec{})
	hello := (&record{kind: kindHello}).append(nil)
	for i, say := range [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n"), hello[:3], slices.Concat(hello, hello),
		(&record{kind: kindReady, channel: 1}).append(nil), nil,
		slices.Concat(hello, (&record{kind: kindWithdraw, channel: 9}).append(nil)),
		(&record{kind: kindHello, transport: UC}).append(nil),
		slices.Concat(hello, (&record{kind: kindOffer, channel: 1, pair: pairInfo{mtu: 1024}}).append(nil))} {
		x, err := net.Dial("tcp", s.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		x.Write(say)
		x.(*net.TCPConn).CloseWrite()
		if _, err := x.Read(make([]byte, 1)); err == nil { // a hello of the server
			for err == nil {
				_, err = x.Read(make([]byte, 512))
			}
		}
		x.Close()
		put(t, out, 0, fmt.Sprint(i))
		got(t, in, 1)
	}
	until(t, "unknown clients to be forgotten", func() bool { return len(s.conns.List()) == 1 })
	// Beyond MaxConns they are refused.
	for range 2 {
		f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", Options{})
	}
	o := Options{Options: conns.Options{ConnectTimeout: 1 << 28}}
	if p, err := f.engine.OpenPort(within(t), engine.PortSpec{Address: "roce://" + s.LocalAddr().String() +
		"?device=fake1", Options: o}); !errors.Is(err, engine.ErrConnect) ||
		!strings.Contains(err.Error(), "too many connections") {
		t.Errorf("a connection beyond MaxConns: %v, %v", p, err)
	}
	if s.Counts().Refused == 0 {
		t.Error("no connection is counted as refused")
	}
}

// TestSilent: a peer that connects and says nothing does not stay.
func TestSilent(t *testing.T) {
	s := onFake(t, "").open(t, "roce://127.0.0.1:0?listen=1&device=fake0",
		Options{Options: conns.Options{ConnectTimeout: 1 << 20}})
	x, err := net.Dial("tcp", s.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	b, err := io.ReadAll(x)
	if err != nil || !strings.Contains(string(b), "said nothing") {
		t.Errorf("%q, %v", b, err)
	}
	until(t, "it to be forgotten", func() bool { return len(s.conns.List()) == 0 })
}

// TestTransportsDiffer: peers with different transports do not connect, and the error says why.
func TestTransportsDiffer(t *testing.T) {
	f := onFake(t, "")
	s := f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0&transport=UC", Options{})
	p, err := f.engine.OpenPort(within(t), engine.PortSpec{Address: "roce://" + s.LocalAddr().String() +
		"?device=fake1", Options: Options{Options: conns.Options{ConnectTimeout: 1 << 28}}})
	if !errors.Is(err, engine.ErrConnect) || !strings.Contains(err.Error(), "transport") {
		t.Errorf("%v, %v", p, err)
	}
}

// TestReconnect: a client with Reconnect connects again when its server has gone, and what was sent
// meanwhile arrives.
func TestReconnect(t *testing.T) {
	mine := newEnds()
	f := onFake(t, "mode wire")
	s, c, _ := f.pair(t, Options{}, Options{Options: conns.Options{Reconnect: true, BackoffMin: 1 << 20,
		BackoffMax: 1 << 22, OnConn: mine.on}})
	in, out := rx(t, s, engine.RxSpec{}), tx(t, c, engine.TxSpec{})
	put(t, out, 0, "one")
	got(t, in, 1)
	first := mine.next(t, true)
	at := s.LocalAddr().String()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if v := mine.next(t, false); v.ID != first.ID || v.Err != nil {
		t.Errorf("the end of connection %d: %+v", first.ID, v)
	}
	put(t, out, 0, "two")
	again := f.open(t, "roce://"+at+"?listen=1&device=fake0", Options{})
	in = rx(t, again, engine.RxSpec{})
	if g := got(t, in, 1); !strings.HasSuffix(g[0], " two") {
		t.Errorf("%q", g)
	}
	if v := mine.next(t, true); v.ID == first.ID {
		t.Error("the new connection has the id of the old one")
	}
}

// TestManyPieces: a packet of more segments than the device takes is dropped and counted.
func TestManyPieces(t *testing.T) {
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{}, Options{Segments: 2})
	in, out := rx(t, s, engine.RxSpec{}), tx(t, c, engine.TxSpec{})
	extra := pool(t, 64, 8)
	src := burst.PoolSource(extra)
	b := burst.NewSegmented(1, 8)
	for pieces := range 4 {
		if n, err := out.Alloc(b, 1, 4); n != 1 {
			t.Fatal(err)
		}
		copy(b.Bytes(0, 0), "head")
		for range pieces {
			var h [1]burst.Handle
			extra.GetBatch(h[:])
			b.Builder().AddSegment(src, burst.Segment{Handle: h[0], Off: extra.Offset(h[0]), Len: 1})
			b.Bytes(0, b.Segments(0)-1)[0] = '+'
		}
		if err := out.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	if g := got(t, in, 2); !strings.HasSuffix(g[0], " head") || !strings.HasSuffix(g[1], " head+") {
		t.Errorf("%q", g)
	}
	until(t, "the drops", func() bool { return stats(c).Tx.Drops[engine.DropRefused] == 2 })
}
