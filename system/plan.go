package system

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/flow"
)

// Plan is what Open will open, in that order, and what of it is not here. It is inert.
type Plan struct {
	File       string          `json:"file,omitempty"`
	MasterCore int             `json:"master_core"` // -1: none
	Regions    []RegionPlan    `json:"regions"`
	Interfaces []InterfacePlan `json:"interfaces"`
	Pollers    []PollerPlan    `json:"pollers"`
	// Applications are those of the file, and Options.Unclaimed for the receive queues that have
	// none.
	Applications []ApplicationPlan `json:"applications"`
	Node         *NodePlan         `json:"node,omitempty"`    // nil without transfers
	Metrics      string            `json:"metrics,omitempty"` // address of the page; "": none
	GPU          *GPUPlan          `json:"gpu,omitempty"`     // nil without memory of GPUs
	// Missing is what the configuration asks for and this program or machine does not have, each
	// with its place and how to go on. Open fails while there is anything in it.
	Missing config.Diagnostics `json:"missing,omitempty"`
	// Notes are keys that have no effect, or another one than expected.
	Notes config.Diagnostics `json:"notes,omitempty"`

	cfg     *config.Config
	o       Options
	table   *engine.Table
	engines []engine.Engine // of the interfaces
	shares  []memoryShare   // of interfaces
	uses    [][]string      // of regions: by engines
	causes  []error         // of what is missing, as far as they are known

	reorders map[string]*reorderShare // by path
}

// RegionPlan is memory for packets.
type RegionPlan struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Node     int    `json:"numa_node"` // -1: any
	Slots    int    `json:"slots"`
	SlotSize int    `json:"slot_bytes"`
	Bytes    int64  `json:"bytes"`            // in whole pages
	Given    bool   `json:"given"`            // by the program: owned is false
	Area     string `json:"area,omitempty"`   // memory that it shares with other regions; "": its own
	Device   string `json:"device,omitempty"` // of kinds device and host_pinned: the GPU
	// Uses say what the engines do with it, see engine.MemoryUse: "xdp: part of UMEM".
	Uses []string `json:"uses,omitempty"`
}

// InterfacePlan is a port.
type InterfacePlan struct {
	Name     string   `json:"name"`
	Engine   string   `json:"engine"`
	Address  string   `json:"address"`
	MTU      int      `json:"mtu"` // bytes; 0: as it is
	Isolated bool     `json:"isolated"`
	Options  []string `json:"options,omitempty"` // of the engine, those that are not zero: "Ring=2048"
	// shared with other interfaces of the engine, or divided for this one
	Memory string     `json:"memory,omitempty"`
	Rx     []RxPlan   `json:"rx"`
	Tx     []TxPlan   `json:"tx"`
	Flows  []FlowPlan `json:"flows"`
}

// RxPlan is a receive queue.
type RxPlan struct {
	Name    string        `json:"name"`
	ID      int           `json:"id"`
	Regions []string      `json:"regions"`
	Depth   int           `json:"depth"`            // packets
	SplitAt int           `json:"split_at"`         // bytes, with two regions
	Stages  []string      `json:"stages,omitempty"` // from the queue to the application
	Poller  string        `json:"poller,omitempty"` // "": the application polls
	Burst   int           `json:"burst"`            // packets at most
	Timeout time.Duration `json:"timeout_ns"`
	HandOff int           `json:"hand_off"`         // bursts between the poller and the application; 0 without a poller
	Copies  string        `json:"copies,omitempty"` // what is copied on the way to the application, and why

	stages   []stagePlan
	reorders bool // a stage makes batches
}

func (r *RxPlan) batching() engine.Batching {
	if r.reorders { // a batch is a packet, and waits for no other
		return engine.Batching{Packets: 1}
	}
	return engine.Batching{Packets: r.Burst, Timeout: r.Timeout}
}

// TxPlan is a transmit queue.
type TxPlan struct {
	Name     string   `json:"name"`
	ID       int      `json:"id"`
	Regions  []string `json:"regions"`
	Depth    int      `json:"depth"`    // packets
	Rate     uint64   `json:"rate_bps"` // 0: no limit
	Headroom int      `json:"headroom"` // bytes
	Timed    bool     `json:"timed"`    // packets carry the time at which they leave
	Offloads []string `json:"offloads,omitempty"`
	Copies   string   `json:"copies,omitempty"` // what is copied on the way out, and why

	burst int // packets that an application sends at once, at most
	// regions of a receive queue with device memory whose packets an application sends here; nil:
	// none
	forwards []string
}

// FlowPlan is a steering rule.
type FlowPlan struct {
	ID   uint32 `json:"id"` // that packets carry
	Name string `json:"name"`
	Rule string `json:"rule"` // the rest, as flow.ParseRule reads it
}

