package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/bounce"
	"github.com/penstock-io/penstock/engine/reopen"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/stage/app"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/job"
)

// Options are what a program adds to a configuration. The zero value is right for most.
type Options struct {
	// Engines are the engines that interfaces may name; nil: Engines().
	Engines *engine.Table
	// Stages are the stages that receive queues may name; nil: Stages().
	Stages []engine.StageKind
	// Applications are the kinds that applications of the file may be; nil: app.Kinds(). Words that
	// are not ours, config.Options.Kinds has as well.
	Applications map[app.Kind]app.Constructor
	// Unclaimed is what takes the packets of receive queues without an application in the file,
	// such as app.Count; "": the program does (System.Rx).
	Unclaimed app.Kind
	// Logger gets what is opened, closed and changed, never single packets or transfers. nil: as
	// the section logging says, to its file or to the standard error; silent if a program wrote the
	// Config and left the level empty.
	Logger *slog.Logger
	// Regions is the memory of regions with owned: false, by name. It stays the program's, which
	// closes it after the System.
	Regions map[string]*mem.Pool
	// GPURuntime is what memory of GPUs is of, in place of the file's gpu_runtime: auto, cuda,
	// opencl or host; "": as the file says.
	GPURuntime string
	// Plan is called with the plan before anything is opened, also when something is missing. An
	// error of it ends Open.
	Plan func(*Plan) error
	// OnPeer, OnTransfer and OnAccess are those of transfer.Options and share.Options.
	OnPeer     func(*transfer.Peer)
	OnTransfer func(transfer.Incoming)
	OnAccess   func(share.Access)
	// OnLink is called when the link of an interface has changed, and at the beginning where it is
	// down; the calls follow each other. It must not close the System.
	OnLink func(LinkEvent)
	// OnApplication is called when an application has ended before Close, with why. It must not
	// close the System.
	OnApplication func(name string, err error)
}

// Interface is an open port with its queues, in the order of the configuration.
type Interface struct {
	Name string
	Port engine.Port
	Rx   []RxQueue
	Tx   []TxQueue
}

// RxQueue is an open receive queue.
type RxQueue struct {
	Name string
	ID   int
	// Receiver is where its packets come out. One goroutine at a time uses it; it goes on until the
	// context of Recv ends, or the System is closed, which is engine.ErrClosed. nil where an
	// application takes the packets.
	Receiver *engine.Rx
	// Application is the name of the one that takes its packets; "": the program does.
	Application string
	// Stages are what packets pass before they come out of the Receiver, in this order.
	Stages []string
	// Poller is the name of the poller that serves it; "" if the application polls.
	Poller string

	guard *guard
}

// TxQueue is an open transmit queue.
type TxQueue struct {
	Name  string
	ID    int
	Queue engine.TxQueue
}

// System is what a configuration describes, open. Its methods may be called from any goroutine.
type System struct {
	plan    *Plan
	log     *slog.Logger
	logFile io.Closer // nil: none

	pools   map[string]*mem.Pool // all
	regions []region             // those of the System, in the order in which they were made
	areas   []*mem.Region
	gpus    *gpus // nil: none
	ifaces  []Interface
	pollers []*engine.Poller
	apps    []*application
	endApps context.CancelFunc // of those that run; nil: none does
	appRuns sync.WaitGroup
	id      *identity.Identity // nil: none
	node    *transfer.Node     // nil: none
	share   *share.Server      // nil: none
	links   map[string]*job.Link
	metrics string // address of the page
	stop    func() error
	watched *linkWatch   // nil: not yet
	shares  func() error // gives up the memory that interfaces share; nil: none

	reload sync.Mutex // over Reload, and the next fields
	cfg    *config.Config
	rules  [][]rule // flows of each interface
	told   []string // notes of ports that were logged
	closed bool

	close sync.Once
	err   error // of Close
}

// region is a pool of the System.
type region struct {
	name string
	pool *mem.Pool
}

