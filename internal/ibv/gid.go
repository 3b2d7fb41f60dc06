package ibv

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/sys"
)

// GIDType is how packets that are sent from a GID look.
type GIDType uint8

// The types. GIDAny stands for all of them in a GIDWant.
const (
	GIDAny GIDType = iota
	GIDInfiniBand
	GIDRoCEv1 // Ethernet frames; within one subnet of Ethernet
	GIDRoCEv2 // UDP packets to port 4791; they can be routed
)

func (t GIDType) String() string {
	return oneOf(uint32(t), "any", "InfiniBand", "RoCE v1", "RoCE v2")
}

// GID is one of a port's addresses. A port of Ethernet has one for each IP address of its interface
// and type of RoCE.
type GID struct {
	Index  int
	Addr   netip.Addr // an IPv4 address, or 128 bits
	Type   GIDType
	Netdev string // the network interface; "" where it is not known
	VLAN   int    // of that interface; 0: none, or not known
}

func (g GID) String() string {
	s := fmt.Sprintf("GID %d, %s, %v", g.Index, g.Type, g.Addr)
	if g.Netdev != "" {
		s += " on " + g.Netdev
	}
	if g.VLAN != 0 {
		s += fmt.Sprintf(" (VLAN %d)", g.VLAN)
	}
	return s
}

// maxGIDs is more than a port has.
const maxGIDs = 1 << 16

// GIDs are the entries of a port's table that are in use.
func (c *Context) GIDs(port int) ([]GID, error) {
	p, err := c.Port(port)
	if err != nil {
		return nil, err
	}
	if p.GIDs < 0 || p.GIDs > maxGIDs {
		return nil, layoutError("ibv_port_attr.gid_tbl_len", p.GIDs, "0 to 65536")
	}
	if c.lib.f.queryGIDTable != 0 {
		gids, err := c.gidTable(port)
		if err == nil || !sys.IsErrno(err, sys.EOPNOTSUPP) {
			return gids, err
		}
	}
	return c.gidsOneByOne(p)
}

// gidTable asks for the whole table, of all ports, at once.
func (c *Context) gidTable(port int) ([]GID, error) {
	attr, err := c.Attr()
	if err != nil {
		return nil, err
	}
	room := 0
	for i := range max(attr.Ports, 1) {
		p, err := c.Port(i + 1)
		if err != nil {
			return nil, err
		}
		room += min(max(p.GIDs, 0), maxGIDs)
	}
	entries, mem, err := newTemps[cGIDEntry](room)
	if err != nil {
		return nil, err
	}
	defer freeTemps(mem)
	n := int64(c.lib.f.queryGIDTable.Call5(c.h, addressOf(mem), uintptr(room), 0, sizeOf[cGIDEntry]()))
	if n < 0 {
		return nil, failed("query_gid_table", c.name, sys.Errno(-n))
	}
	if n > int64(room) {
		return nil, layoutError("the number of GIDs", n, fmt.Sprintf("at most %d", room))
	}
	var out []GID
	for _, e := range entries[:n] {
		if int(e.port) != port {
			continue
		}
		g := GID{Index: int(e.index), Addr: netip.AddrFrom16(e.gid).Unmap(), Type: GIDType(min(e.typ, 2) + 1)}
		if e.ifindex != 0 {
			if i, err := net.InterfaceByIndex(int(e.ifindex)); err == nil {
				g.Netdev, g.VLAN = i.Name, vlanOf(i.Name)
			}
		}
		out = append(out, g)
	}
	return out, nil
}