// PollerPlan is a goroutine that receives.
type PollerPlan struct {
	Name   string   `json:"name"`
	Core   int      `json:"core"`   // -1: any
	Mode   string   `json:"mode"`   // event, adaptive, busy
	Queues []string `json:"queues"` // INTERFACE/QUEUE

	cpu   int // as engine.PollerOptions counts
	mode  engine.PollMode
	asked bool // by a queue, for the mode
}

// NodePlan is the node for transfers.
type NodePlan struct {
	Name   string       `json:"name,omitempty"`
	Listen []ListenPlan `json:"listen"`
	Paths  []string     `json:"paths"` // with the options that the file has for them: NAME?KEY=VALUE&...
	// Identity is the directory of certificates; "" without one.
	Identity string     `json:"identity,omitempty"`
	Share    *SharePlan `json:"share,omitempty"`
	Peers    []PeerPlan `json:"peers,omitempty"`
}

// ListenPlan is an address where peers come to.
type ListenPlan struct {
	Address   string `json:"address"`
	Encrypted bool   `json:"encrypted"`
	Local     bool   `json:"local"` // only this machine reaches it
}

// SharePlan is files for peers.
type SharePlan struct {
	Path     string `json:"path"`
	Writable bool   `json:"writable"`
	MaxBytes int64  `json:"max_bytes"` // 0: as the disk allows
}

// PeerPlan is a node to connect to.
type PeerPlan struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// ErrMissing is what the error of a configuration wraps that asks for what is not here.
var ErrMissing = errors.New("penstock: not everything that the configuration asks for is here")

// MissingError is all that a configuration asks for and that is not here. It wraps ErrMissing, and
// the errors of engines that say so.
type MissingError struct {
	Missing config.Diagnostics

	causes []error
}

func (e *MissingError) Error() string {
	var b strings.Builder
	b.WriteString(ErrMissing.Error())
	for i := range e.Missing {
		b.WriteString("\n\t")
		b.WriteString(e.Missing[i].String())
	}
	return b.String()
}

// Unwrap makes it match ErrMissing and the errors of engines.
func (e *MissingError) Unwrap() []error { return append([]error{ErrMissing}, e.causes...) }

// Err is a *MissingError if something is missing, else nil.
func (p *Plan) Err() error {
	if len(p.Missing) == 0 {
		return nil
	}
	return &MissingError{p.Missing, p.causes}
}

// MakePlan says what Open would open, and in Plan.Missing all that Open would refuse, as far as it
// is known without opening: engines are asked about interfaces, queues and flows (engine.Check,
// engine.Checker), and this machine about memory and cores, in the network namespace of the calling
// thread. What others have in use is found out by opening alone. The configuration is completed and
// checked first (config.Config.Check); the error is that of a wrong one and wraps
// config.ErrInvalid.
func MakePlan(cfg *config.Config, o Options) (*Plan, error) {
	p, err := makePlan(cfg, o)
	if err == nil {
		p.check()
		p.sort()
	}
	return p, err
}

// makePlan is MakePlan without what engines and the memory of this machine are asked.
func makePlan(cfg *config.Config, o Options) (*Plan, error) {
	if cfg == nil {
		return nil, fmt.Errorf("penstock: no configuration: %w", config.ErrInvalid)
	}
	p := &Plan{File: cfg.Name(), MasterCore: cfg.MasterCore, cfg: cfg, o: o, table: o.Engines}
	if p.table == nil {
		p.table = Engines()
	}
	if unfilled := cfg.Needs(); slices.ContainsFunc(unfilled, func(d config.Diagnostic) bool {
		return d.Code == config.CodePlaceholder
	}) {
		// Check would take what is to be filled in for absent.
		p.Missing = unfilled
	} else {
		found := cfg.Check(nil)
		if err := found.Err(); err != nil {
			return nil, err
		}
		p.Missing = found.Only(config.Needs)
	}
	p.Missing = slices.DeleteFunc(p.Missing, func(d config.Diagnostic) bool {
		return d.Code == config.CodeHost || slices.Contains(p.builtHere(), d.Path) // that is looked at again
	})
	p.core("master_core", cfg.MasterCore)
	p.planGPUs()
	p.planPorts()
	p.planRegions()
	p.planNode()
	p.planApplications()
	if cfg.Metrics != nil {
		p.Metrics = cfg.Metrics.Listen
		if host, _, err := net.SplitHostPort(p.Metrics); err == nil && !loopback(host) {
			p.need(config.CodeHost, "metrics.listen",
				fmt.Sprintf("the page of metrics would be at %s, and it is for this machine only", p.Metrics),
				"a loopback address such as 127.0.0.1:9095", "a server that authenticates can stand in front of it")
		}
	}
	p.sort()
	return p, nil
}

