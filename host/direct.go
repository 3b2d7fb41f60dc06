package host

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Lack is something that is missing, or in the way.
type Lack struct {
	Read    string   // what is so
	Needed  string   // what should be so
	Fix     []string // commands, or what to do in words
	Unknown bool     // nothing is known of it here: it may work all the same
}

// String is the lack in one line.
func (l Lack) String() string {
	s := l.Read
	if l.Needed != "" {
		s += " (needed: " + l.Needed + ")"
	}
	if len(l.Fix) > 0 {
		s += ": " + strings.Join(l.Fix, "; ")
	}
	return s
}

// Pair is what a network card can do with the memory of a GPU. There are two ways; a way of which
// nothing is missing is open, as far as the machine's files tell.
type Pair struct {
	DMABuf []Lack // of the way by dma-buf, which drivers of both sides share with the kernel
	Peer   []Lack // of the way by peer memory: a module of the GPU's vendor that answers for addresses of the GPU
	// Detours are what lies between both although a way is open: then it is slow, or the card
	// refuses.
	Detours []Lack
}

// Open reports whether there is a way.
func (p *Pair) Open() bool { return len(p.DMABuf) == 0 || len(p.Peer) == 0 }

// String says what is missing for each way, and what is between both, in one line.
func (p *Pair) String() string {
	var parts []string
	for _, x := range []struct {
		name  string
		lacks []Lack
	}{{"by dma-buf", p.DMABuf}, {"by peer memory", p.Peer}, {"between them", p.Detours}} {
		for _, l := range x.lacks {
			parts = append(parts, x.name+": "+l.String())
		}
	}
	return strings.Join(parts, "; ")
}

// ReadDirect reads of a machine what says whether network cards reach the memory of GPUs: the
// kernel, its modules, PCI devices, GPUs.
func ReadDirect(ctx context.Context, tree fs.FS) *Facts {
	r := &reader{ctx: ctx, tree: tree, missing: map[string]string{}}
	f := &Facts{Missing: r.missing}
	r.system(f)
	r.pci(f)
	r.gpus(f)
	return f
}

// GPU finds a GPU by its PCI address; nil: there is none.
func (f *Facts) GPU(addr string) *GPU {
	for i := range f.GPUs {
		if f.GPUs[i].Addr == addr {
			return &f.GPUs[i]
		}
	}
	return nil
}

// Pair says what is missing for a network card to reach the memory of a GPU. card is nil where the
// card is on no bus (a software device) or is not known; refusal is why the card's driver takes no
// dma-bufs, "" where it does or was not asked.
func (f *Facts) Pair(g *GPU, card *PCI, refusal string) Pair {
	out := Pair{DMABuf: f.LacksDMABuf(g), Peer: f.LacksPeerMemory(g)}
	if refusal != "" {
		out.DMABuf = append(out.DMABuf, LackOfAdapter(refusal))
	}
	if card != nil {
		out.Detours = f.Detours(f.Device(g.Addr), card)
	}
	return out
}

// LackOfAdapter is the lack of a network card that takes no dma-bufs, for the reason that
// libibverbs gives.
func LackOfAdapter(refusal string) Lack {
	return Lack{Read: "the adapter takes no dma-buf (" + refusal + ")",
		Needed: "a driver that does: mlx5, irdma, efa or bnxt_re"}
}

// KernelAtLeast reports whether the kernel has this version or a later one; ok is false where the
// version is not known.
func (f *Facts) KernelAtLeast(major, minor int) (is, ok bool) {
	a, rest, _ := strings.Cut(f.Kernel, ".")
	if end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		rest = rest[:end]
	}
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(rest)
	if err1 != nil || err2 != nil {
		return false, false
	}
	return x > major || x == major && y >= minor, true
}

// driverOf is the driver of a GPU, "" where it has none.
func (f *Facts) driverOf(g *GPU) string {
	if p := f.Device(g.Addr); p != nil {
		return p.Driver
	}
	return ""
}

// LacksDMABuf is what is missing for the memory of a GPU as a dma-buf: Linux 5.12 registers them
// for RDMA, and NVIDIA's driver exports them from its open modules only (since 515, with CUDA
// 11.7).
func (f *Facts) LacksDMABuf(g *GPU) (out []Lack) {
	switch driver := f.driverOf(g); driver {
	case "amdgpu":
	case "nvidia":
		if !g.Open {
			out = append(out, Lack{Read: "the driver's modules are not NVIDIA's open ones",
				Needed: "the open modules, of driver 515 or later",
				Fix:    []string{"install nvidia-open, which replaces them"}})
		}
	case "", "vfio-pci":
		out = append(out, Lack{Read: "the GPU has no driver of its own", Needed: "the vendor's driver"})
	default:
		out = append(out, Lack{Read: "nothing is known here of driver " + driver, Unknown: true})
	}
	if is, ok := f.KernelAtLeast(5, 12); ok && !is {
		out = append(out, Lack{Read: "Linux " + f.Kernel,
			Needed: "Linux 5.12 or later, which registers dma-bufs for RDMA"})
	}
	return out
}

