package sim

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		address, name string
		loop          bool
	}{{"a", "a", false}, {"sim://port-a", "port-a", false}, {"sim://a?loop", "a", true}, {"a?loop", "a", true},
		{"Ünï code", "Ünï code", false}} {
		name, o, err := resolve(engine.PortSpec{Address: c.address})
		if name != c.name || o.Loop != c.loop || err != nil {
			t.Errorf("%q: %q, %v, %v", c.address, name, o.Loop, err)
		}
	}
	for _, bad := range []string{"", "sim://", "udp://a", "sim://a/b", "a?lop", "sim://a?loop&x=1", "?loop",
		"sim://a?loop=maybe", "sim://a?plop", "sim://a?loop&loop"} {
		if name, _, err := resolve(engine.PortSpec{Address: bad}); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%q: %q, %v; expected ErrInvalid", bad, name, err)
		}
	}
}

func TestTopologyMistakes(t *testing.T) {
	n := network(t, Options{})
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	_, self := n.Link("x", "x")
	_, twice := n.Link("a", "z")
	_, empty := n.Loop("")
	_, used := n.Loop("a")
	_, unknown := n.OpenPort(t.Context(), engine.PortSpec{Address: "nowhere"})
	_, cable := n.Cable("nowhere")
	_, looped := n.OpenPort(t.Context(), engine.PortSpec{Address: "a?loop"})
	_, mtu := n.OpenPort(t.Context(), engine.PortSpec{Address: "a", MTU: 10})
	_, opts := n.OpenPort(t.Context(), engine.PortSpec{Address: "a", Options: 1})
	_, group := n.OpenPort(t.Context(), engine.PortSpec{Address: "a", Options: PortOptions{MAC: packet.BroadcastMAC}})
	_, big := NewNetwork(Options{MTU: MaxMTU + 1})
	l, _ := n.Cable("a")
	for what, c := range map[string]struct{ err, want error }{
		"link with itself": {self, engine.ErrInvalid}, "second link": {twice, engine.ErrInUse},
		"no name":        {empty, engine.ErrInvalid},
		"port on a link": {used, engine.ErrInUse},
		"unknown port":   {unknown, engine.ErrNotFound}, "unknown cable": {cable, engine.ErrNotFound},
		"loop of a linked port": {looped, engine.ErrInUse},
		"MTU":                   {mtu, engine.ErrInvalid}, "options": {opts, engine.ErrInvalid},
		"group address": {group, engine.ErrInvalid}, "big MTU": {big, engine.ErrInvalid},
		"faults of no end": {l.SetFaultsFrom("c", Faults{}), engine.ErrNotFound},
		"loss":             {l.SetFaults(Faults{Loss: 1.1}), engine.ErrInvalid},
		"delay":            {l.SetFaults(Faults{Delay: -1}), engine.ErrInvalid},
		"queue":            {l.SetFaults(Faults{Queue: -1}), engine.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, expected %v", what, c.err, c.want)
		}
	}
	open(t, n, "a")
	if _, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "a"}); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("open twice: %v", err)
	}
}

