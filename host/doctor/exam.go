package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/host"
)

// Check is one thing that Run looks at.
type Check struct {
	ID    string `json:"id"`    // a word for --skip and for programs
	Title string `json:"title"` // for people
	Why   string `json:"why"`   // why it matters

	run func(*exam)
}

// Checks lists all checks in the order in which they are done.
func Checks() []Check { return slices.Clone(checks) }

// exam is one check at work on one machine.
type exam struct {
	f         *host.Facts
	n         Needs
	id, title string
	out       []Finding
}

func (x *exam) add(f Finding) {
	f.Check, f.Title = x.id, x.title
	if f.At == nil && f.Verdict != NotApplicable && f.Verdict != OK {
		f.At = x.placeOf(f.Subject)
		if f.At == nil && strings.HasPrefix(x.id, "rdma") {
			f.At = x.verbsPlaces()
		}
	}
	x.out = append(x.out, f)
}

// placeOf is where a file names the interface that is the subject of a finding, or the card that
// carries it.
func (x *exam) placeOf(subject string) (out []Place) {
	for _, i := range x.n.Interfaces {
		name := i.Name
		if n := x.f.Net(i.Name); n != nil {
			name = n.Name
		}
		if i.At != (Place{}) && subject != "" && (subject == i.Name || subject == name ||
			strings.HasPrefix(subject, name+" (")) {
			out = append(out, i.At)
		}
	}
	return out
}

// verbsPlaces are where a file asks for RDMA.
func (x *exam) verbsPlaces() (out []Place) {
	for _, i := range x.n.Interfaces {
		if wants(i.Engine).RDMA && i.At != (Place{}) {
			out = append(out, i.At)
		}
	}
	for i := range x.n.Sockets {
		if s := &x.n.Sockets[i]; wants(s.Engine).RDMA && s.At != (Place{}) {
			out = append(out, s.At)
		}
	}
	return out
}

// at is the place of a member of what is wanted of an interface, such as "mtu"; nil where it is not
// of a file.
func (i *Interface) at(member string) []Place {
	if p, ok := i.Places[member]; ok {
		return []Place{p}
	}
	return nil
}

// at is the place of a member, or else of the section.
func (s *Socket) at(member string) []Place {
	if p, ok := s.Places[member]; ok {
		return []Place{p}
	}
	if s.At != (Place{}) {
		return []Place{s.At}
	}
	return nil
}

// usesOf are the places where a file names some of these cores.
func (x *exam) usesOf(cores []int) (out []Place) {
	for _, u := range x.n.Uses {
		if slices.Contains(cores, u.Core) {
			out = append(out, u.At)
		}
	}
	return out
}

// polling are the cores that pollers are bound to: all, where it is not known what they are for.
func (x *exam) polling() (out []int) {
	if x.n.Uses == nil {
		return slices.Sorted(slices.Values(x.n.Cores))
	}
	for _, u := range x.n.Uses {
		if u.Polls && !slices.Contains(out, u.Core) {
			out = append(out, u.Core)
		}
	}
	slices.Sort(out)
	return out
}

// working are the cores that work on an interface's packets: all, where it is not known what they
// are for.
func (x *exam) working(iface string) (out []int) {
	if x.n.Uses == nil {
		return slices.Sorted(slices.Values(x.n.Cores))
	}
	for _, u := range x.n.Uses {
		if u.Interface == iface && !slices.Contains(out, u.Core) {
			out = append(out, u.Core)
		}
	}
	slices.Sort(out)
	return out
}

func (x *exam) ok(subject, read string) { x.add(Finding{Subject: subject, Verdict: OK, Read: read}) }
func (x *exam) skip(why string)         { x.add(Finding{Verdict: NotApplicable, Why: why}) }
func (x *exam) unknown(subject, why string, fix ...string) {
	if why == "" {
		why = "the kernel does not say"
	}
	x.add(Finding{Subject: subject, Verdict: Unknown, Why: why, Fix: fix})
}

// bad is Fail for what is needed, and else Warn.
func (x *exam) bad(needed bool) Verdict {
	if needed {
		return Fail
	}
	return Warn
}

// used is an interface to look at, with what is wanted of it.
type used struct {
	Interface
	net    *host.Net
	needed bool
	asked  string // Interface.Name as it was asked for: Name is that of the kernel
}

// nets are the interfaces to look at: those that are needed and here, or else all cards that are
// up.
func (x *exam) nets() (out []used) {
	for _, i := range x.n.Interfaces {
		if n := x.f.Net(i.Name); n != nil {
			asked := i.Name
			i.Name = n.Name
			out = append(out, used{i, n, true, asked})
		}
	}
	if x.n.Interfaces != nil {
		return out
	}
	for i := range x.f.Nets {
		if n := &x.f.Nets[i]; !n.Virtual && n.Up {
			out = append(out, used{Interface{Name: n.Name}, n, false, n.Name})
		}
	}
	return out
}