// peerModules are what answers for addresses of NVIDIA's GPUs: the driver's own module, and the one
// that it came from.
var peerModules = []string{"nvidia_peermem", "nv_peer_mem"}

// LacksPeerMemory is what is missing for a card to find the memory of a GPU by its address.
func (f *Facts) LacksPeerMemory(g *GPU) []Lack {
	driver := f.driverOf(g)
	switch {
	case driver == "nvidia" && slices.ContainsFunc(peerModules, func(m string) bool {
		return slices.Contains(f.Modules, m)
	}):
		return nil
	case driver == "nvidia":
		return []Lack{{Read: "nvidia-peermem is not loaded",
			Needed: "nvidia-peermem, and a kernel whose RDMA part has peer memory",
			Fix:    []string{"modprobe nvidia-peermem"}}}
	case driver == "" || driver == "vfio-pci":
		return []Lack{{Read: "the GPU has no driver of its own", Needed: "the vendor's driver"}}
	}
	return []Lack{{Read: "driver " + driver + " has no module for it"}}
}

// PeerMemory reports whether a module is loaded that answers for addresses of GPUs. It reads no
// more than that.
func PeerMemory(tree fs.FS) bool {
	return slices.ContainsFunc(peerModules, func(m string) bool {
		_, err := fs.Stat(tree, "sys/module/"+m)
		return err == nil
	})
}

// LacksWindow is a GPU whose largest BAR, through which cards see its memory, is smaller than n
// bytes; nil: it is large enough, or not known.
func (f *Facts) LacksWindow(g *GPU, n uint64) *Lack {
	p := f.Device(g.Addr)
	if p == nil || len(p.BARs) == 0 || p.Window() >= n {
		return nil
	}
	return &Lack{Read: fmt.Sprintf("the GPU's largest window (BAR) shows %d bytes of its memory", p.Window()),
		Needed: fmt.Sprintf("%d bytes", n),
		Fix:    []string{"in the firmware: above 4G decoding and resizable BAR on"}}
}

// Window is the size in bytes of a device's largest BAR, 0 where none is known.
func (p *PCI) Window() (n uint64) {
	for _, size := range p.BARs {
		n = max(n, size)
	}
	return n
}

// Translated reports whether the IOMMU translates the addresses of a device.
func (p *PCI) Translated() bool { return strings.HasPrefix(p.GroupType, "DMA") }

// Switches are the downstream ports of switches above two devices, whose access control decides
// which way bytes between them go. They are known only where the capabilities of PCI Express could
// be read.
func (f *Facts) Switches(a, b *PCI) (out []*PCI) {
	for _, p := range slices.Concat(f.Above(a), f.Above(b)) {
		if p.Port == PortDownstream && p.Express && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// Detours are what keeps bytes from going straight between two devices: an IOMMU that translates,
// bridges that redirect, another NUMA node.
func (f *Facts) Detours(a, b *PCI) (out []Lack) {
	if a == nil || b == nil {
		return nil
	}
	for _, p := range []*PCI{a, b} {
		if p.Translated() {
			out = append(out, Lack{Read: fmt.Sprintf("the IOMMU translates each address of %s (%s)", p.Addr,
				p.GroupType), Needed: "identity",
				Fix: []string{"iommu=pt on the kernel's command line, and a reboot"}})
		}
	}
	d := f.Distance(a, b)
	if d.Direct() {
		for _, p := range f.Switches(a, b) {
			if p.ACS.Detours() {
				out = append(out, Lack{Read: fmt.Sprintf("access control (ACS) of bridge %s redirects", p.Addr),
					Needed: "no redirect", Fix: []string{fmt.Sprintf("setpci -s %s ECAP_ACS+6.w=0000", p.Addr)}})
			}
		}
	}
	if d == System {
		out = append(out, Lack{Read: "they are on different NUMA nodes (SYS)",
			Needed: "below one switch or root complex", Fix: []string{"another slot for the card, or another card"}})
	}
	return out
}
