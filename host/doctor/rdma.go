package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// RunRDMA looks only at what RDMA depends on, for the devices of some names, or for any one with an
// active port where there is no name. It takes n.RDMA and n.Interfaces for itself; skip names ids
// of checks to leave out.
func RunRDMA(m Machine, n Needs, devices []string, skip ...string) Report {
	n.RDMA, n.Interfaces = devices, []Interface{}
	if len(devices) == 0 {
		n.RDMA = []string{AnyDevice}
	}
	x := &exam{f: m.facts, n: n}
	for _, d := range x.devices() {
		i := m.facts.Net(d.Net)
		if i == nil {
			i = m.facts.Net(d.PCI)
		}
		if i != nil && i.Up && !i.Virtual && !slices.ContainsFunc(n.Interfaces, func(o Interface) bool {
			return o.Name == i.Name
		}) {
			n.Interfaces = append(n.Interfaces, Interface{Name: i.Name})
		}
	}
	skip = slices.Clone(skip)
	for _, c := range checks {
		if !slices.Contains(rdmaChecks, c.ID) {
			skip = append(skip, c.ID)
		}
	}
	return Run(m, n, skip...)
}

// rdmaChecks are the checks of what RDMA depends on.
var rdmaChecks = []string{"rdma", "rdma-gid", "rdma-mtu", "rdma-counters", "rdma-flow-control", "pause", "rdma-modules",
	"rdma-files", "rdma-namespaces", "rdma-library",
	"memlock", "kernel", "gpu-direct", "rdma-gpu", "pcie-link", "pcie-payload", "pcie-read-request", "pcie-acs",
	"iommu"}

// usedRDMA is an RDMA device to look at.
type usedRDMA struct {
	*host.RDMA
	needed bool // it itself, and not just any
}

// wantsRDMA reports whether the needs ask for RDMA at all.
func (x *exam) wantsRDMA() bool { return x.n.RDMA != nil || x.n.engine(rdma) != nil }

// devices are the RDMA devices to look at: those that are needed and here, or else all.
func (x *exam) devices() (out []usedRDMA) {
	if x.n.Whole && !x.wantsRDMA() {
		return nil
	}
	all := !x.wantsRDMA() || slices.Contains(x.n.RDMA, AnyDevice) || x.n.engine(rdma) != nil && x.unlocated()
	for i := range x.f.RDMA {
		r := &x.f.RDMA[i]
		needed := slices.Contains(x.n.RDMA, r.Name) || slices.ContainsFunc(x.nets(), func(u used) bool {
			return wants(u.Engine).RDMA && belongs(r, u.net)
		})
		if needed || all {
			out = append(out, usedRDMA{r, needed})
		}
	}
	return out
}

// belongs reports whether an RDMA device is that of an interface.
func belongs(r *host.RDMA, n *host.Net) bool { return r.Net == n.Name || r.PCI != "" && r.PCI == n.PCI }

// unlocated reports whether connections over RDMA are opened by addresses whose interface is not
// known: then the checks look at all devices.
func (x *exam) unlocated() bool {
	return slices.ContainsFunc(x.n.Sockets, func(s Socket) bool { return wants(s.Engine).RDMA && s.Interface == "" })
}

// ports calls each for the ports that are active, with a name for people. Without one it says why
// there is none.
func (x *exam) ports(each func(d usedRDMA, p *host.RDMAPort, name string)) {
	for _, d := range x.devices() {
		for i := range d.Ports {
			if p := &d.Ports[i]; p.State == "ACTIVE" {
				each(d, p, portName(d.RDMA, p))
			}
		}
	}
	if x.out == nil {
		x.skip(x.noRDMA())
	}
}

// missed is why what is below a directory could not be read; part is the end of its path, for
// directories that links lead to.
func (x *exam) missed(part string) string {
	for _, path := range slices.Sorted(maps.Keys(x.f.Missing)) {
		if strings.Contains(path, part) {
			return path + ": " + x.f.Missing[path]
		}
	}
	return ""
}