// sort puts findings in the order of the file.
func (p *Plan) sort() {
	for _, l := range []config.Diagnostics{p.Missing, p.Notes} {
		slices.SortStableFunc(l, func(a, b config.Diagnostic) int {
			return cmp.Or(cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
		})
	}
}

// builtHere are the paths of engines that package config does not know to be built, and that the
// table has.
func (p *Plan) builtHere() (out []string) {
	for i := range p.cfg.Interfaces {
		e := p.cfg.Interfaces[i].Engine
		for _, have := range p.table.Engines() {
			if !e.Built() && have.Name() == string(e) {
				out = append(out, fmt.Sprintf("interfaces[%d].engine", i))
			}
		}
	}
	return out
}

func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

func (p *Plan) need(code config.Code, path, message, expected, hint string) {
	p.Missing = append(p.Missing, p.cfg.Diagnose(config.Needs, code, path, message, expected, hint))
}

func (p *Plan) note(path, message, hint string) {
	p.Notes = append(p.Notes, p.cfg.Diagnose(config.Note, config.CodeNoEffect, path, message, "", hint))
}

// core finds a core among those that the process may use, and returns its place there; -1 for none.
func (p *Plan) core(path string, core int) int {
	if core < 0 {
		return engine.Unpinned
	}
	var have []string
	for i := range runtime.NumCPU() {
		n, err := sys.Processor(i)
		if err != nil {
			p.need(config.CodeHost, path, fmt.Sprintf("the cores that this process may use cannot be read: %v", err),
				"", "-1 leaves the choice to the system")
			return engine.Unpinned
		}
		if n == core {
			return i
		}
		have = append(have, fmt.Sprint(n))
	}
	p.need(config.CodeHost, path, fmt.Sprintf("this process cannot run on core %d", core),
		"one of "+strings.Join(have, ", "), "-1 leaves the choice to the system")
	return engine.Unpinned
}

func (p *Plan) planPorts() {
	for i := range p.cfg.Interfaces {
		p.planPort(&p.cfg.Interfaces[i], fmt.Sprintf("interfaces[%d]", i))
	}
	p.planMemories()
}

func (p *Plan) planPort(c *config.Interface, path string) {
	ip := InterfacePlan{Name: c.Name, Engine: string(c.Engine), Address: c.Address, MTU: c.MTU, Rx: []RxPlan{},
		Tx: []TxPlan{}, Flows: []FlowPlan{}}
	e, err := p.table.Get(string(c.Engine))
	switch {
	// package config has said it
	case slices.ContainsFunc(p.Missing, func(d config.Diagnostic) bool { return d.Path == path+".engine" }):
	case err != nil:
		p.need(config.CodeHost, path+".engine", fmt.Sprintf("interface %q: %v", c.Name, err), "", "")
	}
	p.engines = append(p.engines, e)
	ip.Options = settings(c.PortSpec().Options)
	if c.Rx != nil {
		ip.Isolated = c.Rx.FlowIsolation
		for k := range c.Rx.Queues {
			at := fmt.Sprintf("%s.rx.queues[%d]", path, k)
			r := p.planRx(c, k, at)
			r.stages, r.Stages = p.planStages(&c.Rx.Queues[k], e, at)
			if s := p.reorderStage(c.Rx, &c.Rx.Queues[k], path+".rx"); s != nil {
				n := min(c.Rx.Queues[k].OfPackets(), len(r.stages))
				r.stages, r.Stages, r.reorders = slices.Insert(r.stages, n, stagePlan{kind: s}),
					slices.Insert(r.Stages, n, s.Name), true
			}
			r.Copies = p.staging(e, r.Name, r.Regions, true)
			ip.Rx = append(ip.Rx, r)
		}
		rules, err := portRules(c)
		if err != nil && len(p.cfg.Needs()) == 0 {
			p.need(config.CodeReference, path+".rx.flows", err.Error(), "", "")
		}
		for k := range rules {
			r := rules[k]
			fp := FlowPlan{ID: r.Carried(), Name: r.Name}
			r.Name, r.Mark = "", flow.Opt[uint32]{}
			fp.Rule = r.String()
			ip.Flows = append(ip.Flows, fp)
		}
		if len(rules) > 0 && e != nil && !e.Capabilities().Rules {
			p.need(config.CodeNotBuilt, path+".rx.flows", fmt.Sprintf("the engine %s has no flows", c.Engine), "",
				"remove flows")
		}
	}
	if c.Tx != nil {
		for k := range c.Tx.Queues {
			q := &c.Tx.Queues[k]
			at := fmt.Sprintf("%s.tx.queues[%d]", path, k)
			t := TxPlan{Name: q.Name, ID: q.ID, Regions: q.Regions, Depth: q.Depth, Rate: uint64(q.Rate),
				Headroom: q.Headroom, Timed: c.Tx.AccurateSend, Offloads: q.Offloads,
				burst: q.BatchSize, Copies: p.staging(e, q.Name, q.Regions, false)}
			if t.forwards = p.forwards(c.Name, q.ID); t.Copies == "" {
				t.Copies = p.staging(e, q.Name, t.forwards, false)
			}
			ip.Tx = append(ip.Tx, t)
			if q.CPUCore >= 0 {
				p.note(at+".cpu_core",
					fmt.Sprintf("cpu_core: %d of transmit queue %s has no effect: whoever calls Send sends", q.CPUCore,
						q.Name), "pin the application instead")
			}
		}
		if len(c.Tx.Flows) > 0 {
			p.need(config.CodeNotBuilt, path+".tx.flows",
				fmt.Sprintf("flows of tx change packets that are sent, and the engine %s does not do that", c.Engine),
				"",
				"remove them, and change packets before Send (flow.Transform)")
		}
	}
	p.Interfaces = append(p.Interfaces, ip)
}

// Bounds of the hand-off between a poller and the application in bursts, see handOff.
const (
	minHandOff = 4
	maxHandOff = 32
)

// handOff is how many bursts of a receive queue there are: not so many that they hold all slots of
// its memory.
func handOff(slots, burst int) int { return min(max(slots/max(burst, 1)/2, minHandOff), maxHandOff) }

func (p *Plan) planRx(c *config.Interface, k int, path string) RxPlan {
	q := &c.Rx.Queues[k]
	r := RxPlan{Name: q.Name, ID: q.ID, Regions: q.Regions, Depth: q.Depth, SplitAt: q.SplitAt,
		Burst: min(max(q.BatchSize, 1), maxBurst), Timeout: q.Timeout}
	if q.BatchSize > maxBurst {
		p.note(path+".batch_size", fmt.Sprintf("batch_size: bursts of %s have %d packets at most", q.Name, maxBurst),
			"")
	}
	if q.PollMode == "direct" {
		return r
	}
	slots := 0
	for _, name := range q.Regions {
		for i := range p.cfg.Regions {
			if x := &p.cfg.Regions[i]; x.Name == name && (slots == 0 || x.NumBufs < slots) {
				slots = x.NumBufs
			}
		}
	}
	r.HandOff = handOff(slots, q.BatchSize)
	r.Poller = p.planPoller(q, c.Name+"/"+q.Name, path)
	return r
}

// maxBurst is the most packets of a burst that is waited for.
const maxBurst = 1 << 16

// portRules are the flows of an interface.
func portRules(c *config.Interface) ([]flow.Rule, error) {
	if c.Rx == nil {
		return nil, nil
	}
	return c.Rx.Rules()
}

func (p *Plan) planRegions() {
	p.Regions = []RegionPlan{}
	for i := range p.cfg.Regions {
		r := &p.cfg.Regions[i]
		path := fmt.Sprintf("memory_regions[%d]", i)
		rp := RegionPlan{Name: r.Name, Kind: r.Kind, Node: r.NUMA, Slots: r.NumBufs, SlotSize: int(r.BufSize),
			Bytes: int64(r.Bytes()), Given: !r.Owned}
		if !r.Owned {
			switch given := p.o.Regions[r.Name]; {
			case given == nil:
				p.need(config.CodeHost, path+".owned",
					fmt.Sprintf("the program gives no memory for the region %q, which says owned: false", r.Name), "",
					"Options.Regions takes it; owned: true allocates it")
			case given.Slots() < r.NumBufs || given.SlotSize() < int(r.BufSize):
				p.need(config.CodeHost, path+".owned",
					fmt.Sprintf("the program's memory for the region %q has %d slots of %d bytes", r.Name,
						given.Slots(), given.SlotSize()),
					fmt.Sprintf("%d of %d bytes, or more", r.NumBufs, int64(r.BufSize)), "")
			}
		}
		if r.OnGPU() {
			rp.Node, rp.Device = -1, p.GPU.name(r.GPU)
		}
		rp.Uses = p.uses[i]
		if m := p.share(i); m != nil {
			rp.Area = m.name
		}
		p.Regions = append(p.Regions, rp)
	}
	for _, name := range slices.Sorted(maps.Keys(p.o.Regions)) {
		if !slices.ContainsFunc(p.cfg.Regions, func(r config.Region) bool { return r.Name == name && !r.Owned }) {
			p.need(config.CodeReference, "memory_regions",
				fmt.Sprintf("the program gives memory for a region %q, and there is none with owned: false", name), "",
				"")
		}
	}
}
