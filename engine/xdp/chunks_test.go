package xdp

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/invariants"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// lone opens a port without rules, in a host that says nothing by itself: the program is the short
// one.
func lone(t testing.TB, h *netns.Host, o Options) *Port {
	t.Helper()
	if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	var p engine.Port
	if err := h.Do(func() (err error) {
		p, err = New().OpenPort(t.Context(), engine.PortSpec{Address: "eth0", Options: o})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p.(*Port)
}

// road is a port that sends to another one, which has a receive queue whose packets lie where the
// kernel put them.
type road struct {
	t    testing.TB
	tx   engine.TxQueue
	to   *Port
	rx   *rxQueue
	pool *mem.Pool
	next uint32
}

func newRoad(t testing.TB, depth, slots int) *road {
	n := hosts(t, netns.LinkSpec{})
	a, b := lone(t, n.Hosts[0], Options{}), lone(t, n.Hosts[1], Options{})
	r := &road{t: t, to: b, pool: newPool(t, 2048, slots)}
	r.tx = addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 512)}})
	r.rx = addRx(t, b, engine.RxSpec{Depth: depth, Pools: []*mem.Pool{r.pool}})
	return r
}

// bring sends n packets at once and receives them into b.
func (r *road) bring(b *burst.Burst, n int) {
	r.t.Helper()
	var frames [][]byte
	for range n {
		frames = append(frames, udp(r.t, 7, 100, r.next))
		r.next++
	}
	send(r.t, r.tx, frames...)
	want := b.Len() + n
	until(r.t, "packets", func() bool {
		if _, err := r.rx.TryRecv(b); err != nil {
			r.t.Fatal(err)
		}
		return b.Len() >= want
	})
}

