package socket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

const listenAny = "tcp://127.0.0.1:0?listen=1"

// dialTo connects an ordinary client.
func dialTo(t testing.TB, p *TCPPort) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// idOf is the id of an ordinary client's connection.
func idOf(t testing.TB, p *TCPPort, c net.Conn) (id uint32) {
	t.Helper()
	at := c.LocalAddr().(*net.TCPAddr).AddrPort()
	eventually(t, "the connection", func() bool { id = p.Find(at); return id != 0 })
	return id
}

// TestTCPManyConnections has many clients send at once. Each connection's bytes come under its own
// id, those of bound queues to these only, and every one is answered with its own bytes.
func TestTCPManyConnections(t *testing.T) {
	const clients, bound, size = 48, 4, 20000
	p := openTCPPort(t, listenAny, TCPOptions{})
	out := newWriter(t, p, engine.TxSpec{})
	pattern := func(i int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("<%d>", i)), size)[:size] }
	var conns []*net.TCPConn
	ids := map[uint32]int{}
	for i := range clients {
		c := dialTo(t, p)
		conns = append(conns, c)
		ids[idOf(t, p, c)] = i
	}
	var readers []*reader
	only := map[*reader]uint32{}
	owner := map[uint32]*reader{}
	for range 2 {
		readers = append(readers, newReader(t, p, engine.RxSpec{}))
	}
	for i := range bound {
		id := p.Find(conns[i].LocalAddr().(*net.TCPAddr).AddrPort())
		r := newReader(t, p, engine.RxSpec{Conn: id})
		only[r], owner[id] = id, r
		readers = append(readers, r)
		if info, ok := known(p, id); !ok || info.queue != r.q.ID() ||
			info.remote != conns[i].LocalAddr().(*net.TCPAddr).AddrPort() {
			t.Errorf("connection %d: %+v, %v", id, info, ok)
		}
		_, err := p.AddRxQueue(engine.RxSpec{Conn: id, Pools: []*mem.Pool{newPool(t, 64, 4)}})
		if !errors.Is(err, engine.ErrInUse) {
			t.Errorf("binding a connection twice: %v", err)
		}
	}
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Add(2)
		go func() {
			defer wg.Done()
			if _, err := c.Write(pattern(i)); err != nil {
				t.Error(err)
			}
		}()
		go func() {
			defer wg.Done()
			got := make([]byte, size)
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, pattern(i)) {
				t.Errorf("client %d did not get its own bytes back: %v", i, err)
			}
		}()
	}
	got := map[uint32][]byte{}
	from := map[uint32]*reader{}
	total := 0
	eventually(t, "all bytes", func() bool {
		for _, r := range readers {
			n, err := r.q.TryRecv(r.b)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				id := r.b.Conn(i)
				if want := only[r]; want != 0 && id != want {
					t.Fatalf("the queue of connection %d got bytes of %d", want, id)
				}
				if o := owner[id]; o != nil && o != r {
					t.Fatalf("bytes of connection %d came to queue %d, and it is bound to queue %d", id, r.q.ID(),
						o.q.ID())
				}
				if from[id] != nil && from[id] != r {
					t.Fatalf("connection %d came to two queues", id)
				}
				from[id] = r
				got[id] = append(got[id], r.b.Bytes(i, 0)...)
				total += r.b.PacketLen(i)
				out.send(id, string(r.b.Bytes(i, 0)))
			}
			r.b.Release()
		}
		return total >= clients*size
	})
	wg.Wait()
	for id, i := range ids {
		if !bytes.Equal(got[id], pattern(i)) {
			t.Errorf("connection %d has other bytes than client %d sent", id, i)
		}
	}
	if c := p.Counts(); c.Accepted != clients || len(p.ConnIDs()) != clients {
		t.Errorf("%+v and %d connections", c, len(p.ConnIDs()))
	}
}

// ends receives until the end of a connection and returns what came before, and the end's flags.
func (r *reader) ends(id uint32) (got []byte, flags burst.Flags) {
	r.t.Helper()
	for {
		b := r.more()
		for i := range b.Len() {
			if b.Conn(i) != id {
				r.t.Fatalf("a packet of connection %d, expected only those of %d", b.Conn(i), id)
			}
			got = append(got, b.Bytes(i, 0)...)
			if b.Flags(i)&burst.Last != 0 {
				return got, b.Flags(i)
			}
		}
	}
}

