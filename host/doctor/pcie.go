package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// express are the cards of which the link is known; the others get their finding.
func (x *exam) express() (out []*host.PCI) {
	for _, p := range x.cards() {
		if p.Speed == 0 {
			x.skipOf(x.name(p), "it has no link: it is part of another chip, or of a virtual machine")
			continue
		}
		out = append(out, p)
	}
	return out
}

// lineRate is the rate of all interfaces of a function of a card, in bytes per second, with the
// overhead of PCI Express at frames of some size: 8 %.
func (x *exam) lineRate(p *host.PCI) (rate float64) {
	for _, n := range x.f.Nets {
		if n.PCI == p.Addr {
			rate = max(rate, float64(n.Mbits)*1e6/8*1.08)
		}
	}
	return rate
}

func checkLink(x *exam) {
	for _, p := range x.express() {
		read := fmt.Sprintf("%g GT/s x%d, %.1f GB/s", p.Speed, p.Width, p.BytesPerSecond()/1e9)
		// The narrowest place on the way up counts: a card may well have come up, and the switch
		// above it not.
		narrow, where := p.BytesPerSecond(), p
		for _, b := range x.f.Above(p) {
			if r := b.BytesPerSecond(); r > 0 && r < narrow {
				narrow, where = r, b
			}
		}
		needs := x.lineRate(p)
		most := fmt.Sprintf("%g GT/s x%d", p.MaxSpeed, p.MaxWidth)
		switch {
		case needs > narrow && where != p:
			x.add(Finding{Subject: x.name(p), Verdict: Warn,
				Read: fmt.Sprintf("%s; above it %s has %g GT/s x%d, %.1f GB/s", read, x.name(where), where.Speed,
					where.Width, narrow/1e9),
				Needed: fmt.Sprintf("%.1f GB/s", needs/1e9), For: "the rate of the interface",
				Fix: []string{"another slot"}})
		case needs > narrow:
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: read, Needed: fmt.Sprintf("%.1f GB/s", needs/1e9),
				For: "the rate of the interface",
				Fix: []string{"a slot that has " + most + "; reseat the card"}})
		case p.Width < p.MaxWidth:
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: read, Needed: most, For: "what the card can",
				Fix: []string{"a slot with as many lanes; reseat the card, look at risers"}})
		case p.Speed < p.MaxSpeed && p.Display():
			x.ok(x.name(p), fmt.Sprintf("%s of %s: GPUs slow their link down while nothing uses it", read, most))
		case p.Speed < p.MaxSpeed:
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: read, Needed: most, For: "what the card can",
				Fix: []string{"look at the slot's generation in the firmware, and at risers"}})
		default:
			x.ok(x.name(p), read)
		}
	}
}

// rooted says of cards whose capabilities cannot be read how to.
func (x *exam) rooted(p *host.PCI) bool {
	if p.Express {
		return true
	}
	why := ""
	for path, w := range x.f.Missing {
		if strings.HasSuffix(path, p.Addr+"/config") {
			why = path + ": " + w
		}
	}
	if why == "" {
		why = "the device has no capability of PCI Express"
	}
	x.unknown(x.name(p), why, "run it as root")
	return false
}

func checkPayload(x *exam) {
	for _, p := range x.express() {
		if !x.rooted(p) {
			continue
		}
		most, who := p.MaxPayload, p
		for _, b := range x.f.Above(p) {
			if b.Express && b.MaxPayload < most {
				most, who = b.MaxPayload, b
			}
		}
		read := fmt.Sprintf("%d bytes", p.Payload)
		if p.Payload >= most {
			if who != p {
				read += fmt.Sprintf(" of %d: %s cannot have more", p.MaxPayload, x.name(who))
			}
			x.ok(x.name(p), read)
			continue
		}
		x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: read,
			Needed: fmt.Sprintf("%d bytes, which all on the way up can", most),
			Fix:    []string{"in the firmware: maximum payload size; or pci=pcie_bus_perf on the kernel's command line"}})
	}
}

func checkReadRequest(x *exam) {
	for _, p := range x.express() {
		if !p.Network() || !x.rooted(p) {
			continue
		}
		want := 512
		if x.lineRate(p) > 2e9 { // 16 Gb/s: from 25 Gb/s on
			want = 4096
		}
		if p.ReadRequest >= want {
			x.ok(x.name(p), fmt.Sprintf("%d bytes", p.ReadRequest))
			continue
		}
		f := Finding{Subject: x.name(p), Verdict: Warn, Read: fmt.Sprintf("%d bytes", p.ReadRequest),
			Needed: fmt.Sprintf("%d bytes", want),
			Fix:    []string{fmt.Sprintf("setpci -s %s CAP_EXP+8.w=5000:7000", p.Addr)}}
		if x.f.Lockdown != "" && x.f.Lockdown != "none" {
			f.Why = "the kernel is locked down: setpci cannot"
		}
		x.add(f)
	}
}

