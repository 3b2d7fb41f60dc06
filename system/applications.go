package system

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/stage/record"
)

// ApplicationPlan is an application, which takes the packets of a receive queue.
type ApplicationPlan struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	From   string `json:"from"`             // INTERFACE/QUEUE
	To     string `json:"to,omitempty"`     // likewise
	Core   int    `json:"core"`             // -1: any
	Tensor string `json:"tensor,omitempty"` // name and what it is
	Record string `json:"record,omitempty"` // file and its format
	// Unclaimed says that the file has no application for the queue, and that Options.Unclaimed
	// takes its packets.
	Unclaimed bool `json:"unclaimed,omitempty"`

	cfg   config.Application
	path  string // in the file
	cpu   int    // as app.Options counts
	depth int    // of the transmit queue
	burst int
}

func (a *ApplicationPlan) text() string {
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
	if a.Record != "" {
		s += ", into " + a.Record
	}
	return s
}

// to is the interface where the application sends, "" if it sends nothing.
func (a *ApplicationPlan) to() string {
	if a.cfg.Kind == string(app.Echo) {
		return a.cfg.Interface
	}
	return a.cfg.To
}

func queueName(iface string, id int) string { return fmt.Sprintf("%s/%d", iface, id) }

// planApplications plans the applications of the file, and Options.Unclaimed for each receive queue
// that has none.
func (p *Plan) planApplications() {
	p.Applications = []ApplicationPlan{}
	kinds := p.o.Applications
	if kinds == nil {
		kinds = app.Kinds()
	}
	taken := map[string]bool{}
	for i, c := range p.cfg.Applications {
		a := ApplicationPlan{Name: c.Name, Kind: c.Kind, From: queueName(c.Interface, c.Queue), Core: c.CPUCore, cfg: c,
			path: fmt.Sprintf("applications[%d]", i)}
		taken[a.From] = true
		a.cpu = p.core(a.path+".cpu_core", c.CPUCore)
		if q := p.rx(c.Interface, c.Queue); q != nil {
			a.burst = q.Burst
		}
		if to := a.to(); to != "" {
			a.To = queueName(to, c.ToQueue)
			if q := p.tx(to, c.ToQueue); q != nil {
				a.depth, a.burst = q.Depth, min(a.burst, q.burst)
			}
		}
		if t := c.Tensor; t != nil {
			if d, err := t.Desc(); err == nil {
				a.Tensor = fmt.Sprintf("the tensor %s, %v", t.Name, d)
			}
		}
		if c.Record != "" {
			a.Record = fmt.Sprintf("the file %s (%s)", c.Record, c.Format)
			if c.Filter != "" {
				a.Record += fmt.Sprintf(", filter %q", c.Filter)
			}
		}
		if kinds[app.Kind(c.Kind)] == nil && c.Kind != "" {
			var have []string
			for k := range kinds {
				have = append(have, string(k))
			}
			slices.Sort(have)
			p.need(config.CodeReference, a.path+".kind",
				fmt.Sprintf("application %q: this program has no kind %s", c.Name, c.Kind),
				"one of "+strings.Join(have, ", "),
				"Options.Applications adds kinds")
		}
		p.Applications = append(p.Applications, a)
	}
	if p.o.Unclaimed == "" {
		return
	}
	for i := range p.Interfaces {
		f := &p.Interfaces[i]
		for _, q := range f.Rx {
			from := queueName(f.Name, q.ID)
			if !taken[from] {
				p.Applications = append(p.Applications, ApplicationPlan{Name: "unclaimed " + from,
					Kind: string(p.o.Unclaimed), From: from, Core: -1, Unclaimed: true,
					path: fmt.Sprintf("interfaces[%d].rx", i),
					cfg:  config.Application{Kind: string(p.o.Unclaimed), Interface: f.Name, Queue: q.ID},
					cpu:  engine.Unpinned, burst: q.Burst})
			}
		}
	}
}

func (p *Plan) iface(name string) *InterfacePlan {
	if i := slices.IndexFunc(p.Interfaces, func(f InterfacePlan) bool { return f.Name == name }); i >= 0 {
		return &p.Interfaces[i]
	}
	return nil
}

// rx is a receive queue of the plan, nil if there is none.
func (p *Plan) rx(iface string, id int) *RxPlan {
	if f := p.iface(iface); f != nil {
		if k := slices.IndexFunc(f.Rx, func(q RxPlan) bool { return q.ID == id }); k >= 0 {
			return &f.Rx[k]
		}
	}
	return nil
}

// tx is a transmit queue of the plan, nil if there is none.
func (p *Plan) tx(iface string, id int) *TxPlan {
	if f := p.iface(iface); f != nil {
		if k := slices.IndexFunc(f.Tx, func(q TxPlan) bool { return q.ID == id }); k >= 0 {
			return &f.Tx[k]
		}
	}
	return nil
}

