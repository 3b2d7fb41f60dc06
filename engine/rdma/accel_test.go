package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/ibvmem"
	"github.com/penstock-io/penstock/internal/ibvmem/cardtest"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// TestPayloadInCard receives headers into host memory and payload into memory of a card, which sees
// it when the packet is handed out, and sends packets on whose payload it is, without the processor
// reaching it.
func TestPayloadInCard(t *testing.T) {
	for _, c := range []struct {
		name, script string
		card         cardtest.Options
	}{
		{"DMABuf", "mode post", cardtest.Options{DMABuf: true}},
		{"Part", "mode post", cardtest.Options{DMABuf: true, Addr: 0x6b00_0000_0000, Around: 70_001}},
		{"Flush", "mode wire; delay 20us; seed 5", cardtest.Options{DMABuf: true, Flush: true, Page: 4096}},
	} {
		t.Run(c.name, func(t *testing.T) {
			card := cardtest.New(t, c.card)
			payload, sent := card.Pool("payload", 64, 4096), card.Pool("sent", 16, 4096)
			region, from := payload.Region(), sent.Region()
			f := onFake(t, c.script)
			f.engine.tree = fstest.MapFS{}
			s, cl, _ := f.pair(t, Options{}, Options{})
			if err := s.ReachesRegion(region); err != nil || !slices.Contains(s.Capabilities().Memory, mem.Device) {
				t.Errorf("%v; memory %v", err, s.Capabilities().Memory)
			}
			in := rx(t, s, engine.RxSpec{Depth: 16, Pools: []*mem.Pool{pool(t, 256, 64), payload}, SplitAt: 16})
			out := tx(t, cl, engine.TxSpec{Pools: []*mem.Pool{pool(t, 4096, 64)}})
			direct := tx(t, cl, engine.TxSpec{ID: engine.Queue(1), Pools: []*mem.Pool{sent}})
			r := engine.NewRx(in, engine.Batching{})
			b := burst.NewSegmented(8, 32)
			// One packet at a time: the flush for the next one would show the bytes of this one.
			check := func(what, want string) {
				t.Helper()
				if err := r.Recv(within(t), b); err != nil {
					t.Fatal(err)
				}
				if b.Len() != 1 || b.Segments(0) != 2 {
					t.Fatalf("%s: %d packets", what, b.Len())
				}
				g := b.Segment(0, 1)
				if g.Region != region || b.Bytes(0, 1) != nil {
					t.Fatalf("%s: the payload is in region %q", what, g.Region.Name())
				}
				if got := card.Seen(region)[g.Off : g.Off+g.Len]; string(b.Bytes(0, 0)) != want[:16] ||
					string(got) != want[16:] {
					t.Fatalf("%s: it is %q and %q, expected %q", what, b.Bytes(0, 0), got, want)
				}
				b.Release()
			}
			for i := range 100 { // more than there are slots
				text := fmt.Sprintf("header of %6d and the payload %s", i, strings.Repeat("x", i*20))
				put(t, out, 0, text)
				check("from host memory", text)
			}
			for i, n := range []int{20, 100, 4096} { // what is short would go inline, which the processor copies
				x := burst.New(1)
				until(t, "a descriptor", func() bool { k, _ := direct.Alloc(x, 1, n); return k == 1 })
				g := x.Segment(0, 0)
				text := bytes.Repeat([]byte{byte('a' + i)}, n)
				copy(card.Written(from)[g.Off:], text)
				if err := direct.Send(x); err != nil {
					t.Fatal(err)
				}
				check("from the card", string(text))
			}
			if n := card.Flushes(); (n > 0) != c.card.Flush {
				t.Errorf("%d flushes", n)
			}
		})
	}
}

// TestNoWayToCard: queues of memory that nothing reaches are refused, with what is missing.
func TestNoWayToCard(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{Addr: 0x6a00_0000_0000})
	payload := card.Pool("payload", 16, 4096)
	f := onFake(t, "")
	f.engine.tree = fstest.MapFS{}
	s, c, _ := f.pair(t, Options{}, Options{})
	_, rxErr := s.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{payload}})
	_, txErr := c.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{payload}})
	for what, err := range map[string]error{"receive": rxErr, "send": txErr, "ask": s.ReachesRegion(payload.Region())} {
		if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(fmt.Sprint(err), "modprobe nvidia-peermem") ||
			!strings.Contains(fmt.Sprint(err), `"payload"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestUnable: a device that takes no dma-bufs, on a machine without peer memory, says so before a
// caller asks for such memory.
func TestUnable(t *testing.T) {
	f := onFake(t, "absent dmabuf")
	f.engine.tree = fstest.MapFS{}
	s, _, _ := f.pair(t, Options{}, Options{})
	if c := s.Capabilities(); slices.Contains(c.Memory, mem.Device) || !slices.Contains(c.Notes, ibvmem.Unable) {
		t.Errorf("memory %v, notes %q", c.Memory, c.Notes)
	}
}

// TestCardLost: a receive queue whose card does not take what arrived ends with the reason, and
// every slot comes back.
func TestCardLost(t *testing.T) {
	card := cardtest.New(t, cardtest.Options{DMABuf: true, Flush: true})
	payload := card.Pool("payload", 16, 4096)
	f := onFake(t, "")
	f.engine.tree = fstest.MapFS{}
	s, c, _ := f.pair(t, Options{}, Options{})
	in := rx(t, s, engine.RxSpec{Depth: 8, Pools: []*mem.Pool{payload}})
	out := tx(t, c, engine.TxSpec{})
	failure := errors.New("the card is lost")
	card.Refuse.Store(&failure)
	put(t, out, 0, "message")
	err := engine.NewRx(in, engine.Batching{}).Recv(within(t), burst.New(4))
	if !errors.Is(err, engine.ErrDown) || !strings.Contains(err.Error(), "the card is lost") {
		t.Errorf("%v", err)
	}
	var st engine.RxStats
	if in.Stats(&st); st.Drops[engine.DropDown] != 1 || st.Packets != 0 {
		t.Errorf("%+v", st)
	}
}