// knowledge is what a port knows of a connection.
type knowledge struct {
	remote  netip.AddrPort
	queue   int // -1 where no queue reads it
	ended   bool
	waiting int // bursts
}

// known is what a port knows of a connection; false when there is none of that id (any more).
func known(p *TCPPort, id uint32) (knowledge, bool) {
	p.rx.Lock()
	defer p.rx.Unlock()
	c := p.conns.Get(id)
	if c == nil {
		return knowledge{}, false
	}
	k := knowledge{remote: c.Remote, queue: -1}
	if c.q != nil {
		k.queue = c.q.ID()
		c.q.Do(func() { k.ended = c.ended })
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k.waiting = c.out.Len()
	return k, true
}

// TestTCPHalfClose answers a client that has ended its direction, and ends the other.
func TestTCPHalfClose(t *testing.T) {
	p := openTCPPort(t, listenAny, TCPOptions{HalfOpen: true})
	r, w := newReader(t, p, engine.RxSpec{}), newWriter(t, p, engine.TxSpec{})
	c := dialTo(t, p)
	id := idOf(t, p, c)
	c.Write([]byte("question"))
	c.CloseWrite()
	if got, flags := r.ends(id); string(got) != "question" || flags != burst.Last {
		t.Fatalf("%q, %v", got, flags)
	}
	if info, ok := known(p, id); !ok || !info.ended {
		t.Fatalf("a connection that is half open: %+v, %v", info, ok)
	}
	w.send(id, "answer")
	if err := p.CloseWrite(id); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "answer" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, ok := known(p, id); ok || p.Find(c.LocalAddr().(*net.TCPAddr).AddrPort()) != 0 || len(p.ConnIDs()) != 0 {
		t.Error("the connection is closed in both directions, and still there")
	}
	if err := p.CloseWrite(id); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("CloseWrite of a connection that is gone: %v", err)
	}
	w.send(id, "too late")
	w.send(0, "to nobody")
	if s := w.stats(); s.Drops[engine.DropDown] != 1 || s.Drops[engine.DropNoRoute] != 1 || s.Packets != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTCPReset sees a connection break: its end is marked so, the event says why, and its id is
// gone.
func TestTCPReset(t *testing.T) {
	var mu sync.Mutex
	var seen []ConnEvent
	p := openTCPPort(t, listenAny, TCPOptions{Options: conns.Options{OnConn: func(e ConnEvent) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, e)
	}}})
	r := newReader(t, p, engine.RxSpec{})
	c := dialTo(t, p)
	id := idOf(t, p, c)
	c.Write([]byte("unfinished"))
	if b := r.more(); string(b.Bytes(0, 0)) != "unfinished" {
		t.Fatalf("%q", b.Bytes(0, 0))
	}
	bound := newReader(t, p, engine.RxSpec{Conn: id})
	c.SetLinger(0)
	c.Close()
	if got, flags := bound.ends(id); len(got) != 0 || flags != burst.Last|burst.Truncated {
		t.Errorf("%q, %v", got, flags)
	}
	bound.b.Release()
	eventually(t, "the bound queue to fail", func() bool {
		_, err := bound.q.TryRecv(bound.b)
		if err == nil {
			return false
		}
		var e *ConnError
		if !errors.Is(err, engine.ErrDown) || !errors.As(err, &e) || e.ID != id || !sys.IsErrno(err, sys.ECONNRESET) {
			t.Fatalf("%v", err)
		}
		return true
	})
	if len(p.ConnIDs()) != 0 {
		t.Error("the connection is still there")
	}
	r.none()
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 2 || !seen[0].Up || seen[1].Up || seen[1].ID != id || !errors.Is(seen[1].Err, engine.ErrDown) {
		t.Errorf("%+v", seen)
	}
}

