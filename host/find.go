package host

import (
	"slices"
	"strings"
)

// Device is the PCI device at an address; nil if there is none.
func (f *Facts) Device(addr string) *PCI {
	i, ok := slices.BinarySearchFunc(f.PCI, addr, func(p PCI, a string) int { return strings.Compare(p.Addr, a) })
	if !ok {
		return nil
	}
	return &f.PCI[i]
}

// Net is the interface of a name, or else the first one of the card at an address; nil if there is
// none.
func (f *Facts) Net(name string) *Net {
	for i := range f.Nets {
		if f.Nets[i].Name == name {
			return &f.Nets[i]
		}
	}
	for i := range f.Nets {
		if name != "" && f.Nets[i].PCI == shortAddr(name) {
			return &f.Nets[i]
		}
	}
	return nil
}

// CPU is the processor of a number if it is online; else nil.
func (f *Facts) CPU(id int) *CPU {
	for i := range f.CPUs {
		if f.CPUs[i].ID == id {
			return &f.CPUs[i]
		}
	}
	return nil
}

// Node is the NUMA node of a number; nil if there is none.
func (f *Facts) Node(id int) *Node {
	for i := range f.Nodes {
		if f.Nodes[i].ID == id {
			return &f.Nodes[i]
		}
	}
	return nil
}

// Option is the value of the last option of a name on the kernel's command line.
func (f *Facts) Option(name string) (value string, ok bool) {
	for _, o := range f.Options {
		if o.Name == name {
			value, ok = o.Value, true
		}
	}
	return value, ok
}

// Why is why something below a path could not be read; empty if nothing was missed there.
func (f *Facts) Why(prefix string) string {
	best := ""
	for p := range f.Missing {
		if strings.HasPrefix(p, prefix) && (best == "" || p < best) {
			best = p
		}
	}
	if best == "" {
		return ""
	}
	return best + ": " + f.Missing[best]
}

// Above are the bridges above a device, the nearest first. A loop, which a hostile tree may have,
// ends it.
func (f *Facts) Above(p *PCI) (out []*PCI) {
	for p != nil && p.Parent != "" && len(out) < 32 {
		if p = f.Device(p.Parent); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// Distance is how far two PCI devices are apart, in the words of "nvidia-smi topo": the farther,
// the slower.
type Distance string

// Distances.
const (
	Same        Distance = "X"    // one device
	OneBridge   Distance = "PIX"  // below one bridge or switch
	Bridges     Distance = "PXB"  // over several bridges, without the root complex
	RootComplex Distance = "PHB"  // over one root complex
	InNode      Distance = "NODE" // over two root complexes of one NUMA node
	System      Distance = "SYS"  // over the connection between NUMA nodes
)

// Direct reports whether two devices reach each other without the root complex.
func (d Distance) Direct() bool { return d == Same || d == OneBridge || d == Bridges }

// Distance tells how far two devices are apart. Functions of one card count as one device.
func (f *Facts) Distance(a, b *PCI) Distance {
	card := func(p *PCI) string { return p.Addr[:strings.LastIndexByte(p.Addr, '.')] }
	if card(a) == card(b) {
		return Same
	}
	if a.Root != b.Root {
		if a.Node == b.Node {
			return InNode
		}
		return System
	}
	// The bridges up to the first one that both are below. A port of a switch is a bridge with
	// another above it, so those below one switch have two bridges on each side of it.
	up := func(p *PCI) (out []string) {
		for _, x := range f.Above(p) {
			out = append(out, x.Addr)
		}
		return out
	}
	ua, ub := up(a), up(b)
	for i, x := range ua {
		if j := slices.Index(ub, x); j >= 0 {
			if i <= 1 && j <= 1 {
				return OneBridge
			}
			return Bridges
		}
	}
	return RootComplex
}