func TestQueueMistakes(t *testing.T) {
	n := network(t, Options{Shared: true})
	p := open(t, n, "a")
	m := pool(t, "p", 2048, 16)
	for what, c := range map[string]struct {
		spec engine.RxSpec
		want error
	}{
		"no pool":    {engine.RxSpec{}, engine.ErrInvalid},
		"nil pool":   {engine.RxSpec{Pools: []*mem.Pool{m, nil}}, engine.ErrInvalid},
		"depth":      {engine.RxSpec{Pools: []*mem.Pool{m}, Depth: -1}, engine.ErrInvalid},
		"split":      {engine.RxSpec{Pools: []*mem.Pool{m}, SplitAt: 5}, engine.ErrInvalid},
		"connection": {engine.RxSpec{Pools: []*mem.Pool{m}, Conn: 1}, engine.ErrUnsupported},
		"NIC time":   {engine.RxSpec{Pools: []*mem.Pool{m}, HardwareTime: true}, engine.ErrUnsupported},
		"options":    {engine.RxSpec{Pools: []*mem.Pool{m}, Options: 1}, engine.ErrInvalid},
		"id":         {engine.RxSpec{Pools: []*mem.Pool{m}, ID: engine.Queue(MaxQueues)}, engine.ErrInvalid},
	} {
		if _, err := p.AddRxQueue(c.spec); !errors.Is(err, c.want) {
			t.Errorf("receive queue, %s: %v, expected %v", what, err, c.want)
		}
	}
	for what, spec := range map[string]engine.TxSpec{
		"no pool": {}, "nil pool": {Pools: []*mem.Pool{nil}}, "depth": {Pools: []*mem.Pool{m}, Depth: -1},
		"headroom": {Pools: []*mem.Pool{m}, Headroom: 2048}, "options": {Pools: []*mem.Pool{m}, Options: 1},
		"id": {Pools: []*mem.Pool{m}, ID: engine.Queue(-2)},
	} {
		if _, err := p.AddTxQueue(spec); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("transmit queue, %s: %v", what, err)
		}
	}
	if len(sources.of) != 0 {
		t.Errorf("%d pools are still registered after queues that were refused", len(sources.of))
	}
}

// TestHandOff: with one pool for both queues the receiver gets the sender's slot; otherwise its
// own. A burst that is handed on partly gives back the rest.
func TestHandOff(t *testing.T) {
	n := network(t, Options{Shared: true})
	p := open(t, n, "a?loop")
	m := pool(t, "both", 2048, 16)
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{m}, Headroom: 32})
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{m}, Depth: 5})
	b := burst.New(16)
	for round := range 3 {
		if k, err := tx.Alloc(b, 8, 60); k != 8 || err != nil {
			t.Fatal(k, err)
		}
		var at []uint64
		for i := range 8 {
			b.Prepend(i, 10)
			at = append(at, b.Segment(i, 0).Off)
		}
		if err := tx.Send(b); err != nil {
			t.Fatal(err)
		}
		if k, _ := rx.TryRecv(b); k != 5 {
			t.Fatalf("round %d: %d packets, expected 5", round, k)
		}
		for i := range 5 {
			if b.Segment(i, 0).Off != at[i] || b.PacketLen(i) != 70 || b.Headroom(i) != 22 {
				t.Errorf("packet %d: at %d, expected %d; %d bytes, headroom %d", i, b.Segment(i, 0).Off, at[i],
					b.PacketLen(i), b.Headroom(i))
			}
		}
		if used := m.Stats().InUse; used != 5 {
			t.Errorf("round %d: %d slots are out, expected 5", round, used)
		}
		b.Release()
	}
	if s := stats(p); s.Rx.Drops[engine.DropQueueFull] != 9 || s.Rx.Copied != 0 || s.Tx.Packets != 24 {
		t.Errorf("%+v", s)
	}
	balanced(t, n)
}