// fast reports whether an interface is one for which the machine has to be set up with care: 10
// Gb/s and more.
func fast(n *host.Net) bool { return n.Mbits >= 10000 }

// fast reports whether the machine has such an interface, or the needs name one.
func (x *exam) fast() bool {
	return len(x.n.Interfaces) > 0 || slices.ContainsFunc(x.f.Nets, func(n host.Net) bool {
		return !n.Virtual && n.Up && fast(&n)
	})
}

// cards are the PCI devices to look at: of the interfaces, and of GPUs.
func (x *exam) cards() (out []*host.PCI) {
	for _, u := range x.nets() {
		if p := x.f.Device(u.net.PCI); p != nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, g := range x.gpus() {
		if p := x.f.Device(g.Addr); p != nil && !g.Integrated && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// gpus are the GPUs to look at: those that are needed and here, or else all that can take part: not
// Intel's in processors.
func (x *exam) gpus() (out []*host.GPU) {
	named := x.n.GPUs != nil && !slices.Contains(x.n.GPUs, AnyGPU)
	number := 0
	for i := range x.f.GPUs {
		g := &x.f.GPUs[i]
		p := x.f.Device(g.Addr)
		fit := p != nil && (!g.Integrated || p.Driver == "nvidia")
		if named && slices.Contains(x.n.GPUs, g.Addr) || fit &&
			(!named || slices.Contains(x.n.GPUs, strconv.Itoa(number))) {
			out = append(out, g)
		}
		if fit {
			number++
		}
	}
	return out
}

// gpu is the GPU that one of Needs.GPUs means; nil if there is none. AnyGPU is the first.
func (x *exam) gpu(want string) *host.GPU {
	y := *x
	y.n.GPUs = []string{want}
	if all := y.gpus(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// noGPU is why a check says nothing of GPUs.
func (x *exam) noGPU() string {
	if x.n.GPUs != nil && len(x.n.GPUs) == 0 {
		return "no memory of CUDA's GPUs is asked for"
	}
	return "there is no GPU"
}

// direct reports whether network cards have to reach the memory of a GPU: not if a file has it in
// the host's memory alone.
func (x *exam) direct() bool {
	return len(x.n.GPUs) > 0 && (!x.n.Whole || slices.ContainsFunc(x.n.Memory, func(m Memory) bool {
		return m.Kind == "device"
	}))
}

// memoryOf are the places where a file has memory of a GPU.
func (x *exam) memoryOf(g *host.GPU) (out []Place) {
	for _, m := range x.n.Memory {
		if m.GPU != "" && x.gpu(m.GPU) == g {
			out = append(out, m.At)
		}
	}
	return out
}

// name is a PCI device for people: the interface that it carries, or its name, with its address.
func (x *exam) name(p *host.PCI) string {
	for i := range x.f.Nets {
		if x.f.Nets[i].PCI == p.Addr {
			return fmt.Sprintf("%s (%s)", x.f.Nets[i].Name, p.Addr)
		}
	}
	for i := range x.f.GPUs {
		if x.f.GPUs[i].Addr == p.Addr {
			return fmt.Sprintf("%s (%s)", x.f.GPUs[i].Name, p.Addr)
		}
	}
	return fmt.Sprintf("%s (%s)", p.Name(), p.Addr)
}

// cores are the processors to look at: those that are needed, or else all.
func (x *exam) cores() (out []*host.CPU) {
	for i := range x.f.CPUs {
		if c := &x.f.CPUs[i]; len(x.n.Cores) == 0 || slices.Contains(x.n.Cores, c.ID) {
			out = append(out, c)
		}
	}
	return out
}

// sizeText is a number of bytes in the largest unit that fits without a rest; large ones that none
// fits are rounded.
func sizeText(n uint64) string {
	for _, u := range []struct {
		bits int
		name string
	}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if v := n >> u.bits; v<<u.bits == n && v > 0 && v < 1<<17 {
			return fmt.Sprintf("%d %s", v, u.name)
		}
	}
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d bytes", n)
}

// speedText is a rate of an interface.
func speedText(mbits int) string {
	if mbits >= 1000 {
		return fmt.Sprintf("%g Gb/s", float64(mbits)/1000)
	}
	return fmt.Sprintf("%d Mb/s", mbits)
}

// without are the members of a that are not in b.
func without(a, b []int) (out []int) {
	for _, x := range a {
		if !slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out
}

func common(a, b []int) (out []int) {
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out
}

// forWhat names what needs something: interfaces, or the machine in general.
func forWhat(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "for " + strings.Join(names, ", ")
}
