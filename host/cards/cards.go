// Package cards lists the accelerators of a machine: runtimes, devices, their capabilities and
// links, and the network cards near them. It joins what the runtimes say with NVML and with the
// facts of the machine (host).
//
//	r := cards.Look(ctx, runtimes.Table(), host.Read(ctx, host.Live(ctx)))
//
// Of makes the same of facts alone, which is all that there is of a recorded machine.
package cards

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/host"
	"github.com/penstock-io/penstock/internal/nvml"
)

// Report is the accelerators of a machine.
type Report struct {
	Runtimes []Runtime `json:"runtimes"` // nil: of a recording, which has none
	NoNVML   string    `json:"no_nvml,omitempty"`
	Cards    []Card    `json:"cards"` // GPUs on the PCI bus, whether a runtime uses them or not
}

// Runtime is a library of accelerators.
type Runtime struct {
	Name    string   `json:"name"`
	Version string   `json:"version,omitempty"`
	Missing string   `json:"missing,omitempty"` // why it is not here; empty: it is
	Get     []string `json:"get,omitempty"`     // how to get it on this machine
	Devices []Device `json:"devices"`
}

// Device is a device of a runtime.
type Device struct {
	Index        int          `json:"index"`
	Name         string       `json:"name"`
	Arch         string       `json:"arch"`
	Driver       string       `json:"driver"`
	Units        int          `json:"units"` // multiprocessors, compute units, cores
	Memory       uint64       `json:"memory_bytes"`
	Free         uint64       `json:"free_bytes"`
	MaxAlloc     uint64       `json:"max_alloc_bytes"`
	Bus          string       `json:"bus,omitempty"` // PCI address; empty: on none
	Node         int          `json:"numa_node"`     // -1: not known
	Link         *Link        `json:"link,omitempty"`
	NVML         *nvml.Status `json:"nvml,omitempty"`
	Near         []Near       `json:"near"` // network cards, the nearest first
	Capabilities []Capability `json:"capabilities"`
	Error        string       `json:"error,omitempty"` // why no context could be opened; empty: it could
}

// Capability is something that a device can do, or why it cannot.
type Capability struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why,omitempty"`
}

// Link is a PCI Express link. Idle cards lower it, so that Now may be less than Max on a machine
// where all is well.
type Link struct {
	Now    Lane   `json:"now"`
	Max    Lane   `json:"max"`    // that card and slot can
	Source string `json:"source"` // "NVML" or "sysfs"
}

// Lane is the speed and width of a link.
type Lane struct {
	GTs   float64 `json:"gt_per_s"` // per lane; 0: not known
	Lanes int     `json:"lanes"`
}

// BytesPerSecond is what the link carries in one direction at most, after its line code; 0: not
// known.
func (l Lane) BytesPerSecond() float64 {
	return (&host.PCI{Speed: l.GTs, Width: l.Lanes}).BytesPerSecond()
}

// String is the link in words: "32 GT/s x16".
func (l Lane) String() string {
	if l.GTs == 0 || l.Lanes == 0 {
		return "not known"
	}
	return fmt.Sprintf("%g GT/s x%d", l.GTs, l.Lanes)
}

// Near is a network card and how far it is away.
type Near struct {
	PCI       string        `json:"pci"`
	Interface string        `json:"interface,omitempty"`
	RDMA      []string      `json:"rdma,omitempty"`
	Name      string        `json:"name"` // of the card
	Distance  host.Distance `json:"distance"`
	Direct    bool          `json:"direct"` // without the root complex
}

// Card is a GPU on the PCI bus.
type Card struct {
	Bus    string `json:"bus"`
	Name   string `json:"name"`
	Driver string `json:"driver,omitempty"` // of the kernel; empty: none
	Node   int    `json:"numa_node"`        // -1: not known
	Link   *Link  `json:"link,omitempty"`
	// the largest BAR: how much of its memory others see at once; 0: not known
	Window uint64 `json:"window_bytes,omitempty"`
	// Integrated: it shares the machine's memory.
	Integrated bool     `json:"integrated,omitempty"`
	Near       []Near   `json:"near"`
	UsedBy     []string `json:"used_by,omitempty"` // devices of runtimes, "cuda 0"; always nil of a recording
	Missing    string   `json:"missing,omitempty"` // why no runtime has it; empty: one has
	Get        []string `json:"get,omitempty"`
}

// Look opens every runtime of the table, asks its devices, and closes it. A device that cannot be
// opened is an entry with its Error, and a runtime that is not here one with Missing: nothing here
// fails.
func Look(ctx context.Context, t gpu.Table, f *host.Facts) *Report {
	r := Of(f)
	r.Runtimes = []Runtime{}
	lib, err := nvml.Load("")
	if err != nil {
		r.NoNVML = err.Error()
	} else {
		defer lib.Close()
	}
	for _, name := range t.Names() {
		x := Runtime{Name: name, Devices: []Device{}}
		rt, err := t.Open(name)
		if err != nil {
			x.Missing, x.Get = err.Error(), get(name, f)
			r.Runtimes = append(r.Runtimes, x)
			continue
		}
		x.Version = rt.Version()
		for _, d := range rt.Devices() {
			if ctx.Err() != nil {
				break
			}
			x.Devices = append(x.Devices, ask(d, f, lib))
		}
		if err := rt.Close(); err != nil {
			x.Missing = err.Error()
		}
		r.Runtimes = append(r.Runtimes, x)
	}
	r.join()
	return r
}