// TestWholeBursts: a burst that is handed on as it is can be received in pieces, thrown away, and
// says nothing of what its sender noted in it.
func TestWholeBursts(t *testing.T) {
	n := network(t, Options{Shared: true})
	m := pool(t, "both", 256, 64)
	tx := addTx(t, open(t, n, "a"), engine.TxSpec{Pools: []*mem.Pool{m}})
	p := open(t, n, "b")
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{m}, Depth: 30})
	send := func(k int) {
		b := burst.New(k)
		if got, err := tx.Alloc(b, k, 100); got != k {
			t.Fatal(got, err)
		}
		for i := range k {
			b.SetLen(i, 0, 60+i)
			b.SetConn(i, 5)
			b.Builder().SetFlow(i, 6)
			b.SetTime(i, 7)
		}
		if err := tx.Send(b); err != nil || b.Len() != 0 {
			t.Fatal(err, b.Len())
		}
	}
	send(11)
	send(3)
	var lengths []int
	small := burst.New(4)
	for range 4 {
		if _, err := rx.TryRecv(small); err != nil {
			t.Fatal(err)
		}
		for i := range small.Len() {
			lengths = append(lengths, small.PacketLen(i))
			if _, timed := small.Time(i); timed || small.Conn(i) != 0 || small.Flow(i) != 0 || small.Flags(i) != 0 {
				t.Errorf("packet %d has conn %d, flow %d, flags %v of its sender", i, small.Conn(i), small.Flow(i),
					small.Flags(i))
			}
		}
		small.Release()
	}
	equal(t, "lengths", lengths, "[60 61 62 63 64 65 66 67 68 69 70 60 61 62]")
	send(20)
	send(11) // 10 places
	if k, _ := rx.TryRecv(small); k != 4 {
		t.Errorf("%d packets", k)
	}
	small.Release()
	send(5) // 4 places
	equal(t, "ledger", balanced(t, n).Held, 30)
	if k, err := rx.Discard(); k != 30 || err != nil {
		t.Errorf("Discard: %d, %v", k, err)
	}
	send(30)
	if err := rx.Close(); err != nil {
		t.Error(err)
	}
	s := stats(p)
	if s.Rx.Packets != 18 || s.Rx.Bytes != 715+183+246 ||
		s.Rx.Drops != (engine.Drops{engine.DropQueueFull: 2, engine.DropFlushed: 30, engine.DropClosed: 30}) {
		t.Errorf("%+v", s.Rx)
	}
	if out := m.Stats().InUse; out != 0 {
		t.Errorf("%d slots are out", out)
	}
	balanced(t, n)
}

func TestSteering(t *testing.T) {
	n := network(t, Options{})
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	a := newEnd(t, n, "a", 256)
	p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "b", Isolated: true})
	if err != nil {
		t.Fatal(err)
	}
	m := pool(t, "rx", 2048, 256)
	var qs []*end
	for i := range 6 {
		qs = append(qs, &end{rx: addRx(t, p, engine.RxSpec{ID: engine.Queue(i), Pools: []*mem.Pool{m}})})
	}
	rules, err := flow.ParseRules(`udp dst 1 -> queue 1
		udp dst 2 -> drop
		udp dst 3 -> kernel
		udp dst 4 -> queue 200
		udp dst 5 -> vlan-push 7, queue 0
		udp dst 6 -> vlan-pop, queue 0
		udp dst 10-19 -> rss 2-5`)
	if err != nil {
		t.Fatal(err)
	}
	var changes []flow.Change
	for _, r := range rules {
		changes = append(changes, flow.Add(r))
	}
	result, err := p.Rules().Apply(changes...)
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for port := range uint16(9) {
		frames = append(frames, udp(1, 2, 9, port, "x"))
	}
	for i := range uint16(200) {
		frames = append(frames, udp(1, 2, 1000+i, 10+i%10, "rss"))
	}
	a.send(t, frames...)
	equal(t, "queue 1", qs[1].payloads(t), "[x]")
	tagged := qs[0].got(t)
	if len(tagged) != 1 || len(tagged[0]) != len(frames[0])+packet.VLANLen ||
		!strings.HasPrefix(tagged[0][12:], "\x81\x00\x00\x07\x08\x00") {
		t.Errorf("a frame with a tag pushed: %q", tagged)
	}
	sum := 0
	for i := 2; i < 6; i++ {
		ids := take(t, qs[i].rx, func(b *burst.Burst, i int) uint32 { return b.Flow(i) })
		sum += len(ids)
		if len(ids) < 20 {
			t.Errorf("RSS: queue %d has %d packets of 200", i, len(ids))
		}
		for _, id := range ids {
			if id != result.IDs[6] {
				t.Errorf("flow %d, expected %d", id, result.IDs[6])
			}
		}
	}
	equal(t, "RSS", sum, 200)
	s := stats(p)
	want := engine.Drops{engine.DropRule: 1, engine.DropNoQueue: 1, engine.DropTransform: 1}
	if s.Drops != want || s.Kernel != 4 { // ports 0, 3, 7 and 8
		t.Errorf("drops %v and %d for the kernel, expected %v and 4", &s.Drops, s.Kernel, &want)
	}
	if _, err := p.(*Port).rules.SetIsolation(flow.Isolation{Unmatched: flow.Deliver, Queue: 1}); err != nil {
		t.Fatal(err)
	}
	a.send(t, frames[8])
	equal(t, "queue 1, which now gets the rest", len(qs[1].got(t)), 1)
	if k := p.Rules().Stats().Unmatched.Packets; k != 4 {
		t.Errorf("%d packets matched no rule, expected 4", k)
	}
	balanced(t, n)
}

