package rawqp

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// cut is where headers end in these tests: behind those of udp.
const cut = 42

// inCard adds a receive queue with headers in host memory and payload in a card.
func (e *ends) inCard(id int, payload *mem.Pool) *rxQueue {
	e.t.Helper()
	return e.rx(engine.RxSpec{ID: engine.Queue(id), Pools: []*mem.Pool{pool(e.t, 128, 64), payload}, SplitAt: cut})
}

// seen demands that packet i of b is a frame, as the CPU sees its header and the card its payload.
func seen(t testing.TB, c *cardtest.Card, payload *mem.Pool, b *burst.Burst, i int, frame []byte) {
	t.Helper()
	head := min(len(frame), cut)
	if !bytes.Equal(b.Bytes(i, 0), frame[:head]) || b.PacketLen(i) != len(frame) {
		t.Fatalf("packet %d: a header of %x in %d bytes, expected %x in %d", i, b.Bytes(i, 0), b.PacketLen(i),
			frame[:head], len(frame))
	}
	if len(frame) == head {
		return
	}
	g := b.Segment(i, 1)
	if g.Region != payload.Region() || b.Bytes(i, 1) != nil || b.Role(i, 1) != burst.Payload {
		t.Fatalf("packet %d: its payload is in region %q", i, g.Region.Name())
	}
	if got := c.Seen(g.Region)[g.Off : g.Off+g.Len]; !bytes.Equal(got, frame[head:]) {
		t.Fatalf("packet %d: the card sees %x, expected %x", i, got, frame[head:])
	}
}

// The payload of frames comes into memory of a card, which sees it when the packet is handed out:
// after one flush for all of a burst, if it takes one, and none where there was no payload. Frames
// in its memory are sent, and those that came into it are sent on.
func TestPayloadInCard(t *testing.T) {
	for _, c := range []struct {
		name, script string
		card         cardtest.Options
	}{
		{"ordered", "", cardtest.Options{DMABuf: true}},
		{"flush", "mode wire", cardtest.Options{DMABuf: true, Flush: true, Page: 4096}},
	} {
		t.Run(c.name, func(t *testing.T) {
			card := cardtest.New(t, c.card)
			payload, own := card.Pool("payload", 64, 2048), card.Pool("own", 16, 2048)
			e := newEnds(t, c.script, Options{}, engine.PortSpec{})
			flushes := func(what string, want int) {
				t.Helper()
				if !c.card.Flush {
					want = 0
				}
				if n := card.Flushes(); n != want {
					t.Fatalf("%s: %d flushes, expected %d", what, n, want)
				}
			}
			q := e.inCard(0, payload)
			for i := range 100 { // more than there are slots; one at a time, so that no later one shows it
				f := udp(t, 5, 1+14*i)
				e.send(f)
				b := e.take(q)
				if b.Len() != 1 {
					t.Fatalf("%d packets", b.Len())
				}
				seen(t, card, payload, b, 0, f)
				b.Release()
				flushes("one by one", i+1)
			}
			var many [][]byte
			for i := range 12 {
				many = append(many, udp(t, 5, 700+i))
			}
			e.send(many...)
			b := e.take(q)
			for i, f := range many {
				seen(t, card, payload, b, i, f)
			}
			flushes("twelve together", 101)
			back, err := e.b.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool(t, 2048, 4)}})
			if err != nil {
				t.Fatal(err)
			}
			home, err := e.a.AddRxQueue(engine.RxSpec{Depth: 16, Pools: []*mem.Pool{pool(t, 2048, 32)}})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := back.Forward(b); n != len(many) || err != nil {
				t.Fatal(n, err)
			}
			if err := errors.Join(back.Send(b), back.Drain(t.Context())); err != nil {
				t.Fatal(err)
			}
			e.wants(home.(*rxQueue), many...).Release()
			e.send(udp(t, 5, 0))
			b = e.take(q)
			seen(t, card, payload, b, 0, udp(t, 5, 0))
			b.Release()
			flushes("no payload", 101)
			direct, f := e.sender(engine.TxSpec{Pools: []*mem.Pool{own}}), udp(t, 5, 1000)
			if n, err := direct.Alloc(e.out, 1, len(f)); n != 1 {
				t.Fatal(err)
			}
			copy(card.Written(own.Region())[e.out.Segment(0, 0).Off:], f)
			if err := errors.Join(direct.Send(e.out), direct.Drain(t.Context())); err != nil {
				t.Fatal(err)
			}
			b = e.take(q)
			seen(t, card, payload, b, 0, f)
			b.Release()
			if n := slices.Index(e.b.Capabilities().Memory, mem.Device); n < 0 {
				t.Error("the port does not say that it takes memory of accelerators")
			}
			if err := e.b.ReachesRegion(payload.Region()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A frame that another queue received into a card, and that this process hands over, is shown to
// the card when its owner gets it, and not before.
func TestHandOverInCard(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	payload := card.Pool("payload", 64, 2048)
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	first, second := e.inCard(0, payload), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "ip len 100 -> queue 1")))
	f := udp(t, 9, 72)
	e.send(f)
	if b := e.take(first); b.Len() != 0 || card.Flushes() != 0 {
		t.Errorf("%d packets for the first queue, %d flushes", b.Len(), card.Flushes())
	}
	b := e.take(second)
	seen(t, card, payload, b, 0, f)
	b.Release()
	if n := card.Flushes(); n != 1 {
		t.Errorf("%d flushes", n)
	}
	e.send(f)
	if n, err := second.Discard(); n != 1 || err != nil || card.Flushes() != 1 {
		t.Errorf("%d packets thrown away, %d flushes, %v", n, card.Flushes(), err)
	}
}

