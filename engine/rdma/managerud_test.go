package rdma

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/mem"
)

// unreliableManaged has ports of UC or UD that connect by the connection manager.
func unreliableManaged(t *testing.T, w managers, how Transport) {
	atServer, atClient := newEnds(), newEnds()
	query := "connect=cm&transport=" + how.String()
	open := func(o Options) (*Port, engine.RxQueue) {
		s := w.open(t, fmt.Sprintf("roce://%s:0?listen=1&%s", w.host, query), o)
		return s, rx(t, s, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool(t, 8192, 128)}})
	}
	s, qs := open(Options{Options: conns.Options{OnConn: atServer.on, MaxConns: 2}})
	c := w.open(t, "roce://"+w.own+"?"+query, Options{Options: conns.Options{OnConn: atClient.on}})
	qc := rx(t, c, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool(t, 8192, 128)}})
	ts := tx(t, s, engine.TxSpec{Pools: []*mem.Pool{pool(t, 8192, 64)}})
	tc := tx(t, c, engine.TxSpec{Pools: []*mem.Pool{pool(t, 8192, 64)}})
	if caps := s.Capabilities(); caps.Lossless || caps.ExactDrops || how == UD && caps.MaxPacket != s.Info().MTU {
		t.Errorf("capabilities %+v", caps)
	}
	own, err := c.Connect(within(t), s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	id := atServer.next(t, true).ID
	atClient.next(t, true)
	put(t, ts, id, "early") // of UD, before the server knows where its peer is
	longest := 5000
	if how == UD {
		longest = c.Info().MTU
	}
	there := []string{"first", text(1, longest), text(2, 0), text(3, 77)}
	put(t, tc, own, there...)
	for i, m := range got(t, qs, len(there)) {
		if m != fmt.Sprint(id, " ", there[i]) {
			t.Fatalf("message %d to the server: %.60q of %d bytes, expected %.60q of %d", i, m, len(m), there[i],
				len(there[i]))
		}
	}
	back := []string{"early", text(9, longest), "last"}
	put(t, ts, id, back[1:]...)
	for i, m := range got(t, qc, len(back)) {
		if m != fmt.Sprint(own, " ", back[i]) {
			t.Fatalf("message %d to the client: %.60q, expected %.60q", i, m, back[i])
		}
	}
	if err := errors.Join(tc.Drain(within(t)), ts.Drain(within(t))); err != nil {
		t.Fatal(err)
	}
	if a, b := stats(c), stats(s); int(a.Tx.Packets) != len(there) || int(b.Rx.Packets) != len(there) ||
		int(b.Tx.Packets) != len(back) || b.Rx.Drops.Total() != 0 {
		t.Errorf("client %+v, server %+v", a, b)
	}
	if how == UD {
		foreignPeer(t, c, s, tc, qs, own)
	} else {
		other, err := c.Connect(within(t), s.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		put(t, tc, other, "other")
		if m := got(t, qs, 1); !strings.HasSuffix(m[0], " other") {
			t.Errorf("%q", m)
		}
	}

	// A port that refuses says why, and without a listener the error says that.
	if _, err := c.Connect(within(t), s.LocalAddr()); !errors.Is(err, engine.ErrConnect) ||
		!strings.Contains(err.Error(), `it says "too many connections"`) {
		t.Errorf("beyond MaxConns: %v", err)
	}
	nobody := netip.AddrPortFrom(netip.MustParseAddr(w.host), 4)
	if _, err := c.Connect(within(t), nobody); !errors.Is(err, engine.ErrConnect) ||
		!strings.Contains(err.Error(), "no service listens") {
		t.Errorf("to nobody: %v", err)
	}
	if err := c.CloseConn(own); err != nil {
		t.Fatal(err)
	}
	if how == UC { // UD has no goodbye
		atServer.next(t, true)
		if e := atServer.next(t, false); e.ID != id || e.Err != nil {
			t.Errorf("%+v", e)
		}
	}
}

// foreignPeer: the port drops messages of a second peer that go to the queue pair of the first one.
func foreignPeer(t *testing.T, c, s *Port, out engine.TxQueue, in engine.RxQueue, first uint32) {
	t.Helper()
	second, err := c.Connect(within(t), s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	channel := func(id uint32) *pair {
		c.mu.Lock()
		k := c.conns.Get(id)
		c.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.out.x
	}
	to := channel(first).peers
	k := channel(second)
	right := k.peers
	k.peers = to
	put(t, out, second, "foreign")
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	k.peers = right
	put(t, out, second, "by name")
	if m := got(t, in, 1); !strings.HasSuffix(m[0], " by name") {
		t.Errorf("%q", m)
	}
	until(t, "the foreign peer's drop", func() bool { return stats(s).Rx.Drops[engine.DropNoRule] == 1 })
}
