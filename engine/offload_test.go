package engine

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// wireSink looks at what is sent.
type wireSink struct {
	see  func(p []byte)
	data [2048]byte
}

func (s *wireSink) Transmit(b *burst.Burst, from, to int) (int, time.Time) {
	for i := from; i < to; i++ {
		if b.Segments(i) > 0 {
			s.see(s.data[:b.CopyTo(s.data[:], i)])
		}
	}
	return to, time.Time{}
}

// asking is a queue over pools with slots of these sizes, that sends one UDP frame over IPv6 with a
// payload of 900 bytes.
type asking struct {
	f     TxFront
	b     *burst.Burst
	frame []byte
	pools []*mem.Pool
	sizes []int // of the payloads of frames that are right
}

func newAsking(t *testing.T, depth, slots int, sizes ...int) *asking {
	a := &asking{b: burst.NewSegmented(4, 8)}
	var srcs []*burst.Source
	for _, size := range sizes {
		p, err := mem.NewPool(mem.PoolOptions{Name: "asking", SlotSize: size, Slots: slots})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		a.pools, srcs = append(a.pools, p), append(srcs, burst.PoolSource(p))
	}
	frame := packet.UDPFrame{Src: netip.MustParseAddrPort("[2001:db8::1]:7"),
		Dst: netip.MustParseAddrPort("[2001:db8::2]:8"), Checksum: packet.ChecksumOffload}
	a.frame = make([]byte, frame.HeaderLen()+900)
	if _, err := frame.Fill(a.frame, 900); err != nil {
		t.Fatal(err)
	}
	a.sizes = make([]int, 0, 64)
	box, err := NewOutbox(&wireSink{see: func(p []byte) {
		var l packet.Layers
		why := packet.Parse(p, &l)
		if why != packet.OK || !packet.UDP(p[l.L4:l.End]).ChecksumOK(l.Src(p), l.Dst(p)) || int(l.End) != len(p) {
			t.Errorf("a frame of %d bytes is sent that is not right: %v", len(p), why)
		}
		a.sizes = append(a.sizes, int(l.End)-int(l.Payload))
	}}, depth, false)
	if err != nil {
		t.Fatal(err)
	}
	a.f.Start(0, NewTxSlots(a.pools, srcs, 0, 0), box, nil)
	t.Cleanup(a.f.Shut)
	return a
}

func (a *asking) send(t *testing.T, size int) error {
	length := len(a.frame)
	if len(a.pools) > 1 {
		length = 900
	}
	if n, err := a.f.Alloc(a.b, 1, length); n != 1 {
		t.Fatal(err)
	}
	if len(a.pools) > 1 {
		a.b.SetLen(0, 0, len(a.frame)-900)
	}
	copyBack(a.b, 0, a.frame)
	a.b.Ask(0, burst.ChecksumL4)
	if size > 0 {
		a.b.SetSegmentSize(0, size)
	}
	a.sizes = a.sizes[:0]
	return a.f.Send(a.b)
}

func (a *asking) expect(t *testing.T, sizes ...int) {
	t.Helper()
	if len(a.sizes) != len(sizes) {
		t.Fatalf("payloads of %d bytes, want %d", a.sizes, sizes)
	}
	for i, n := range sizes {
		if a.sizes[i] != n {
			t.Fatalf("payloads of %d bytes, want %d", a.sizes, sizes)
		}
	}
	for _, p := range a.pools {
		if used := p.Stats().InUse; used != 0 {
			t.Errorf("%d slots are out", used)
		}
	}
	if free := a.f.box.Free(); free != int(a.f.box.depth) {
		t.Errorf("%d of %d descriptors are free", free, a.f.box.depth)
	}
}

// TestOffload: checksums and segments in software, over IPv6, with a pool for whole packets, and
// with headers and payloads apart.
func TestOffload(t *testing.T) {
	for _, slots := range [][]int{{2048}, {128, 1024}} {
		a := newAsking(t, 8, 8, slots...)
		if err := a.send(t, 0); err != nil {
			t.Fatal(err)
		}
		a.expect(t, 900)
		if err := a.send(t, 400); err != nil {
			t.Fatal(err)
		}
		a.expect(t, 400, 400, 100)
	}
}

// TestOffloadRefusals: a packet that cannot be cut is dropped as a whole, counted, with an error;
// everything comes back.
func TestOffloadRefusals(t *testing.T) {
	for _, c := range []struct {
		name         string
		depth, slots int
		size         int
		spoil        func(frame []byte)
		why          Drop
		is           error
	}{
		{"descriptors", 2, 8, 300, nil, DropRefused, ErrFull},
		{"slots", 8, 3, 300, nil, DropNoBuffers, ErrNoBuffers},
		{"segments", 128, 128, 10, nil, DropTooLong, ErrInvalid},
		{"no UDP", 8, 8, 300, func(f []byte) { f[12] = 0 }, DropBadFrame, ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAsking(t, c.depth, c.slots, 2048)
			if c.spoil != nil {
				c.spoil(a.frame)
			}
			if err := a.send(t, c.size); !errors.Is(err, c.is) {
				t.Errorf("Send: %v, want %v", err, c.is)
			}
			a.expect(t)
			var s TxStats
			if a.f.AddStats(&s); s.Drops[c.why] != 1 || s.Drops.Total() != 1 {
				t.Errorf("drops: %v", &s.Drops)
			}
		})
	}
}

