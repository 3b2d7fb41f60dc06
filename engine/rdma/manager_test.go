package rdma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/mem"
)

// managed has ports that connect by the connection manager at both ends.
func managed(t *testing.T, w managers) {
	for name, f := range map[string]func(*testing.T, managers){
		"both ways": bothWays, "few buffers": fewBuffers, "closed": closedBySide, "queue closed": queueClosed,
		"queue of the client closed": clientQueueClosed, "many": manyPeers, "refused": refusedByPeer,
		"refusals": plainRefusals, "reconnect": reconnects, "accepted while it closes": closesEarly,
	} {
		t.Run(name, func(t *testing.T) { f(t, w) })
	}
	t.Run("UC", func(t *testing.T) { unreliableManaged(t, w, UC) })
	t.Run("UD", func(t *testing.T) { unreliableManaged(t, w, UD) })
}

// managers opens ports of the connection manager.
type managers struct {
	e         *Engine
	host, own string // addresses of servers, and of clients
}

func (w managers) open(t testing.TB, address string, o Options) *Port {
	t.Helper()
	p, err := w.e.OpenPort(within(t), engine.PortSpec{Address: address, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing %s: %v", address, err)
		}
	})
	return p.(*Port)
}

func (w managers) server(t testing.TB, o Options) *Port {
	t.Helper()
	return w.open(t, fmt.Sprintf("roce://%s:0?listen=1&connect=cm", w.host), o)
}

func (w managers) client(t testing.TB, s *Port, o Options) *Port {
	t.Helper()
	return w.open(t, "roce://"+s.LocalAddr().String()+"?connect=cm&local="+w.own, o)
}

// text is a message of n bytes that says its number.
func text(i, n int) string {
	b := []byte(strings.Repeat(fmt.Sprintf("%d.", i), n/2+1))[:n]
	return string(b)
}

// met waits until both ports have a connection, and returns the server's id of it.
func met(t testing.TB, s, c *Port) uint32 {
	t.Helper()
	for _, p := range []*Port{c, s} {
		if err := p.WaitConnected(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	return s.Conns()[0].ID
}

func bothWays(t *testing.T, w managers) {
	events := newEnds()
	s := w.server(t, Options{Options: conns.Options{OnConn: events.on}})
	if a := s.LocalAddr(); a.Port() == 0 || a.Addr().String() != w.host {
		t.Fatalf("listening at %v", a)
	}
	c := w.client(t, s, Options{})
	if n := s.Counts().QueuePairs + c.Counts().QueuePairs; n != 0 {
		t.Fatalf("%d queue pairs before there is a receive queue", n)
	}
	qs, qc := rx(t, s, engine.RxSpec{Depth: 64}), rx(t, c, engine.RxSpec{Depth: 64})
	ts, tc := tx(t, s, engine.TxSpec{}), tx(t, c, engine.TxSpec{})
	id := met(t, s, c)
	if e := events.next(t, true); e.ID != id || e.Remote != c.LocalAddr() {
		t.Errorf("%+v, expected connection %d of %v", e, id, c.LocalAddr())
	}
	if n := s.Counts().QueuePairs + c.Counts().QueuePairs; n != 2 {
		t.Errorf("%d queue pairs, expected one at each end", n)
	}
	if i, ok := s.Conn(id); !ok || i.Queue != 0 || i.Room != -1 {
		t.Errorf("%+v", i)
	}
	for _, p := range []*Port{s, c} { // not the connection manager's 655 ms
		k := p.conns.List()[0]
		k.mu.Lock()
		a, err := k.out.x.qp.Query()
		k.mu.Unlock()
		if err != nil || a.MinRNRTimer != 12 || a.RNRRetry != rnrForever || a.RetryCount != 6 {
			t.Errorf("%+v, %v", a, err)
		}
	}
	const rounds, each = 12, 20
	bytes := 0
	for i := range rounds {
		var there, back []string
		for k := range each {
			there = append(there, text(i*each+k, rand.IntN(2048)))
			back = append(back, text(i*each+k+7, rand.IntN(100)))
			bytes += len(there[k])
		}
		put(t, tc, 0, there...)
		put(t, ts, id, back...)
		for k, m := range got(t, qs, each) {
			if m != fmt.Sprint(id, " ", there[k]) {
				t.Fatalf("round %d, message %d to the server: %.60q of %d bytes, expected %.60q of %d", i, k, m, len(m),
					there[k], len(there[k]))
			}
		}
		for k, m := range got(t, qc, each) {
			if _, m, _ = strings.Cut(m, " "); m != back[k] {
				t.Fatalf("round %d, message %d to the client: %.60q, expected %.60q", i, k, m, back[k])
			}
		}
	}
	if err := tc.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if a, b := stats(c).Tx, stats(s).Rx; a.Packets != rounds*each || b.Packets != rounds*each ||
		int(a.Bytes) != bytes || int(b.Bytes) != bytes {
		t.Errorf("sent %d of %d bytes, received %d of %d, expected %d of %d", a.Packets, a.Bytes, b.Packets, b.Bytes,
			rounds*each, bytes)
	}
}

// fewBuffers: a sender that is far ahead of its receiver loses nothing.
func fewBuffers(t *testing.T, w managers) {
	s := w.server(t, Options{})
	c := w.client(t, s, Options{})
	q := rx(t, s, engine.RxSpec{Depth: 4, Pools: []*mem.Pool{pool(t, 2048, 8)}})
	rx(t, c, engine.RxSpec{Depth: 4})
	out := tx(t, c, engine.TxSpec{})
	const n = 60
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint("message ", i))
	}
	put(t, out, 0, want...)
	for i, m := range got(t, q, n) {
		if _, m, _ = strings.Cut(m, " "); m != want[i] {
			t.Fatalf("message %d: %q, expected %q", i, m, want[i])
		}
	}
}

