package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// wordSum is RFC 1071 as it is written: 16 bits at a time.
func wordSum(p []byte) uint16 {
	var sum uint32
	for i, v := range p {
		sum += uint32(v) << (8 * (1 - i&1))
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestChecksumVectors(t *testing.T) {
	// RFC 1071 section 3.
	p := unhex(t, "0001f203f4f5f6f7")
	if got := Sum(0).Add(p).Fold(); got != 0xddf2 {
		t.Errorf("RFC 1071: %04x, want ddf2", got)
	}
	if got := Checksum(p); got != 0x220d {
		t.Errorf("RFC 1071: checksum %04x, want 220d", got)
	}
	// RFC 1624 section 4: the example where the equation of RFC 1141 gives ffff.
	if got := UpdateChecksum(0xdd2f, 0x5555, 0x3285); got != 0 {
		t.Errorf("RFC 1624: %04x, want 0", got)
	}
	// An IPv4 header that many texts use.
	h := unhex(t, "45000073000040004011b861c0a80001c0a800c7")
	if got := Checksum(h); got != 0 || !IPv4(h).ChecksumOK() {
		t.Errorf("IPv4 header: %04x, want 0", got)
	}
	h[10], h[11] = 0, 0
	if got := Checksum(h); got != 0xb861 {
		t.Errorf("IPv4 header: %04x, want b861", got)
	}
}

// TestSum: sums are those of the definition, for all lengths and all ways of cutting into pieces.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.Just(byte(0xff))), 0, 700).Draw(t, "p")
		want := wordSum(p)
		if got := Sum(0).Add(p).Fold(); got != want {
			t.Fatalf("%x: %04x, want %04x", p, got, want)
		}
		cut := rapid.IntRange(0, len(p)/2).Draw(t, "cut") * 2
		if got := Sum(0).Add(p[:cut]).Add(p[cut:]).Fold(); got != want {
			t.Fatalf("%x cut at %d: %04x, want %04x", p, cut, got, want)
		}
		var s Sum
		rest := p[:len(p)&^1]
		for len(rest) >= 4 {
			s = s.AddUint32(binary.BigEndian.Uint32(rest))
			rest = rest[4:]
		}
		if len(rest) > 0 {
			s = s.AddUint16(binary.BigEndian.Uint16(rest))
		}
		if got, want := s.Fold(), wordSum(p[:len(p)&^1]); got != want {
			t.Fatalf("%x by words: %04x, want %04x", p, got, want)
		}
	})
}

// TestSumCarries: bytes that carry out of every word, at every length.
func TestSumCarries(t *testing.T) {
	for n := range 700 {
		for _, fill := range []byte{0xff, 0x80, 0xe7} {
			p := bytes.Repeat([]byte{fill, fill - 1}, n/2+1)[:n]
			if got, want := Sum(0).Add(p).Fold(), wordSum(p); got != want {
				t.Errorf("%d bytes of %02x: %04x, want %04x", n, fill, got, want)
			}
			if got, want := (^Sum(0)).Add(p).Fold(), wordSum(append([]byte{0xff, 0xff}, p...)); got != want {
				t.Errorf("%d bytes of %02x behind a full sum: %04x, want %04x", n, fill, got, want)
			}
		}
	}
}

// TestUpdateChecksum: changing bytes and updating is the same as computing again.
func TestUpdateChecksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Byte(), 2, 60).Draw(t, "p")
		p[0] |= 1 // all zeros would have two right sums
		p = p[:len(p)&^1]
		before := Checksum(p)
		at := rapid.IntRange(0, len(p)/2-1).Draw(t, "at") * 2
		size := min(rapid.SampledFrom([]int{2, 4, 16}).Draw(t, "size"), len(p)-at)
		old := append([]byte(nil), p[at:at+size]...)
		fresh := rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "new")
		copy(p[at:], fresh)
		want := Checksum(p)
		if want == 0xffff || before == 0xffff {
			return // sum of zeros
		}
		got := UpdateChecksumBytes(before, old, fresh)
		if got != want {
			t.Fatalf("bytes: %04x, want %04x", got, want)
		}
		switch size {
		case 2:
			got = UpdateChecksum(before, binary.BigEndian.Uint16(old), binary.BigEndian.Uint16(fresh))
		case 4:
			got = UpdateChecksum32(before, binary.BigEndian.Uint32(old), binary.BigEndian.Uint32(fresh))
		}
		if got != want {
			t.Fatalf("word: %04x, want %04x", got, want)
		}
	})
}