// TestTCPReconnect loses its server twice. What is sent meanwhile arrives at the next one.
func TestTCPReconnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := openTCPPort(t, "tcp://"+l.Addr().String(),
		TCPOptions{Options: conns.Options{Reconnect: true, BackoffMin: time.Millisecond,
			BackoffMax: 4 * time.Millisecond}})
	r, w := newReader(t, p, engine.RxSpec{}), newWriter(t, p, engine.TxSpec{})
	ids := map[uint32]bool{}
	for i := range 3 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprint("hello ", i)
		if i == 0 {
			w.send(0, want)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
		if err := p.WaitConnected(within(t)); err != nil {
			t.Fatal(err)
		}
		id := p.ConnIDs()[0]
		if ids[id] {
			t.Errorf("connection id %d was used twice", id)
		}
		ids[id] = true
		c.Write([]byte("bye"))
		c.Close()
		if got, flags := r.ends(id); string(got) != "bye" || flags&burst.Last == 0 {
			t.Fatalf("%q, %v", got, flags)
		}
		eventually(t, "the connection to be forgotten", func() bool { _, ok := known(p, id); return !ok })
		if i < 2 {
			w.send(0, fmt.Sprint("hello ", i+1))
		}
	}
	if s := w.stats(); s.Drops.Total() != 0 {
		t.Errorf("drops: %v", &s.Drops)
	}
	if c := p.Counts(); c.Connected < 3 || c.Attempts < 3 {
		t.Errorf("%+v", c)
	}
}

// TestTCPNobodyThere connects to an address without a listener: opening ends with its context, and
// in the background it does not wait at all.
func TestTCPNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := "tcp://" + l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = New().OpenPort(ctx, engine.PortSpec{Address: at,
		Options: TCPOptions{Options: conns.Options{BackoffMin: time.Millisecond}}})
	if !errors.Is(err, engine.ErrConnect) {
		t.Errorf("connecting to nobody: %v", err)
	}
	// It gives up after ConnectTimeout: queues fail, packets are dropped.
	p := openTCPPort(t, at, TCPOptions{Options: conns.Options{Background: true, ConnectTimeout: 10 * time.Millisecond,
		BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond}})
	r, w := newReader(t, p, engine.RxSpec{}), newWriter(t, p, engine.TxSpec{})
	w.send(0, "anybody?")
	if err := p.WaitConnected(within(t)); !errors.Is(err, engine.ErrConnect) {
		t.Errorf("waiting for nobody: %v", err)
	}
	if err := r.rx.Recv(within(t), r.b); !errors.Is(err, engine.ErrConnect) {
		t.Errorf("receiving from nobody: %v", err)
	}
	eventually(t, "the packet to be dropped", func() bool {
		s := w.stats()
		return s.Drops[engine.DropDown] == 1 && s.Queued == 0
	})
	// A port that connects again goes on, and closing it ends that.
	again := openTCPPort(t, at, TCPOptions{Options: conns.Options{Background: true, Reconnect: true,
		ConnectTimeout: time.Millisecond, BackoffMin: time.Microsecond, BackoffMax: time.Millisecond}})
	eventually(t, "some attempts", func() bool { return again.Counts().Failures > 5 })
	newWriter(t, again, engine.TxSpec{}).send(0, "waits")
}

// TestTCPSlowPeer has one peer that does not read: its packets wait, those of others do not.
// Closing the queue in the middle of a packet breaks the connection that has half of it, and no
// other.
func TestTCPSlowPeer(t *testing.T) {
	p := openTCPPort(t, listenAny, TCPOptions{SendBuffer: 32 << 10})
	r := newReader(t, p, engine.RxSpec{})
	w := newWriter(t, p, engine.TxSpec{Depth: 4096, Pools: []*mem.Pool{newPool(t, 2048, 6000)}})
	slow, quick := dialTo(t, p), dialTo(t, p)
	slow.SetReadBuffer(64 << 10)
	slowID, quickID := idOf(t, p, slow), idOf(t, p, quick)
	sent := uint64(0)
	eventually(t, "packets to wait", func() bool {
		for range 50 {
			w.send(slowID, numbered(sent, 2000))
			sent++
		}
		i, _ := known(p, slowID)
		return i.waiting > 1000
	})
	for i := range 100 {
		w.send(quickID, numbered(uint64(i), 100))
		got := make([]byte, 100)
		if _, err := io.ReadFull(quick, got); err != nil || number(t, got) != uint64(i) {
			t.Fatal(err)
		}
	}
	// The slow one reads a part of it.
	for i := range sent / 2 {
		got := make([]byte, 2000)
		if _, err := io.ReadFull(slow, got); err != nil || number(t, got) != i {
			t.Fatalf("packet %d: %v", i, err)
		}
	}
	eventually(t, "the rest to be blocked", func() bool { i, ok := known(p, slowID); return ok && i.waiting > 0 })
	if err := w.q.Close(); err != nil {
		t.Fatal(err)
	}
	if s := w.stats(); s.Packets+s.Drops[engine.DropClosed] != sent+100 || s.Queued != 0 ||
		s.Drops[engine.DropClosed] == 0 {
		t.Errorf("%d packets: %+v", sent+100, s)
	}
	w2 := newWriter(t, p, engine.TxSpec{})
	w2.send(quickID, "still here")
	got := make([]byte, 10)
	if _, err := io.ReadFull(quick, got); err != nil || string(got) != "still here" {
		t.Errorf("%q, %v", got, err)
	}
	quick.Write([]byte("yes"))
	for {
		b := r.more()
		if b.Conn(b.Len()-1) == quickID {
			break
		}
	}
}