func checkACS(x *exam) {
	done := map[string]bool{}
	for _, g := range x.gpus() {
		gp := x.f.Device(g.Addr)
		for _, u := range x.nets() {
			np := x.f.Device(u.net.PCI)
			if np == nil || g.Integrated || !x.f.Distance(gp, np).Direct() {
				continue
			}
			for _, b := range x.f.Switches(gp, np) {
				if done[b.Addr] {
					continue
				}
				done[b.Addr] = true
				if !b.ACS.Detours() {
					x.ok(x.name(b), "no detour")
					continue
				}
				x.add(Finding{Subject: x.name(b), Verdict: Warn,
					Read: fmt.Sprintf("redirects (control %#x)", b.ACS.Does), Needed: "no redirect",
					For: fmt.Sprintf("%s and %s below one switch", u.Name, g.Name),
					Fix: []string{fmt.Sprintf("setpci -s %s ECAP_ACS+6.w=0000", b.Addr),
						"for good: ACS off in the firmware, where no virtual machines need it"}})
			}
		}
	}
	if x.out != nil {
		return
	}
	for _, p := range x.f.PCI {
		if p.Bridge() && !p.Express && p.Speed > 0 && len(x.gpus()) > 0 && len(x.nets()) > 0 && p.Parent != "" {
			x.rooted(&p)
			return
		}
	}
	x.skip("no GPU and network card are below one switch")
}

func checkIOMMU(x *exam) {
	seen := false
	for _, p := range x.cards() {
		seen = seen || p.Group >= 0
	}
	for _, i := range x.n.Interfaces {
		if !wants(i.Engine).VFIO {
			continue
		}
		p := x.device(i.Name)
		if p == nil || p.Group >= 0 {
			continue
		}
		x.add(Finding{Subject: x.name(p), Verdict: Fail, At: placesOf(i.At),
			Read: "the card is in no group of an IOMMU", Needed: "an IOMMU that is on", For: "vfio-pci",
			Fix: []string{"turn it on in the firmware (VT-d, AMD-Vi, SMMU), and intel_iommu=on iommu=pt on the " +
				"kernel's command line"}})
	}
	if x.out != nil {
		return
	}
	if !seen {
		x.skip("it is off, or there is none")
		return
	}
	for _, p := range x.cards() {
		switch {
		case p.Group < 0:
		case p.GroupType == "":
			x.unknown(x.name(p), x.f.Why("/sys/kernel/iommu_groups"))
		case p.Translated() && x.fast() && p.Driver != "vfio-pci":
			x.add(Finding{Subject: x.name(p), Verdict: Warn, Read: p.GroupType + ": each address is translated",
				Needed: "identity",
				Fix:    []string{"iommu=pt on the kernel's command line, and a reboot"}})
		default:
			x.ok(x.name(p), p.GroupType)
		}
	}
}

// placesOf is a place as a list; empty for the zero Place.
func placesOf(p Place) []Place {
	if p == (Place{}) {
		return nil
	}
	return []Place{p}
}

// device is the card of an interface, or of an address.
func (x *exam) device(name string) *host.PCI {
	if n := x.f.Net(name); n != nil {
		return x.f.Device(n.PCI)
	}
	return x.f.Device(strings.ToLower(name))
}

func checkDriver(x *exam) {
	for _, i := range x.n.Interfaces {
		if !wants(i.Engine).VFIO {
			continue
		}
		p := x.device(i.Name)
		switch {
		case p == nil: // that was said already
			x.skipOf(i.Name, "there is no such card")
		case p.Driver == "vfio-pci", p.Driver == "mlx5_core":
			x.ok(x.name(p), p.Driver)
		default:
			f := Finding{Subject: x.name(p), Verdict: Fail, At: placesOf(i.At), Read: "driver " + orNone(p.Driver),
				Needed: "vfio-pci"}
			if !slices.Contains(x.f.Drivers, "vfio-pci") {
				f.Fix = []string{"modprobe vfio-pci"}
			}
			f.Fix = append(f.Fix, "penstock tune driver "+p.Addr+" --driver vfio-pci --apply",
				"the kernel loses the interface, and what is set on it")
			x.add(f)
		}
	}
	if x.out == nil {
		x.skip("no engine with a driver in user space is asked for")
	}
}
