package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/packet"
)

// Host is what a configuration is compared with: facts of one machine, which the caller has read.
// This package reads none.
type Host struct {
	Name       string          `json:"name,omitempty"`
	Cores      []int           `json:"cores"` // online, ascending
	Nodes      []HostNode      `json:"nodes"` // ascending
	Interfaces []HostInterface `json:"interfaces"`
	GPUs       int             `json:"gpus"` // that a runtime may have; PCI devices, without those in processors
}

// HostNode is a NUMA node.
type HostNode struct {
	ID     int         `json:"id"`
	Cores  []int       `json:"cores"`
	Memory Size        `json:"memory"` // free
	Huge   []HostPages `json:"huge_pages,omitempty"`
}

// HostPages are huge pages of one size on one node.
type HostPages struct {
	Size  Size `json:"size"`
	Total int  `json:"total"`
	Free  int  `json:"free"`
}

// HostInterface is a network interface.
type HostInterface struct {
	Name      string         `json:"name"`
	Driver    string         `json:"driver,omitempty"`
	PCI       string         `json:"pci,omitempty"` // address such as 0000:01:00.0
	MAC       packet.MAC     `json:"mac"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Up        bool           `json:"up"`
	Loopback  bool           `json:"loopback,omitempty"`
	MTU       int            `json:"mtu"`
	Node      int            `json:"numa_node"` // -1: none or not known
	Queues    int            `json:"queues"`    // receive queues; 0: not known
	Speed     Rate           `json:"speed,omitempty"`
}

// Interface finds an interface by its name or by the PCI address of its card.
func (h *Host) Interface(address string) *HostInterface {
	for i := range h.Interfaces {
		if x := &h.Interfaces[i]; x.Name == address || x.PCI != "" && (x.PCI == address || x.PCI == "0000:"+address) {
			return x
		}
	}
	return nil
}

// nodeOf is the NUMA node of a core, or -1.
func (h *Host) nodeOf(core int) int {
	for _, n := range h.Nodes {
		if slices.Contains(n.Cores, core) {
			return n.ID
		}
	}
	return -1
}

// checkHost finds what the configuration asks of the machine that it does not have.
func (d *decoder) checkHost(h *Host) {
	c := d.cfg
	var names []string
	for _, i := range h.Interfaces {
		names = append(names, i.Name)
	}
	for i := range c.Interfaces {
		p := &c.Interfaces[i]
		if !p.Engine.needs().Interface || p.Address == "" {
			continue
		}
		path := item("interfaces", i)
		device := p.Engine.Spec().Device(p.Address)
		x := h.Interface(device)
		switch {
		case x != nil:
		case device == "" || p.Engine.needs().VFIO && pciAddress.MatchString(device):
			continue // a virtual device, or a card whose driver makes no interface: the engine finds it
		default:
			hint := ""
			if near := input.Nearest(device, names); near != "" {
				hint = fmt.Sprintf("did you mean %s?", near)
			}
			d.report(Needs, CodeHost, join(path, "address"),
				fmt.Sprintf("this machine has no network interface %s", shown(device)), listed(names), hint)
			continue
		}
		d.checkInterface(h, p, x, path)
	}
	for i := range c.Regions {
		r := &c.Regions[i]
		path := item("memory_regions", i)
		if (r.Kind == "host" || r.Kind == "huge") && r.NUMA >= 0 &&
			!slices.ContainsFunc(h.Nodes, func(n HostNode) bool {
				return n.ID == r.NUMA
			}) {
			d.report(Needs, CodeHost, join(path, "numa"), fmt.Sprintf("this machine has no NUMA node %d", r.NUMA),
				nodesOf(h), "")
		}
		if r.OnGPU() && r.Owned && r.GPU >= h.GPUs && (c.GPURuntime == "auto" || c.GPURuntime == "cuda") {
			expected := ""
			if h.GPUs > 0 {
				expected = fmt.Sprintf("0 to %d", h.GPUs-1)
			}
			d.report(Needs, CodeHost, join(path, "kind"),
				fmt.Sprintf("memory of kind %s is of GPU %d, and this machine has %s", r.Kind, r.GPU,
					plural(h.GPUs, "GPU")), expected,
				"gpu_runtime: host tries the file without one; kind: huge and kind: host are memory of this machine")
		}
	}
	for _, u := range c.CoreUses() {
		if !slices.Contains(h.Cores, u.Core) {
			d.report(Needs, CodeHost, u.Path, fmt.Sprintf("this machine has no core %d that is online", u.Core),
				coresOf(h), "")
		}
	}
	d.checkPages(h)
}

func (d *decoder) checkInterface(h *Host, p *Interface, x *HostInterface, path string) {
	if !x.Up {
		d.report(Warning, CodeHost, join(path, "address"), fmt.Sprintf("the network interface %s is down", x.Name), "",
			fmt.Sprintf("ip link set %s up", x.Name))
	}
	if p.MTU > x.MTU && x.MTU > 0 {
		d.report(Needs, CodeHost, join(path, "mtu"), fmt.Sprintf("the MTU of %s is %d", x.Name, x.MTU),
			fmt.Sprintf("%d", p.MTU), fmt.Sprintf("penstock tune nic %s --mtu %d shows how", x.Name, p.MTU))
	}
	if p.MTU == 0 && !x.Loopback {
		d.checkRoom(p, path, x.MTU, "the MTU of "+x.Name+",")
	}
	for _, q := range p.Asked() {
		if n, ok := q.Value.(int64); ok && q.What == "queues" && x.Queues > 0 && int(n) >= x.Queues {
			d.report(Needs, CodeHost, join(path, q.Path), fmt.Sprintf("%s has no queue %d", x.Name, n),
				fmt.Sprintf("0 to %d", x.Queues-1),
				fmt.Sprintf("penstock tune nic %s --queues %d shows how to have more", x.Name, n+1))
		}
	}
	if x.Node < 0 || len(h.Nodes) < 2 {
		return
	}
	near := func(path string, core int) {
		if n := h.nodeOf(core); core >= 0 && n >= 0 && n != x.Node {
			d.report(Warning, CodePlacement, path, fmt.Sprintf("core %d is on NUMA node %d, and %s is on node %d", core,
				n, x.Name, x.Node), fmt.Sprintf("a core of node %d", x.Node),
				"packets cross between the nodes otherwise")
		}
	}
	region := func(names []string, path string) {
		for k, name := range names {
			if r, _ := d.region(name); r != nil && r.NUMA >= 0 && r.NUMA != x.Node &&
				(r.Kind == "host" || r.Kind == "huge") {
				d.report(Warning, CodePlacement, join(path, item("memory_regions", k)),
					fmt.Sprintf("the memory %s is on NUMA node %d, and %s is on node %d", name, r.NUMA, x.Name, x.Node),
					"", "packets cross between the nodes")
			}
		}
	}
	for _, q := range p.queues(path) {
		near(join(q.path, "cpu_core"), q.core)
		region(*q.regions, q.path)
	}
}

func nodesOf(h *Host) string {
	if len(h.Nodes) == 1 {
		return fmt.Sprintf("%d, the only one", h.Nodes[0].ID)
	}
	var l []int
	for _, n := range h.Nodes {
		l = append(l, n.ID)
	}
	return spans(l)
}

func coresOf(h *Host) string { return spans(h.Cores) }

// spans writes ascending numbers as 0-3,8.
func spans(l []int) string {
	out := ""
	for i := 0; i < len(l); {
		k := i
		for k+1 < len(l) && l[k+1] == l[k]+1 {
			k++
		}
		if out != "" {
			out += ","
		}
		out += fmt.Sprint(l[i])
		if k > i {
			out += fmt.Sprintf("-%d", l[k])
		}
		i = k + 1
	}
	return out
}

// checkPages compares the huge pages that all regions together take with those that are free.
func (d *decoder) checkPages(h *Host) {
	type place struct {
		node int
		size Size
	}
	want := map[place]int{}
	last := map[place]string{}
	var order []place
	for i := range d.cfg.Regions {
		r := &d.cfg.Regions[i]
		if r.Kind != "huge" || r.Fallback || !r.Owned || r.PageSize <= 0 {
			continue
		}
		p := place{r.NUMA, r.PageSize}
		if want[p] == 0 {
			order = append(order, p)
		}
		want[p] += int(r.Bytes() / r.PageSize)
		last[p] = item("memory_regions", i)
	}
	for _, p := range order {
		free, total := 0, 0
		for _, n := range h.Nodes {
			for _, g := range n.Huge {
				if g.Size == p.size && (p.node < 0 || p.node == n.ID) {
					free += g.Free
					total += g.Total
				}
			}
		}
		if want[p] <= free {
			continue
		}
		on, dir := "", "/sys/kernel/mm"
		if p.node >= 0 {
			on = fmt.Sprintf(" on NUMA node %d", p.node)
			dir = fmt.Sprintf("/sys/devices/system/node/node%d", p.node)
		}
		d.report(Needs, CodeHost, join(last[p], "num_bufs"),
			fmt.Sprintf("the regions of kind huge take %s of %v%s, and %d are free", plural(want[p], "page"), p.size,
				on, free), "",
			fmt.Sprintf("echo %d > %s/hugepages/hugepages-%dkB/nr_hugepages reserves them beside those in use; "+
				"fallback: true does without", total-free+want[p], dir, p.size>>10))
	}
}
