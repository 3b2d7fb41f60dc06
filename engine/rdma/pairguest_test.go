package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/guest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// told is what the guests of a pair tell each other.
type told struct {
	Addr  netip.AddrPort
	Stats engine.PortStats
}

// cable is a pair of guests: the first one sends, the second one receives.
type cable struct {
	*testing.T
	m    *guest.Meeting
	e    *Engine
	sink bool // this one receives
}

func (c cable) sh(line string) {
	c.Helper()
	if out, err := exec.Command("/bin/sh", "-ec", line).CombinedOutput(); err != nil {
		c.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func (c cable) meet(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// open opens this end's port, and is connected when it returns.
func (c cable) open(o Options) *Port {
	c.Helper()
	// the machines are emulated, and stand still for a moment when the host is busy
	o.AckTimeout = 500 * time.Millisecond
	port := func(address string) *Port {
		p, err := c.e.OpenPort(within(c.T), engine.PortSpec{Address: address, Options: o})
		c.meet(err)
		c.Cleanup(func() { p.Close() })
		return p.(*Port)
	}
	if c.sink {
		p := port("roce://" + guest.Addrs[2] + ":0?listen=1")
		c.meet(c.m.Send(told{Addr: p.LocalAddr()}))
		c.meet(p.WaitConnected(within(c.T)))
		return p
	}
	var t told
	c.meet(c.m.Recv(&t))
	return port("roce://" + t.Addr.String())
}

const guestMessage = 1000

// send sends n messages with their numbers to a connection; 0 is that of a port that connects.
func (c cable) send(q engine.TxQueue, conn uint32, n int) {
	c.Helper()
	b := burst.New(1)
	for i := range n {
		until(c.T, "a descriptor", func() bool {
			k, err := q.Alloc(b, 1, guestMessage)
			return k == 1 || errors.Is(err, engine.ErrClosed)
		})
		data := b.Bytes(0, 0)
		for at := 0; at+8 <= len(data); at += 8 {
			binary.BigEndian.PutUint64(data[at:], uint64(i)*1e6+uint64(at))
		}
		b.SetConn(0, conn)
		if err := q.Send(b); err != nil {
			c.Fatal(err)
		}
	}
}

// receive receives messages until enough says so, and says how many. They come in order, none
// twice, and whole.
func (c cable) receive(q engine.RxQueue, enough func(n int) bool) (n int) {
	c.Helper()
	b := burst.New(32)
	last := -1
	until(c.T, "messages", func() bool {
		k, err := q.TryRecv(b)
		if err != nil && !errors.Is(err, engine.ErrDown) {
			c.Fatal(err)
		}
		for i := range k {
			data := b.Bytes(i, 0)
			number := int(binary.BigEndian.Uint64(data) / 1e6)
			if number <= last || len(data) != guestMessage {
				c.Fatalf("message %d of %d bytes behind message %d", number, len(data), last)
			}
			for at := 0; at+8 <= len(data); at += 8 {
				if binary.BigEndian.Uint64(data[at:]) != uint64(number)*1e6+uint64(at) {
					c.Fatalf("message %d: wrong bytes at %d", number, at)
				}
			}
			last = number
		}
		b.Release()
		n += k
		return enough(n)
	})
	return n
}

// TestGuestPair joins two machines by a cable that loses packets and is slow: RC loses nothing, UC
// and UD count what they lose. The cable is cut in the middle of the traffic: the sender learns it,
// and accounts for every packet.
func TestGuestPair(t *testing.T) {
	testenv.Once(t)
	if guest.ID() == 0 {
		t.Parallel() // this process waits for another one
	}
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Guests: 2, Timeout: 6 * time.Minute}) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	m, err := guest.Meet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	on := func(t *testing.T) cable { return cable{t, m, New(""), guest.ID() == 2} }
	for _, netem := range []string{"loss 1%", "loss 5%", "delay 5ms"} {
		for _, tr := range []Transport{RC, UC, UD} {
			t.Run(fmt.Sprint(tr, " ", netem), func(t *testing.T) { on(t).lossy(tr, netem) })
		}
	}
	t.Run("cut", func(t *testing.T) { on(t).cut() })
}

func (c cable) lossy(tr Transport, netem string) {
	const n = 400
	c.meet(c.m.Barrier(tr.String() + netem))
	p := c.open(Options{Transport: tr})
	c.sh("tc qdisc replace dev link0 root netem " + netem)
	defer c.sh("tc qdisc replace dev link0 root netem loss 0%")
	if !c.sink {
		slots := pool(c.T, 2048, 256)
		q := tx(c.T, p, engine.TxSpec{Pools: []*mem.Pool{slots}})
		c.send(q, 0, n)
		c.meet(q.Drain(within(c.T)))
		st := stats(p)
		c.meet(c.m.Send(told{Stats: st}))
		c.meet(c.m.Barrier("received"))
		if st.Tx.Packets != n || st.Tx.Drops.Total() != 0 || slots.Stats().InUse != 0 {
			c.Errorf("%d of %d packets left, drops %v, pool %+v", st.Tx.Packets, n, &st.Tx.Drops, slots.Stats())
		}
		return
	}
	slots := pool(c.T, 2048, 128)
	q := rx(c.T, p, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{slots}})
	sent := make(chan error, 1)
	go func() {
		var t told
		sent <- c.m.Recv(&t)
	}()
	var all time.Time // when the sender was done
	got := c.receive(q, func(k int) bool {
		select {
		case err := <-sent:
			c.meet(err)
			all = time.Now()
		default:
		}
		missing := n - k - int(stats(p).Rx.Drops[engine.DropNIC])
		return !all.IsZero() && (missing == 0 || tr != RC && time.Since(all) > 2*time.Second)
	})
	if err := q.Close(); err != nil { // the sender says how many there were
		c.Error(err)
	}
	st := stats(p).Rx
	c.Logf("%v, %s: %d of %d messages, drops %v", tr, netem, got, n, &st.Drops)
	if got+int(st.Drops.Total()) != n || uint64(got) != st.Packets ||
		st.Drops.Total() != st.Drops[engine.DropNIC]+st.Drops[engine.DropClosed] || slots.Stats().InUse != 0 {
		c.Errorf("%d messages and drops %v are not %d; pool %+v", got, &st.Drops, n, slots.Stats())
	}
	if tr == RC && got != n {
		c.Errorf("RC lost %d messages", n-got)
	}
	if tr != RC && netem == "loss 5%" && got == n {
		c.Error("nothing was lost: the cable is too good")
	}
	c.meet(c.m.Barrier("received"))
}

