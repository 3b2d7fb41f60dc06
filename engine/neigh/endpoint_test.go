package neigh

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

func spec(v6 bool) EndpointSpec {
	s := EndpointSpec{SrcMAC: macA, DstMAC: macB, Src: netip.AddrPortFrom(a4, 1000),
		Dst: netip.AddrPortFrom(b4, 2000)}
	if v6 {
		s.Src, s.Dst = netip.AddrPortFrom(a6, 1000), netip.AddrPortFrom(b6, 2000)
	}
	return s
}

// Frames that Fill makes, in one segment and in two, are what the parser and the checksums say they
// should be.
func TestFill(t *testing.T) {
	p, err := mem.NewPool(mem.PoolOptions{Name: "fill", SlotSize: 2048, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	src := burst.PoolSource(p)
	for _, v6 := range []bool{false, true} {
		for _, tagged := range []bool{false, true} {
			for _, none := range []bool{false, true} {
				if none && v6 {
					continue
				}
				s := spec(v6)
				s.Tagged, s.Tag, s.NoChecksum = tagged, packet.MakeTCI(7, 0, false), none
				e, err := NewEndpoint(t.Context(), s, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{0, 1, 2, 999, e.MaxPayload()} {
					for _, two := range []bool{false, true} {
						b := burst.NewSegmented(1, 2)
						payload := bytes.Repeat([]byte{0xa5, 1, 0xff}, 700)[:n]
						head, _ := p.Get()
						slot, _ := p.Get()
						room := burst.Segment{Handle: slot.Handle(), Off: p.Offset(slot.Handle()) + 128, Cap: 1900,
							Headroom: 128}
						if two {
							b.Builder().Add(src, burst.Segment{Handle: head.Handle(), Off: p.Offset(head.Handle()),
								Len: 2048, Role: burst.Header})
							b.Builder().AddSegment(src, room)
						} else {
							head.Release()
							b.Builder().Add(src, room)
						}
						k := b.Segments(0) - 1
						b.SetLen(0, k, n)
						copy(b.Bytes(0, k), payload)
						if err := e.Fill(b, 0, n); err != nil {
							t.Fatal(err)
						}
						var frame [2048]byte
						f := frame[:b.CopyTo(frame[:], 0)]
						var l packet.Layers
						if why := packet.Parse(f, &l); why != packet.OK || len(f) != e.HeaderLen()+n ||
							int(l.NumTags) != map[bool]int{true: 1}[tagged] {
							t.Fatalf("%v, %d bytes", why, len(f))
						}
						u := packet.UDP(f[l.L4:l.End])
						if l.Src(f) != s.Src.Addr() || l.Dst(f) != s.Dst.Addr() || l.SrcPort != 1000 ||
							l.DstPort != 2000 || !u.ChecksumOK(l.Src(f), l.Dst(f)) ||
							(u.Checksum() == 0) != none || !v6 && !packet.IPv4(f[l.L3:]).ChecksumOK() ||
							!bytes.Equal(f[l.Payload:l.End], payload) {
							t.Errorf("v6 %v, tagged %v, %d bytes, two segments %v: % x", v6, tagged, n, two,
								f[:e.HeaderLen()])
						}
						if err := e.Fill(b, 0, e.MaxPayload()+1); !errors.Is(err, packet.ErrLength) {
							t.Error(err)
						}
						b.Release()
					}
				}
				if got := e.MaxPayload() + e.HeaderLen() - packet.EthernetLen; got != 1500 && !tagged || tagged &&
					got != 1504 {
					t.Errorf("the largest frame has %d bytes behind its Ethernet header", got)
				}
			}
		}
	}
}

func TestNewEndpoint(t *testing.T) {
	y := spec(true)
	y.DstMAC = packet.MAC{}
	if _, err := NewEndpoint(t.Context(), y, nil); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	refuse := func(context.Context, netip.Addr) (packet.MAC, error) { return packet.MAC{}, ErrNoAnswer }
	if _, err := NewEndpoint(t.Context(), y, refuse); !errors.Is(err, ErrNoAnswer) {
		t.Error(err)
	}
	e, err := NewEndpoint(t.Context(), y, func(_ context.Context, a netip.Addr) (packet.MAC, error) {
		if a != b6 {
			t.Error(a)
		}
		return macB, nil
	})
	if err != nil || e.Spec().DstMAC != macB {
		t.Fatalf("%v %v", e, err)
	}
	group := spec(false)
	group.DstMAC, group.Dst = packet.MAC{}, netip.MustParseAddrPort("239.1.2.3:5")
	if g, err := NewEndpoint(t.Context(), group, nil); err != nil ||
		g.Spec().DstMAC != (packet.MAC{1, 0, 0x5e, 1, 2, 3}) {
		t.Error(err)
	}
	for _, change := range []func(*EndpointSpec){
		func(s *EndpointSpec) { s.Src = netip.AddrPortFrom(a6, 1) },
		func(s *EndpointSpec) { s.Dst = netip.AddrPort{} },
		func(s *EndpointSpec) { s.Dst = netip.AddrPortFrom(b4, 0) },
		func(s *EndpointSpec) { s.MTU = 67 },
	} {
		s := spec(false)
		change(&s)
		if _, err := NewEndpoint(t.Context(), s, nil); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestFillAllocations(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithRace, "the race detector allocates")
	p, err := mem.NewPool(mem.PoolOptions{Name: "fill", SlotSize: 2048, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e, err := NewEndpoint(t.Context(), spec(true), nil)
	if err != nil {
		t.Fatal(err)
	}
	src, b := burst.PoolSource(p), burst.New(1)
	if n := testing.AllocsPerRun(200, func() {
		var h [1]mem.Handle
		p.GetBatch(h[:])
		b.Builder().Add(src, burst.Segment{Handle: h[0], Off: p.Offset(h[0]) + 64, Cap: 1900, Headroom: 64})
		if e.Fill(b, 0, 1000) != nil {
			t.Fatal("Fill")
		}
		b.Release()
	}); n != 0 && !testenv.Invariants {
		t.Errorf("%v allocations for each packet", n)
	}
}

// A checksum that comes out as 0 is written as 0xffff: 0 would say that there is none (RFC 768).
func TestFillChecksumZero(t *testing.T) {
	p, err := mem.NewPool(mem.PoolOptions{Name: "fill", SlotSize: 512, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e, err := NewEndpoint(t.Context(), spec(false), nil)
	if err != nil {
		t.Fatal(err)
	}
	src := burst.PoolSource(p)
	for _, two := range []bool{false, true} {
		var word uint32 // of the payload
		for round := range 2 {
			b := burst.NewSegmented(1, 2)
			var h [2]mem.Handle
			p.GetBatch(h[:])
			data := burst.Segment{Handle: h[1], Off: p.Offset(h[1]) + 64, Cap: 300, Headroom: 64}
			if two {
				b.Builder().Add(src, burst.Segment{Handle: h[0], Off: p.Offset(h[0]), Cap: 100, Role: burst.Header})
				b.Builder().AddSegment(src, data)
			} else {
				p.PutBatch(h[:1])
				b.Builder().Add(src, data)
			}
			k := b.Segments(0) - 1
			b.SetLen(0, k, 4)
			copy(b.Bytes(0, k), []byte{byte(word >> 8), byte(word), 7, 7})
			if err := e.Fill(b, 0, 4); err != nil {
				t.Fatal(err)
			}
			c := uint32(packet.UDP(b.Bytes(0, 0)[34:]).Checksum())
			if round == 1 && c != 0xffff {
				t.Errorf("two segments %v: checksum %#x", two, c)
			}
			word += c // with this in the payload the sum is 0xffff
			word = word>>16 + word&0xffff
			b.Release()
		}
	}
}
