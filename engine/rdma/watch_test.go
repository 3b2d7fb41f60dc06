package rdma

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/rdmadev"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// often makes looks frequent, so that a test need not wait for seconds.
const often = 20 * time.Millisecond

// sending is the queue pair on which a port sends, and receiving that on which the other one
// receives.
func sending(c *Port) *ibv.QP {
	k := c.conns.Main()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.out.x.qp
}

func receiving(q engine.RxQueue) *ibv.QP {
	r := q.(*rxQueue)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.channels {
		return l.x.qp
	}
	return nil
}

// TestLastReceive: a queue pair that went into error has begun to fill a receive of the shared
// queue. It is not destroyed before that has come back: every buffer returns to its pool, and no
// receive is lost, whichever side ends the connection.
func TestLastReceive(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fake, *Port, *Port, engine.RxQueue){
		"killed": func(t *testing.T, f *fake, _, _ *Port, in engine.RxQueue) {
			f.run(t, fmt.Sprintf("kill 0 %#x", receiving(in).Num()))
		},
		"server": func(t *testing.T, _ *fake, s, _ *Port, _ engine.RxQueue) {
			if err := s.CloseConn(s.Conns()[0].ID); err != nil {
				t.Fatal(err)
			}
		},
		"client": func(t *testing.T, _ *fake, _, c *Port, _ engine.RxQueue) {
			if err := c.CloseConn(c.conns.Main().ID); err != nil {
				t.Fatal(err)
			}
		},
		"queue": func(t *testing.T, _ *fake, _, _ *Port, in engine.RxQueue) { in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f := onFake(t, "mode wire; partial on")
			defer f.run(t, "partial off")
			s, c, _ := f.pair(t, Options{}, Options{})
			slots := pool(t, 2048, 64)
			in := rx(t, s, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{slots}})
			out := tx(t, c, engine.TxSpec{})
			put(t, out, 0, "a", "b")
			got(t, in, 2)
			end(t, f, s, c, in)
			q := in.(*rxQueue)
			until(t, "the channel to go", func() bool { return q.load() == 0 })
			if n := f.count(t, "drops"); n != 0 {
				t.Errorf("%d receives were lost with their queue pair", n)
			}
			if name != "queue" {
				if _, err := in.TryRecv(burst.New(1)); err != nil { // posts what came back
					t.Fatal(err)
				}
				q.mu.Lock()
				posted := q.recvs.Posted()
				q.mu.Unlock()
				if posted != 64 {
					t.Errorf("%d of 64 buffers are posted", posted)
				}
			}
			in.Close()
			if st := slots.Stats(); st.InUse != 0 {
				t.Errorf("the pool: %+v", st)
			}
		})
	}
}

