package ibv

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// table is a port with two interfaces, as a switch with a VLAN has them.
var table = []GID{
	{0, addrOf("fe80::1"), GIDRoCEv1, "eth0", 0},
	{1, addrOf("fe80::1"), GIDRoCEv2, "eth0", 0},
	{2, addrOf("10.0.0.1"), GIDRoCEv1, "eth0", 0},
	{3, addrOf("10.0.0.1"), GIDRoCEv2, "eth0", 0},
	{4, addrOf("10.7.0.1"), GIDRoCEv1, "eth0.7", 7},
	{5, addrOf("10.7.0.1"), GIDRoCEv2, "eth0.7", 7},
	{6, addrOf("2001:db8::1"), GIDRoCEv2, "eth0", 0},
}

func subnets(netdev string) []netip.Prefix {
	return map[string][]netip.Prefix{
		"eth0": {netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("10.0.0.1/24"),
			netip.MustParsePrefix("2001:db8::1/64")},
		"eth0.7": {netip.MustParsePrefix("10.7.0.1/16")},
	}[netdev]
}

func TestChooseGID(t *testing.T) {
	two := 2
	routes := map[string]string{"172.16.0.9": "10.7.0.1", "192.168.1.1": "192.168.1.77"}
	source := func(to netip.Addr) netip.Addr {
		a, _ := netip.ParseAddr(routes[to.String()])
		return a
	}
	for name, c := range map[string]struct {
		want  GIDWant
		index int
		why   string
	}{
		"anything": {GIDWant{}, 3, "the best of the table"},
		"same subnet": {GIDWant{For: addrOf("10.0.0.2")}, 3,
			"GID 3, RoCE v2, 10.0.0.1 on eth0: same subnet as 10.0.0.2"},
		"mapped": {GIDWant{For: addrOf("::ffff:10.0.0.2")}, 3, "same subnet as 10.0.0.2"},
		"other subnet": {GIDWant{For: addrOf("10.7.9.9")}, 5,
			"GID 5, RoCE v2, 10.7.0.1 on eth0.7 (VLAN 7): same subnet"},
		"itself":     {GIDWant{For: addrOf("10.7.0.1")}, 5, "the address itself"},
		"by route":   {GIDWant{For: addrOf("172.16.0.9")}, 5, "the route to 172.16.0.9 leaves from it"},
		"another's":  {GIDWant{For: addrOf("192.168.1.1")}, 3, "no subnet or route"},
		"IPv6":       {GIDWant{For: addrOf("2001:db8::2")}, 6, "same subnet"},
		"link-local": {GIDWant{For: addrOf("fe80::2")}, 1, "same subnet"},
		"with zone":  {GIDWant{For: addrOf("fe80::2%eth0")}, 1, "same subnet"},
		"v1":         {GIDWant{For: addrOf("10.0.0.2"), Type: GIDRoCEv1}, 2, "RoCE v1"},
		"VLAN":       {GIDWant{VLAN: 7}, 5, "VLAN 7"},
		"no VLAN":    {GIDWant{For: addrOf("10.7.9.9"), VLAN: -1}, 3, "no subnet"},
		"index wins": {GIDWant{Index: &two, For: addrOf("2001:db8::2"), Type: GIDRoCEv2}, 2,
			"asked for by its index"},
		"v1 on the VLAN": {GIDWant{VLAN: 7, Type: GIDRoCEv1}, 4, "RoCE v1"},
	} {
		g, why, err := chooseGID(table, c.want, subnets, source)
		if err != nil || g.Index != c.index || !strings.Contains(why, c.why) {
			t.Errorf("%s: %d, %q, %v: expected %d, %q", name, g.Index, why, err, c.index, c.why)
		}
	}
	nine := 9
	for name, c := range map[string]struct {
		gids []GID
		want GIDWant
		says []string
	}{
		"no such index": {table, GIDWant{Index: &nine}, []string{"no GID 9", "GID 3, RoCE v2, 10.0.0.1 on eth0"}},
		"no such type":  {table, GIDWant{Type: GIDInfiniBand}, []string{"not InfiniBand"}},
		"no such VLAN":  {table, GIDWant{VLAN: 8}, []string{"not on VLAN 8"}},
		"no IPv6": {table[2:6], GIDWant{For: addrOf("2001:db8::2")},
			[]string{"of another address family than 2001:db8::2", "give the port's network interface an address"}},
		"on a VLAN": {table[4:6], GIDWant{VLAN: -1}, []string{"on a VLAN"}},
		"nothing":   {nil, GIDWant{}, []string{"the table is empty"}},
	} {
		_, _, err := chooseGID(c.gids, c.want, subnets, source)
		for _, s := range c.says {
			if !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v: expected %q", name, err, s)
			}
		}
	}
	for name, c := range map[string]struct {
		gids  []GID
		index int
	}{
		"IPv4 that an interface gave itself": {[]GID{{0, addrOf("169.254.3.4"), GIDRoCEv2, "eth0", 0},
			{1, addrOf("2001:db8::1"), GIDRoCEv2, "eth0", 0}}, 1},
		"nothing but link-local": {[]GID{{0, addrOf("fe80::1"), GIDRoCEv2, "eth0", 0},
			{1, addrOf("169.254.3.4"), GIDRoCEv2, "eth0", 0}}, 0},
		"a VLAN that was not asked for": {[]GID{{0, addrOf("10.7.0.1"), GIDRoCEv2, "eth0.7", 7},
			{1, addrOf("10.0.0.1"), GIDRoCEv2, "eth0", 0}}, 1},
	} {
		if g, _, err := chooseGID(c.gids, GIDWant{}, subnets, source); err != nil || g.Index != c.index {
			t.Errorf("%s: %v, %v: expected %d", name, g, err, c.index)
		}
	}
	// On InfiniBand an address tells nothing: the first entry serves.
	ib := []GID{{0, addrOf("fe80::2:c903:1:2"), GIDInfiniBand, "", 0}, {1, addrOf("fec0::1"), GIDInfiniBand, "", 0}}
	if g, _, err := chooseGID(ib, GIDWant{For: addrOf("10.0.0.1")}, subnets, source); err != nil ||
		g.Type != GIDInfiniBand {
		t.Errorf("%v, %v", g, err)
	}
}

