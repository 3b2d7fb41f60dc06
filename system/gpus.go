package system

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/runtimes"
	"github.com/penstock-io/penstock/mem"
)

// GPUPlan is the runtime that memory of the kinds device and host_pinned is of.
type GPUPlan struct {
	Runtime string   `json:"runtime"`
	Devices []string `json:"devices"` // names of those that regions use: "cuda 0: NVIDIA H100 80GB HBM3"
	// Note says what stands in for a GPU, or was passed over; "" for a GPU of the preferred
	// runtime.
	Note string `json:"note,omitempty"`

	used   []int // numbers of Devices
	direct bool  // the processor, and with it every engine, writes memory of the devices
}

// name is a device of the plan.
func (g *GPUPlan) name(number int) string {
	if g != nil {
		for i, n := range g.used {
			if n == number {
				return g.Devices[i]
			}
		}
	}
	return ""
}

// gpuRuntime is the runtime that is asked for.
func (p *Plan) gpuRuntime() string {
	switch {
	case p.o.GPURuntime != "":
		return p.o.GPURuntime
	case p.cfg.GPURuntime != "":
		return p.cfg.GPURuntime
	}
	return "auto"
}

// openRuntime opens the runtime of that name. auto takes CUDA, or OpenCL with a device on the bus:
// a program that asks for a GPU does not get the processor instead.
func openRuntime(name string) (gpu.Choice, error) {
	table := runtimes.Table()
	if name != "auto" {
		return table.Open(name)
	}
	c, err := table.Open("cuda")
	if err == nil {
		return c, nil
	}
	skipped := []gpu.Skipped{{Name: "cuda", Err: err}}
	c, other := table.Open("opencl")
	if other == nil {
		if c.Devices()[0].Info().Bus != "" {
			c.Skipped = skipped
			return c, nil
		}
		other = errors.Join(fmt.Errorf("its device %s is on no bus: it is this machine's processor",
			c.Devices()[0].Info().Name), c.Close())
	}
	return gpu.Choice{}, fmt.Errorf("cuda: %w; opencl: %w", err, other)
}

// planGPUs looks for the devices that regions are on. It opens their runtime to ask it, and closes
// it.
func (p *Plan) planGPUs() {
	var on []int // regions
	for i := range p.cfg.Regions {
		if r := &p.cfg.Regions[i]; r.OnGPU() && r.Owned {
			on = append(on, i)
		}
	}
	if len(on) == 0 {
		return
	}
	name := p.gpuRuntime()
	c, err := openRuntime(name)
	if err != nil {
		for k, i := range on {
			r := &p.cfg.Regions[i]
			text := fmt.Sprintf("memory of kind %s needs a GPU, and there is none", r.Kind)
			if k == 0 {
				text += fmt.Sprintf(": gpu_runtime %s: %v", name, err)
			}
			p.need(config.CodeHost, fmt.Sprintf("memory_regions[%d].kind", i), text, "",
				"gpu_runtime: host tries the file with the processor in its place; kind: huge and kind: host are "+
					"memory of this machine")
		}
		return
	}
	defer c.Close()
	g := &GPUPlan{Runtime: c.Name(), Devices: []string{}, direct: true}
	devices := c.Devices()
	for _, i := range on {
		r := &p.cfg.Regions[i]
		if r.GPU >= len(devices) {
			p.need(config.CodeHost, fmt.Sprintf("memory_regions[%d].gpu", i),
				fmt.Sprintf("the runtime %s has no device %d", c.Name(), r.GPU), fmt.Sprintf("0 to %d", len(devices)-1),
				"")
			continue
		}
		if g.name(r.GPU) == "" {
			d := devices[r.GPU]
			info := d.Info()
			g.used, g.Devices = append(g.used, r.GPU), append(g.Devices, d.String())
			g.direct = g.direct && !opaque(c.Name()) && info.Capabilities.Has(gpu.CapDeviceBytes)
		}
	}
	switch {
	case c.Name() == "host":
		g.Note = "this process is the substitute for a GPU, because gpu_runtime says host"
	case len(c.Skipped) > 0:
		g.Note = "taken because of " + fmt.Sprintf("%s: %v", c.Skipped[0].Name, c.Skipped[0].Err)
	}
	p.GPU = g
}

// opaque reports whether memory of the runtime's devices is hidden from the CPU although it could
// be seen. The host behaves as a card does, so that what runs with it runs on a card.
func opaque(runtime string) bool { return runtime == "host" }

// hidden reports whether a region is memory that engines cannot write: they work on staging memory
// then.
func (p *Plan) hidden(region string) *config.Region {
	for i := range p.cfg.Regions {
		r := &p.cfg.Regions[i]
		if r.Name != region || r.Kind != "device" || p.GPU != nil && p.GPU.direct {
			continue
		}
		return r
	}
	return nil
}