// fails is the verdict of what is wrong with devices that are called bad: it fails for one that is
// needed, and where any would do and all are bad.
func (x *exam) fails(d usedRDMA, bad func(host.RDMA) bool) Verdict {
	any := slices.Contains(x.n.RDMA, AnyDevice) && !slices.ContainsFunc(x.f.RDMA, func(r host.RDMA) bool {
		return !bad(r)
	})
	return x.bad(d.needed || any)
}

// noRDMA is why a check says nothing of RDMA.
func (x *exam) noRDMA() string {
	switch {
	case x.n.Whole && !x.wantsRDMA():
		return "nothing asks for it"
	case len(x.devices()) == 0:
		return "there is no RDMA device"
	}
	return "no RDMA port is active"
}

func portName(r *host.RDMA, p *host.RDMAPort) string { return fmt.Sprintf("%s port %d", r.Name, p.ID) }

// bring is how to come to an RDMA device: the modules of cards that are here, and the one in
// software.
func (x *exam) bring(iface string) (out []string) {
	modules := map[string]string{"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib", "ice": "irdma", "i40e": "irdma",
		"bnxt_en": "bnxt_re", "efa": "efa"}
	for i := range x.f.PCI {
		m := modules[x.f.PCI[i].Driver]
		if m != "" && !slices.Contains(x.f.Modules, m) && !slices.Contains(out, "modprobe "+m) {
			out = append(out, "modprobe "+m)
		}
	}
	if iface == "" {
		iface = "IF"
		for i := range x.f.Nets {
			if n := &x.f.Nets[i]; n.Type == 1 && n.Up && (iface == "IF" || !n.Virtual) {
				iface = n.Name
				if !n.Virtual {
					break
				}
			}
		}
	}
	return append(out, "for any interface, in software and slower, as root: modprobe rdma_rxe; rdma link add rxe0 "+
		"type rxe netdev "+iface)
}

func checkRDMA(x *exam) {
	if x.n.Whole && !x.wantsRDMA() {
		x.skip("nothing asks for it")
		return
	}
	x.absent()
	active := false
	for _, d := range x.devices() {
		if len(d.Ports) == 0 {
			x.unknown(d.Name, x.missed("/infiniband/"+d.Name+"/ports"))
		}
		for i := range d.Ports {
			p := &d.Ports[i]
			read := deviceText(d.RDMA, p)
			if p.State == "ACTIVE" {
				active = true
				x.ok(portName(d.RDMA, p), read)
				continue
			}
			if !d.needed && x.n.engine(rdma) == nil { // a port without a cable
				x.skipOf(portName(d.RDMA, p), read)
				continue
			}
			x.add(Finding{Subject: portName(d.RDMA, p), Verdict: Fail, Read: read, Needed: "active",
				Fix: downFix(d.RDMA, p)})
		}
	}
	if !active && len(x.f.RDMA) > 0 && slices.Contains(x.n.RDMA, AnyDevice) {
		var read, fix []string
		for _, d := range x.devices() {
			for i := range d.Ports {
				read = append(read, portName(d.RDMA, &d.Ports[i])+" "+stateText(&d.Ports[i]))
				fix = append(fix, downFix(d.RDMA, &d.Ports[i])...)
			}
		}
		slices.Sort(fix)
		x.add(Finding{Verdict: Fail, Read: orNone(strings.Join(read, ", ")), Needed: "a port that is active",
			Fix: append(slices.Compact(fix), x.bring("")...)})
	}
	if x.out == nil {
		x.skip("there is no RDMA device")
	}
}