// TestGIDsOfFake: the table of the fake, at once and after a change.
func TestGIDsOfFake(t *testing.T) {
	w := fakeWorld(t, "gid 0 5 2001:db8::7 v2")
	ctx := w.open(t)
	gids := must(ctx.GIDs(1))(t)
	if len(gids) != 5 || gids[4] != (GID{5, addrOf("2001:db8::7"), GIDRoCEv2, "", 0}) ||
		gids[3].Addr != addrOf("192.0.2.1") || gids[3].Type != GIDRoCEv2 ||
		gids[0].Type != GIDRoCEv1 {
		t.Errorf("%v", gids)
	}
	g, why, err := ctx.ChooseGID(1, GIDWant{For: addrOf("2001:db8::8")})
	if err != nil || g.Index != 5 {
		t.Errorf("%v, %q, %v", g, why, err)
	}
	eight := 8
	if _, _, err := ctx.ChooseGID(1, GIDWant{Index: &eight}); !errors.Is(err, ErrNoGID) ||
		!strings.Contains(err.Error(), "port 1 of fake0") {
		t.Errorf("%v", err)
	}
	w.script(t, "gid 0 5 :: v2")
	if gids := must(ctx.GIDs(1))(t); len(gids) != 4 {
		t.Errorf("%v", gids)
	}
}

func TestVLAN(t *testing.T) {
	for s, want := range map[string]int{
		"eth0.5  VID: 5\t REORDER_HDR: 1  dev->priv_flags: 1021\n": 5, "VID: 4094": 4094, "": 0, "VID:": 0, "VID: x": 0,
		"VID: 4096": 0, "VID: 0": 0, "VID: -1": 0,
	} {
		if got := parseVLAN(s); got != want {
			t.Errorf("%q: %d", s, got)
		}
	}
	for s, c := range map[string]struct {
		link LinkLayer
		want GIDType
	}{"RoCE v2": {LinkEthernet, GIDRoCEv2}, "IB/RoCE v1": {LinkEthernet, GIDRoCEv1}, "": {LinkEthernet, GIDRoCEv1},
		"IB": {LinkInfiniBand, GIDInfiniBand}} {
		if got := gidTypeOf(s, c.link); got != c.want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// FuzzVLAN: whatever the file says, the number is a VLAN's or 0.
func FuzzVLAN(f *testing.F) {
	f.Add("eth0.5  VID: 5\t REORDER_HDR: 1\n")
	f.Fuzz(func(t *testing.T, s string) {
		if n := parseVLAN(s); n < 0 || n > 4095 {
			t.Errorf("%d", n)
		}
	})
}