// gidsOneByOne is for libraries before 2020 (rdma-core 32): the entries by a call each, what they
// are from sysfs.
func (c *Context) gidsOneByOne(p PortAttr) ([]GID, error) {
	t, err := newTemp[[16]byte]()
	if err != nil {
		return nil, err
	}
	defer t.free()
	dir := filepath.Join(c.dev.path, "ports", strconv.Itoa(p.Port), "gid_attrs")
	var out []GID
	for i := range p.GIDs {
		if ret := int32(c.lib.f.queryGID.Call4(c.h, uintptr(p.Port), uintptr(i), t.p())); ret != 0 {
			return nil, failed("query_gid", c.name, result(uintptr(uint32(ret)), 0))
		}
		if *t.v == [16]byte{} {
			continue
		}
		g := GID{Index: i, Addr: netip.AddrFrom16(*t.v).Unmap(),
			Type: gidTypeOf(readLine(filepath.Join(dir, "types", strconv.Itoa(i))), p.Link)}
		g.Netdev = readLine(filepath.Join(dir, "ndevs", strconv.Itoa(i)))
		if g.Netdev != "" {
			g.VLAN = vlanOf(g.Netdev)
		}
		out = append(out, g)
	}
	return out, nil
}

// gidTypeOf reads sysfs' words. A kernel that has none of them has RoCE v1 only.
func gidTypeOf(s string, link LinkLayer) GIDType {
	switch {
	case link != LinkEthernet:
		return GIDInfiniBand
	case s == "RoCE v2":
		return GIDRoCEv2
	}
	return GIDRoCEv1
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// vlanOf is the VLAN of an interface that is one, from the table that the kernel's VLAN module
// shows.
func vlanOf(netdev string) int {
	b, err := os.ReadFile(filepath.Join("/proc/net/vlan", netdev))
	if err != nil {
		return 0
	}
	return parseVLAN(string(b))
}

// parseVLAN finds "eth0.5  VID: 5	 REORDER_HDR: 1" in the first line.
func parseVLAN(s string) int {
	_, rest, ok := strings.Cut(s, "VID:")
	if f := strings.Fields(rest); ok && len(f) > 0 {
		if n, err := strconv.Atoi(f[0]); err == nil && n > 0 && n < 4096 {
			return n
		}
	}
	return 0
}

// GIDWant is what a GID is wanted for. The zero value wants the best that there is.
type GIDWant struct {
	Index *int       // exactly this one, whatever the other fields say
	For   netip.Addr // to reach this address
	Type  GIDType
	VLAN  int // this VLAN; 0: any; -1: none
}

// ChooseGID chooses the local GID to send from, and says which it is and why: "GID 3, RoCE v2,
// 10.0.0.1 on eth0: same subnet as 10.0.0.2". An error that wraps ErrNoGID says of every entry why
// it does not fit.
func (c *Context) ChooseGID(port int, want GIDWant) (g GID, why string, err error) {
	gids, err := c.GIDs(port)
	if err != nil {
		return GID{}, "", err
	}
	g, why, err = chooseGID(gids, want, prefixesOf, sourceFor)
	if err != nil {
		return GID{}, "", fmt.Errorf("ibv: port %d of %s: %w", port, c.name, err)
	}
	return g, why, nil
}

// prefixesOf are the addresses of an interface with their subnets.
func prefixesOf(netdev string) []netip.Prefix {
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// sourceFor is the address that the kernel's routes would send from to reach to; not valid when
// there is no route. Nothing is sent.
func sourceFor(to netip.Addr) netip.Addr {
	c, err := net.Dial("udp", netip.AddrPortFrom(to, 4791).String())
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
		from, _ := netip.AddrFromSlice(a.IP)
		return from.Unmap()
	}
	return netip.Addr{}
}

// choice is how well a GID fits: the first difference decides, higher is better.
type choice struct {
	gid  GID
	rank [6]int
	why  string
}

func chooseGID(gids []GID, want GIDWant, prefixes func(string) []netip.Prefix, source func(netip.Addr) netip.Addr) (GID,
	string, error) {
	if want.Index != nil {
		for _, g := range gids {
			if g.Index == *want.Index {
				return g, g.String() + ": asked for by its index", nil
			}
		}
		return GID{}, "", fmt.Errorf("%w: there is no GID %d: expected one of %s", ErrNoGID, *want.Index,
			listGIDs(gids))
	}
	to := want.For.Unmap()
	var from netip.Addr
	if to.IsValid() && to.Zone() == "" && !to.IsLinkLocalUnicast() {
		from = source(to)
	}
	var best *choice
	var refused []string
	for _, g := range gids {
		if why := unfit(g, want, to); why != "" {
			refused = append(refused, fmt.Sprintf("%s (%s)", g, why))
			continue
		}
		c := weigh(g, to, from, prefixes)
		if best == nil || better(c.rank, best.rank) {
			best = &c
		}
	}
	if best != nil {
		return best.gid, best.gid.String() + ": " + best.why, nil
	}
	if len(gids) == 0 {
		return GID{}, "", fmt.Errorf("%w: the table is empty: the port's network interface is down or has no address "+
			"(ip address add, ip link set up)", ErrNoGID)
	}
	return GID{}, "", fmt.Errorf("%w: %s: give the port's network interface an address of the wanted kind, or name "+
		"an index", ErrNoGID, strings.Join(refused, "; "))
}

// unfit is why a GID cannot be taken at all, or "".
func unfit(g GID, want GIDWant, to netip.Addr) string {
	switch {
	case want.Type != GIDAny && g.Type != want.Type:
		return "not " + want.Type.String()
	case want.VLAN > 0 && g.VLAN != want.VLAN:
		return fmt.Sprintf("not on VLAN %d", want.VLAN)
	case want.VLAN < 0 && g.VLAN != 0:
		return "on a VLAN"
	case to.IsValid() && g.Type != GIDInfiniBand && to.Is4() != g.Addr.Is4():
		return "of another address family than " + to.String()
	}
	return ""
}

// weigh compares, in this order: the way to the peer, RoCE v2 before v1, IPv4 before other
// addresses before link-local ones of either family, no VLAN before a VLAN that was not asked for,
// as many equal leading bits as possible, and the lowest index.
func weigh(g GID, to, from netip.Addr, prefixes func(string) []netip.Prefix) choice {
	c := choice{gid: g, why: "the best of the table"}
	switch {
	case to.IsValid() && g.Addr == to.WithZone(""):
		c.rank[0], c.why = 4, "the address itself is on this port"
	case to.IsValid() && sameSubnet(g, to, prefixes):
		c.rank[0], c.why = 3, "same subnet as "+to.String()
	case to.IsValid() && from.IsValid() && g.Addr == from:
		c.rank[0], c.why = 2, "the route to "+to.String()+" leaves from it"
	case to.IsValid() && to.IsLinkLocalUnicast() == g.Addr.IsLinkLocalUnicast():
		c.rank[0], c.why = 1, "the best of the table; no subnet or route of this machine leads to "+to.String()
	}
	c.rank[1] = int(g.Type)
	switch {
	case g.Addr.IsLinkLocalUnicast(): // 169.254.0.0/16 too: an interface that got no address gives itself one
	case g.Addr.Is4():
		c.rank[2] = 2
	default:
		c.rank[2] = 1
	}
	if g.VLAN == 0 {
		c.rank[3] = 1
	}
	if to.IsValid() {
		c.rank[4] = commonBits(g.Addr, to)
	}
	c.rank[5] = -g.Index
	return c
}

func better(a, b [6]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] > b[i]
		}
	}
	return false
}

// sameSubnet reports whether the interface of a GID has its address in a subnet that also holds to.
func sameSubnet(g GID, to netip.Addr, prefixes func(string) []netip.Prefix) bool {
	if g.Netdev == "" {
		return false
	}
	for _, p := range prefixes(g.Netdev) {
		if p.Addr().Unmap() == g.Addr && p.Masked().Contains(to.WithZone("")) {
			return true
		}
	}
	return false
}

// commonBits is how many leading bits of both are equal.
func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	n := 0
	for i := range x {
		for bit := 7; bit >= 0; bit-- {
			if (x[i]^y[i])>>bit&1 != 0 {
				return n
			}
			n++
		}
	}
	return n
}

func listGIDs(gids []GID) string {
	if len(gids) == 0 {
		return "none"
	}
	var s []string
	for _, g := range gids {
		s = append(s, g.String())
	}
	return strings.Join(s, "; ")
}