// Of is the cards that the facts of a machine have. It asks no runtime.
func Of(f *host.Facts) *Report {
	r := &Report{Cards: []Card{}}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		p := f.Device(g.Addr)
		if p == nil {
			continue
		}
		c := Card{Bus: g.Addr, Name: g.Name, Driver: p.Driver, Node: p.Node, Integrated: g.Integrated, Link: linkOf(p),
			Near: near(f, p), Window: p.Window()}
		c.Missing, c.Get = driverMissing(p)
		r.Cards = append(r.Cards, c)
	}
	return r
}

// join says of each card which device of a runtime it is.
func (r *Report) join() {
	for i := range r.Cards {
		c := &r.Cards[i]
		for _, x := range r.Runtimes {
			for _, d := range x.Devices {
				if d.Bus == c.Bus {
					c.UsedBy = append(c.UsedBy, fmt.Sprintf("%s %d", x.Name, d.Index))
				}
			}
		}
		switch {
		case c.UsedBy != nil:
			c.Missing, c.Get = "", nil
		case c.Missing == "":
			c.Missing = "no runtime here has it"
			c.Get = getFor(c.Driver)
		}
	}
}

// Describe is what the device says of itself, with what the facts and NVML know of it; lib may be
// nil. Its free memory is not asked for.
func Describe(info *gpu.Info, f *host.Facts, lib *nvml.Library) Device {
	d := Device{Index: info.Index, Name: info.Name, Arch: info.Arch, Driver: info.Driver, Units: info.Units,
		Memory: info.Memory, MaxAlloc: info.MaxAlloc,
		Bus: info.Bus, Node: info.NUMANode, Near: []Near{}}
	for c := range driver.NumCapabilities {
		s := info.Capabilities[c]
		d.Capabilities = append(d.Capabilities, Capability{c.String(), s.OK, s.Why})
	}
	if d.Bus == "" {
		return d
	}
	if p := f.Device(d.Bus); p != nil {
		d.Link, d.Near = linkOf(p), near(f, p)
		if d.Node < 0 {
			d.Node = p.Node
		}
	}
	if lib == nil {
		return d
	}
	card, err := lib.Device(d.Bus)
	if err != nil {
		return d // a card of another maker
	}
	if s, err := card.Status(); err == nil {
		d.NVML = &s
		if s.Link != nil && s.Max != nil {
			d.Link = &Link{Now: laneOf(s.Link), Max: laneOf(s.Max), Source: "NVML"}
		}
	}
	return d
}

// ask opens the device, for its free memory.
func ask(dev *gpu.Device, f *host.Facts, lib *nvml.Library) Device {
	info := dev.Info()
	d := Describe(&info, f, lib)
	c, err := dev.Open()
	if err != nil {
		d.Error = err.Error()
		return d
	}
	free, total, err := c.MemoryInfo()
	if err == nil {
		d.Free, d.Memory = free, total
	}
	if cerr := c.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		d.Error = err.Error()
	}
	return d
}

// transferRates are GT/s by generation of PCI Express, from 1.
var transferRates = []float64{2.5, 5, 8, 16, 32, 64, 128}

func laneOf(p *nvml.PCIe) Lane {
	if p.Generation < 1 || p.Generation > len(transferRates) {
		return Lane{}
	}
	return Lane{transferRates[p.Generation-1], p.Lanes}
}

func linkOf(p *host.PCI) *Link {
	if p.MaxSpeed == 0 || p.MaxWidth == 0 {
		return nil
	}
	return &Link{Now: Lane{p.Speed, p.Width}, Max: Lane{p.MaxSpeed, p.MaxWidth}, Source: "sysfs"}
}

// distances are those of host, from near to far.
var distances = []host.Distance{host.Same, host.OneBridge, host.Bridges, host.RootComplex, host.InNode, host.System}

// near are the network cards of a machine by their distance to a device: interfaces, and RDMA
// devices that have none.
func near(f *host.Facts, p *host.PCI) []Near {
	out := []Near{}
	add := func(addr, name string) *Near {
		n := f.Device(addr)
		if n == nil || n.Addr == p.Addr {
			return nil
		}
		d := f.Distance(p, n)
		out = append(out, Near{PCI: addr, Interface: name, Name: n.Name(), Distance: d, Direct: d.Direct()})
		return &out[len(out)-1]
	}
	for i := range f.Nets {
		n := &f.Nets[i]
		x := add(n.PCI, n.Name)
		for _, r := range f.RDMA {
			if x != nil && (r.Net == n.Name || r.Net == "" && r.PCI == n.PCI) {
				x.RDMA = append(x.RDMA, r.Name)
			}
		}
	}
	for _, r := range f.RDMA {
		if !slices.ContainsFunc(out, func(x Near) bool { return slices.Contains(x.RDMA, r.Name) }) {
			if x := add(r.PCI, ""); x != nil {
				x.RDMA = []string{r.Name}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Near) int {
		return cmp.Or(cmp.Compare(slices.Index(distances, a.Distance), slices.Index(distances, b.Distance)),
			strings.Compare(a.PCI, b.PCI))
	})
	return out
}