// TestSilentDevice: Soft-RoCE does not say that a queue pair has taken its last receive. It is
// waited for once.
func TestSilentDevice(t *testing.T) {
	f := onFake(t, "")
	s, _, _ := f.pair(t, Options{}, Options{})
	d := s.control
	// without a shared queue there is no word
	x, err := s.newPair(ibv.QPSpec{SendWRs: 1, RecvWRs: 1, SendSGEs: 1, RecvSGEs: 1}, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	if err := x.qp.Err(); err != nil {
		t.Fatal(err)
	}
	d.lastTaken(x.qp)
	if d.news.Lock(); !d.mute {
		t.Error("it would be waited for again")
	}
	d.news.Unlock()
}

// TestOverran: a completion queue that overflows loses messages, and the device does not say which:
// its connection ends on both sides, also while no owner polls, every packet of the sender is
// accounted for, and the port goes on with other queues.
func TestOverran(t *testing.T) {
	for _, where := range []string{"sender", "receiver"} {
		t.Run(where, func(t *testing.T) {
			gone, theirs := newEnds(), newEnds()
			f := onFake(t, "mode wire")
			s, c, _ := f.pair(t, Options{Options: conns.Options{OnConn: gone.on}},
				Options{Options: conns.Options{OnConn: theirs.on}})
			slots, memory := pool(t, 2048, 64), pool(t, 2048, 64)
			in := rx(t, s, engine.RxSpec{Depth: 32, Pools: []*mem.Pool{slots}})
			out := tx(t, c, engine.TxSpec{Depth: 64, Pools: []*mem.Pool{memory}})
			put(t, out, 0, "a", "b")
			got(t, in, 2)
			failed := make(chan error, 1)
			if where == "sender" {
				f.run(t, fmt.Sprintf("overrun 1 %#x", sending(c).Num()))
			} else {
				go func() {
					failed <- engine.NewRx(in, engine.Batching{}).Recv(within(t), burst.New(4))
				}()
				f.run(t, fmt.Sprintf("overrun 0 %#x", receiving(in).Num()))
				if err := <-failed; !errors.Is(err, engine.ErrDown) || !strings.Contains(err.Error(), "overran") {
					t.Errorf("receiving: %v", err)
				}
			}
			if v := gone.next(t, false); !errors.Is(v.Err, engine.ErrDown) {
				t.Errorf("the server hears: %v", v.Err)
			}
			if v := theirs.next(t, false); !errors.Is(v.Err, engine.ErrDown) {
				t.Errorf("the client hears: %v", v.Err)
			}
			put(t, out, 0, "late")
			if err := out.Drain(within(t)); err != nil {
				t.Fatal(err)
			}
			if st := stats(c).Tx; st.Packets != 2 || st.Drops[engine.DropDown] != 1 || memory.Stats().InUse != 0 {
				t.Errorf("%d packets left, drops %v, pool %+v", st.Packets, &st.Drops, memory.Stats())
			}
			next := f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", Options{})
			more := tx(t, next, engine.TxSpec{})
			if where == "receiver" { // the broken queue gets no connection
				again := rx(t, s, engine.RxSpec{Depth: 32})
				put(t, more, 0, "new")
				got(t, again, 1)
			} else {
				put(t, more, 0, "new")
				got(t, in, 1)
			}
			in.Close()
			if st := slots.Stats(); st.InUse != 0 {
				t.Errorf("the receiver's pool: %+v", st)
			}
		})
	}
}

// TestLostCompletion: a completion that the device loses keeps neither side waiting: that of a
// message that was sent, that of a credit at either end, and that of a message that came. Only the
// last is missing in the end, and counted.
func TestLostCompletion(t *testing.T) {
	for _, tr := range []Transport{RC, UC} {
		t.Run("sent/"+tr.String(), func(t *testing.T) {
			f := onFake(t, "")
			s, c, _ := f.pair(t, Options{Transport: tr}, Options{Transport: tr, every: often})
			in, out := rx(t, s, engine.RxSpec{Depth: 64}), tx(t, c, engine.TxSpec{})
			put(t, out, 0, "a")
			got(t, in, 1)
			until(t, "it to be over", func() bool { return stats(c).Tx.Packets == 1 })
			f.run(t, "drop send 1")
			put(t, out, 0, "b")
			if err := out.Drain(within(t)); err != nil {
				t.Fatal(err)
			}
			if st := stats(c).Tx; f.count(t, "drops") != 1 || st.Packets != 2 || st.Drops.Total() != 0 {
				t.Errorf("%d completions were lost; %d packets left, drops %v", f.count(t, "drops"), st.Packets,
					&st.Drops)
			}
			got(t, in, 1)
		})
	}
	// The sender may send 8 messages, and a credit allows it more. Send requests are counted in the
	// whole process.
	for name, script := range map[string]string{"credit sent": "drop send 1", "credit that came": "drop recv 1"} {
		t.Run(name, func(t *testing.T) {
			f := onFake(t, "")
			s, c, _ := f.pair(t, Options{}, Options{every: often})
			in, out := rx(t, s, engine.RxSpec{Depth: 8}), tx(t, c, engine.TxSpec{})
			put(t, out, 0, "1", "2", "3", "4", "5", "6", "7", "8")
			until(t, "them to be over", func() bool { return stats(c).Tx.Packets == 8 })
			f.run(t, script)
			put(t, out, 0, "more")
			if g := got(t, in, 9); !strings.HasSuffix(g[8], " more") {
				t.Errorf("%q", g)
			}
			if f.count(t, "drops") != 1 {
				t.Errorf("%d completions were lost", f.count(t, "drops"))
			}
			put(t, out, 0, strings.Split(strings.Repeat("x ", 40), " ")...)
			got(t, in, 41)
			if st := stats(s).Rx; st.Drops.Total() != 0 {
				t.Errorf("drops: %v", &st.Drops)
			}
		})
	}
	t.Run("message that came", func(t *testing.T) {
		f := onFake(t, "")
		s, c, _ := f.pair(t, Options{}, Options{every: often})
		slots := pool(t, 2048, 16)
		in, out := rx(t, s, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{slots}}), tx(t, c, engine.TxSpec{Depth: 64})
		f.run(t, "drop recv 3")
		const n = 40
		for i := range n {
			put(t, out, 0, fmt.Sprint(i))
		}
		for i, g := range got(t, in, n-1) {
			if i >= 2 {
				i++
			}
			if !strings.HasSuffix(g, fmt.Sprint(" ", i)) {
				t.Fatalf("%q where %d was due", g, i)
			}
		}
		in.Close()
		if st := stats(s).Rx; st.Packets != n-1 || st.Drops[engine.DropUnattributed] != 1 || st.Drops.Total() != 1 ||
			slots.Stats().InUse != 0 {
			t.Errorf("%d packets, drops %v, pool %+v", st.Packets, &st.Drops, slots.Stats())
		}
	})
}

// TestDeadDevice: a device that ends nothing any more costs its connection, and no call waits for
// it.
func TestDeadDevice(t *testing.T) {
	theirs := newEnds()
	f := onFake(t, "")
	s, c, _ := f.pair(t, Options{}, Options{Options: conns.Options{OnConn: theirs.on}, every: time.Millisecond})
	in, out := rx(t, s, engine.RxSpec{Depth: 64}), tx(t, c, engine.TxSpec{})
	put(t, out, 0, "a")
	got(t, in, 1)
	f.run(t, "drop send *")
	put(t, out, 0, "b")
	if v := theirs.next(t, false); !errors.Is(v.Err, rdmadev.ErrSilent) || !errors.Is(v.Err, engine.ErrDown) {
		t.Errorf("the end of the connection: %v", v.Err)
	}
	if err := out.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	if st := stats(c).Tx; st.Packets+st.Drops[engine.DropDown] != 2 {
		t.Errorf("%d packets left, drops %v", st.Packets, &st.Drops)
	}
}

// TestPatience: a channel with much under way, has the time that a slow network needs for it.
func TestPatience(t *testing.T) {
	o := txChannel{posts: make([]posted, 5)}
	for _, c := range []struct{ head, tail, want int }{{0, 0, rdmadev.WatchMost}, {3, 4, rdmadev.WatchMost + 64},
		{2, 6, rdmadev.WatchMost + 64 + 2}, {12, 13, rdmadev.WatchMost + 1}} {
		o.head, o.tail = uint64(c.head), uint64(c.tail)
		for i, n := range []uint32{rdmadev.WatchPace, 5, rdmadev.WatchPace, 1 << 20, rdmadev.WatchPace - 5} {
			o.posts[i].bytes = n
		}
		if n := o.patience(); n != c.want {
			t.Errorf("requests %d to %d: given up after %d looks, expected %d", c.head, c.tail, n, c.want)
		}
	}
}