// While packets are held, the kernel gets the other slots of the pool, down to the last; and when
// they are released more come.
func TestHeld(t *testing.T) {
	for _, slots := range []int{64, 512} { // an eighth is not given to the kernel at once
		r := newRoad(t, 64, slots)
		b := burst.New(slots)
		for range 5 {
			for b.Len() < slots*7/8 {
				r.bring(b, min(56, slots*7/8-b.Len()))
			}
			var s engine.RxStats
			if _, err := r.rx.TryRecv(b); err != nil { // it finds none, and the kernel without chunks
				t.Fatal(err)
			}
			r.bring(b, slots/8)
			if r.rx.Stats(&s); b.Len() != slots || s.Drops.Total() != 0 {
				t.Errorf("%d packets of %d are held, %d were dropped", b.Len(), slots, s.Drops.Total())
			}
			b.Release()
			if _, err := r.rx.TryRecv(b); err != nil {
				t.Fatal(err)
			}
			if in, n := r.pool.Stats().InUse, r.to.nqs[0]; in != n.target {
				t.Errorf("%d slots are out, and the kernel is to have %d", in, n.target)
			}
		}
		if err := r.rx.Close(); err != nil {
			t.Fatal(err)
		}
		if s := r.pool.Stats(); s.InUse != 0 || s.Rejected != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// Once round, chunks do not touch their pool, nothing is allocated, and the program counts nothing;
// the queue counts everything.
func TestRound(t *testing.T) {
	r := newRoad(t, 64, 512)
	b := burst.New(32)
	for range 20 {
		r.bring(b, 16)
		b.Release()
	}
	before := r.pool.Stats()
	for range 100 {
		r.bring(b, 16)
		b.Release()
	}
	after := r.pool.Stats()
	if after.InUse > 512*7/8 || !invariants.Enabled && (after.Gets != before.Gets || after.Puts != before.Puts) {
		t.Errorf("the pool: %+v\nbefore: %+v", after, before)
	}
	var s engine.RxStats
	r.rx.Stats(&s)
	var p engine.PortStats
	r.to.Stats(&p)
	if s.Packets != 120*16 || s.Drops.Total() != 0 || s.Copied != 0 || p.Drops.Total() != 0 || p.Kernel != 0 {
		t.Errorf("%+v\n%+v", s, p)
	}
	if u := r.to.Rules().Stats().Unmatched.Packets; u != 0 {
		t.Errorf("%d packets are counted as unmatched, without rules", u)
	}
	if invariants.Enabled { // it notes stacks
		return
	}
	frames := 0
	if n := testing.AllocsPerRun(200, func() {
		k, err := r.rx.TryRecv(b)
		if err != nil {
			t.Error(err)
		}
		frames += k
		b.Release()
		if k, err = r.tx.Alloc(b, 4, 60); k > 0 {
			err = r.tx.Send(b)
		}
		if err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for a packet there", n)
	}
	if frames == 0 {
		t.Error("no packets")
	}
}

// A queue that is polled is on no list of sleepers, and one that slept comes off it after a while;
// a Wake comes all the same.
func TestQuiet(t *testing.T) {
	r := newRoad(t, 256, 1024)
	fd := strconv.Itoa(r.rx.sockets[0].sock.FD())
	listed := func() bool {
		t.Helper()
		files, err := filepath.Glob("/proc/self/fdinfo/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, _ := os.ReadFile(f) // some are gone by now
			for l := range strings.Lines(string(b)) {
				if x := strings.Fields(l); len(x) > 1 && x[0] == "tfd:" && x[1] == fd {
					return true
				}
			}
		}
		return false
	}
	if listed() {
		t.Error("no owner has waited, and it is on a list")
	}
	b, w := burst.New(64), engine.NewWaker()
	for range 3 {
		if r.rx.Arm(w) || !listed() {
			t.Error("armed, and on no list, or with packets that were not sent")
		}
		send(t, r.tx, udp(t, 7, 100, 0))
		select {
		case <-w.C():
		case <-t.Context().Done():
			t.Fatal("no Wake")
		}
		for got := 0; got < quietAfter; got += b.Len() {
			if !listed() {
				t.Fatalf("off the list after %d packets", got)
			}
			b.Release()
			r.bring(b, 16)
		}
		b.Release()
		if listed() {
			t.Errorf("%d packets without a sleep, and still on a list", quietAfter)
		}
	}
}

// What was released before is refused, and counted by the pool, and the kernel does not get the
// chunk a second time.
func TestReleasedTwice(t *testing.T) {
	if invariants.Enabled { // it panics
		return
	}
	g := newQueueRig(t, 2048)
	pool, err := mem.NewPool(mem.PoolOptions{Name: "part", SlotSize: 2048, Slots: 4, Region: g.home.Region()})
	if err != nil {
		t.Fatal(err)
	}
	g.n.feed = feed{pool: pool}
	var was []mem.Handle
	for range 3 { // the same slot again and again
		h, err := pool.Get()
		if err != nil {
			t.Fatal(err)
		}
		a := g.n.fill(h.Handle())
		was = append(was, g.m.handle(a))
		g.m.table[a>>11] = g.m.table[a>>11].delivered()
		g.n.out--
		g.m.source.Reclaim(was[:len(was)-1])
		g.n.toPools(g.n.returns.take())
		if s := pool.Stats(); s.InUse != 1 {
			t.Errorf("the handle of a delivery before takes a packet away: %+v", s)
		}
		for range 2 {
			g.m.source.Reclaim(was) // one that is out, and all that were
		}
		g.n.toPools(g.n.returns.take())
	}
	if s := pool.Stats(); s.InUse != 0 || s.Puts != 3 || s.Rejected != 1+(1+3)+(2+5) {
		t.Errorf("%+v", s)
	}
	g.m.source.Reclaim([]mem.Handle{mem.Handle(g.n.tag) | 1<<31}) // a chunk that is none
	g.n.toPools(g.n.returns.take())
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
	g.n.returns.close()
	if g.n.returns.add(was) {
		t.Error("a queue that is closed takes chunks back")
	}
}

// When a queue of the interface leaves, chunks that the kernel had, or was to have again, are in
// their pool, and those that are held come later.
func TestLeave(t *testing.T) {
	g := newQueueRig(t, 2048)
	var addrs []uint64
	var handles []mem.Handle
	for i := range 8 {
		h, err := g.home.Get()
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, g.n.fill(h.Handle()))
		if i >= 4 { // 4 to 7 are delivered
			handles = append(handles, g.m.handle(addrs[i]))
			e := &g.m.table[addrs[i]>>11]
			*e = e.delivered()
			g.n.out--
		}
	}
	g.n.reuse(addrs[0])
	g.m.source.Reclaim(handles[:2])
	if left := g.m.leave(g.n); len(left) != 0 || g.home.Stats().InUse != 2 || g.m.nicQueue(g.n.tag) != nil {
		t.Errorf("%d chunks were being sent, %d slots are out", len(left), g.home.Stats().InUse)
	}
	g.m.source.Reclaim(handles[2:])
	if n := g.home.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
	n := &nicQueue{memory: g.m, feed: g.n.feed} // the next one has its number
	if err := g.m.enter(n); err != nil || n.tag != g.n.tag {
		t.Errorf("number %#x, %v", n.tag, err)
	}
}

// Packets that are held while their queue and their port close, and while others come in their
// place, go back to their pool.
func TestReleasedLate(t *testing.T) {
	n := hosts(t, netns.LinkSpec{})
	a := lone(t, n.Hosts[0], Options{})
	tx := addTx(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 2048, 512)}})
	region, err := mem.Alloc(mem.Options{Name: "home", Size: 1024 * 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	pools := []*mem.Pool{carve(t, region, 0, 2048, 512), carve(t, region, 512*2048, 2048, 512)}
	m, err := NewMemory(MemoryOptions{Region: region})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var held []*burst.Burst
	check := func(i, out int) {
		t.Helper()
		if s := pools[i].Stats(); s.InUse != out || s.Rejected != 0 {
			t.Errorf("pool %d, of which %d packets are held: %+v", i, out, s)
		}
	}
	for round := range 4 {
		pool := pools[round%2]
		b := lone(t, n.Hosts[1], Options{Memory: m})
		r := &road{t: t, tx: tx, to: b, pool: pool, rx: addRx(t, b, engine.RxSpec{Depth: 64, Pools: []*mem.Pool{pool}})}
		x := burst.New(64)
		for range 3 {
			r.bring(x, 8)
			x.Release()
		}
		if round > 0 { // the port before, whose number this one has, had another pool
			check(1-round%2, 24)
			r.bring(x, 8)
			held[0].Release() // when this one could use some
			held = held[1:]
			z := burst.New(64)
			r.bring(z, 8)
			z.Release()
			x.Release()
			check(1-round%2, 0)
		}
		y := burst.New(64)
		r.bring(y, 24)
		held = append(held, y)
		r.bring(x, 8)
		x.Release() // and no queue looks before the end
		if round%2 == 0 {
			if err := r.rx.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		check(round%2, 24)
	}
	for _, y := range held {
		y.Release()
	}
	check(0, 0)
	check(1, 0)
}
