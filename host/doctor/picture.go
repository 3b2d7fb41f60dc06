package doctor

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock/host"
)

// thing is a line of the picture: a bridge, a card, an interface. The text and the SVG are made of
// the same things.
type thing struct {
	kind     string // "root", "bridge", "nic", "gpu", "disk", "net"
	name     string
	detail   string // what there is to say of it
	link     string // to what is above it
	slow     bool   // the link or the thing is less than it could be
	addr     string
	children []*thing
}

// part is what belongs to one NUMA node, or to none.
type part struct {
	node    *host.Node // nil: the machine has no NUMA nodes, or what is here belongs to none
	title   string
	cpus    []*host.CPU
	devices []*thing
}

// drawing is a machine, sorted for a picture.
type drawing struct {
	title  string
	parts  []part
	queues map[int][]string // by processor: the interfaces and queues whose interrupts it gets, "eth0 3"
	nets   []string         // with queues, in order
	far    []distance
}

type distance struct {
	gpu, net string
	d        host.Distance
}

// drawn reports whether a device is in the picture.
func drawn(p *host.PCI) bool {
	const aspeed = 0x1a03 // the screen of a server's management chip
	return (p.Network() || p.Display() || p.Storage()) && p.Vendor != aspeed
}

func draw(f *host.Facts) *drawing {
	d := &drawing{title: summary(f), queues: map[int][]string{}}
	things := map[string]*thing{}
	roots := map[string]*thing{}
	nodes := map[string]int{} // of roots
	var order []string
	for i := range f.PCI {
		p := &f.PCI[i]
		if !drawn(p) {
			continue
		}
		top := card(f, p)
		things[p.Addr] = top
		known := false
		for _, b := range f.Above(p) {
			above, there := things[b.Addr]
			if !there {
				above = &thing{kind: "bridge", name: b.Name(), addr: b.Addr, link: linkText(b)}
				if b.Port == host.PortDownstream {
					above.name, above.link = above.name+", port", ""
				}
				things[b.Addr] = above
			}
			above.children = append(above.children, top)
			if known = there; known {
				break
			}
			top = above
		}
		if known {
			continue
		}
		r := roots[p.Root]
		if r == nil {
			r = &thing{kind: "root", name: p.Root}
			roots[p.Root] = r
			nodes[p.Root] = -1
			order = append(order, p.Root)
		}
		if p.Node >= 0 {
			nodes[p.Root] = p.Node
		}
		r.children = append(r.children, top)
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		x := part{node: n, title: nodeTitle(f, n)}
		for j := range f.CPUs {
			if slices.Contains(n.CPUs, f.CPUs[j].ID) {
				x.cpus = append(x.cpus, &f.CPUs[j])
			}
		}
		for _, root := range order {
			if nodes[root] == n.ID || nodes[root] < 0 && len(f.Nodes) == 1 {
				x.devices = append(x.devices, shorten(roots[root]))
				nodes[root] = -2
			}
		}
		d.parts = append(d.parts, x)
	}
	rest := part{title: "of no NUMA node"}
	if len(f.Nodes) == 0 {
		rest.title = plural(len(f.CPUs), "processor")
		for j := range f.CPUs {
			rest.cpus = append(rest.cpus, &f.CPUs[j])
		}
	}
	for _, root := range order {
		if nodes[root] != -2 {
			rest.devices = append(rest.devices, shorten(roots[root]))
		}
	}
	if rest.devices != nil || rest.cpus != nil {
		d.parts = append(d.parts, rest)
	}
	d.place(f)
	return d
}

// place finds out which processor serves which queue, and how far GPUs and network cards are apart.
func (d *drawing) place(f *host.Facts) {
	for i := range f.Nets {
		n := &f.Nets[i]
		q := queueMap(n)
		if len(q) == 0 {
			continue
		}
		d.nets = append(d.nets, n.Name)
		for _, x := range q {
			d.queues[x[1]] = append(d.queues[x[1]], fmt.Sprintf("%s %d", n.Name, x[0]))
		}
	}
	for i := range f.GPUs {
		g := f.Device(f.GPUs[i].Addr)
		if f.GPUs[i].Integrated {
			continue
		}
		for j := range f.Nets {
			if p := f.Device(f.Nets[j].PCI); p != nil {
				d.far = append(d.far, distance{f.GPUs[i].Name, f.Nets[j].Name, f.Distance(g, p)})
			}
		}
	}
}

// queueMap is the processor of each queue of an interface that has one alone, in order.
func queueMap(n *host.Net) (out [][2]int) {
	seen := map[int]bool{}
	for _, q := range n.IRQs {
		at := q.CPUs
		if len(q.Effective) > 0 {
			at = q.Effective
		}
		if q.Queue < 0 || seen[q.Queue] || len(at) != 1 {
			continue
		}
		seen[q.Queue] = true
		out = append(out, [2]int{q.Queue, at[0]})
	}
	slices.SortFunc(out, func(a, b [2]int) int { return a[0] - b[0] })
	return out
}

// queueText is the same in words.
func queueText(n *host.Net) string {
	m := queueMap(n)
	if len(m) == 0 {
		return ""
	}
	even := true
	var cpus []int
	for i, x := range m {
		even = even && x[0] == i && x[1] == m[0][1]+i
		cpus = append(cpus, x[1])
	}
	if len(m) == 1 {
		return fmt.Sprintf("queue %d on processor %d", m[0][0], m[0][1])
	}
	if even {
		return fmt.Sprintf("queues 0-%d on processors %s", len(m)-1, host.List(cpus))
	}
	slices.Sort(cpus)
	return fmt.Sprintf("%s on processors %s", plural(len(m), "queue"), host.List(slices.Compact(cpus)))
}