// cut: what the sender counts as sent has come.
func (c cable) cut() {
	c.meet(c.m.Barrier("cut"))
	gone := newEnds()
	p := c.open(Options{Options: conns.Options{OnConn: gone.on}})
	const n, before = 300, 100
	if c.sink {
		q := rx(c.T, p, engine.RxSpec{Depth: 64})
		got := c.receive(q, func(k int) bool { return k >= before })
		c.sh("ip link set link0 down")
		b := burst.New(32)
		r := engine.NewRx(q, engine.Batching{})
		for wait := time.Now().Add(10 * time.Second); time.Now().Before(wait); {
			// while the sender finds out, which takes a fifth of it at most
			k, _ := r.TryRecv(b)
			got += k
			b.Release()
			<-time.After(time.Millisecond)
		}
		c.sh("ip link set link0 up")
		var t told
		c.meet(c.m.Recv(&t))
		gone.next(c.T, false)
		if sent := t.Stats.Tx; sent.Packets > uint64(got) || sent.Packets+sent.Drops[engine.DropDown] != n ||
			sent.Drops.Total() != sent.Drops[engine.DropDown] {
			c.Errorf("the sender says that %d of %d messages left and dropped %v; %d came", sent.Packets, n,
				&sent.Drops, got)
		}
		return
	}
	slots := pool(c.T, 2048, 512)
	q := tx(c.T, p, engine.TxSpec{Depth: 512, Pools: []*mem.Pool{slots}})
	c.send(q, 0, n)
	if v := gone.next(c.T, false); !errors.Is(v.Err, engine.ErrDown) {
		c.Errorf("the end: %v", v.Err)
	}
	c.meet(q.Drain(within(c.T)))
	if slots.Stats().InUse != 0 {
		c.Errorf("pool: %+v", slots.Stats())
	}
	c.meet(c.m.Send(told{Stats: stats(p)}))
}

// TestGuestPowerOff: the machine that receives loses its power in the middle of the traffic. The
// other one's connection ends within the retries of its device, with the reason; it accounts for
// every packet that it sent, has received what came before, and nothing of its memory or at its
// device is left.
func TestGuestPowerOff(t *testing.T) {
	testenv.Once(t)
	if guest.ID() == 0 {
		t.Parallel() // this process waits for another one
	}
	if guest.Enter(t, guest.Spec{Profile: guest.Rdma, Guests: 2, PowersOff: 2, Timeout: 4 * time.Minute}) {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	m, err := guest.Meet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	cable{t, m, New(""), guest.ID() == 2}.powerOff()
	if guest.ID() == 1 {
		out, err := exec.Command("rdma", "resource", "show").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "ctx 0") {
			t.Errorf("left at the device: %v\n%s", err, out)
		}
	}
}

func (c cable) powerOff() {
	const n, before, back = 300, 100, 40
	gone := newEnds()
	p := c.open(Options{Options: conns.Options{OnConn: gone.on}})
	slots := pool(c.T, 2048, 512)
	out := tx(c.T, p, engine.TxSpec{Depth: 512, Pools: []*mem.Pool{slots}})
	buffers := pool(c.T, 2048, 128)
	in := rx(c.T, p, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{buffers}})
	if c.sink {
		c.send(out, p.Conns()[0].ID, back)
		c.meet(out.Drain(within(c.T)))
		if st := stats(p).Tx; st.Packets != back {
			c.Fatalf("%+v", st)
		}
		c.receive(in, func(k int) bool { return k >= before })
		c.Fatal(guest.PowerOff())
	}
	c.send(out, 0, n)
	v := gone.next(c.T, false)
	c.Logf("the end: %v", v.Err)
	var why *ConnError
	if !errors.Is(v.Err, engine.ErrDown) || !errors.As(v.Err, &why) || why.Err == nil {
		c.Errorf("the end: %v", v.Err)
	}
	c.meet(out.Drain(within(c.T)))
	st := stats(p)
	c.Logf("sent %+v, received %+v", st.Tx, st.Rx)
	if st.Tx.Packets+st.Tx.Drops[engine.DropDown] != n || st.Tx.Drops.Total() != st.Tx.Drops[engine.DropDown] ||
		st.Tx.Drops[engine.DropDown] == 0 || slots.Stats().InUse != 0 {
		c.Errorf("%d of %d messages left, drops %v, pool %+v", st.Tx.Packets, n, &st.Tx.Drops, slots.Stats())
	}
	got := c.receive(in, func(k int) bool { return k >= back })
	c.meet(in.Close())
	if st := stats(p).Rx; got != back || st.Packets != back || st.Drops.Total() != 0 || buffers.Stats().InUse != 0 {
		c.Errorf("%d of %d messages were received, %d counted, drops %v, pool %+v", got, back, st.Packets, &st.Drops,
			buffers.Stats())
	}
	c.meet(p.Close())
}
