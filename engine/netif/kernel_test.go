package netif

import (
	"testing"

	"github.com/penstock-io/penstock/internal/netlink"
)

// Whatever a netlink message is, reading it ends.
func FuzzNetlink(f *testing.F) {
	for _, b := range [][]byte{linkRequest("eth0"), addrRequest()} {
		b[4] &^= 2 // the answer's type
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for m, rest, ok := netlink.Next(b); ok; m, rest, ok = netlink.Next(rest) {
			if l, ok := parseLink(m); ok && l.gone && m.Kind != rtmDelLink {
				t.Fatal(l)
			}
			if _, p, ok := parseAddr(m); ok && !p.Addr().IsValid() {
				t.Fatal(p)
			}
		}
	})
}