// TestOffloadAllocations: requests in a steady state.
func TestOffloadAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace|testenv.WithInvariants, "this build allocates for its checks")
	a := newAsking(t, 8, 8, 128, 1024)
	if n := testing.AllocsPerRun(100, func() {
		if err := a.send(t, 400); err != nil {
			t.Fatal(err)
		}
		if err := a.send(t, 0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// receivedPartial is a frame in slots of a's pools, as a queue receives it whose sender left its
// checksum to a device; Forward has claimed it. With shares the burst that it returns has it as
// well.
func (a *asking) receivedPartial(t *testing.T, shares *burst.Shares) (other *burst.Burst) {
	t.Helper()
	b := burst.NewSegmented(4, 8)
	other = burst.NewSegmented(4, 8)
	left := a.frame
	for i, p := range a.pools {
		var h [1]mem.Handle
		if p.GetBatch(h[:]) != 1 {
			t.Fatal("no slot")
		}
		g := burst.Segment{Handle: burst.Handle(h[0]), Off: p.Offset(h[0]), Len: uint32(min(len(left), p.SlotSize()))}
		if len(a.pools) > 1 && i == 0 {
			g.Len = uint32(len(a.frame) - 900)
		}
		left = left[g.Len:]
		if src := a.f.slots.srcs[i]; i == 0 {
			b.Builder().Add(src, g)
		} else {
			b.Builder().AddSegment(src, g)
		}
	}
	copyBack(b, 0, a.frame)
	b.Builder().SetReceived(0, 0, burst.ChecksumPartial, 0)
	a.sizes = a.sizes[:0]
	if shares != nil && !shares.Clone(b, other) {
		t.Fatal("no clone")
	}
	b.MoveTo(a.b)
	if n, err := a.f.ForwardReached(a.b); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	return other
}

// TestForwardPartial: a received frame whose checksum is not computed yet leaves with it, from one
// slot or two, and a copy of it where other bursts share the bytes. What cannot be computed is
// dropped as bad-checksum.
func TestForwardPartial(t *testing.T) {
	for _, slots := range [][]int{{2048}, {128, 1024}} {
		a := newAsking(t, 8, 8, slots...)
		a.receivedPartial(t, nil)
		if err := a.f.Send(a.b); err != nil {
			t.Fatal(err)
		}
		a.expect(t, 900)

		other := a.receivedPartial(t, burst.NewShares(8))
		if err := a.f.Send(a.b); err != nil {
			t.Fatal(err)
		}
		seen := make([]byte, len(a.frame))
		if other.CopyTo(seen, 0); !bytes.Equal(seen, a.frame) || other.Flags(0) != burst.ChecksumPartial {
			t.Error("the bytes that others share were changed")
		}
		other.Release()
		a.expect(t, 900)

		a.receivedPartial(t, nil)
		a.b.Ask(0, burst.ChecksumL4) // by who has changed it: the sum is computed over what is there
		a.b.Bytes(0, 0)[packet.EthernetLen+9] ^= 0x55
		if err := a.f.Send(a.b); err != nil {
			t.Fatal(err)
		}
		a.expect(t, 900)

		a.receivedPartial(t, nil)
		right := append([]byte(nil), a.frame...)
		checksums(right, burst.ChecksumL4)
		copyBack(a.b, 0, right) // by who has received it
		if err := a.f.Send(a.b); err != nil {
			t.Fatal(err)
		}
		a.expect(t, 900)

		a.receivedPartial(t, nil)
		a.b.Bytes(0, 0)[packet.EthernetLen+9] ^= 0x55 // of an address: the pseudo header is another one
		if err := a.f.Send(a.b); !errors.Is(err, ErrInvalid) {
			t.Errorf("Send: %v, want %v", err, ErrInvalid)
		}
		a.expect(t)
		var s TxStats
		if a.f.AddStats(&s); s.Drops[DropBadChecksum] != 1 || s.Drops.Total() != 1 {
			t.Errorf("drops: %v", &s.Drops)
		}
	}
}

// TestForwardPartialOnPayloads: a port whose transport does the checksums has nothing to compute.
func TestForwardPartialOnPayloads(t *testing.T) {
	var f TxFront
	f.Offload(0, true)
	b := burst.New(1)
	b.Builder().Add(burst.NewSource(nil, nil, nil), burst.Segment{Handle: burst.NoHandle, Len: 60, Cap: 60})
	b.Builder().SetReceived(0, 0, burst.ChecksumPartial, 0)
	if todo := f.off.todo(b, 0); todo != 0 {
		t.Errorf("to be done: %#x", todo)
	}
	b.Builder().Forget()
}
