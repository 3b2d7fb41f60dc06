package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/afpacket"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/engine/xdp"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/tensor"
)

// loopback is an address of this process's own.
func loopback(port int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", pid>>16&127+1, pid>>8&255, pid&255, port)
}

// pair is two ports of a network on one link.
func pair(t testing.TB, o sim.Options, depth int) (n *sim.Network, l *sim.Link, a, b *end) {
	t.Helper()
	n, err := sim.NewNetwork(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	if l, err = n.Link("a", "b"); err != nil {
		t.Fatal(err)
	}
	return n, l, open(t, n, engine.PortSpec{Address: "sim://a"}, depth),
		open(t, n, engine.PortSpec{Address: "sim://b"}, depth)
}

// steer adds a rule; the first one of a port has the id 1.
func steer(t testing.TB, e *end, rule string) {
	t.Helper()
	r, err := flow.ParseRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.port.Rules().Apply(flow.Add(r)); err != nil {
		t.Fatal(err)
	}
}

// Every packet is counted once, under its flow and its size.
func TestCount(t *testing.T) {
	_, _, a, b := pair(t, sim.Options{}, 1024)
	for id := range 3 {
		steer(t, b, fmt.Sprintf("udp dst %d -> queue 0", 100+id))
	}
	app, stop := start(t, Options{Kind: Count, Rx: rx(b), Frames: true})
	const n = 1000
	var total uint64
	for i := range n {
		f := udpFrame(t, "10.0.0.1:1", fmt.Sprintf("10.0.0.2:%d", 100+i%4), make([]byte, i))
		total += uint64(len(f))
		a.send(t, 0, f)
	}
	until(t, "all packets", func() bool { return app.Snapshot().Packets == n })
	s := stop()
	if s.Taken != n || s.Bytes != total || s.Sent != 0 || s.Drops.Total() != 0 {
		t.Errorf("%+v, expected %d bytes", s, total)
	}
	if len(s.Flows) != 4 || s.Flows[0].ID != 0 || s.Flows[3] != (FlowCount{3, n / 4, s.Flows[3].Bytes}) {
		t.Errorf("flows %+v", s.Flows)
	}
	var packets, bytes uint64
	for _, f := range s.Flows {
		packets += f.Packets
		bytes += f.Bytes
	}
	if packets != n || bytes != total {
		t.Errorf("flows: %d packets of %d bytes", packets, bytes)
	}
	// Frames have 42 bytes of headers: 23 of them are up to 64, 64 more up to 128.
	if s.Sizes[0] != (SizeCount{64, 23}) || s.Sizes[1] != (SizeCount{128, 64}) || s.Sizes[len(s.Sizes)-1].UpTo != 2048 {
		t.Errorf("sizes %+v", s.Sizes)
	}
	for _, f := range Families([]*App{app}) {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
	}
}

// More flows than are counted apart: nothing is lost, the rest counts as no flow.
func TestCountManyFlows(t *testing.T) {
	c := new(counts)
	for id := range uint32(3 * maxFlows) {
		c.ofFlow(id*7+1, 2, 10)
		c.ofFlow(id*7+1, 1, 5)
	}
	var packets, bytes uint64
	flows := c.flowCounts()
	for _, f := range flows {
		packets += f.Packets
		bytes += f.Bytes
	}
	if packets != 9*maxFlows || bytes != 45*maxFlows || len(flows) != maxFlows || flows[0].ID != 0 {
		t.Errorf("%d flows, %d packets of %d bytes, the first: %+v", len(flows), packets, bytes, flows[0])
	}
}

// Frames come back to their sender; those to a group and fragments of headers do not.
func TestEchoFrames(t *testing.T) {
	_, _, a, b := pair(t, sim.Options{}, 1024) // room for all that is sent: nothing is to be dropped
	app, stop := start(t, Options{Kind: Echo, Rx: rx(b), Tx: b.tx, Frames: true})
	group := udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", nil)
	group[0] |= 1
	var want [][]byte
	for i := range 200 {
		f := udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", fmt.Append(nil, "packet ", i))
		a.send(t, 0, f, group)
		turn(f)
		want = append(want, f)
	}
	for i, f := range a.receive(t, len(want)) {
		if !bytes.Equal(f, want[i]) {
			t.Fatalf("answer %d is %x\nexpected %x", i, f, want[i])
		}
	}
	until(t, "all packets", func() bool { return app.Snapshot().Packets == 400 })
	if s := stop(); s.Sent != 200 || s.Drops[DropGroup] != 200 || s.Dropped["group"] != 200 {
		t.Errorf("%+v", s)
	}
}

// A forwarder that cannot send drops and counts, and goes on when it can.
func TestForwardDrops(t *testing.T) {
	n, err := sim.NewNetwork(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for _, l := range [][2]string{{"a", "b"}, {"c", "d"}} {
		if _, err := n.Link(l[0], l[1]); err != nil {
			t.Fatal(err)
		}
	}
	a, b := open(t, n, engine.PortSpec{Address: "sim://a"}, 256), open(t, n, engine.PortSpec{Address: "sim://b"}, 256)
	c, d := open(t, n, engine.PortSpec{Address: "sim://c"}, 16), open(t, n, engine.PortSpec{Address: "sim://d"}, 256)
	// The test holds all descriptors of c.
	held := burst.New(16)
	if k, err := c.tx.Alloc(held, 16, 64); k != 16 || err != nil {
		t.Fatal(k, err)
	}
	app, stop := start(t, Options{Kind: Forward, Rx: rx(b), Tx: c.tx, OtherPort: true, Frames: true})
	f := udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", []byte("payload"))
	for range 20 {
		a.send(t, 0, f)
	}
	until(t, "drops", func() bool { return app.Snapshot().Drops[DropNoRoom] == 20 })
	held.Release()
	for i := range 50 { // one by one: there is room for each
		a.send(t, 0, f)
		if got := d.receive(t, 1); !bytes.Equal(got[0], f) {
			t.Fatalf("packet %d is %x", i, got[0])
		}
	}
	until(t, "the counts", func() bool { return app.Snapshot().Sent == 50 })
	if s := stop(); s.Packets != 70 || s.Drops.Total() != 20 {
		t.Errorf("%+v", s)
	}
}

// Datagrams go back to each of several peers.
func TestEchoDatagrams(t *testing.T) {
	at := loopback(5201)
	e := open(t, socket.New(), engine.PortSpec{Address: "udp://" + at}, 64)
	_, stop := start(t, Options{Kind: Echo, Rx: rx(e), Tx: e.tx})
	for k := range 3 {
		c, err := net.Dial("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		deadline, _ := limit(t).Deadline()
		c.SetDeadline(deadline)
		for i := range 100 {
			text := fmt.Sprintf("packet %d of %d", i, k)
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			var b [100]byte
			if n, err := c.Read(b[:]); err != nil || string(b[:n]) != text {
				t.Fatalf("%q, %v", b[:n], err)
			}
		}
	}
	if s := stop(); s.Packets != 300 || s.Sent != 300 {
		t.Errorf("%+v", s)
	}
}

// A byte stream comes back whole, however little room there is, and of two connections each gets
// its own.
func TestEchoStream(t *testing.T) {
	at := loopback(5202)
	e := open(t, socket.New(), engine.PortSpec{Address: "tcp://" + at + "?listen=1"}, 16)
	app, stop := start(t, Options{Kind: Echo, Rx: rx(e), Tx: e.tx, Stream: true, Depth: 16})
	const size = 24 << 20 // more than sockets hold: the peers read only when everything is full
	done := make(chan error, 2)
	read := make(chan struct{})
	for k := range 2 {
		go func() {
			done <- func() error {
				c, err := net.Dial("tcp", at)
				if err != nil {
					return err
				}
				defer c.Close()
				deadline, _ := limit(t).Deadline()
				c.SetDeadline(deadline)
				want := make([]byte, size)
				for i := range size / 4 {
					binary.BigEndian.PutUint32(want[4*i:], uint32(i*2+k))
				}
				sent := make(chan error, 1)
				go func() { _, err := c.Write(want); sent <- err }()
				got := make([]byte, size)
				<-read
				_, err = io.ReadFull(c, got)
				if err = errors.Join(err, <-sent); err == nil && !bytes.Equal(got, want) {
					err = errors.New("other bytes came back")
				}
				return err
			}()
		}()
	}
	// The application stands still when it holds packets, the queue does, and neither changes,
	// however often the test looks.
	same, last := 0, uint64(0)
	until(t, "everything to be full", func() bool {
		var q engine.TxStats
		e.tx.Stats(&q)
		s := app.Snapshot()
		if same++; s.Packets != last || q.Queued == 0 || s.Packets == s.Sent+s.Taken {
			same, last = 0, s.Packets
		}
		return same == 10000
	})
	close(read)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	until(t, "both ends", func() bool { return app.Snapshot().Taken == 2 })
	if s := stop(); s.Bytes != 2*size || s.SentBytes != 2*size || s.Drops.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// Real frames on a real wire, of both engines for them. The kernel of the far host sees the frames
// of afpacket too: its answers are not steered to the sender's queue.
func TestEchoWire(t *testing.T) {
	for name, e := range map[string]engine.Engine{"afpacket": afpacket.New(), "xdp": xdp.New()} {
		t.Run(name, func(t *testing.T) {
			n := netns.New(t, netns.Topology{Neighbours: true})
			far := openWith(t, e, engine.PortSpec{Address: "eth0", Isolated: true}, 1024, newPool(t, 4096),
				n.Hosts[1].Do)
			near := openWith(t, afpacket.New(), engine.PortSpec{Address: "eth0", Isolated: true}, 1024,
				newPool(t, 4096), n.Hosts[0].Do)
			steer(t, far, "udp dst 7 -> queue 0")
			steer(t, near, "udp src 7 -> queue 0")
			_, stop := start(t, Options{Kind: Echo, Rx: rx(far), Tx: far.tx, Frames: true})
			from, to := near.port.Info(), far.port.Info()
			const packets = 300
			for i := range packets {
				f := udpFrame(t, "10.77.0.1:8", "10.77.0.2:7",
					fmt.Appendf(nil, "question %d %s", i, strings.Repeat("x", i)))
				packet.Ethernet(f).SetSrc(from.MAC)
				packet.Ethernet(f).SetDst(to.MAC)
				near.send(t, 0, f)
				turn(f)
				if got := near.receive(t, 1)[0]; !bytes.Equal(got, f) {
					t.Fatalf("answer %d is %x\nexpected %x", i, got, f)
				}
			}
			if s := stop(); s.Sent != packets || s.Packets != packets {
				t.Errorf("%+v", s)
			}
		})
	}
}

// nowhere is a transmit queue that takes everything at once.
type nowhere struct{ engine.TxQueue }

func (nowhere) Forward(b *burst.Burst) (int, error) { return b.Live(), nil }
func (nowhere) Send(b *burst.Burst) error           { b.Release(); return nil }
func (nowhere) Stats(s *engine.TxStats)             { *s = engine.TxStats{} }

// No burst costs an allocation, whatever is done with it.
func TestAllocs(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	pool := newPool(t, 256)
	src := burst.PoolSource(pool)
	frame := udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", make([]byte, 100))
	node := newNode(t)
	desc := tensor.Desc{DType: tensor.U8, Shape: []int64{1 << 20, 100}}
	for name, o := range map[string]Options{
		"count":   {Kind: Count, Frames: true},
		"echo":    {Kind: Echo, Tx: nowhere{}, Frames: true},
		"forward": {Kind: Forward, Tx: nowhere{}, Frames: true, OtherPort: true},
		"stream":  {Kind: Forward, Tx: nowhere{}, Stream: true},
		"sink":    {Kind: Sink, Frames: true, Tensor: &Tensor{Node: node, Name: "order", Desc: desc, Offset: Headers}},
		"tensor": {Kind: Sink, Frames: true, Tensor: &Tensor{Node: node, Name: "sequence", Desc: desc, Offset: Headers,
			Width: 8}},
	} {
		o.Name, o.Rx, o.Core = name, rx(&end{}), -1
		a, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		seq := uint64(0)
		work := func() {
			for range 64 {
				slot, err := pool.Get()
				if err != nil {
					t.Fatal(err)
				}
				binary.BigEndian.PutUint64(frame[42:], seq)
				seq++
				copy(slot.Bytes(), frame)
				a.in.Builder().Add(src, burst.Segment{Handle: slot.Handle(), Off: slot.Span().Off,
					Len: uint32(len(frame))})
			}
			if err := (counting{a}).Consume(context.Background(), a.in); err != nil {
				t.Fatal(err)
			}
			a.in.Release()
		}
		if got := testing.AllocsPerRun(100, work); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
		if s := a.Snapshot(); s.Sent+s.Taken != seq {
			t.Errorf("%s: %+v", name, s)
		}
		if err := a.Close(limit(t)); err != nil {
			t.Error(err)
		}
	}
}

// every is a consumer from outside: it keeps every packet whose last byte is even until it is
// closed, and fails at 255.
type every struct {
	kept   *burst.Burst
	closed *bool
}

var errLast = errors.New("that was the last one")

func (c every) Consume(_ context.Context, b *burst.Burst) error {
	for i := range b.Len() {
		p := b.Bytes(i, 0)
		if n := p[len(p)-1]; n == 255 {
			return errLast
		} else if n%2 == 0 {
			b.Take(c.kept, i)
		}
	}
	return nil
}

func (c every) Close() error {
	*c.closed = true
	c.kept.Release()
	return nil
}

// A program adds a kind with one line. What its consumer leaves in a burst goes back, all of it is
// counted, and its error ends the application.
func TestKindOfAProgram(t *testing.T) {
	_, _, a, b := pair(t, sim.Options{}, 256)
	closed := false
	kinds := Kinds()
	kinds["every"] = func(*Options) (engine.Consumer, error) { return every{burst.New(256), &closed}, nil }
	x, err := New(Options{Name: "mine", Kind: "every", Kinds: kinds, Rx: rx(b), Frames: true, Core: -1, Burst: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []byte{1, 2, 3, 4, 255} {
		a.send(t, 0, udpFrame(t, "10.0.0.1:7", "10.0.0.2:8", []byte{n}))
	}
	if err := x.Run(t.Context()); !errors.Is(err, errLast) || !strings.Contains(err.Error(), `"mine"`) {
		t.Error(err)
	}
	if s := x.Snapshot(); s.Kind != "every" || s.Packets != 5 || s.Taken+s.Drops[DropRefused] != 5 ||
		s.Drops[DropRefused] == 0 {
		t.Errorf("%+v", s)
	}
	if n := b.pool.Stats().InUse; n == 0 || closed {
		t.Errorf("%d slots are out, closed: %v", n, closed)
	}
	if err := x.Close(t.Context()); err != nil || !closed {
		t.Error(err, closed)
	}
	if n := b.pool.Stats().InUse; n != 0 {
		t.Errorf("%d slots are out", n)
	}
}

// What cannot work is refused with its reason.
func TestRefusals(t *testing.T) {
	_, _, a, _ := pair(t, sim.Options{}, 16)
	for want, o := range map[string]Options{
		`kind "tee"`:              {Kind: "tee", Rx: rx(a)},
		"nothing to receive from": {Kind: Count},
		"no transmit queue":       {Kind: Echo, Rx: rx(a)},
		"it sends nothing":        {Kind: Sink, Rx: rx(a), Tx: a.tx},
		"it keeps nothing":        {Kind: Count, Rx: rx(a), Tensor: &Tensor{}},
		"no node":                 {Kind: Sink, Rx: rx(a), Tensor: &Tensor{}},
		"bursts of -1":            {Kind: Count, Rx: rx(a), Burst: -1},
	} {
		if x, err := New(o); x != nil || !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q: %v", want, err)
		}
	}
	// A queue that is closed ends the application, which says so.
	x, err := New(Options{Name: "counter", Kind: Count, Rx: rx(a), Core: -1})
	if err != nil {
		t.Fatal(err)
	}
	a.rx.Close()
	if err := x.Run(t.Context()); !errors.Is(err, engine.ErrClosed) || !strings.Contains(err.Error(), `"counter"`) {
		t.Error(err)
	}
}