// TestUDPZero: a computed checksum is never 0, a missing one stays missing, and is right over IPv4
// only.
func TestUDPZero(t *testing.T) {
	for _, c := range []struct{ src, dst string }{{"10.0.0.1", "10.0.0.2"}, {"fd00::1", "fd00::2"}} {
		src, dst := netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst)
		b := make([]byte, UDPLen+2)
		h := UDPHeader{SrcPort: 1, DstPort: 2}
		if _, err := h.Fill(b, 2); err != nil {
			t.Fatal(err)
		}
		u := UDP(b)
		if u.ChecksumOK(src, dst) != src.Is4() {
			t.Errorf("%s: missing checksum: %v", c.src, u.ChecksumOK(src, dst))
		}
		// A payload that makes the sum ffff, so the checksum 0.
		binary.BigEndian.PutUint16(b[8:], PseudoSum(src, dst, ProtoUDP, 10).Add(b).Checksum())
		if got := PseudoSum(src, dst, ProtoUDP, 10).Add(b).Checksum(); got != 0 {
			t.Fatalf("the test is wrong: %04x", got)
		}
		u.FillChecksum(src, dst)
		if u.Checksum() != 0xffff || !u.ChecksumOK(src, dst) {
			t.Errorf("%s: checksum %04x", c.src, u.Checksum())
		}
		b[9]++
		if u.ChecksumOK(src, dst) {
			t.Errorf("%s: damage not seen", c.src)
		}
		// An update that ends at 0 must give ffff as well.
		b[9]--
		binary.BigEndian.PutUint16(b[2:], 7)
		u.FillChecksum(src, dst)
		if got := UpdateUDPChecksum(u.Checksum(), 7, 2); got != 0xffff {
			t.Errorf("%s: updated to %04x", c.src, got)
		}
		if got := UpdateUDPChecksum(0, 7, 2); got != 0 {
			t.Errorf("no checksum became %04x", got)
		}
	}
}

// TestPseudo: the sum of the pseudo header is that of its bytes, and FillPseudo leaves the rest to
// add.
func TestPseudo(t *testing.T) {
	a, b := netip.MustParseAddr("192.168.0.31"), netip.MustParseAddr("192.168.0.30")
	if got, want := PseudoSum(a, b, ProtoUDP, 0x0a).Fold(), wordSum(unhex(t, "c0a8001fc0a8001e0011000a")); got != want {
		t.Errorf("IPv4: %04x, want %04x", got, want)
	}
	c, d := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	want := wordSum(unhex(t, "20010db800000000000000000000000120010db8000000000000000000000002000100040000003a"))
	if got := PseudoSum(c, d, ProtoICMPv6, 0x10004).Fold(); got != want {
		t.Errorf("IPv6: %04x, want %04x", got, want)
	}
	// The datagram of a text on UDP checksums: ports 20 and 10, data "Hi", checksum 35c5.
	u := UDP(unhex(t, "0014000a000a00004869"))
	u.FillChecksum(a, b)
	if u.Checksum() != 0x35c5 {
		t.Errorf("UDP: %04x, want 35c5", u.Checksum())
	}
	u.FillPseudo(a, b)
	u.SetChecksum(Checksum(u)) // what the hardware does
	if !u.ChecksumOK(a, b) {
		t.Error("offloaded checksum is wrong")
	}
}
