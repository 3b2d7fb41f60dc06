package packet

import (
	"bytes"
	"net/netip"
	"testing"
)

// partialFrame is a frame of UDP whose checksum is as mode says, with payload bytes of value.
func partialFrame(t *testing.T, src, dst string, mode ChecksumMode, payload []byte) []byte {
	t.Helper()
	f := UDPFrame{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Checksum: mode}
	b := make([]byte, f.HeaderLen()+len(payload))
	copy(b[f.HeaderLen():], payload)
	if _, err := f.Fill(b, len(payload)); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPartial: a checksum that a card was to compute is found and computed, outside and inside of
// tunnels; all other frames stay as they are.
func TestPartial(t *testing.T) {
	for _, ends := range [][2]string{{"198.18.0.1:7", "198.18.0.2:8"}, {"[2001:db8::1]:7", "[2001:db8::2]:8"}} {
		for n := range 70 {
			payload := bytes.Repeat([]byte{0xa5}, n)
			part, full := partialFrame(t, ends[0], ends[1], ChecksumOffload, payload),
				partialFrame(t, ends[0], ends[1], ChecksumFull, payload)
			outer := func(inner []byte) []byte {
				// VXLAN; the outer checksum is that over the inner bytes as they are to be
				return partialFrame(t, "192.0.2.1:9", "192.0.2.2:4789", ChecksumNone,
					append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, inner...))
			}
			for name, c := range map[string]struct{ frame, want []byte }{
				"plain": {part, full}, "padded": {append(bytes.Clone(part), 0, 0, 0),
					append(bytes.Clone(full), 0, 0, 0)}, "vxlan": {outer(part), outer(full)},
			} {
				got := bytes.Clone(c.frame)
				var l Layers
				p, ok := FindPartial(got, &l)
				if !ok {
					t.Fatalf("%s, %s, %d bytes: not found", name, ends[0], n)
				}
				if p.Complete(got); !bytes.Equal(got, c.want) {
					t.Fatalf("%s, %s, %d bytes: computed\n%x, want\n%x", name, ends[0], n, got, c.want)
				}
			}
			var l Layers
			for cut := range part { // what is cut off has none: its sum cannot be computed
				if _, ok := FindPartial(part[:cut:cut], &l); ok {
					t.Fatalf("found in %d of %d bytes", cut, len(part))
				}
			}
			if _, ok := FindPartial(full, &l); ok {
				t.Fatalf("found in a frame whose checksum is computed: %x", full)
			}
		}
	}
	var l Layers
	fragment := partialFrame(t, "198.18.0.1:7", "198.18.0.2:8", ChecksumOffload, make([]byte, 64))
	fragment[20] |= 0x20
	if _, ok := FindPartial(fragment, &l); ok {
		t.Error("found in a part of a packet")
	}
	if _, ok := FindPartial(make([]byte, 64), &l); ok {
		t.Error("found in a frame without IP")
	}
}

// TestPartialTCP: the field of TCP is elsewhere.
func TestPartialTCP(t *testing.T) {
	src, dst := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	b := make([]byte, 14+20+20+33)
	b[12] = 8
	ip := IPv4(b[14:])
	copy(ip, []byte{0x45, 0, 0, byte(len(ip)), 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2})
	tcp := TCP(ip[20:])
	tcp[12] = 5 << 4
	tcp.SetChecksum(PseudoSum(src, dst, ProtoTCP, uint32(len(tcp))).Fold())
	var l Layers
	p, ok := FindPartial(b, &l)
	if !ok {
		t.Fatal("not found")
	}
	if p.Complete(b); !tcp.ChecksumOK(src, dst) {
		t.Errorf("computed %#x", tcp.Checksum())
	}
}