// A queue whose card does not take what came ends with the reason. Its packets are counted, those
// that the burst had before stay, every slot is back, and the port's other queues go on.
func TestCardLost(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	payload := card.Pool("payload", 64, 2048)
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	q, other := e.inCard(0, payload), e.rx(engine.RxSpec{ID: engine.Queue(1)})
	e.apply(flow.Add(rule(t, "udp dst 7 -> queue 1")))
	f, g := udp(t, 5, 300), udp(t, 7, 20)
	e.send(f, f)
	b := burst.NewSegmented(4, 16) // two of the next three find room
	if n, err := q.TryRecv(b); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	failure := errors.New("the card is lost")
	card.Refuse.Store(&failure)
	e.send(f, f, f, g)
	e.wants(other, g).Release() // what is for the first queue waits there now
	for range 2 {
		n, err := q.TryRecv(b)
		if n != 0 || !errors.Is(err, engine.ErrDown) || !errors.Is(err, failure) ||
			!strings.Contains(fmt.Sprint(err), "receive queue 0") {
			t.Fatalf("%d packets, %v", n, err)
		}
	}
	if b.Len() != 2 {
		t.Fatalf("%d packets, expected those two that were received before", b.Len())
	}
	seen(t, card, payload, b, 1, f)
	b.Release()
	if !q.Arm(engine.NewWaker()) {
		t.Error("a queue that has ended has nothing to say")
	}
	e.send(f, g)
	e.wants(other, g)
	var s engine.RxStats
	if q.Stats(&s); s.Packets != 2 || s.Drops[engine.DropDown] != 4 || s.Drops.Total() != 4 {
		t.Errorf("%+v", s)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	if n := payload.Stats().InUse; n != 0 {
		t.Errorf("%d slots of the card are out", n)
	}
	if _, err := q.TryRecv(b); err != engine.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}

// Queues in memory that nothing reaches, and those for which the CPU would have to reach it, are
// refused with what is missing.
func TestNoWayToCard(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{Addr: 0x6a00_0000_0000})
	far, near := card.Pool("payload", 16, 2048), cardtest.New(t, cardtest.Options{DMABuf: true}).Pool("near", 16, 2048)
	e := newEnds(t, "", Options{}, engine.PortSpec{})
	heads := pool(t, 128, 16)
	for _, c := range []struct {
		what, want string
		rx         []*mem.Pool
		at         int
		tx         *mem.Pool
	}{
		{"receiving", `region "payload"`, []*mem.Pool{heads, far}, cut, nil},
		{"sending", "modprobe nvidia-peermem", nil, 0, far},
		{"no place to cut", "split_at", []*mem.Pool{heads, near}, 0, nil},
		{"headers", `"near", where headers come`, []*mem.Pool{near}, 0, nil},
		{"an address in headers", "SourceMAC", nil, 0, near},
	} {
		var err error
		if c.tx != nil {
			_, err = e.a.AddTxQueue(engine.TxSpec{SourceMAC: c.tx == near, Pools: []*mem.Pool{c.tx}})
		} else {
			_, err = e.b.AddRxQueue(engine.RxSpec{Depth: 4, Pools: c.rx, SplitAt: c.at})
		}
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, expected %q", c.what, err, c.want)
		}
	}
	if err := e.b.ReachesRegion(far.Region()); !errors.Is(err, engine.ErrUnsupported) ||
		!strings.Contains(err.Error(), "modprobe nvidia-peermem") {
		t.Error(err)
	}
}

// A card that reaches no accelerator says so.
func TestNoAccelerators(t *testing.T) {
	plain := newEnds(t, "absent dmabuf", Options{}, engine.PortSpec{}).b.Capabilities()
	if slices.Contains(plain.Memory, mem.Device) ||
		!strings.Contains(strings.Join(plain.Notes, "\n"), "nvidia-peermem") {
		t.Errorf("%v, %q", plain.Memory, plain.Notes)
	}
}