func nodeTitle(f *host.Facts, n *host.Node) string {
	s := fmt.Sprintf("NUMA node %d: ", n.ID)
	if n.Total > 0 {
		s += fmt.Sprintf("%d GiB, ", (n.Total+1<<29)>>30)
	}
	if len(n.CPUs) == 0 {
		return s + "no processors"
	}
	s += "processors " + host.List(n.CPUs)
	if iso := common(n.CPUs, f.Isolated); iso != nil {
		s += ", isolated " + host.List(iso)
	}
	for _, p := range n.Huge {
		if p.Total > 0 {
			s += fmt.Sprintf("; %s", poolText(p))
		}
	}
	return s
}

// linkText is a device's link to what is above it.
func linkText(p *host.PCI) string {
	if p.Speed == 0 {
		return ""
	}
	return fmt.Sprintf("%g GT/s x%d", p.Speed, p.Width)
}

// card is a device with what it carries.
func card(f *host.Facts, p *host.PCI) *thing {
	t := &thing{kind: "disk", name: p.Name(), addr: p.Addr, link: linkText(p)}
	if p.Width < p.MaxWidth || p.Speed < p.MaxSpeed {
		t.link += fmt.Sprintf(" of %g x%d", p.MaxSpeed, p.MaxWidth)
		t.slow = !p.Display() || p.Width < p.MaxWidth // GPUs slow their link down while it is idle
	}
	switch {
	case p.Network():
		t.kind = "nic"
	case p.Display():
		t.kind = "gpu"
		for i := range f.GPUs {
			if g := &f.GPUs[i]; g.Addr == p.Addr {
				t.name = g.Name
				if g.Integrated {
					t.detail = "shares the machine's memory"
				}
			}
		}
		if most := p.Window(); most > 0 && t.detail == "" {
			t.detail = "window " + sizeText(most)
		}
	}
	if p.Driver != "" {
		t.detail = strings.TrimPrefix(t.detail+", "+p.Driver, ", ")
	}
	for i := range f.Nets {
		n := &f.Nets[i]
		if n.PCI != p.Addr {
			continue
		}
		state := "down"
		if n.Up {
			state = "up"
			if n.Carrier == "down" {
				state = "no carrier"
			}
		}
		parts := []string{state}
		if n.Mbits > 0 {
			parts = append(parts, speedText(n.Mbits))
		}
		if n.MTU > 0 {
			parts = append(parts, fmt.Sprintf("MTU %d", n.MTU))
		}
		for _, r := range f.RDMA {
			if r.Net == n.Name || r.Net == "" && r.PCI == p.Addr {
				parts = append(parts, r.Name)
			}
		}
		if n.Clock >= 0 {
			parts = append(parts, fmt.Sprintf("ptp%d", n.Clock))
		}
		if q := queueText(n); q != "" {
			parts = append(parts, q)
		}
		t.children = append(t.children, &thing{kind: "net", name: n.Name, detail: strings.Join(parts, ", "),
			slow: state != "up"})
	}
	return t
}

// shorten takes bridges out of a chain that say nothing: a root port with one thing below it, whose
// link is that thing's.
func shorten(t *thing) *thing {
	for i, c := range t.children {
		for c.kind == "bridge" && len(c.children) == 1 && (t.kind == "root" || c.children[0].kind != "bridge") {
			c = c.children[0]
		}
		t.children[i] = shorten(c)
	}
	return t
}

// Picture is the machine as a tree of text in lines of at most 80 columns: NUMA nodes, root
// complexes, switches, cards, interfaces with the processors of their queues, and how far GPUs and
// network cards are apart.
func (m Machine) Picture() string {
	d := draw(m.facts)
	var b strings.Builder
	fill(&b, "", "", d.title)
	for _, p := range d.parts {
		b.WriteByte('\n')
		fill(&b, "", "    ", p.title)
		for i, t := range p.devices {
			t.write(&b, "", i == len(p.devices)-1)
		}
	}
	if len(d.far) > 0 {
		b.WriteString("\nFrom GPU to interface: PIX, PXB below one switch; PHB, NODE over the processor;\nSYS over " +
			"the connection between processors\n")
		for _, x := range d.far {
			fmt.Fprintf(&b, "  %-4s  %s\n", x.d, clip(x.gpu+" to "+x.net, textWidth-8))
		}
	}
	return b.String()
}

func (t *thing) write(b *strings.Builder, indent string, last bool) {
	branch, below := "├─ ", "│  "
	if last {
		branch, below = "└─ ", "   "
	}
	head := t.name
	if t.addr != "" {
		head = t.addr + " " + t.name
	}
	rest := t.detail
	if t.link != "" {
		rest = strings.TrimPrefix(rest+", ", ", ") + t.link
	}
	if rest != "" {
		head += ": " + rest
	}
	more := indent + below + "  "
	if len(t.children) > 0 {
		more = indent + below + "│ "
	}
	fill(b, indent+branch, more, head)
	for i, c := range t.children {
		c.write(b, indent+below, i == len(t.children)-1)
	}
}

// clip is the beginning of a text that takes at most n columns.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-2]) + ".."
}