// staging says how bytes get into or out of the regions of a queue which the engine cannot use, ""
// if it can.
func (p *Plan) staging(e engine.Engine, name string, regions []string, in bool) string {
	if len(regions) == 0 || e == nil {
		return ""
	}
	r := p.hidden(regions[len(regions)-1])
	if r == nil {
		return ""
	}
	device, _, _ := strings.Cut(p.GPU.name(r.GPU), ":")
	if device == "" {
		device = fmt.Sprintf("GPU %d", r.GPU)
	}
	cannot := func(what string) string {
		if bounce.Needed(e.Capabilities()) {
			return fmt.Sprintf("the engine %s cannot %s device memory", e.Name(), what)
		}
		return fmt.Sprintf("unless the card of the engine %s can %s this memory itself, for such a queue", e.Name(),
			what)
	}
	if in {
		what := "all"
		if len(regions) == 2 {
			what = "payload"
		}
		return fmt.Sprintf("%s of queue %s is copied once, from pinned memory to %s: %s", what, name, device,
			cannot("write"))
	}
	return fmt.Sprintf("all of queue %s is copied once, from %s to pinned memory: %s", name, device, cannot("read"))
}

// forwards are the regions of the first queue with device memory whose packets an application sends
// on by a transmit queue; nil if there is none.
func (p *Plan) forwards(iface string, queue int) []string {
	for _, a := range p.cfg.Applications {
		to := a.To
		if a.Kind == "echo" {
			to = a.Interface
		} else if a.Kind != "forward" {
			continue
		}
		if to != iface || a.ToQueue != queue {
			continue
		}
		for i := range p.cfg.Interfaces {
			c := &p.cfg.Interfaces[i]
			if c.Name != a.Interface || c.Rx == nil {
				continue
			}
			for _, q := range c.Rx.Queues {
				if n := len(q.Regions); q.ID == a.Queue && n > 0 && p.hidden(q.Regions[n-1]) != nil {
					return q.Regions
				}
			}
		}
	}
	return nil
}

// staged reports whether a queue of the interface is staged.
func (p *Plan) staged(i int) bool {
	ip := &p.Interfaces[i]
	for _, q := range ip.Rx {
		if q.Copies != "" {
			return true
		}
	}
	for _, q := range ip.Tx {
		if q.Copies != "" {
			return true
		}
	}
	return false
}

// gpus is what is open of a runtime.
type gpus struct {
	rt        *gpu.Runtime
	contexts  []*gpu.Context
	providers map[int]*gpumem.Provider // by number of the device
}

// openGPUs opens the runtime and a context on each device that regions are on.
func (s *System) openGPUs() error {
	p := s.plan.GPU
	if p == nil {
		return nil
	}
	c, err := runtimes.Table().Open(p.Runtime)
	if err != nil {
		return fmt.Errorf("penstock: %w", err)
	}
	s.gpus = &gpus{rt: c.Runtime, providers: map[int]*gpumem.Provider{}}
	for _, n := range p.used {
		d := c.Devices()
		if n >= len(d) {
			return fmt.Errorf("penstock: %s had a device %d when the plan was made, and has it no more: %w", p.Runtime,
				n, gpu.ErrUnavailable)
		}
		ctx, err := d[n].Open()
		if err != nil {
			return fmt.Errorf("penstock: %w", err)
		}
		s.gpus.contexts = append(s.gpus.contexts, ctx)
		m, err := gpumem.New(ctx, gpumem.Options{Name: fmt.Sprintf("%s %d", p.Runtime, n), Opaque: opaque(p.Runtime),
			Streams: 1, Bounce: -1})
		if err != nil {
			return fmt.Errorf("penstock: %w", err)
		}
		s.gpus.providers[n] = m
	}
	if p.Note != "" {
		s.log.Warn("accelerator", "runtime", p.Runtime, "devices", strings.Join(p.Devices, ", "), "note", p.Note)
	}
	return nil
}

// provider is what makes the memory of a region; nil for package mem.
func (s *System) provider(r *config.Region) mem.Provider {
	if !r.OnGPU() || s.gpus == nil {
		return nil
	}
	if m := s.gpus.providers[r.GPU]; m != nil {
		return m
	}
	return nil
}

// close gives everything back; regions were closed before.
func (g *gpus) close() error {
	if g == nil {
		return nil
	}
	var errs []error
	for _, m := range g.providers {
		errs = append(errs, m.Close())
	}
	for _, c := range g.contexts {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, g.rt.Close())...)
}

// GPU is the context on a device that regions are on, for kernels; nil if there is none of that
// number. It belongs to the System.
func (s *System) GPU(number int) *gpu.Context {
	if s.gpus == nil || s.gpus.providers[number] == nil {
		return nil
	}
	return s.gpus.providers[number].Context()
}
