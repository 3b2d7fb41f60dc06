package socket

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
)

// TestUDPGroupAddress: a port whose host is a multicast group joins it, and gets nothing that is
// sent to another group or to the machine, with one port number for all.
func TestUDPGroupAddress(t *testing.T) {
	n := netns.New(t, netns.Topology{Hosts: 2, Neighbours: true})
	open := func(h *netns.Host, address string) (p *UDPPort) {
		if err := h.Do(func() error { p = openUDPPort(t, address, UDPOptions{}); return nil }); err != nil {
			t.Fatal(err)
		}
		return p
	}
	link := n.Hosts[1].Link()
	if err := n.Hosts[1].Run(n.Hosts[1].Command("ip", "route", "add", "224.0.0.0/4", "dev", "eth0")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		any, a, b, c string // the groups a and b have ports, c has none
		machine      netip.Addr
	}{
		{"0.0.0.0", "239.1.1.1:5000", "239.1.1.2:5000", "239.1.1.3:5000", link.IPv4},
		{"0.0.0.0", "239.1.1.1:5000?interface=eth0", "239.1.1.2:5000?group=239.1.1.2%25eth0", "239.1.1.3:5000", link.IPv4},
		{"[::]", "[ff15::1]:5000", "[ff15::2]:5000?interface=eth0", "[ff15::3]:5000", link.IPv6},
	} {
		group := func(s string) netip.AddrPort {
			host, _, _ := strings.Cut(s, "?")
			return netip.MustParseAddrPort(host)
		}
		ports := []*UDPPort{open(n.Hosts[1], "udp://"+c.a), open(n.Hosts[1], "udp://"+c.b)}
		out := open(n.Hosts[0], "udp://"+c.any+":0?interface=eth0")
		w := newWriter(t, out, engine.TxSpec{})
		readers := []*reader{newReader(t, ports[0], engine.RxSpec{}), newReader(t, ports[1], engine.RxSpec{})}
		for round := range 3 {
			for _, to := range []netip.AddrPort{group(c.c), netip.AddrPortFrom(c.machine, 5000), group(c.a),
				group(c.b)} {
				id, err := out.Peer(to)
				if err != nil {
					t.Fatal(err)
				}
				w.send(id, fmt.Sprint(to, " ", round))
			}
			for i, at := range []string{c.a, c.b} {
				want := fmt.Sprint(group(at), " ", round)
				if b := readers[i].more(); b.Len() != 1 || string(b.Bytes(0, 0)) != want {
					t.Fatalf("%s: %d packets, the first is %q, want %q", at, b.Len(), b.Bytes(0, 0), want)
				}
			}
		}
		if notes := ports[0].Capabilities().Notes; !slices.ContainsFunc(notes, func(s string) bool {
			return strings.Contains(s, "joined the multicast group "+group(c.a).Addr().String())
		}) {
			t.Errorf("%s: no note of the group: %q", c.a, notes)
		}
		for _, p := range append(ports, out) {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	// Without a route the interface is to be named.
	err := n.Hosts[0].Do(func() error {
		_, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "udp://239.1.1.1:5000"})
		return err
	})
	if !errors.Is(err, engine.ErrNotFound) || !strings.Contains(err.Error(), "interface=") {
		t.Errorf("without a route: %v", err)
	}
}

// TestUDPGroupAddressRefusals: what a group cannot be is refused before anything is opened.
func TestUDPGroupAddressRefusals(t *testing.T) {
	for address, want := range map[string]string{
		"udp://239.1.1.1:5000?group=239.1.1.2":         "udp://:PORT?group=239.1.1.1&group=239.1.1.2",
		"tcp://239.1.1.1:5000?listen=1":                "has no connections",
		"tcp://[ff15::1]:5000":                         "has no connections",
		"udp://239.1.1.1:5000?group=239.1.1.1%25nope0": "there is no interface",
	} {
		if _, err := New().CheckPort(t.Context(), engine.PortSpec{Address: address}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
	for _, address := range []string{"udp://239.1.1.1:5000", "udp://[ff15::1]:5000?interface=lo"} {
		if holds, err := New().CheckPort(t.Context(), engine.PortSpec{Address: address}); err != nil || holds != "" {
			t.Errorf("%s: holds %q, %v", address, holds, err)
		}
	}
}