// absent finds what is asked for and not here.
func (x *exam) absent() {
	for _, name := range x.n.engine(rdma) {
		n := x.f.Net(name)
		if n != nil && !slices.ContainsFunc(x.f.RDMA, func(r host.RDMA) bool { return belongs(&r, n) }) {
			x.add(Finding{Subject: n.Name, Verdict: Fail, Read: "it has no RDMA device", Needed: "one",
				For: "engine verbs", Fix: x.bring(n.Name)})
		}
	}
	for i := range x.n.Sockets {
		if s := &x.n.Sockets[i]; wants(s.Engine).RDMA && len(x.f.RDMA) == 0 {
			x.add(Finding{Subject: s.Name, Verdict: Fail, Read: "there is no RDMA device",
				Needed: "one that has " + orNone(s.Local), For: "engine " + s.Engine, At: s.at("local"),
				Fix: x.bring("")})
		}
	}
	var have []string
	for i := range x.f.RDMA {
		have = append(have, x.f.RDMA[i].Name)
	}
	for _, want := range x.n.RDMA {
		switch {
		case want == AnyDevice && have == nil:
			x.add(Finding{Verdict: Fail, Read: "there is no RDMA device", Needed: "one", Fix: x.bring("")})
		case want != AnyDevice && !slices.Contains(have, want):
			f := Finding{Subject: want, Verdict: Fail,
				Read:   "there is none of this name; there are: " + orNone(strings.Join(have, ", ")),
				Needed: "an RDMA device " + want}
			if f.Fix = []string{"name one that is here"}; have == nil {
				f.Fix = x.bring("")
			}
			x.add(f)
		}
	}
}

// stateText is the state of a port; what its link does is only of interest while it is not up.
func stateText(p *host.RDMAPort) string {
	s := orNone(strings.ToLower(p.State))
	if p.Physical != "" && p.State != "ACTIVE" {
		s += " (" + p.Physical + ")"
	}
	return s
}

