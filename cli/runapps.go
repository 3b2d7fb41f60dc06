package cli

import (
	"fmt"
	"runtime"
	"strings"

	root "github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/app"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
)

// plannedApp is an application as the file describes it.
type plannedApp struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	From   string `json:"from"`             // INTERFACE/QUEUE
	To     string `json:"to,omitempty"`     // likewise
	Core   int    `json:"core"`             // -1: any
	Tensor string `json:"tensor,omitempty"` // name and what it is

	cfg   config.Application
	index int // of the processor as app.Options counts; -1: any
	depth int // of the transmit queue
	burst int
}

func (a *plannedApp) String() string {
	s := fmt.Sprintf("%s: %s %s", a.Name, a.Kind, a.From)
	if a.To != "" && a.To != a.From {
		s += " -> " + a.To
	}
	if a.Core >= 0 {
		s += fmt.Sprintf(", on core %d", a.Core)
	}
	if a.Tensor != "" {
		s += ", into " + a.Tensor
	}
	return s
}

// planApps says which applications run: those of the file, and one that empties each receive queue that has none. It opens nothing.
func planApps(cfg *config.Config) (apps []plannedApp, missing config.Diagnostics, warnings []string) {
	taken := map[string]bool{}
	for i, a := range cfg.Applications {
		p := plannedApp{Name: a.Name, Kind: a.Kind, From: queueName(a.Interface, a.Queue), Core: a.CPUCore, cfg: a, index: -1, burst: burstOf(cfg, a.Interface, a.Queue)}
		taken[p.From] = true
		to := a.Interface
		if a.Kind == "forward" {
			to = a.To
		}
		if a.Kind == "forward" || a.Kind == "echo" {
			p.To = queueName(to, a.ToQueue)
			if q := txQueue(cfg, to, a.ToQueue); q != nil {
				p.depth, p.burst = q.Depth, min(p.burst, q.BatchSize)
			}
		}
		if t := a.Tensor; t != nil {
			if d, err := t.Desc(); err == nil {
				p.Tensor = fmt.Sprintf("the tensor %s, %v", t.Name, d)
			}
		}
		if a.CPUCore >= 0 {
			if p.index = processor(a.CPUCore); p.index < 0 {
				missing = append(missing, cfg.Diagnose(config.Needs, config.CodeHost, fmt.Sprintf("applications[%d].cpu_core", i), fmt.Sprintf("this process cannot run on core %d", a.CPUCore), "", "-1 leaves the choice to the system"))
			}
		}
		apps = append(apps, p)
	}
	for i := range cfg.Interfaces {
		f := &cfg.Interfaces[i]
		if f.Rx == nil {
			continue
		}
		for _, q := range f.Rx.Queues {
			from := queueName(f.Name, q.ID)
			if taken[from] {
				continue
			}
			warnings = append(warnings, fmt.Sprintf("no application takes the packets of receive queue %s: they are counted and dropped", from))
			apps = append(apps, plannedApp{Name: "unclaimed " + from, Kind: "count", From: from, Core: -1, index: -1, burst: q.BatchSize, cfg: config.Application{Interface: f.Name, Queue: q.ID}})
		}
	}
	return apps, missing, warnings
}

func queueName(iface string, id int) string { return fmt.Sprintf("%s/%d", iface, id) }

// processor is the place of a core among those that this process may use, -1 if it may not.
func processor(core int) int {
	for i := range runtime.NumCPU() {
		if n, err := sys.Processor(i); err == nil && n == core {
			return i
		}
	}
	return -1
}

// txQueue is a transmit queue of the file, nil if there is none.
func txQueue(cfg *config.Config, iface string, id int) *config.TxQueue {
	for i := range cfg.Interfaces {
		if f := &cfg.Interfaces[i]; f.Name == iface && f.Tx != nil {
			for k := range f.Tx.Queues {
				if f.Tx.Queues[k].ID == id {
					return &f.Tx.Queues[k]
				}
			}
		}
	}
	return nil
}

func burstOf(cfg *config.Config, iface string, id int) int {
	for i := range cfg.Interfaces {
		if f := &cfg.Interfaces[i]; f.Name == iface && f.Rx != nil {
			for _, q := range f.Rx.Queues {
				if q.ID == id {
					return q.BatchSize
				}
			}
		}
	}
	return 0
}

// open makes the application on the queues of an open system.
func (p *plannedApp) open(s *root.System) (*app.App, error) {
	a := &p.cfg
	rx, err := s.Rx(a.Interface, a.Queue)
	if err != nil {
		return nil, err
	}
	caps := s.Port(a.Interface).Capabilities()
	o := app.Options{Name: p.Name, Kind: app.Kind(p.Kind), Rx: rx, Frames: caps.Frames, Stream: caps.Stream, Burst: min(p.burst, 1<<16), Core: p.index}
	if p.To != "" {
		to := a.Interface
		if p.Kind == "forward" {
			to = a.To
		}
		if o.Tx, err = s.Tx(to, a.ToQueue); err != nil {
			return nil, err
		}
		o.Depth, o.OtherPort = p.depth, to != a.Interface
		if other := s.Port(to).Capabilities(); other.Frames != caps.Frames || other.Stream != caps.Stream {
			return nil, fmt.Errorf("application %q: packets of %s are %s, and those of %s are %s: nothing can be forwarded between them", p.Name, a.Interface, packetsOf(caps.Frames, caps.Stream),
				to, packetsOf(other.Frames, other.Stream))
		}
	}
	if t := a.Tensor; t != nil {
		d, err := t.Desc()
		if err != nil {
			return nil, err
		}
		x := &app.Tensor{Node: s.Node(), Name: t.Name, Desc: d, Strip: t.Strip, Buffers: t.Buffers, Flush: t.Flush}
		if caps.Frames {
			x.Offset = app.Headers
		}
		if t.Offset.Set {
			x.Offset = t.Offset.Value
		}
		if t.Sequence != nil {
			x.Sequence, x.Width = t.Sequence.Offset, t.Sequence.Width
		}
		o.Tensor = x
	}
	return app.New(o)
}

func packetsOf(frames, stream bool) string {
	switch {
	case frames:
		return "frames"
	case stream:
		return "pieces of a byte stream"
	}
	return "datagrams"
}

// planText is the plan with the applications, for people.
func planText(p *root.Plan, apps []plannedApp) string {
	text := p.Text()
	if len(apps) == 0 {
		return text
	}
	var b strings.Builder
	b.WriteString("applications\n")
	for i := range apps {
		fmt.Fprintf(&b, "  %s\n", &apps[i])
	}
	// What is missing stays at the end, where it is seen.
	at := len(text)
	for _, title := range []string{"\nnotes\n", "\nmissing\n"} {
		if k := strings.Index(text, title); k >= 0 && k+1 < at {
			at = k + 1
		}
	}
	return text[:at] + b.String() + text[at:]
}