// Open opens what a configuration describes: memory, ports with their queues and flows, pollers,
// the node for transfers with what it shares and whom it knows, applications, and the page of
// metrics, in this order. Then the applications run, each in a goroutine of its own, until Close.
// It makes a plan first (MakePlan), and fails with a *MissingError, which says all of it, when not
// everything is here. When a step fails, what was opened is closed again, and the error says what
// failed and where in the file. The context bounds the opening only.
//
// Open completes and checks cfg (config.Config.Check), which the caller must not change as long as
// the System is open. Interfaces are opened in the network namespace of the calling thread.
func Open(ctx context.Context, cfg *config.Config, o Options) (*System, error) {
	p, err := MakePlan(cfg, o)
	if err != nil {
		return nil, err
	}
	if o.Plan != nil {
		if err := o.Plan(p); err != nil {
			return nil, err
		}
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	s := &System{plan: p, cfg: cfg, pools: map[string]*mem.Pool{}, links: map[string]*job.Link{}}
	if err := s.openLog(); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.tellNotes()
	s.watched = s.watchLinks()
	s.log.Info("open", "file", cfg.Name(), "interfaces", len(s.ifaces), "regions", len(s.pools), "pollers",
		len(s.pollers), "applications", len(s.apps), "node", s.node != nil)
	return s, nil
}

// tellNotes logs what differs from what was asked for.
func (s *System) tellNotes() {
	for _, r := range s.regions {
		if n := r.pool.Region().Note(); n != "" {
			s.log.Warn("memory", "region", r.name, "note", n)
		}
	}
	for i := range s.plan.Notes {
		s.log.Warn("plan", "note", s.plan.Notes[i].String())
	}
	s.tellPortNotes(slog.LevelInfo)
}

// tellPortNotes logs the notes of ports that it has not logged before. The caller holds reload, or
// has not returned the System yet.
func (s *System) tellPortNotes(level slog.Level) {
	for i := range s.ifaces {
		name := s.ifaces[i].Name
		for _, n := range s.portNotes(i) {
			if told := name + ": " + n; !slices.Contains(s.told, told) {
				s.told = append(s.told, told)
				s.log.Log(context.Background(), level, "port", "interface", name, "note", n)
			}
		}
	}
}

// portNotes are what a port says besides what its engine says of all ports.
func (s *System) portNotes(i int) (out []string) {
	all := s.plan.engines[i].Capabilities().Notes
	for _, n := range s.ifaces[i].Port.Capabilities().Notes {
		if !slices.Contains(all, n) {
			out = append(out, n)
		}
	}
	return out
}

func (s *System) open(ctx context.Context) error {
	if cpu := s.plan.core("master_core", s.plan.MasterCore); cpu != engine.Unpinned {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := sys.PinThread(cpu); err != nil {
			return s.at("master_core", fmt.Sprintf("staying on core %d", s.plan.MasterCore), err)
		}
		defer func() { _ = sys.UnpinThread() }() // it had the right to more before
	}
	if err := s.openGPUs(); err != nil {
		return err
	}
	if err := s.openRegions(); err != nil {
		return err
	}
	if err := s.openPorts(ctx); err != nil {
		return err
	}
	if err := s.openNode(ctx); err != nil {
		return err
	}
	if err := s.openApplications(); err != nil {
		return err
	}
	if err := s.openMetrics(ctx); err != nil {
		return err
	}
	s.startApplications()
	return nil
}

// at is an error of opening something that is described at a path of the file.
func (s *System) at(path, what string, err error) error {
	d := s.plan.cfg.Diagnose(config.Error, config.CodeHost, path, "", "", "")
	where := d.Path
	if !d.At.IsZero() {
		where = fmt.Sprintf("%s:%d:%d", d.File, d.At.Line, d.At.Column)
	}
	return fmt.Errorf("penstock: %s: %s: %w", where, what, err)
}

func (s *System) openPorts(ctx context.Context) error {
	memories, err := s.openShares()
	if err != nil {
		return err
	}
	for i := range s.plan.cfg.Interfaces {
		if err = s.openPort(ctx, i, memories[i]); err != nil {
			return err
		}
	}
	for i := range s.plan.Pollers {
		if err := s.openPoller(&s.plan.Pollers[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *System) openPort(ctx context.Context, i int, memory engine.SharedMemory) error {
	c := &s.plan.cfg.Interfaces[i]
	path := fmt.Sprintf("interfaces[%d]", i)
	spec := c.PortSpec()
	if memory != nil {
		if err := memory.AddTo(&spec); err != nil {
			return s.at(path, fmt.Sprintf("interface %q", c.Name), err)
		}
	}
	port, err := s.port(ctx, i, spec)
	if err != nil {
		return s.at(path, fmt.Sprintf("interface %q", c.Name), err)
	}
	var staged *bounce.Port
	if s.plan.staged(i) {
		staged = bounce.New(port, bounce.Options{})
		port = staged
	}
	s.ifaces = append(s.ifaces, Interface{Name: c.Name, Port: port})
	f := &s.ifaces[len(s.ifaces)-1]
	if c.Rx != nil {
		for k := range c.Rx.Queues {
			q := &c.Rx.Queues[k]
			at := fmt.Sprintf("%s.rx.queues[%d]", path, k)
			spec := c.RxSpec(k)
			spec.Pools = s.poolsOf(q.Regions)
			rx, err := port.AddRxQueue(spec)
			if err != nil {
				return s.at(at, fmt.Sprintf("interface %q: receive queue %d", c.Name, q.ID), err)
			}
			g, r := &guard{q: rx, in: rx}, &s.plan.Interfaces[i].Rx[k]
			var batching engine.Batching // a poller hands over whole bursts
			if r.Poller == "" {
				batching = r.batching()
			}
			f.Rx = append(f.Rx, RxQueue{Name: q.Name, ID: q.ID, Receiver: engine.NewRx(g, batching), Stages: r.Stages,
				Poller: r.Poller, guard: g})
			if err := g.openStages(f, r.stages, engine.StageSpec{Queue: q.Name, Port: port.Capabilities(),
				Pools: s.pools}); err != nil {
				return s.at(at+".stages", fmt.Sprintf("interface %q: receive queue %d", c.Name, q.ID), err)
			}
		}
	}
	if c.Tx != nil {
		for k := range c.Tx.Queues {
			q := &c.Tx.Queues[k]
			spec := c.TxSpec(k)
			spec.Pools = s.poolsOf(q.Regions)
			var tx engine.TxQueue
			if from := s.plan.Interfaces[i].Tx[k].forwards; from != nil && staged != nil {
				tx, err = staged.AddForwarder(spec, s.poolsOf(from))
			} else {
				tx, err = port.AddTxQueue(spec)
			}
			if err != nil {
				return s.at(fmt.Sprintf("%s.tx.queues[%d]", path, k),
					fmt.Sprintf("interface %q: transmit queue %d", c.Name, q.ID), err)
			}
			f.Tx = append(f.Tx, TxQueue{Name: q.Name, ID: q.ID, Queue: tx})
		}
	}
	return s.openRules(i, c, f, path)
}

// port opens the port of an interface: one that opens itself again, if the file asks for that.
func (s *System) port(ctx context.Context, i int, spec engine.PortSpec) (engine.Port, error) {
	c := &s.plan.cfg.Interfaces[i]
	if !c.Reopen {
		return s.plan.engines[i].OpenPort(ctx, spec)
	}
	return reopen.Open(ctx, s.plan.engines[i], spec, reopen.Options{Failed: func(err error) {
		s.log.Info("the interface is not open again yet", "interface", c.Name, "error", err)
	}})
}

// openRules puts the flows of an interface in force. What came before that went to the first queue,
// whatever it was: it is thrown away.
func (s *System) openRules(i int, c *config.Interface, f *Interface, path string) error {
	s.rules = append(s.rules, nil)
	rules, err := portRules(c)
	if err != nil || len(rules) == 0 {
		return err
	}
	e := edit{s: s, at: i, f: f, ruleEdit: editRules(nil, wanted(rules, s.plan.cfg, path+".rx.flows"))}
	if err := e.apply(); err != nil {
		return s.at(path+".rx.flows", fmt.Sprintf("interface %q: flows", c.Name), err)
	}
	if len(f.Rx) > 0 && !c.Rx.FlowIsolation {
		if _, err := f.Rx[0].guard.discard(); err != nil {
			return s.at(path+".rx", fmt.Sprintf("interface %q", c.Name), err)
		}
	}
	return nil
}

func (s *System) poolsOf(regions []string) (out []*mem.Pool) {
	for _, name := range regions {
		out = append(out, s.pools[name])
	}
	return out
}

// openPoller starts a poller and gives it its queues.
func (s *System) openPoller(p *PollerPlan) error {
	poller, err := engine.NewPoller(engine.PollerOptions{Name: p.Name, CPU: p.cpu, Mode: p.mode})
	if err != nil {
		return fmt.Errorf("penstock: %w", err)
	}
	s.pollers = append(s.pollers, poller)
	for i := range s.ifaces {
		for k := range s.ifaces[i].Rx {
			q, r := &s.ifaces[i].Rx[k], &s.plan.Interfaces[i].Rx[k]
			if q.Poller != p.Name {
				continue
			}
			polled, err := poller.Add(q.guard.in, engine.PollOptions{Batching: r.batching(), Depth: r.HandOff})
			if err != nil {
				return s.at(fmt.Sprintf("interfaces[%d].rx.queues[%d]", i, k), "its poller", err)
			}
			q.guard.polled, q.guard.in = polled, polled
		}
	}
	return nil
}

// Plan is what was opened. The caller must not change it.
func (s *System) Plan() *Plan { return s.plan }

// Config is the configuration in force: the one given to Open, or to the last Reload. The caller
// must not change it.
func (s *System) Config() *config.Config {
	s.reload.Lock()
	defer s.reload.Unlock()
	return s.cfg
}

// Region is the memory of that name, nil if there is none. It belongs to the System.
func (s *System) Region(name string) *mem.Pool { return s.pools[name] }

// Interfaces are all ports with their queues, in the order of the configuration.
func (s *System) Interfaces() []Interface {
	out := slices.Clone(s.ifaces)
	for i := range out {
		out[i].Rx, out[i].Tx = slices.Clone(out[i].Rx), slices.Clone(out[i].Tx)
	}
	return out
}

func (s *System) iface(name string) *Interface {
	for i := range s.ifaces {
		if s.ifaces[i].Name == name {
			return &s.ifaces[i]
		}
	}
	return nil
}

// Port is the port of an interface, nil if there is none of that name. It belongs to the System.
func (s *System) Port(iface string) engine.Port {
	if f := s.iface(iface); f != nil {
		return f.Port
	}
	return nil
}

// Rx is where the packets of a receive queue come out, by the name of its interface and its id. The
// error wraps engine.ErrNotFound, and says what there is, or engine.ErrInUse, and names the
// application that takes the packets.
func (s *System) Rx(iface string, id int) (*engine.Rx, error) {
	f := s.iface(iface)
	if f == nil {
		return nil, s.noInterface(iface)
	}
	ids := make([]int, len(f.Rx))
	for i := range f.Rx {
		if ids[i] = f.Rx[i].ID; ids[i] != id {
			continue
		}
		if q := &f.Rx[i]; q.Application != "" {
			return nil, fmt.Errorf("penstock: the application %q takes the packets of receive queue %d of %q; remove "+
				"it from the configuration to receive them: %w", q.Application, id, iface, engine.ErrInUse)
		}
		return f.Rx[i].Receiver, nil
	}
	return nil, noQueue(iface, "receive", id, ids)
}

// Tx is the transmit queue of an id of an interface, which applications may use as well. The error
// wraps engine.ErrNotFound, and says what there is.
func (s *System) Tx(iface string, id int) (engine.TxQueue, error) {
	f := s.iface(iface)
	if f == nil {
		return nil, s.noInterface(iface)
	}
	ids := make([]int, len(f.Tx))
	for i := range f.Tx {
		if ids[i] = f.Tx[i].ID; ids[i] == id {
			return f.Tx[i].Queue, nil
		}
	}
	return nil, noQueue(iface, "transmit", id, ids)
}

func (s *System) noInterface(name string) error {
	names := make([]string, len(s.ifaces))
	for i := range s.ifaces {
		names[i] = s.ifaces[i].Name
	}
	return fmt.Errorf("penstock: there is no interface %q: expected one of %q: %w", name, names, engine.ErrNotFound)
}

func noQueue(iface, what string, id int, ids []int) error {
	return fmt.Errorf("penstock: the interface %q has no %s queue %d: expected one of %d: %w", iface, what, id, ids,
		engine.ErrNotFound)
}

// Node is the node for transfers, nil without the section transfers.
func (s *System) Node() *transfer.Node { return s.node }

// Identity is who the node is, nil without one.
func (s *System) Identity() *identity.Identity { return s.id }

// Share is what serves files to peers, nil if nothing is shared.
func (s *System) Share() *share.Server { return s.share }

// Link is the connection to a peer of the configuration, nil if there is none of that name. It is
// dialed in the background, and again when it was lost; Link.Peer waits for it.
func (s *System) Link(name string) *job.Link { return s.links[name] }