func TestSplit(t *testing.T) {
	n := network(t, Options{Shared: true})
	a := newEnd(t, n, "a", 64)
	p := open(t, n, "b")
	for i, at := range []int{0, 20} {
		q := addRx(t, p, engine.RxSpec{ID: engine.Queue(i), SplitAt: at,
			Pools: []*mem.Pool{pool(t, "heads", 64, 64), pool(t, "data", 100, 64)}})
		long, longer := udp(1, 2, 3, 4, strings.Repeat("y", 70)), udp(1, 2, 3, 4, strings.Repeat("z", 101+at))
		a.send(t, udp(1, 2, 3, 4, "hello"), long, longer, []byte("garbage"))
		cut := 42
		if at > 0 {
			cut = at
		}
		var got []int
		small := burst.NewSegmented(2, 3) // room for one and a half
		for {
			k, err := q.TryRecv(small)
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				break
			}
			for i := range k {
				if small.Segments(i) != 2 || small.Role(i, 0) != burst.Header || small.Role(i, 1) != burst.Payload {
					t.Fatalf("%d segments", small.Segments(i))
				}
				got = append(got, len(small.Bytes(i, 0)), len(small.Bytes(i, 1)))
			}
			small.Release()
		}
		rest := []int{7, 0}
		if at == 0 {
			rest = []int{0, 7} // nothing of it is a header
		}
		equal(t, "lengths", got, append([]int{cut, 47 - cut, cut, 112 - cut}, rest...))
		var s engine.RxStats
		q.Stats(&s)
		if s.Drops != (engine.Drops{engine.DropTooLong: 1}) || s.Bytes != 47+112+7 || s.Packets != 3 {
			t.Errorf("%+v", s)
		}
		q.Close()
	}
	balanced(t, n)
}

// TestMissingHalf: headers or payload run out first; what was taken of the other goes back.
func TestMissingHalf(t *testing.T) {
	for i, slots := range [][2]int{{3, 20}, {20, 3}} {
		n := network(t, Options{Shared: true})
		a := newEnd(t, n, "a", 64)
		p := open(t, n, "b")
		heads, data := pool(t, "heads", 64, slots[0]), pool(t, "data", 64, slots[1])
		q := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{heads, data}})
		a.send(t, numbered(0, 10)...)
		if s := stats(p); s.Rx.Drops != (engine.Drops{engine.DropNoBuffers: 7}) {
			t.Errorf("%d: drops %v", i, &s.Rx.Drops)
		}
		equal(t, "slots out", []int{heads.Stats().InUse, data.Stats().InUse}, "[3 3]")
		equal(t, "received", len((&end{rx: q}).got(t)), 3)
	}
}

