package sections

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Change is something that a file asks for and this machine has not, and what stands in for it.
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
	absent := map[string]bool{}
	pages := false
	for _, d := range c.Check(h).Only(config.Needs) {
		switch {
		case d.Code == config.CodeHost && strings.HasPrefix(d.Path, "memory_regions") &&
			strings.HasSuffix(d.Path, ".num_bufs"):
			pages = true
		case d.Code == config.CodeHost:
			absent[d.Path] = true
		}
	}
	f := &fitter{c: c, absent: absent}
	for i := range c.Regions {
		r, path := &c.Regions[i], item("memory_regions", i)
		if r.OnGPU() {
			f.note(path+".kind",
				"memory %s: host memory in place of kind %s: the processor makes and checks the packets of a benchmark",
				r.Name, r.Kind)
			r.Kind = "host"
		}
		if pages && r.Kind == "huge" && !r.Fallback {
			f.note(path+".num_bufs", "memory %s: pages of 4 KiB where there are too few huge pages", r.Name)
			r.Fallback = true
		}
		if absent[path+".numa"] {
			f.note(path+".numa", "memory %s: any NUMA node, there is no node %d", r.Name, r.NUMA)
			r.NUMA = -1
		}
	}
	for i := range c.Interfaces {
		f.card(h, &c.Interfaces[i], item("interfaces", i))
		f.reorder(c.Interfaces[i].Rx, item("interfaces", i)+".rx.reorder")
	}
	f.cores()
	for i := range c.BenchRx {
		f.gpu(item("bench_rx", i), &c.BenchRx[i].GPUDirect)
	}
	for i := range c.BenchTx {
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

// gpu is for sections that ask for payload in memory of a GPU.
func (f *fitter) gpu(path string, on *bool) {
	if *on {
		f.note(path+".gpu_direct", "gpu_direct: payload stays in host memory: the processor makes and checks it")
		*on = false
	}
}

// reorder has the processor do what a plan leaves to a GPU, as its memory is host memory.
func (f *fitter) reorder(rx *config.Rx, path string) {
	if rx == nil {
		return
	}
	for k := range rx.Reorder {
		if r := &rx.Reorder[k]; r.Type == "gpu" {
			f.note(item(path, k)+".reorder_type",
				"reorder plan %s: the processor in place of a GPU: packets and batches are in host memory", r.Name)
			r.Type = "cpu"
		}
	}
}

// card opens a card that the file names by its PCI address, for an engine that is not built,
// through its network interface.
func (f *fitter) card(h *config.Host, p *config.Interface, path string) {
	s := p.Engine.Spec()
	if s == nil || !s.Needs.VFIO && !s.Bus || h == nil || p.Address == "" {
		return
	}
	if x := h.Interface(p.Address); x != nil {
		stand := byName()
		f.note(path+".address",
			"interface %s: %s over the engine %s, in place of the card %s over %s, which is not built", p.Name, x.Name,
			stand, p.Address, p.Engine)
		p.Address, p.Engine = x.Name, stand
	}
}

// byName is the engine that opens network interfaces if none is named.
func byName() config.Engine {
	for _, s := range drivers.Table() {
		if s.Needs.Interface {
			return config.Engine(s.Name)
		}
	}
	return config.Auto
}

// cores unpins what is on cores that are not there.
func (f *fitter) cores() {
	c := f.c
	unpin := func(path string, core *int) {
		if path += "cpu_core"; f.absent[path] {
			f.note(path, "core %d: any core, this machine has no such core", *core)
			*core = -1
		}
	}
	if f.absent["master_core"] {
		f.note("master_core", "core %d: any core, this machine has no such core", c.MasterCore)
		c.MasterCore = -1
	}
	for i := range c.Interfaces {
		p, path := &c.Interfaces[i], item("interfaces", i)
		if p.Rx != nil {
			for k := range p.Rx.Queues {
				unpin(path+"."+item("rx.queues", k)+".", &p.Rx.Queues[k].CPUCore)
			}
		}
		if p.Tx != nil {
			for k := range p.Tx.Queues {
				unpin(path+"."+item("tx.queues", k)+".", &p.Tx.Queues[k].CPUCore)
			}
		}
	}
	for i := range c.BenchRx {
		unpin(item("bench_rx", i)+".", &c.BenchRx[i].CPUCore)
	}
	for i := range c.BenchTx {
		unpin(item("bench_tx", i)+".", &c.BenchTx[i].CPUCore)
	}
	for _, b := range []struct {
		name string
		s    *config.BenchSocket
	}{{"socket_bench_server.", c.SocketServer}, {"socket_bench_client.", c.SocketClient},
		{"rdma_bench_server.", c.RDMAServer}, {"rdma_bench_client.", c.RDMAClient}} {
		if b.s != nil {
			unpin(b.name, &b.s.CPUCore)
		}
	}
	if l := c.Latency; l != nil {
		unpin("bench_latency.", &l.CPUCore)
	}
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