// checkApplications finds filters that cannot be compiled, and applications that would send packets
// of one form by a port of another. can is what ports can do, by the name of their interface, as
// far as it is known.
func (p *Plan) checkApplications(can map[string]engine.Capabilities) {
	for i := range p.Applications {
		a := &p.Applications[i]
		from, ok := can[a.cfg.Interface]
		if ok {
			p.checkFilter(&a.cfg.Recording, a.path, &from)
		}
		to, too := can[a.to()]
		if ok && too && (from.Frames != to.Frames || from.Stream != to.Stream) {
			p.refuse(config.CodeConflict, a.path+".to",
				fmt.Sprintf("application %q: packets of %s are %s, and those of %s are %s: nothing can be forwarded "+
					"between them", a.Name, a.cfg.Interface, packetsOf(&from),
					a.to(), packetsOf(&to)), "an interface whose packets are "+packetsOf(&from), "")
		}
	}
}

func packetsOf(c *engine.Capabilities) string {
	switch {
	case c.Frames:
		return "frames"
	case c.Stream:
		return "pieces of a byte stream"
	}
	return "datagrams"
}

// application is one that was opened.
type application struct {
	plan  *ApplicationPlan
	app   *app.App
	tx    engine.TxQueue // nil: it sends nothing
	ended atomic.Pointer[error]
}

// openApplications makes the applications, and takes their receive queues from the program. None
// runs yet.
func (s *System) openApplications() error {
	for i := range s.plan.Applications {
		a := &application{plan: &s.plan.Applications[i]}
		if err := s.openApplication(a); err != nil {
			return s.at(a.plan.path, "applications", err)
		}
		s.apps = append(s.apps, a)
	}
	return nil
}

func (s *System) openApplication(a *application) error {
	p, c := a.plan, &a.plan.cfg
	f := s.iface(c.Interface)
	can := f.Port.Capabilities()
	q := &f.Rx[slices.IndexFunc(f.Rx, func(q RxQueue) bool { return q.ID == c.Queue })]
	o := app.Options{Name: p.Name, Kind: app.Kind(p.Kind), Kinds: s.plan.o.Applications, Rx: q.Receiver,
		Frames: can.Frames, Stream: can.Stream, Burst: p.burst, Core: p.cpu}
	var err error
	if to := p.to(); to != "" {
		if a.tx, err = s.Tx(to, c.ToQueue); err != nil {
			return err
		}
		o.Tx, o.Depth, o.OtherPort = a.tx, p.depth, to != c.Interface
	}
	if t := c.Tensor; t != nil {
		if o.Tensor, err = s.tensorOf(t, can.Frames); err != nil {
			return err
		}
	}
	if c.Record != "" {
		if o.Record, err = recordOf(&c.Recording, f, q.guard); err != nil {
			return err
		}
	}
	if a.app, err = app.New(o); err != nil {
		return err
	}
	q.Application, q.Receiver = p.Name, nil
	return nil
}

// tensorOf is the tensor of a sink.
func (s *System) tensorOf(t *config.Tensor, frames bool) (*app.Tensor, error) {
	d, err := t.Desc()
	if err != nil {
		return nil, err
	}
	x := &app.Tensor{Node: s.node, Name: t.Name, Desc: d, Strip: t.Strip, Buffers: t.Buffers, Flush: t.Flush}
	if frames {
		x.Offset = app.Headers
	}
	if t.Offset.Set {
		x.Offset = t.Offset.Value
	}
	if t.Sequence != nil {
		x.Sequence, x.Width = t.Sequence.Offset, t.Sequence.Width
	}
	return x, nil
}

// startApplications runs the applications until closeApplications.
func (s *System) startApplications() {
	ctx, cancel := context.WithCancel(context.Background())
	s.endApps = cancel
	for _, a := range s.apps {
		s.appRuns.Go(func() {
			err := a.app.Run(ctx)
			if err == nil {
				return
			}
			a.ended.Store(&err)
			s.log.Error("an application has ended", "application", a.plan.Name, "error", err)
			if s.plan.o.OnApplication != nil {
				s.plan.o.OnApplication(a.plan.Name, err)
			}
		})
	}
}

// How long the end of applications may take: for packets that they sent, and for peers to let go of
// tensors.
const (
	drainLimit = time.Second
	closeLimit = 2 * time.Second
)

// closeApplications ends the applications: each deals with what it has received, and what it sent
// leaves.
func (s *System) closeApplications(note func(what string, err error)) {
	if s.endApps != nil {
		s.endApps()
	}
	s.appRuns.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	for _, a := range s.apps {
		if a.tx != nil {
			_ = a.tx.Drain(ctx) // what has not left by then, the queue drops and counts when it is closed
		}
	}
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), record.CloseLimit)
	for _, a := range s.apps {
		if r := a.app.Recorder(); r != nil {
			_ = r.Close(ctx) // App.Close says it again
		}
	}
	cancel()
	ctx, cancel = context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	for _, a := range s.apps {
		note(fmt.Sprintf("application %q", a.plan.Name), a.app.Close(ctx))
	}
}

// ApplicationSnapshot is an application.
type ApplicationSnapshot struct {
	app.Snapshot
	From  string `json:"from"`            // INTERFACE/QUEUE
	To    string `json:"to,omitempty"`    // likewise
	Ended string `json:"ended,omitempty"` // why it has ended before Close; "" while it runs
}

func (a *application) snapshot() ApplicationSnapshot {
	out := ApplicationSnapshot{Snapshot: a.app.Snapshot(), From: a.plan.From, To: a.plan.To}
	if err := a.ended.Load(); err != nil {
		out.Ended = (*err).Error()
	}
	return out
}
