package sections

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Change is something that a file asks for and this machine has not, and what is used instead.
type Change struct {
	Path string `json:"path"` // in the file
	At   string `json:"at"`   // file:line:column
	Text string `json:"text"` // what is done instead
}

func (c Change) String() string { return c.At + ": " + c.Text }

// Fit changes a configuration so that a benchmark of it can run on a machine that is smaller than
// the one that it was written for, and returns every change: memory of GPUs becomes host memory,
// since the processor makes and checks what is sent; huge pages that are missing become pages of 4
// KiB; NUMA nodes and cores that are not there become any; a card that is named by its PCI address,
// for an engine that is not built, is opened through its network interface with AF_XDP. What the
// benchmark then measures is another machine than the file's, so the caller shows the changes with
// the result. Fit changes nothing that decides which packets go where.
func Fit(c *config.Config, h *config.Host) []Change {
	f := &fitter{c: c, absent: map[string]bool{}}
	pages := false
	for _, d := range c.Check(h).Only(config.Needs) {
		switch {
		case d.Code == config.CodeHost && strings.HasPrefix(d.Path, "memory_regions") &&
			strings.HasSuffix(d.Path, ".num_bufs"):
			pages = true
		case d.Code == config.CodeHost:
			f.absent[d.Path] = true
		}
	}
	for i := range c.Regions {
		r, path := &c.Regions[i], item("memory_regions", i)
		if r.OnGPU() {
			f.note(path+".kind", "memory %s: host memory in place of kind %s: %s", r.Name, r.Kind, onlyHost)
			r.Kind = "host"
		}
		if pages && r.Kind == "huge" && !r.Fallback {
			f.note(path+".num_bufs", "memory %s: pages of 4 KiB where there are too few huge pages", r.Name)
			r.Fallback = true
		}
		if f.absent[path+".numa"] {
			f.note(path+".numa", "memory %s: any NUMA node, there is no node %d", r.Name, r.NUMA)
			r.NUMA = -1
		}
	}
	for i := range c.Interfaces {
		f.card(h, &c.Interfaces[i], item("interfaces", i))
		f.reorder(c.Interfaces[i].Rx, item("interfaces", i)+".rx.reorder")
	}
	f.core("master_core", &c.MasterCore)
	for i := range c.Interfaces {
		p, path := &c.Interfaces[i], item("interfaces", i)
		for k := 0; p.Rx != nil && k < len(p.Rx.Queues); k++ {
			f.core(item(path+".rx.queues", k)+".cpu_core", &p.Rx.Queues[k].CPUCore)
		}
		for k := 0; p.Tx != nil && k < len(p.Tx.Queues); k++ {
			f.core(item(path+".tx.queues", k)+".cpu_core", &p.Tx.Queues[k].CPUCore)
		}
	}
	names := []string{"socket_bench_server", "socket_bench_client", "rdma_bench_server", "rdma_bench_client"}
	for i, s := range []*config.BenchSocket{c.SocketServer, c.SocketClient, c.RDMAServer, c.RDMAClient} {
		if s != nil {
			f.core(names[i]+".cpu_core", &s.CPUCore)
		}
	}
	if l := c.Latency; l != nil {
		f.core("bench_latency.cpu_core", &l.CPUCore)
	}
	for i := range c.BenchRx {
		f.core(item("bench_rx", i)+".cpu_core", &c.BenchRx[i].CPUCore)
		f.gpu(item("bench_rx", i), &c.BenchRx[i].GPUDirect)
	}
	for i := range c.BenchTx {
		f.core(item("bench_tx", i)+".cpu_core", &c.BenchTx[i].CPUCore)
		f.gpu(item("bench_tx", i), &c.BenchTx[i].GPUDirect)
	}
	return f.out
}

type fitter struct {
	c      *config.Config
	absent map[string]bool // paths
	out    []Change
}

func (f *fitter) note(path, format string, args ...any) {
	f.out = append(f.out, Change{Path: path, At: place(f.c, path), Text: fmt.Sprintf(format, args...)})
}

// core unpins what is on a core that is not there.
func (f *fitter) core(path string, core *int) {
	if f.absent[path] {
		f.note(path, "core %d: any core, this machine has no such core", *core)
		*core = -1
	}
}

// gpu is for sections that ask for payload in memory of a GPU.
func (f *fitter) gpu(path string, on *bool) {
	if *on {
		f.note(path+".gpu_direct", "gpu_direct: payload stays in host memory: the processor makes and checks it")
		*on = false
	}
}

// reorder has the processor do what a plan leaves to a GPU, as its memory is host memory.
func (f *fitter) reorder(rx *config.Rx, path string) {
	for k := 0; rx != nil && k < len(rx.Reorder); k++ {
		if r := &rx.Reorder[k]; r.Type == "gpu" {
			f.note(item(path, k)+".reorder_type",
				"reorder plan %s: the processor in place of a GPU: packets and batches are in host memory",
				r.Name)
			r.Type = "cpu"
		}
	}
}

// card opens a card that the file names by its PCI address, for an engine that is not built,
// through its network interface, with the engine that opens those if none is named.
func (f *fitter) card(h *config.Host, p *config.Interface, path string) {
	s := p.Engine.Spec()
	if s == nil || !s.Needs.VFIO && !s.Bus || h == nil || p.Address == "" {
		return
	}
	x := h.Interface(p.Address)
	if x == nil {
		return
	}
	instead := config.Auto
	for _, s := range drivers.Table() {
		if s.Needs.Interface {
			instead = config.Engine(s.Name)
			break
		}
	}
	f.note(path+".address", "interface %s: %s over the engine %s, in place of the card %s over %s, which is not built",
		p.Name, x.Name, instead,
		p.Address, p.Engine)
	p.Address, p.Engine = x.Name, instead
}

func item(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// place is where something is in its file, or where the section around it is.
func place(c *config.Config, path string) string {
	name := c.Name()
	if name == "" {
		name = "configuration"
	}
	for {
		if at := c.Source(path).At; !at.IsZero() {
			return fmt.Sprintf("%s:%d:%d", name, at.Line, at.Column)
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return name
		}
		path = path[:i]
	}
}