// TestTCPWaiting gives bytes that came before there was a queue to the one that comes.
func TestTCPWaiting(t *testing.T) {
	p := openTCPPort(t, listenAny, TCPOptions{})
	c := dialTo(t, p)
	id := idOf(t, p, c)
	c.Write([]byte("first "))
	r := newReader(t, p, engine.RxSpec{})
	if b := r.more(); string(b.Bytes(0, 0)) != "first " {
		t.Fatalf("%q", b.Bytes(0, 0))
	}
	r.b.Release()
	r.q.Close()
	c.Write([]byte("second"))
	if i, _ := known(p, id); i.queue != -1 {
		t.Errorf("without a queue: %+v", i)
	}
	r = newReader(t, p, engine.RxSpec{})
	if b := r.more(); string(b.Bytes(0, 0)) != "second" {
		t.Fatalf("%q", b.Bytes(0, 0))
	}
	gone := dialTo(t, p)
	goneID := idOf(t, p, gone)
	r.b.Release()
	r.q.Close()
	gone.SetLinger(0)
	gone.Close() // no queue reads it
	eventually(t, "a broken connection without a reader to go", func() bool { _, ok := known(p, goneID); return !ok })
}

// TestTCPOptions sets options by fields and by number, and refuses connections beyond the limit.
func TestTCPOptions(t *testing.T) {
	p := openTCPPort(t, listenAny, TCPOptions{Options: conns.Options{MaxConns: 1},
		KeepAlive:   7 * time.Second,
		UserTimeout: 9 * time.Second,
		Congestion:  "reno",
		Set:         []Option{{sys.SolSocket, sys.SoPriority, 2}},
		BusyPoll:    time.Microsecond})
	c := dialTo(t, p)
	id := idOf(t, p, c)
	for _, o := range []struct{ level, name, want int }{{sys.SolTCP, sys.TCPNoDelay, 1},
		{sys.SolTCP, sys.TCPKeepIdle, 7}, {sys.SolTCP, sys.TCPUserTimeout, 9000},
		{sys.SolSocket, sys.SoPriority, 2}} {
		if v, err := sys.Option(p.conns.Get(id).fd, o.level, o.name); err != nil || v != o.want {
			t.Errorf("option %d of level %d is %d, %v, expected %d", o.name, o.level, v, err, o.want)
		}
	}
	if other, err := net.Dial("tcp", p.LocalAddr().String()); err == nil { // or it was refused already
		if _, err := other.Read(make([]byte, 1)); err == nil {
			t.Error("a connection beyond the limit is served")
		}
		other.Close()
	}
	eventually(t, "it to be counted", func() bool { return p.Counts().Refused == 1 })
	if err := p.CloseConn(id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a closed connection is served")
	}
	idOf(t, p, dialTo(t, p)) // there is room again
}

// TestTCPRate sends at a rate: what leaves is what was given, in order.
func TestTCPRate(t *testing.T) {
	_, c, id := tcpPair(t, "127.0.0.1:0", TCPOptions{}, TCPOptions{})
	_ = id
	w := newWriter(t, c, engine.TxSpec{Rate: 1e9})
	for i := range uint64(200) {
		w.send(0, numbered(i, 500))
	}
	if s := w.drained(); s.Packets != 200 || s.Bytes != 200*500 || s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
}
