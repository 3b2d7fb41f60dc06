package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// FuzzViews: a view that calls itself valid can be read whole.
func FuzzViews(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
		f.Add(b[min(14, len(b)):])
		f.Add(b[min(34, len(b)):])
		f.Add(b[min(54, len(b)):])
	}
	f.Add(unhex(f, "1101000c0001000200000000000000001001000400010002"))
	f.Add(append([]byte{135, 0, 0, 0, 0, 0, 0, 0, 0xfd}, append(make([]byte, 15), 1, 1, 2, 3, 4, 5, 6, 7)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v := IPv4(b); v.Valid() {
			v.ChecksumOK()
			if len(v.Options())+len(v.Payload())+IPv4Len != v.TotalLen() {
				t.Fatal("IPv4")
			}
		}
		if v := IPv6(b); v.Valid() && len(v.Payload()) != v.PayloadLen() {
			t.Fatal("IPv6")
		}
		if v := UDP(b); v.Valid() {
			v.ChecksumOK(netip.IPv6Loopback(), netip.IPv6Loopback())
			if len(v.Payload())+UDPLen != v.Length() {
				t.Fatal("UDP")
			}
		}
		if v := TCP(b); v.Valid() && len(v.Payload())+len(v.Options())+TCPLen != len(v) {
			t.Fatal("TCP")
		}
		if v := ARP(b); v.Valid() {
			v.TargetIP()
		}
		if v := ICMPv6(b); v.Valid() {
			v.ID()
			v.ChecksumOK(netip.IPv6Loopback(), netip.IPv6Loopback())
		}
		if v := Neighbor(b); v.Valid() {
			v.LinkAddr()
		}
		if v := GRE(b); v.Valid() {
			v.Key()
			v.Sequence()
			v.Checksum()
			v.ChecksumOK()
			if len(v.Payload())+v.HeaderLen() != len(v) {
				t.Fatal("GRE")
			}
		}
		if v := VXLAN(b); v.Valid() && v.VNI() >= 1<<24 {
			t.Fatal("VXLAN")
		}
		steps := 0
		for v := ECPRI(b); v.Valid(); v = v.Next() {
			v.ID()
			v.Seq()
			if len(v.Payload()) != v.PayloadLen() {
				t.Fatal("eCPRI")
			}
			if steps++; steps > len(b) {
				t.Fatal("eCPRI messages without end")
			}
		}
		rest, proto := b, ProtoHopByHop
		for range MaxExtensions {
			ext, after, next, why := NextExtension(rest, proto)
			if why != OK || ext == nil {
				break
			}
			if len(ext) < 8 || ext.FragmentOffset()%8 != 0 ||
				uint64(ext.FragmentID()) != uint64(binary.BigEndian.Uint32(ext[4:])) {
				t.Fatal("extension")
			}
			ext.MoreFragments()
			rest, proto = after, next
		}
		PopVLAN(bytes.Clone(b))
	})
}
