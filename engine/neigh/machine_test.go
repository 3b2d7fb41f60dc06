package neigh

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	macA, macB = packet.MAC{2, 0, 0, 0, 0, 0xa}, packet.MAC{2, 0, 0, 0, 0, 0xb}
	a4, b4     = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	a6, b6     = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	la, lb     = netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fe80::b")
	start      = time.Unix(1e9, 0)
)

func machine(t testing.TB, o MachineOptions) *Machine {
	t.Helper()
	m, err := NewMachine(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// carry brings everything that from has to say to to, and returns the number of frames.
func carry(t testing.TB, now time.Time, from, to *Machine) (n int) {
	t.Helper()
	var b [frameRoom]byte
	for {
		k := from.Output(b[:])
		if k == 0 {
			return n
		}
		if to != nil {
			to.Handle(now, b[:k])
		}
		n++
	}
}

func TestMachinesFindEachOther(t *testing.T) {
	for _, c := range []struct{ own, other netip.Addr }{{a4, b4}, {a6, b6}, {la, lb}} {
		a := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{la, c.own}})
		b := machine(t, MachineOptions{MAC: macB, Addrs: []netip.Addr{c.other}, Answer: true})
		if _, s, err := a.Lookup(start, c.other); s != Asking || err != nil {
			t.Fatalf("%v: %v, %v", c.other, s, err)
		}
		if n := carry(t, start, a, b); n != 1 {
			t.Fatalf("%d questions for %v", n, c.other)
		}
		if n := carry(t, start, b, a); n != 1 {
			t.Fatalf("%d answers of %v", n, c.other)
		}
		mac, s, _ := a.Lookup(start, c.other)
		if s != Known || mac != macB {
			t.Fatalf("%v is at %v, %v", c.other, mac, s)
		}
		if b.Len() != 0 {
			t.Error("who answers remembers who asked")
		}
		// When the answer is old it is used, and asked for again, once for each Retry.
		later := start.Add(31 * time.Second)
		if mac, s, _ := a.Lookup(later, c.other); s != Known || mac != macB {
			t.Errorf("an old answer: %v %v", mac, s)
		}
		a.Lookup(later, c.other)
		if n := carry(t, later, a, b); n != 1 {
			t.Errorf("%d questions again", n)
		}
		carry(t, later, b, a)
		// Unused, it is forgotten.
		at, ok := a.Deadline()
		if !ok || !at.Equal(later.Add(time.Minute)) {
			t.Errorf("deadline %v %v, expected %v", at, ok, later.Add(time.Minute))
		}
		a.Poll(at.Add(-1))
		if a.Len() != 1 {
			t.Error("forgotten too early")
		}
		if a.Poll(at); a.Len() != 0 {
			t.Error("not forgotten")
		}
		if _, ok := a.Deadline(); ok {
			t.Error("an empty table has a deadline")
		}
	}
}

func TestNoAnswer(t *testing.T) {
	m := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{a4}})
	now, asked := start, 0
	m.Lookup(now, b4)
	for {
		asked += carry(t, now, m, nil)
		_, s, _ := m.Lookup(now, b4)
		if s == Silent {
			break
		}
		at, ok := m.Deadline()
		if !ok || !at.After(now) {
			t.Fatalf("deadline %v at %v", at, now)
		}
		now = at
		m.Poll(now)
	}
	if asked != 3 || now != start.Add(3*time.Second) {
		t.Errorf("%d questions in %v", asked, now.Sub(start))
	}
	// It is asked again later.
	now, _ = m.Deadline()
	m.Poll(now)
	if _, s, _ := m.Lookup(now, b4); s != Asking || now != start.Add(6*time.Second) {
		t.Errorf("after %v: %v", now.Sub(start), s)
	}
	if _, _, err := m.Lookup(now, b6); !errors.Is(err, ErrNoRoute) || !errors.Is(err, engine.ErrConnect) {
		t.Errorf("no address of the family: %v", err)
	}
	for _, bad := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.MustParseAddr("224.0.0.1")} {
		if _, _, err := m.Lookup(now, bad); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A Machine notices a neighbour that has gone silent, and its table is bounded, whatever addresses
// it looks up.
func TestGoneAndBounded(t *testing.T) {
	a := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{a6}, Entries: 8})
	b := machine(t, MachineOptions{MAC: macB, Addrs: []netip.Addr{b6}, Answer: true})
	a.Lookup(start, b6)
	carry(t, start, a, b)
	carry(t, start, b, a)
	now := start.Add(40 * time.Second)
	for range 3 {
		if _, s, _ := a.Lookup(now, b6); s != Known {
			t.Fatal(s)
		}
		carry(t, now, a, nil)
		now = now.Add(time.Second)
		a.Poll(now)
	}
	if mac, s, _ := a.Lookup(now, b6); s != Silent || !mac.IsZero() {
		t.Errorf("%v %v", mac, s)
	}
	for i := range 100 {
		a.Lookup(now.Add(time.Duration(i)), netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)}))
	}
	if a.Len() != 8 || len(a.out) > maxOut {
		t.Errorf("%d entries, %d frames", a.Len(), len(a.out))
	}
	if _, s, _ := a.Lookup(now, netip.AddrFrom16([16]byte{0x20, 1, 15: 99})); s != Asking || a.Len() != 8 {
		t.Error("the latest was forgotten")
	}
}