// TestLargeBurst: more packets than the queue has room for, of a burst that is larger than any that
// is handed on whole.
func TestLargeBurst(t *testing.T) {
	n := network(t, Options{Shared: true})
	p := open(t, n, "a?loop")
	m := pool(t, "both", 256, 128)
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{m}})
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{m}, Depth: 90})
	b := burst.New(128)
	for range 3 {
		if k, err := tx.Alloc(b, 120, 64); k != 120 {
			t.Fatal(k, err)
		}
		if err := tx.Send(b); err != nil {
			t.Fatal(err)
		}
		equal(t, "slots out", m.Stats().InUse, 90)
		equal(t, "received", len(take(t, rx, (*burst.Burst).PacketLen)), 90)
	}
	if s := m.Stats(); s.InUse != 0 || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
}

func TestMTU(t *testing.T) {
	n := network(t, Options{})
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	p, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "a", MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	a := &end{port: p, b: burst.New(64), tx: addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{pool(t, "tx", 2048, 64)}})}
	small, err := n.OpenPort(t.Context(), engine.PortSpec{Address: "b", MTU: 1000})
	if err != nil {
		t.Fatal(err)
	}
	rx := addRx(t, small, engine.RxSpec{Pools: []*mem.Pool{pool(t, "rx", 2048, 64)}})
	tagged := make([]byte, 1000+14+8)
	copy(tagged[12:], "\x88\xa8\x00\x01\x81\x00\x00\x02\x08\x00")
	once := make([]byte, 1000+14+8)
	copy(once[12:], "\x81\x00\x00\x02\x08\x00")
	a.send(t, make([]byte, 1000+14), make([]byte, 1000+15), tagged, once, make([]byte, 1500+14), make([]byte, 1500+15))
	equal(t, "lengths", take(t, rx, (*burst.Burst).PacketLen), "[1014 1022]")
	if s := stats(small); s.Drops != (engine.Drops{engine.DropTooLong: 3}) {
		t.Errorf("drops: %v", &s.Drops)
	}
	if s := stats(a.port); s.Tx.Drops != (engine.Drops{engine.DropTooLong: 1}) || s.Tx.Packets != 5 {
		t.Errorf("%+v", s.Tx)
	}
	balanced(t, n)
}

// TestExhaustion: no memory, no room, no queue, no port, closed with packets inside.
func TestExhaustion(t *testing.T) {
	n := network(t, Options{})
	if _, err := n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	a := newEnd(t, n, "a", 64)
	frame := udp(1, 2, 3, 4, "")
	burst10 := [][]byte{frame, frame, frame, frame, frame, frame, frame, frame, frame, frame}
	a.send(t, burst10...) // no port is there
	p := open(t, n, "b")
	a.send(t, burst10...) // no queue is there
	q := addRx(t, p, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{pool(t, "rx", 2048, 3)}})
	a.send(t, burst10...) // 3 slots
	if k, err := q.Discard(); k != 3 || err != nil {
		t.Fatal(k, err)
	}
	a.send(t, burst10...)
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.TryRecv(a.b); err != engine.ErrClosed {
		t.Errorf("TryRecv after Close: %v", err)
	}
	addRx(t, p, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{pool(t, "more", 2048, 32)}})
	a.send(t, burst10...) // 8 places
	l, _ := n.Cable("a")
	l.SetUp(false)
	a.send(t, burst10...)
	l.SetUp(true)
	want := engine.Drops{engine.DropNoBuffers: 14, engine.DropFlushed: 3, engine.DropClosed: 3, engine.DropQueueFull: 2}
	s := stats(p)
	if s.Rx.Drops != want || s.Drops != (engine.Drops{engine.DropNoQueue: 10}) || s.LinkChanges != 2 {
		t.Errorf("receiver: %+v", s)
	}
	if s := stats(a.port); s.Tx.Drops != (engine.Drops{engine.DropDown: 10}) || s.Tx.Packets != 50 {
		t.Errorf("sender: %+v", s)
	}
	ledger := balanced(t, n)
	if ledger.Sent != 50 || ledger.Held != 8 || ledger.Drops[engine.DropDown] != 10 {
		t.Errorf("ledger:\n%v", ledger)
	}
	// A port that is opened again begins at zero; the ledger goes on.
	p.Close()
	if s := stats(open(t, n, "b")); s.Drops.Total() != 0 || s.LinkChanges != 0 {
		t.Errorf("a new port: %+v", s)
	}
	if ledger := balanced(t, n); ledger.Sent != 50 || ledger.Held != 0 || ledger.Drops.Total() != 50 {
		t.Errorf("ledger:\n%v", ledger)
	}
}

