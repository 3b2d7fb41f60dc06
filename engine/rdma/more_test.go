package rdma

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestLateHello: a connection whose peer says who it is only after the receive queue was made
// belongs to that queue, too.
func TestLateHello(t *testing.T) {
	f := onFake(t, "")
	s := f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0", Options{})
	ch, err := overTCP{}.dial(within(t), s.a.remote, s.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer ch.wait()
	defer ch.close()
	until(t, "the connection", func() bool { return len(s.conns.List()) == 1 })
	if n := len(s.Conns()); n != 0 {
		t.Fatalf("%d connections, of peers that have not said who they are", n)
	}
	rx(t, s, engine.RxSpec{Depth: 8})
	if n := s.Counts().QueuePairs; n != 0 {
		t.Fatalf("%d queue pairs for a peer that has not said who it is", n)
	}
	ch.send(&record{kind: kindHello})
	for _, want := range []kind{kindHello, kindOffer} {
		if r, err := ch.(*tcpSession).receive(); err != nil || r.kind != want {
			t.Fatalf("%+v, %v; expected %v", r, err, want)
		}
	}
}

// TestConnections: packets go to the connection that they name, and carry that which they came
// from; a queue that is bound to one gets its packets alone.
func TestConnections(t *testing.T) {
	for _, mode := range []string{"mode post", "mode wire"} {
		t.Run(mode, func(t *testing.T) {
			f := onFake(t, mode)
			s := f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0", Options{})
			in, out := rx(t, s, engine.RxSpec{Depth: 64}), tx(t, s, engine.TxSpec{})
			client := f.open(t, "roce://127.0.0.1?device=fake1", Options{})
			if client.Info().Up {
				t.Error("a port without a connection is up")
			}
			back, away := rx(t, client, engine.RxSpec{Depth: 64}), tx(t, client, engine.TxSpec{})
			const n = 5
			var ids [n]uint32
			for i := range ids {
				id, err := client.Connect(within(t), s.LocalAddr())
				if err != nil {
					t.Fatal(err)
				}
				ids[i] = id
				put(t, away, id, fmt.Sprint("I am ", i))
			}
			at := map[string]uint32{} // the server's ids
			for _, g := range got(t, in, n) {
				var id uint32
				var i int
				if _, err := fmt.Sscanf(g, "%d I am %d", &id, &i); err != nil {
					t.Fatal(err)
				}
				at[fmt.Sprint(i)] = id
				put(t, out, id, fmt.Sprint("you are ", i))
			}
			for _, g := range got(t, back, n) {
				var id uint32
				var i int
				if _, err := fmt.Sscanf(g, "%d you are %d", &id, &i); err != nil || id != ids[i] {
					t.Fatalf("%q, %v: expected connection %d", g, err, ids)
				}
			}
			bound := rx(t, s, engine.RxSpec{ID: engine.Queue(7), Depth: 8, Conn: at["3"]})
			until(t, "the channel to move", func() bool {
				i, ok := client.Conn(ids[3])
				return ok && i.Sends && i.Room == 8
			})
			for i := range ids {
				put(t, away, ids[i], fmt.Sprint("again ", i))
			}
			if g := got(t, bound, 1); g[0] != fmt.Sprintf("%d again 3", at["3"]) {
				t.Errorf("%q on the queue that is bound to connection %d", g, at["3"])
			}
			got(t, in, n-1)
			if err := client.CloseConn(ids[3]); err != nil {
				t.Fatal(err)
			}
			b := burst.New(1)
			for {
				n, err := bound.TryRecv(b)
				if err != nil {
					if !strings.Contains(err.Error(), "closed by the peer") {
						t.Errorf("the queue of a connection that has gone: %v", err)
					}
					break
				}
				if n > 0 {
					t.Fatal("a packet that nobody sent")
				}
			}
			put(t, away, ids[3], "to nobody")
			put(t, out, 0, "to nobody in particular")
			until(t, "drops", func() bool {
				return stats(client).Tx.Drops[engine.DropDown] == 1 && stats(s).Tx.Drops[engine.DropNoRoute] == 1
			})
			if len(s.Conns()) != n-1 {
				t.Errorf("%d connections, expected %d", len(s.Conns()), n-1)
			}
		})
	}
}

// TestLastWords: what arrived before the peer closed is still received.
func TestLastWords(t *testing.T) { lastWords(t, onFake(t, "mode wire; delay 20us")) }

func lastWords(t *testing.T, f world) {
	s, c, _ := f.pair(t, Options{}, Options{})
	in, out := rx(t, s, engine.RxSpec{}), tx(t, c, engine.TxSpec{})
	for i := range 30 {
		put(t, out, 0, fmt.Sprint(i))
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the connection to go", func() bool { return len(s.Conns()) == 0 })
	got(t, in, 30)
}

// TestDatagrams: messages of UD have their routing header in front, which is delivered where it is
// wanted.
func TestDatagrams(t *testing.T) { datagrams(t, onFake(t, "mode wire")) }

func datagrams(t *testing.T, f world) {
	s, c, id := f.pair(t, Options{Transport: UD}, Options{Transport: UD})
	if s.Capabilities().MaxPacket != s.Info().MTU || s.Info().MTU == 0 {
		t.Errorf("packets of up to %d bytes, MTU %d", s.Capabilities().MaxPacket, s.Info().MTU)
	}
	plain := rx(t, c, engine.RxSpec{Depth: 16})
	whole := rx(t, s, engine.RxSpec{Depth: 16, Options: RxOptions{GRH: true}})
	out, back := tx(t, c, engine.TxSpec{}), tx(t, s, engine.TxSpec{})
	b := burst.NewSegmented(4, 8)
	r := engine.NewRx(whole, engine.Batching{})
	for i := range 50 {
		text := strings.Repeat("x", i*20) + fmt.Sprint(i)
		put(t, out, 0, text)
		if err := r.Recv(within(t), b); err != nil {
			t.Fatal(err)
		}
		if b.Segments(0) != 2 || b.Role(0, 0) != burst.Header || len(b.Bytes(0, 0)) != grhLen ||
			string(b.Bytes(0, 1)) != text || b.Conn(0) != id {
			t.Fatalf("packet %d: %d segments, the first a %v of %d bytes, %q", i, b.Segments(0), b.Role(0, 0),
				len(b.Bytes(0, 0)), b.Bytes(0, b.Segments(0)-1))
		}
		b.Release()
		put(t, back, id, text)
		if g := got(t, plain, 1); !strings.HasSuffix(g[0], " "+text) {
			t.Fatalf("%q", g)
		}
	}
	if n, err := out.Alloc(b, 1, s.Info().MTU+1); n != 0 || err == nil {
		t.Errorf("a datagram longer than the MTU: %d, %v", n, err)
	}
}

// TestLossy: messages of UC and UD that are lost are counted, those that arrive come once and in
// order, and the sender never stops for good.
func TestLossy(t *testing.T) {
	for _, tr := range []Transport{UC, UD} {
		t.Run(tr.String(), func(t *testing.T) {
			f := onFake(t, "mode wire")
			s, c, _ := f.pair(t, Options{Transport: tr}, Options{Transport: tr})
			in := rx(t, s, engine.RxSpec{Depth: 8})
			out := tx(t, c, engine.TxSpec{})
			put(t, out, 0, "-1")
			got(t, in, 1)
			// Lost in the middle: the numbers of later messages show it, and neither side waits.
			f.run(t, "cable 1 cut")
			put(t, out, 0, "lost", "lost", "lost")
			until(t, "the messages to leave", func() bool { return stats(c).Tx.Packets == 4 })
			f.run(t, "cable 1 mend")
			put(t, out, 0, "after")
			got(t, in, 1)
			if d := stats(s).Rx.Drops; d[engine.DropNIC] != 3 {
				t.Fatalf("3 messages were lost in front of one that came, drops: %v", &d)
			}
			f.run(t, "cable 1 cut") // both directions: also the receiver's word is lost
			const lost = 30
			for range lost {
				put(t, out, 0, "lost")
			}
			until(t, "the sender to stop", func() bool {
				i, _ := c.Conn(c.conns.Main().ID)
				return i.Room == 0 && i.Flying == 0
			})
			f.run(t, "cable 1 mend")
			// The receiver polls, as it does.
			seen := 0
			b := burst.New(32)
			until(t, "the rest", func() bool {
				n, err := in.TryRecv(b)
				if err != nil {
					t.Fatal(err)
				}
				seen += n
				b.Release()
				st := stats(s)
				return seen+int(st.Rx.Drops[engine.DropNIC]) == lost+3
			})
			if seen == lost || seen == 0 {
				t.Errorf("%d of %d messages arrived: expected that some are lost, and some not", seen, lost)
			}
			for i := range 20 {
				put(t, out, 0, fmt.Sprint(i))
			}
			for i, g := range got(t, in, 20) {
				if !strings.HasSuffix(g, fmt.Sprint(" ", i)) {
					t.Fatalf("packet %d is %q", i, g)
				}
			}
		})
	}
}

// TestMany has a thousand connections to one queue: each sends, all arrives, and all goes away.
func TestMany(t *testing.T) {
	n := 500 // four queue pairs each, of both ends and directions; two where nothing comes back
	if testenv.Race || testenv.Invariants {
		n = 100
	}
	f := onFake(t, "limit max_qp 100000; limit max_cq 100000")
	s := f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0", Options{SendDepth: 4})
	in := rx(t, s, engine.RxSpec{Depth: 256, Pools: []*mem.Pool{pool(t, 256, 512)}})
	client := f.open(t, "roce://127.0.0.1?device=fake1", Options{SendDepth: 4})
	away := tx(t, client, engine.TxSpec{Depth: 4096, Pools: []*mem.Pool{pool(t, 256, 4096)}})
	ids := make([]uint32, n)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := w; i < n; i += 4 {
				id, err := client.Connect(within(t), s.LocalAddr())
				if err != nil {
					t.Error(err)
				}
				ids[i] = id
			}
		}()
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	const each = 3
	for k := range each {
		for i, id := range ids {
			put(t, away, id, fmt.Sprint(i, " ", k))
		}
		next := map[string]int{}
		for _, g := range got(t, in, n) {
			next[g]++
		}
		if len(next) != n {
			t.Fatalf("%d different packets of %d", len(next), n)
		}
	}
	if pairs := s.Counts().QueuePairs + client.Counts().QueuePairs; pairs < uint64(2*n) {
		t.Errorf("%d queue pairs for %d connections", pairs, n)
	}
	if d := stats(client).Tx.Drops; d.Total() != 0 {
		t.Errorf("drops: %v", &d)
	}
}