// answer makes the frame with which a machine of b's answers a question of a's.
func answer(t testing.TB, own, other netip.Addr) []byte {
	a := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{own}})
	b := machine(t, MachineOptions{MAC: macB, Addrs: []netip.Addr{other}, Answer: true})
	a.Lookup(start, other)
	carry(t, start, a, b)
	f := make([]byte, frameRoom)
	n := b.Output(f)
	if n == 0 {
		t.Fatal("no answer")
	}
	return f[:n]
}

// What was not asked for, comes from afar, or is damaged, changes nothing.
func TestSuspicious(t *testing.T) {
	for _, c := range []struct{ own, other netip.Addr }{{a4, b4}, {a6, b6}} {
		good := answer(t, c.own, c.other)
		m := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{c.own}})
		if m.Handle(start, good); m.Len() != 0 {
			t.Error("an answer without a question was learnt")
		}
		m.Lookup(start, c.other)
		try := func(what string, f []byte) {
			t.Helper()
			if m.Handle(start, f) {
				t.Errorf("%v: %s was learnt", c.other, what)
			}
		}
		for n := range good {
			try("a part", good[:n])
		}
		if c.other.Is6() {
			for i := 18; i < len(good); i++ { // behind the version, all of it is covered by the checksum or must be so
				if i >= packet.EthernetLen+4 && i < packet.EthernetLen+6 {
					continue
				}
				f := bytes.Clone(good)
				f[i] ^= 0x10
				try("a damaged frame", f)
			}
		}
		f := bytes.Clone(good)
		copy(f[len(f)-6:], []byte{1, 0, 0, 0, 0, 1})
		if c.other.Is4() {
			copy(f[22:], []byte{1, 0, 0, 0, 0, 1})
		}
		try("a group as a neighbour", f)
		if !m.Handle(start, good) {
			t.Error("the good one was not learnt")
		}
	}
}

// Looking whether an address is in use is answered to all.
func TestDuplicateAddress(t *testing.T) {
	m := machine(t, MachineOptions{MAC: macB, Addrs: []netip.Addr{b6}, Answer: true})
	f := make([]byte, 14+40+24)
	group := packet.SolicitedNode(b6)
	to, _ := packet.MulticastMAC(group)
	(&packet.EthernetHeader{Dst: to, Src: macA, Type: packet.EtherTypeIPv6}).Fill(f)
	(&packet.IPv6Header{Src: netip.IPv6Unspecified(), Dst: group, NextHeader: packet.ProtoICMPv6,
		HopLimit: 255}).Fill(f[14:], 24)
	msg := packet.ICMPv6(f[54:])
	msg.SetType(packet.ICMPv6NeighborSolicitation)
	packet.Neighbor(msg).SetTarget(b6)
	msg.FillChecksum(netip.IPv6Unspecified(), group)
	m.Handle(start, f)
	out := make([]byte, frameRoom)
	n := m.Output(out)
	var l packet.Layers
	if n == 0 || packet.Parse(out[:n], &l) != packet.OK || l.Dst(out) != netip.IPv6LinkLocalAllNodes() {
		t.Fatalf("answer of %d bytes", n)
	}
	a := packet.Neighbor(out[l.L4:l.End])
	if mac, ok := a.LinkAddr(); !ok || mac != macB || a.Solicited() || a.Target() != b6 {
		t.Errorf("%v %v", mac, a.Solicited())
	}
}

func FuzzMachine(f *testing.F) {
	f.Add(answer(f, a4, b4))
	f.Add(answer(f, a6, b6))
	f.Fuzz(func(t *testing.T, frame []byte) {
		m := machine(t, MachineOptions{MAC: macA, Addrs: []netip.Addr{a4, a6}, Answer: true, Entries: 4})
		m.Lookup(start, b4)
		m.Lookup(start, b6)
		carry(t, start, m, nil)
		m.Handle(start, frame)
		if m.Len() != 2 {
			t.Fatalf("%d entries", m.Len())
		}
		for _, a := range []netip.Addr{b4, b6} {
			if mac, s, _ := m.Lookup(start, a); s == Known && (mac.IsZero() || mac.IsMulticast()) {
				t.Fatalf("%v is at %v", a, mac)
			}
		}
		if n := carry(t, start, m, m); n > 1 {
			t.Fatalf("%d answers to one frame", n)
		}
	})
}

func TestMachineOptions(t *testing.T) {
	for _, o := range []MachineOptions{{}, {MAC: packet.BroadcastMAC}, {MAC: macA, Addrs: []netip.Addr{{}}},
		{MAC: macA, Tries: -1}} {
		if _, err := NewMachine(o); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
