package host

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
)

func (r *reader) pci(f *Facts) {
	const dir = "sys/bus/pci/devices"
	for _, addr := range r.list(dir) {
		at, ok := r.link(dir + "/" + addr)
		if !ok || !pciAddr.MatchString(addr) {
			continue
		}
		p := PCI{Addr: addr, Group: -1, Vendor: uint16(r.number(at+"/vendor", 0)),
			Device: uint16(r.number(at+"/device", 0)),
			Class:  uint32(r.number(at+"/class", 0)), Node: r.number(at+"/numa_node", -1)}
		for _, part := range strings.Split(path.Dir(at), "/") {
			switch {
			case pciAddr.MatchString(part):
				p.Parent = part
			case strings.HasPrefix(part, "pci"):
				p.Root = part
			}
		}
		if p.Network() || p.Display() || p.Storage() || p.Bridge() {
			r.details(&p, at)
		}
		f.PCI = append(f.PCI, p)
	}
	slices.SortFunc(f.PCI, func(a, b PCI) int { return strings.Compare(a.Addr, b.Addr) })
}

// errShort is why capabilities are not known.
var errShort = errors.New("the kernel shows only its first 64 bytes: the rest takes root")

// details reads what matters of cards and of the bridges above them.
func (r *reader) details(p *PCI, at string) {
	if to, ok := r.link(at + "/driver"); ok {
		p.Driver = path.Base(to)
	}
	if to, ok := r.link(at + "/iommu_group"); ok {
		if n, err := strconv.Atoi(path.Base(to)); err == nil {
			p.Group = n
			p.GroupType = r.word(to + "/type")
		}
	}
	p.Speed, p.MaxSpeed = parseSpeed(r.word(at+"/current_link_speed")), parseSpeed(r.word(at+"/max_link_speed"))
	if p.Speed > 0 {
		p.Width, p.MaxWidth = r.number(at+"/current_link_width", 0), r.number(at+"/max_link_width", 0)
		if p.MaxWidth >= 255 { // of a device that does not say
			p.MaxWidth = 0
		}
	}
	if b, ok := r.raw(at + "/config"); ok {
		parseConfig(b, p)
		if len(b) <= 64 && len(b) > pciStatus && b[pciStatus]&pciStatusCaps != 0 {
			r.miss(at+"/config", errShort)
		}
	}
	if !p.Bridge() {
		p.BARs = parseResource(r.word(at + "/resource"))
	}
}

// gpus joins what the drivers of GPUs say with the devices that there are.
func (r *reader) gpus(f *Facts) {
	version := r.word("proc/driver/nvidia/version")
	var asked []GPU
	if s, ok := r.text(smiFile); ok {
		var err error
		if asked, err = parseSMI(s); err != nil {
			r.miss(smiFile, err)
		}
	}
	for i := range f.PCI {
		p := &f.PCI[i]
		// A function of class 0x03 that belongs to a mainboard's management chip is no GPU.
		if !p.Display() || p.Vendor != vendorNVIDIA && p.Vendor != vendorAMD && p.Vendor != vendorIntel {
			continue
		}
		g := GPU{Addr: p.Addr, Name: r.nvidiaName(p)}
		if j := slices.IndexFunc(asked, func(x GPU) bool { return x.Addr == p.Addr }); j >= 0 {
			name := g.Name
			g = asked[j]
			g.Asked = true
			if g.Name == "" {
				g.Name = name
			}
		}
		if g.Name == "" {
			g.Name = p.Name()
		}
		g.Open = p.Vendor == vendorNVIDIA && strings.Contains(version, "Open Kernel Module")
		g.Integrated = integrated(p, g.Name)
		f.GPUs = append(f.GPUs, g)
	}
}

// nvidiaName is the name that NVIDIA's driver gives a GPU.
func (r *reader) nvidiaName(p *PCI) string {
	if p.Vendor != vendorNVIDIA || p.Driver != "nvidia" {
		return ""
	}
	return parseFields(r.word("proc/driver/nvidia/gpus/" + p.Addr + "/information"))["Model"]
}

// integrated reports whether a GPU shares the machine's memory: those of NVIDIA's and AMD's chips
// with processors, and Intel's in processors, which are on the root bus.
func integrated(p *PCI, name string) bool {
	for _, s := range []string{"GB10", "Orin", "Thor", "Xavier", "Tegra"} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return p.Vendor == vendorIntel && p.Parent == ""
}