// closedBySide: each side learns that the other has closed, and everything is accounted for.
func closedBySide(t *testing.T, w managers) {
	for _, side := range []string{"client", "server"} {
		at, bt := newEnds(), newEnds()
		s := w.server(t, Options{Options: conns.Options{OnConn: at.on}})
		c := w.client(t, s, Options{Options: conns.Options{OnConn: bt.on}})
		q := rx(t, s, engine.RxSpec{Depth: 32})
		rx(t, c, engine.RxSpec{Depth: 32})
		out := tx(t, c, engine.TxSpec{})
		id := met(t, s, c)
		put(t, out, 0, "first", "last")
		if err := out.Drain(within(t)); err != nil {
			t.Fatal(err)
		}
		at.next(t, true)
		bt.next(t, true)
		own := c.Conns()[0].ID
		var err error
		if side == "client" {
			err = c.CloseConn(own)
		} else {
			err = s.CloseConn(id)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []ConnEvent{at.next(t, false), bt.next(t, false)} {
			if e.Err != nil {
				t.Errorf("closed by the %s: %+v", side, e)
			}
		}
		if m := got(t, q, 2); m[1] != fmt.Sprint(id, " last") { // what had arrived is still there
			t.Errorf("closed by the %s: %q", side, m)
		}
		put(t, out, own, "to nobody")
		if err := out.Drain(within(t)); err != nil {
			t.Fatal(err)
		}
		if st := stats(c).Tx; st.Packets != 2 || st.Drops[engine.DropDown] != 1 {
			t.Errorf("closed by the %s: %+v", side, st)
		}
	}
}

// queueClosed: a connection ends with its receive queue, and the next queue has a new one.
func queueClosed(t *testing.T, w managers) {
	events := newEnds()
	s := w.server(t, Options{})
	c := w.client(t, s, Options{Options: conns.Options{Reconnect: true, BackoffMin: time.Millisecond,
		OnConn: events.on}})
	rx(t, c, engine.RxSpec{Depth: 16})
	out := tx(t, c, engine.TxSpec{})
	for i := range 3 {
		q := rx(t, s, engine.RxSpec{Depth: 16})
		events.next(t, true)
		put(t, out, 0, fmt.Sprint("message ", i))
		if m := got(t, q, 1); !strings.HasSuffix(m[0], fmt.Sprint("message ", i)) {
			t.Errorf("received %q", m)
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if e := events.next(t, false); e.Err != nil {
			t.Errorf("%+v", e)
		}
		s.control.mu.Lock()
		if n := len(s.control.draining); n > 0 {
			t.Errorf("%d queues that are gone are still looked after", n)
		}
		s.control.mu.Unlock()
	}
}

// clientQueueClosed: it is the same with a queue of the side that connects, which connects again
// with the next one.
func clientQueueClosed(t *testing.T, w managers) {
	s := w.server(t, Options{})
	q := rx(t, s, engine.RxSpec{Depth: 16})
	c := w.client(t, s, Options{Options: conns.Options{Reconnect: true, BackoffMin: time.Millisecond}})
	out := tx(t, c, engine.TxSpec{})
	for i := range 3 {
		own := rx(t, c, engine.RxSpec{Depth: 16})
		put(t, out, 0, fmt.Sprint("message ", i))
		if m := got(t, q, 1); !strings.HasSuffix(m[0], fmt.Sprint("message ", i)) {
			t.Errorf("received %q", m)
		}
		if err := out.Drain(within(t)); err != nil {
			t.Fatal(err)
		}
		if err := own.Close(); err != nil {
			t.Fatal(err)
		}
		until(t, "the server's connection to end", func() bool { return len(s.conns.List()) == 0 })
	}
	if n := s.Counts(); n.Accepted != 3 {
		t.Errorf("%+v", n)
	}
}

// manyPeers: one port connects several times, and each connection has its packets.
func manyPeers(t *testing.T, w managers) {
	s := w.server(t, Options{})
	qs := []engine.RxQueue{rx(t, s, engine.RxSpec{Depth: 32}), rx(t, s, engine.RxSpec{Depth: 32})}
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	rx(t, c, engine.RxSpec{Depth: 32})
	out := tx(t, c, engine.TxSpec{})
	const n = 6
	want := map[string]bool{}
	for i := range n {
		id, err := c.Connect(within(t), s.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		put(t, out, id, fmt.Sprint("from ", i))
		want[fmt.Sprint("from ", i)] = true
	}
	for _, q := range qs { // each queue has half of the connections
		for _, m := range got(t, q, n/2) {
			_, m, _ = strings.Cut(m, " ")
			if !want[m] {
				t.Errorf("received %q", m)
			}
			delete(want, m)
		}
	}
	if len(want) > 0 || s.Counts().Accepted != n {
		t.Errorf("%v did not come; %+v", want, s.Counts())
	}
}

// refusedByPeer: no program listens, or the listener has enough connections.
func refusedByPeer(t *testing.T, w managers) {
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	rx(t, c, engine.RxSpec{Depth: 16})
	nobody := netip.AddrPortFrom(netip.MustParseAddr(w.host), 4)
	var ce *ConnError
	if _, err := c.Connect(within(t), nobody); !errors.Is(err, engine.ErrConnect) || !errors.As(err, &ce) ||
		ce.Remote != nobody || !strings.Contains(err.Error(), "no service listens") {
		t.Errorf("to nobody: %v", err)
	}
	s := w.server(t, Options{Options: conns.Options{MaxConns: 1}})
	rx(t, s, engine.RxSpec{Depth: 16})
	if _, err := c.Connect(within(t), s.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Connect(within(t), s.LocalAddr()); !errors.Is(err, engine.ErrConnect) ||
		!strings.Contains(err.Error(), `it says "too many connections"`) {
		t.Errorf("beyond MaxConns: %v", err)
	}
	if n := s.Counts(); n.Accepted != 1 || n.Refused != 1 {
		t.Errorf("%+v", n)
	}
	until(t, "the refused connection to go", func() bool { return len(c.conns.List()) == 1 })
}

// plainRefusals: what a peer without records cannot do is refused, with what can.
func plainRefusals(t *testing.T, w managers) {
	s := w.server(t, Options{})
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	if _, err := c.Connect(within(t), s.LocalAddr()); !errors.Is(err, engine.ErrNotReady) {
		t.Errorf("Connect without a receive queue: %v", err)
	}
	if _, err := w.e.OpenPort(within(t), engine.PortSpec{Address: "roce://" + s.LocalAddr().String() +
		"?listen=1&connect=cm"}); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("a port that is in use: %v", err)
	}
	rx(t, s, engine.RxSpec{Depth: 16})
	rx(t, c, engine.RxSpec{Depth: 16})
	id, err := c.Connect(within(t), s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	p := pool(t, 4096, 1)
	if _, err := c.AddRxQueue(engine.RxSpec{Conn: id, Pools: []*mem.Pool{p}}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a bound queue: %v", err)
	}
}

// reconnects: a client whose server goes comes back when there is one again, and what waited is
// sent.
func reconnects(t *testing.T, w managers) {
	events := newEnds()
	s := w.server(t, Options{})
	at := s.LocalAddr()
	c := w.client(t, s, Options{Options: conns.Options{Reconnect: true, BackoffMin: time.Millisecond,
		BackoffMax: 20 * time.Millisecond, OnConn: events.on}})
	rx(t, c, engine.RxSpec{Depth: 16})
	rx(t, s, engine.RxSpec{Depth: 16})
	out := tx(t, c, engine.TxSpec{})
	events.next(t, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	events.next(t, false)
	put(t, out, 0, "later")
	s = w.open(t, fmt.Sprintf("roce://%s?listen=1&connect=cm", at), Options{})
	q := rx(t, s, engine.RxSpec{Depth: 16})
	if m := got(t, q, 1); !strings.HasSuffix(m[0], "later") {
		t.Errorf("received %q", m)
	}
	events.next(t, true)
}

// closesEarly: a port that closes while others connect leaves nothing behind, and their connections
// end.
func closesEarly(t *testing.T, w managers) {
	c := w.open(t, "roce://"+w.own+"?connect=cm", Options{})
	rx(t, c, engine.RxSpec{Depth: 16})
	for i := range 6 {
		s := w.server(t, Options{})
		rx(t, s, engine.RxSpec{Depth: 16})
		result := make(chan error, 1)
		go func() {
			_, err := c.Connect(within(t), s.LocalAddr())
			result <- err
		}()
		if i%2 == 1 {
			until(t, "a connection to begin", func() bool { return len(s.conns.List()) > 0 || s.Counts().Accepted > 0 })
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err != nil && !errors.Is(err, engine.ErrConnect) {
			t.Errorf("a server that closes: %v", err)
		}
	}
	until(t, "the connections to end", func() bool { return len(c.conns.List()) == 0 })
}

// TestNoManager: on a machine without librdmacm, or without the kernel's part of it, the error says
// so, and nothing stays behind.
func TestNoManager(t *testing.T) {
	f := onFake(t, "")
	for _, path := range []string{"/nowhere/librdmacm.so.1", ""} {
		e := New(f.engine.lib.Path)
		e.cm = path
		p, err := e.OpenPort(within(t), engine.PortSpec{Address: "roce://127.0.0.1:0?listen=1&device=fake0&connect=cm"})
		if path == "" && err == nil {
			p.Close()
			continue // this machine has RDMA connections; the guest's tests go on from here
		}
		if !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), "connect=cm") ||
			!strings.Contains(err.Error(), "rdma") {
			t.Errorf("%q: %v", path, err)
		}
	}
}
