package neigh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/netlink"
	"github.com/penstock-io/penstock/packet"
)

func openKernel(t *testing.T, h *netns.Host) *Kernel {
	t.Helper()
	var k *Kernel
	if err := h.Do(func() (err error) { k, err = OpenKernel(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

// Routes and neighbours of two hosts as the kernel says them, beside what is known of them.
func TestKernel(t *testing.T) {
	n := netns.New(t, netns.Topology{Link: netns.LinkSpec{MTU: 1700}})
	a, b := n.Hosts[0].Link(), n.Hosts[1].Link()
	k := openKernel(t, n.Hosts[0])
	var l *net.Interface
	if err := n.Hosts[0].Do(func() (err error) { l, err = net.InterfaceByName(a.Name); return err }); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hosts[0].Output(t.Context(), "ip", "route", "add", "198.51.100.0/24", "via",
		b.IPv4.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hosts[0].Output(t.Context(), "ip", "route", "add", "unreachable", "203.0.113.0/24"); err != nil {
		t.Fatal(err)
	}
	r, err := k.Route(netip.MustParseAddr("198.51.100.7"), 0)
	if err != nil || r.Interface != l.Index || r.Gateway != b.IPv4 || r.Source != a.IPv4 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = k.Route(b.IPv6, l.Index); err != nil || r.Interface != l.Index || r.Gateway.IsValid() {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = k.Route(a.IPv4, 0); err != nil || !r.Local {
		t.Errorf("%+v, %v", r, err)
	}
	for _, x := range []string{"203.0.113.1", "192.0.2.99"} {
		if _, err := k.Route(netip.MustParseAddr(x), 0); !errors.Is(err, ErrNoRoute) {
			t.Errorf("route to %s: %v", x, err)
		}
	}
	if _, err := k.Route(netip.Addr{}, 0); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}

	// The kernel is made to ask. For IPv6 it does that from a link-local address, which these hosts
	// do not have.
	if _, err := n.Hosts[0].Output(t.Context(), "ip", "addr", "add", "fe80::a/64", "dev", a.Name, "nodad"); err != nil {
		t.Fatal(err)
	}
	for _, dst := range []netip.Addr{b.IPv4, b.IPv6, netip.MustParseAddr("198.51.100.7")} {
		h, err := k.Resolve(t.Context(), dst, 0)
		if err != nil || h.MAC != packet.MAC(b.MAC) || h.Interface != l.Index {
			t.Errorf("%v: %+v, %v", dst, h, err)
		}
	}
	for _, c := range []struct {
		dst  string
		want packet.MAC
	}{{"239.1.2.3", packet.MAC{1, 0, 0x5e, 1, 2, 3}}, {"10.77.0.255", packet.BroadcastMAC}} {
		if h, err := k.Resolve(t.Context(), netip.MustParseAddr(c.dst), l.Index); err != nil || h.MAC != c.want {
			t.Errorf("%s: %+v, %v", c.dst, h, err)
		}
	}
	if _, err := k.Resolve(t.Context(), a.IPv4, 0); !errors.Is(err, ErrNoRoute) {
		t.Errorf("this host: %v", err)
	}
	// No host has the address: the context ends the wait, or the kernel gives up first.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := k.Resolve(ctx, netip.MustParseAddr("10.77.0.200"), 0); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("nobody: %v", err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Route(b.IPv6, 0); !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
}

// Whatever a netlink message is, reading it ends.
func FuzzNetlink(f *testing.F) {
	for _, b := range [][]byte{routeRequest(a4, 1), routeRequest(a6, 1), neighborRequest(1, a4, false)} {
		b[4] &^= 2 // the answer's type
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		steps := 0
		for m, rest, ok := netlink.Next(b); ok; m, rest, ok = netlink.Next(rest) {
			if steps++; steps > len(b)/16+1 || len(rest) >= len(b) {
				t.Fatal("no end")
			}
			if r, ok := parseRoute(m); ok && r.Interface <= 0 {
				t.Fatal(r)
			}
			if n, ok := parseNeighbor(m); ok && (!n.Addr.IsValid() || n.Valid && m.Kind == rtmDelNeigh) {
				t.Fatal(n)
			}
			b = rest
		}
	})
}
