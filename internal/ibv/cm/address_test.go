package cm

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// What is written as a socket address is read back the same, whatever the address.
func TestAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ip netip.Addr
		if rapid.Bool().Draw(t, "IPv6") {
			ip = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip")))
			if zone := rapid.SampledFrom([]string{"", "1", "77", "4294967295"}).Draw(t, "zone"); !ip.Is4In6() {
				ip = ip.WithZone(zone)
			}
		} else {
			ip = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")))
		}
		a := netip.AddrPortFrom(ip, rapid.Uint16().Draw(t, "port"))
		b, err := sockaddr(a)
		if err != nil {
			t.Fatal(err)
		}
		if got := addrPort(append(b, make([]byte, storage-len(b))...)); got != a {
			t.Fatalf("%s came back as %s (% x)", a, got, b)
		}
	})
	// As man 7 ip has it: family, port and address in the order of the network.
	b, err := sockaddr(netip.MustParseAddrPort("10.8.0.1:4791"))
	if want := string([]byte{2, 0, 0x12, 0xb7, 10, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil || string(b) != want {
		t.Errorf("% x, %v", b, err)
	}
	if b, err := sockaddr(netip.MustParseAddrPort("[fe80::1%lo]:1")); err != nil ||
		addrPort(b) != netip.MustParseAddrPort("[fe80::1%1]:1") {
		t.Errorf("% x, %v", b, err)
	}
	if _, err := sockaddr(netip.MustParseAddrPort("[fe80::1%nobody0]:1")); err == nil {
		t.Error("an interface that is not there was found")
	}
	if b, err := sockaddr(netip.AddrPort{}); b != nil || err != nil {
		t.Errorf("no address is % x, %v", b, err)
	}
}

// Bytes that are no socket address are no address.
func FuzzAddrPort(f *testing.F) {
	f.Add([]byte{2, 0, 1, 2, 10, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{10, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a := addrPort(b)
		if !a.IsValid() {
			return
		}
		again, err := sockaddr(a)
		if err != nil || addrPort(again) != a {
			t.Fatalf("% x is %s, which is % x, %v", b, a, again, err)
		}
	})
}