// deviceText is a port in a line.
func deviceText(r *host.RDMA, p *host.RDMAPort) string {
	parts := []string{stateText(p), p.Layer, p.Rate}
	switch {
	case r.Provider == "rxe":
		parts[2] = "in software (Soft-RoCE)" // the rate that it tells is made up
	case r.Node == "RNIC":
		parts[1] = "iWARP"
	}
	if r.Net != "" {
		parts = append(parts, r.Net)
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// downFix is what to do for a port that is not active.
func downFix(r *host.RDMA, p *host.RDMAPort) []string {
	switch {
	case p.Layer == "InfiniBand" && (p.State == "INIT" || p.State == "ARMED"):
		return []string{"the link is up and no subnet manager has set it up: start one on a machine or a switch of " +
			"this subnet (systemctl start opensm)"}
	case p.Layer == "InfiniBand":
		return []string{"look at the cable and the other end: ibstat " + r.Name}
	case r.Net == "":
		return []string{"switch its interface on, and look at the cable"}
	}
	return []string{"ip link set dev " + r.Net + " up", "look at the cable: ethtool " + r.Net}
}

// addrRank orders addresses by their kind, as package ibv does; less is better.
func addrRank(g *host.GID) int {
	a, err := netip.ParseAddr(g.Addr)
	switch {
	case err != nil:
		return 3
	case a.Unmap().Is4():
		return 0
	case !a.IsLinkLocalUnicast():
		return 1
	}
	return 2
}

// ofOneLink reports whether an address is known on its own link only.
func ofOneLink(g *host.GID) bool {
	a, err := netip.ParseAddr(g.Addr)
	return err != nil || a.Unmap().IsLinkLocalUnicast()
}

const roce2 = "RoCE v2"

// chosen are the addresses of a RoCE port, the default one first: RoCE version 2 before 1, IPv4
// before IPv6, those of one link last, and then the first of the table. What the library says
// itself goes before that.
func chosen(p *host.RDMAPort, asked *host.VerbsPort) []host.GID {
	all := slices.Clone(p.GIDs)
	v2 := func(g *host.GID) int {
		if g.Type == roce2 {
			return 0
		}
		return 1
	}
	first := func(g *host.GID) int {
		if asked != nil && asked.GID == g.Index {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b host.GID) int {
		return cmp.Or(first(&a)-first(&b), v2(&a)-v2(&b), addrRank(&a)-addrRank(&b), a.Index-b.Index)
	})
	return all
}

// gidText is an address for people.
func gidText(g *host.GID) string {
	addr := g.Addr
	if a, err := netip.ParseAddr(addr); err == nil {
		addr = a.Unmap().String()
	}
	s := fmt.Sprintf("%d (%s, %s", g.Index, addr, orNone(g.Type))
	if g.VLAN > 0 {
		s += fmt.Sprintf(", VLAN %d", g.VLAN)
	}
	return s + ")"
}

func checkGID(x *exam) {
	x.ports(func(d usedRDMA, p *host.RDMAPort, name string) {
		if p.Layer == "InfiniBand" {
			x.infiniband(d, p, name)
			return
		}
		all := chosen(p, x.f.Verbs.Asked.Port(d.Name, p.ID))
		iface := cmp.Or(d.Net, "IF")
		address := fmt.Sprintf("give its interface an address that the other machines have a route to: ip address "+
			"add ADDRESS/LENGTH dev %s", iface)
		if len(all) == 0 {
			if why := x.missed(fmt.Sprintf("/infiniband/%s/ports/%d/gids", d.Name, p.ID)); d.needed || why == "" {
				x.add(Finding{Subject: name, Verdict: x.bad(d.needed), Read: "its table of addresses is empty",
					Needed: "an address of RoCE version 2",
					Fix:    []string{fmt.Sprintf("ip link set dev %s up", iface), address}})
			} else {
				x.unknown(name, why)
			}
			return
		}
		g := &all[0]
		read := "GID " + gidText(g)
		var same []string
		for i := range all[1:] {
			if o := &all[1+i]; o.Type == g.Type && addrRank(o) == addrRank(g) {
				same = append(same, gidText(o))
			}
		}
		if same != nil {
			read += fmt.Sprintf(" is the first of %d; also %s", 1+len(same),
				strings.Join(same[:min(len(same), 3)], ", "))
			if len(same) > 3 {
				read += fmt.Sprintf(" and %d more", len(same)-3)
			}
		}
		byIndex := fmt.Sprintf("name the one by which the peer is reached, by its index: %d to %d", p.GIDs[0].Index,
			p.GIDs[len(p.GIDs)-1].Index)
		switch {
		case g.Type != roce2 && g.Type != "":
			x.add(Finding{Subject: name, Verdict: Warn, Read: read, Needed: "one of RoCE version 2",
				Why: "version 1 has no IP header: routers do not pass it on, and switches do not spread it",
				Fix: []string{"look for version 2 in the card's settings and its driver's version"}})
		case ofOneLink(g):
			x.add(Finding{Subject: name, Verdict: Warn, Read: read, Needed: "an address beyond the link",
				Why: "this one is known on its own link only", Fix: []string{address}})
		case g.VLAN > 0:
			x.add(Finding{Subject: name, Verdict: Warn, Read: read, Needed: "a peer in the same VLAN",
				Why: "all addresses that routers pass on are of VLANs",
				Fix: []string{"see that the peer and the switch have this VLAN", byIndex, "or " + address}})
		case slices.ContainsFunc(all, func(o host.GID) bool {
			return o.VLAN > 0 && o.Type == g.Type && addrRank(&o) == addrRank(g)
		}):
			x.add(Finding{Subject: name, Verdict: Warn, Read: read, Needed: "the one by which the peer is reached",
				Why: "some are of a VLAN, and the choice does not know where the peer is",
				Fix: []string{byIndex}})
		default:
			x.ok(name, read)
		}
	})
}

// infiniband looks at the address of a port of InfiniBand, which a subnet manager gives.
func (x *exam) infiniband(d usedRDMA, p *host.RDMAPort, name string) {
	if p.LID == 0 || p.SM == 0 {
		x.add(Finding{Subject: name, Verdict: x.bad(d.needed),
			Read: fmt.Sprintf("LID %d, subnet manager at LID %d", p.LID, p.SM), Needed: "both",
			Fix: []string{"start a subnet manager on a machine or a switch of this subnet (systemctl start opensm)"}})
		return
	}
	x.ok(name, fmt.Sprintf("LID %d, by the subnet manager at LID %d", p.LID, p.SM))
}

// roceHeaders are the bytes of a RoCE packet that the kernel leaves room for in a frame, beside the
// payload: include/rdma/ib_addr.h, iboe_get_mtu. rxe leaves room for a few less.
const (
	roceHeaders = 96
	rxeHeaders  = 80
	mostPathMTU = 4096
)

// pathMTU is the MTU of a RoCE port on an interface.
func pathMTU(provider string, mtu int) int {
	room := mtu - roceHeaders
	if provider == "rxe" {
		room = mtu - rxeHeaders
	}
	for m := mostPathMTU; m >= 256; m /= 2 {
		if room >= m {
			return m
		}
	}
	return 0
}

func checkPathMTU(x *exam) {
	x.ports(func(d usedRDMA, p *host.RDMAPort, name string) {
		asked := x.f.Verbs.Asked.Port(d.Name, p.ID)
		switch {
		case p.Layer != "InfiniBand":
		case asked == nil:
			x.skipOf(name, "the subnet manager sets it, and no file shows it: ibv_devinfo -d "+d.Name)
			return
		case asked.MTU < asked.MaxMTU:
			x.add(Finding{Subject: name, Verdict: Warn,
				Read:   fmt.Sprintf("%d, and the port can have %d", asked.MTU, asked.MaxMTU),
				Needed: fmt.Sprint(asked.MaxMTU),
				Fix:    []string{"in the subnet manager's partitions (partitions.conf of opensm): mtu=5"}})
			return
		default:
			x.ok(name, fmt.Sprint(asked.MTU))
			return
		}
		n := x.f.Net(d.Net)
		if d.Node == "RNIC" {
			x.skipOf(name, "iWARP is TCP: it cuts its segments as the interface's MTU is")
			return
		}
		if n == nil || n.MTU == 0 {
			x.unknown(name, cmp.Or(x.f.Why("/sys/class/net/"+d.Net), "its interface is not known"))
			return
		}
		mtu := pathMTU(d.Provider, n.MTU)
		read := fmt.Sprintf("%d, from the %d of %s", mtu, n.MTU, n.Name)
		if asked != nil && asked.MTU != mtu { // the driver knows better
			mtu = asked.MTU
			read = fmt.Sprintf("%d, and the %d of %s would allow another", mtu, n.MTU, n.Name)
		}
		fix := []string{fmt.Sprintf("penstock tune nic %s --mtu 9000 --apply", n.Name),
			"the switch and the other machines must have it, too; connections use what both ends have"}
		switch {
		case mtu == 0:
			x.add(Finding{Subject: name, Verdict: x.bad(d.needed),
				Read:   fmt.Sprintf("the MTU of %s is %d: nothing fits", n.Name, n.MTU),
				Needed: fmt.Sprint(256 + roceHeaders), Fix: fix})
		case mtu < mostPathMTU && (x.wantsRDMA() || fast(n)):
			x.add(Finding{Subject: name, Verdict: Warn, Read: read,
				Needed: fmt.Sprintf("%d, which takes %d of the interface", mostPathMTU, mostPathMTU+roceHeaders),
				Fix:    fix})
		default:
			x.ok(name, read)
		}
	})
}

// RDMADevices are the names of the machine's RDMA devices.
func (m Machine) RDMADevices() (out []string) {
	for i := range m.facts.RDMA {
		out = append(out, m.facts.RDMA[i].Name)
	}
	return out
}