func TestSourceMACAndSegments(t *testing.T) {
	n := network(t, Options{Shared: true})
	p := open(t, n, "a?loop")
	tx := addTx(t, p, engine.TxSpec{Pools: []*mem.Pool{pool(t, "heads", 8, 8), pool(t, "data", 64, 8)},
		SourceMAC: true})
	rx := addRx(t, p, engine.RxSpec{Pools: []*mem.Pool{pool(t, "rx", 2048, 8)}})
	b := burst.NewSegmented(4, 8)
	if k, err := tx.Alloc(b, 4, 20); k != 4 || err != nil {
		t.Fatal(k, err)
	}
	for i := range 4 {
		copy(b.Bytes(i, 0), "01234567")
		copy(b.Bytes(i, 1), "89ABCDEFGHIJKLMNOPQR")
	}
	if err := tx.Send(b); err != nil {
		t.Fatal(err)
	}
	mac := p.Info().MAC
	got := (&end{rx: rx}).got(t)
	if len(got) != 4 || got[3] != "012345"+string(mac[:])+"CDEFGHIJKLMNOPQR" {
		t.Errorf("%q", got)
	}
	b = burst.NewSegmented(4, 5)
	defer b.Release()
	if k, err := tx.Alloc(b, 4, 20); k != 0 || !errors.Is(err, engine.ErrInvalid) { // room for two and a half
		t.Errorf("Alloc of two segments each into a burst with too little room: %d, %v", k, err)
	}
}

// TestPaced: a queue with a rate, in virtual time, and one pool for both sides, of which every slot
// comes back.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := network(t, Options{Shared: true})
		m := pool(t, "both", 2048, 64)
		tx := addTx(t, open(t, n, "a"), engine.TxSpec{Pools: []*mem.Pool{m}, Rate: 8000_000}) // a byte in a microsecond
		rx := addRx(t, open(t, n, "b"), engine.RxSpec{Pools: []*mem.Pool{m}, Timestamps: true})
		b := burst.New(64)
		start := time.Now()
		var total time.Duration
		var count int
		for range 20 {
			if k, err := tx.Alloc(b, 50, 1000); k != 50 || err != nil {
				t.Fatal(k, err)
			}
			if err := tx.Send(b); err != nil {
				t.Fatal(err)
			}
			if err := tx.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, ns := range take(t, rx, func(b *burst.Burst, i int) int64 { ns, _ := b.Time(i); return ns }) {
				total = time.Duration(ns - start.UnixNano())
				count++
			}
		}
		if count != 1000 || total < 990*time.Millisecond || total > time.Second {
			t.Errorf("%d packets of 1 ms each have taken %v", count, total)
		}
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if testenv.Race || testenv.Invariants {
		t.Log("counted in plain builds")
		return
	}
	for _, shared := range []bool{true, false} {
		l := newLine(t, shared, 200)
		if k := testing.AllocsPerRun(200, func() { l.round(t) }); k != 0 {
			t.Errorf("one pool %v: %v allocations for a burst", shared, k)
		}
		if _, err := portOf(l.rx).Rules().Apply(flow.Add(flow.Rule{Actions: []flow.Action{flow.Queue(0)}})); err != nil {
			t.Fatal(err)
		}
		if k := testing.AllocsPerRun(200, func() { l.round(t) }); k != 0 {
			t.Errorf("one pool %v, with a rule: %v allocations for a burst", shared, k)
		}
	}
}

func portOf(q engine.RxQueue) *Port { return q.(*rxQueue).port }
