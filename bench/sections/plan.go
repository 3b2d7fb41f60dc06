package sections

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Options say how the sections of a file are run. Zero values get defaults.
type Options struct {
	bench.Conditions
	// Role says which end of socket_bench_* or rdma_bench_* runs in this process: "server" or
	// "client". "": all that the file has.
	Role string
	// Duration ends sending, and receiving where nothing else does; 0: 10 s, as of DAQIRI's
	// programs; negative: only Packets, iterations or the end of the context do.
	Duration time.Duration
	// Packets is how many packets each of bench_tx sends; 0: as many as go out in Duration. Without
	// bench_tx receiving ends when so many have come in all.
	Packets uint64
	// Settle is how long nothing may come before the rest is given up; 0: 2 s.
	Settle time.Duration
	// Samples and Warmup are numbers of packets of bench_latency; 0: 10,000 and 1,000. A negative
	// Warmup is none.
	Samples, Warmup int
	// Host is the machine, to find out that interfaces or cores are not there before anything is
	// opened; nil: Run finds out.
	Host *config.Host
	// Engines are those that interfaces may name; nil: all of this build.
	Engines *engine.Table
}

func (o *Options) complete() error {
	for _, x := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&o.Duration, 10 * time.Second}, {&o.Settle, 2 * time.Second}} {
		if *x.v == 0 {
			*x.v = x.def
		}
	}
	if o.Samples == 0 {
		o.Samples = 10_000
	}
	if o.Warmup == 0 {
		o.Warmup = 1000
	}
	o.Warmup = max(0, o.Warmup)
	switch {
	case o.Role != "" && o.Role != "server" && o.Role != "client":
		return fmt.Errorf("sections: role %q: expected server or client, or none for what the file has", o.Role)
	case o.Settle < 0:
		return fmt.Errorf("sections: settle %v: expected more than 0", o.Settle)
	case o.Samples < 0 || o.Samples > 10_000_000:
		return fmt.Errorf("sections: %d samples: expected 1 to 10,000,000", o.Samples)
	}
	return nil
}

// Plan is what the bench sections of a file would do.
type Plan struct {
	File      string     `json:"file"`
	Senders   []Sender   `json:"senders,omitempty"`
	Receivers []Receiver `json:"receivers,omitempty"`
	Sockets   []Socket   `json:"sockets,omitempty"`
	Latency   *Latency   `json:"latency,omitempty"`
	Missing   []Missing  `json:"missing,omitempty"` // why nothing of it can run
	Notes     []string   `json:"notes,omitempty"`

	sections []string // that the file has, in order
}

// Missing is something without which the file cannot run here.
type Missing struct {
	Path string `json:"path,omitempty"`
	At   string `json:"at"` // file:line:column
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"` // how to go on
}

func (m Missing) String() string {
	s := m.At + ": " + m.Text
	if m.Hint != "" {
		s += "; " + m.Hint
	}
	return s
}

// Place is the queue of an interface that a section works on.
type Place struct {
	Path      string        `json:"path"` // of the section
	At        string        `json:"at"`   // file:line:column
	Interface string        `json:"interface"`
	Engine    config.Engine `json:"engine"`
	Address   string        `json:"address"`
	Queue     int           `json:"queue"`
	Core      int           `json:"core"` // of the section; -1: any
}

func (p Place) name() string { return fmt.Sprintf("%s/%d", p.Interface, p.Queue) }

// Sender is one of bench_tx.
type Sender struct {
	Place
	Batch    int         `json:"batch"`
	Header   int         `json:"header"`  // bytes in front of the payload, before tags and tunnels
	Payload  int         `json:"payload"` // bytes
	Overhead int         `json:"overhead,omitempty"`
	Rate     config.Rate `json:"rate,omitempty"` // of the queue; 0: none
	EthSrc   packet.MAC  `json:"eth_src"`        // zero: that of the interface
	EthDst   packet.MAC  `json:"eth_dst"`
	Src      netip.Addr  `json:"src"`
	Dst      netip.Addr  `json:"dst"`
	SrcPorts flow.Range  `json:"src_ports"`
	DstPorts flow.Range  `json:"dst_ports"`
	Sequence int         `json:"sequence"` // place in the payload of the file's sequence number, -1: none
	Start    uint32      `json:"start,omitempty"`
	Number   int         `json:"number"` // place in the payload of our own header, -1: no room

	rules []flow.Rule // tags and tunnels
	split bool        // headers and payload lie in two regions
}

// Size is the length of a packet in bytes, as it leaves.
func (s *Sender) Size() int { return s.Header + s.Payload + s.Overhead }

// Receiver is one of bench_rx.
type Receiver struct {
	Place
	Batch   int           `json:"batch"`
	Timeout time.Duration `json:"timeout"` // that a batch waits to be full
	SplitAt int           `json:"split_at,omitempty"`
	Regions []string      `json:"regions"`

	reorders []*config.Reorder // plans of its interface
}

// Socket is one end of socket_bench_* or rdma_bench_*.
type Socket struct {
	Place
	Role       string `json:"role"`
	Protocol   string `json:"protocol"` // udp, tcp, rdma
	Send       bool   `json:"send"`
	Receive    bool   `json:"receive"`
	Iterations int    `json:"iterations"` // messages; 0: until the time is over
	Size       int    `json:"message_size"`
	Batch      int    `json:"batch"` // messages that are sent at once
	Queues     []int  `json:"queues,omitempty"`
	// Peer is whom a server of UDP sends to before it has heard from it, or whom a client of RDMA
	// connects to.
	Peer  netip.AddrPort `json:"peer,omitzero"`
	piece int            // bytes of a slot to send from

	rxDepth, txDepth int // of the interface's queues; 0: as it has them
}

// Latency is bench_latency.
type Latency struct {
	Path     string     `json:"path"`
	At       string     `json:"at"`
	Tx       Place      `json:"tx"`
	Rx       Place      `json:"rx"`
	Back     bool       `json:"back"` // packets can come back: both interfaces have queues for it
	Header   int        `json:"header"`
	Payloads []int      `json:"payloads"`
	EthDst   packet.MAC `json:"eth_dst"`
	Src      netip.Addr `json:"src"`
	Dst      netip.Addr `json:"dst"`
	SrcPort  uint16     `json:"src_port"`
	DstPort  uint16     `json:"dst_port"`

	back Place // where what comes back is sent, and home where it is received
	home Place
}

// planner makes a Plan.
type planner struct {
	c *config.Config
	o *Options
	p *Plan
}

// MakePlan says what the bench sections of a configuration would do. Of what config.Load said
// placeholders are kept as missing; everything else is looked at again, because the configuration
// may have been changed since, by Fit for instance. It opens nothing.
func MakePlan(c *config.Config, o Options) *Plan {
	x := &planner{c: c, o: &o, p: &Plan{File: c.Name()}}
	x.raw()
	x.sockets()
	x.latency()
	x.reorders()
	x.needs()
	p := x.p
	if len(p.sections) == 0 {
		x.miss("", "the file has no bench section",
			"expected bench_rx, bench_tx, bench_latency, socket_bench_server, socket_bench_client, rdma_bench_server "+
				"or rdma_bench_client")
	}
	if c.Transfers != nil || c.Registry != nil || len(c.Applications) > 0 || c.Metrics != nil {
		p.Notes = append(p.Notes,
			"transfers, registry, applications and metrics of the file are not part of a benchmark of streams: "+
				"penstock run has them")
	}
	return p
}

func (x *planner) miss(path, text, hint string) {
	for _, m := range x.p.Missing {
		if m.Path == path && m.Text == text {
			return
		}
	}
	x.p.Missing = append(x.p.Missing, Missing{Path: path, At: place(x.c, path), Text: text, Hint: hint})
}

func (x *planner) has(section string) { x.p.sections = append(x.p.sections, section) }

// iface is the interface of a name and its index. config.Load has checked that there is one, but a
// program may not have.
func (x *planner) iface(name string) (*config.Interface, string) {
	for i := range x.c.Interfaces {
		if p := &x.c.Interfaces[i]; p.Name == name {
			return p, item("interfaces", i)
		}
	}
	return nil, ""
}

func (x *planner) region(name string) *config.Region {
	for i := range x.c.Regions {
		if x.c.Regions[i].Name == name {
			return &x.c.Regions[i]
		}
	}
	return nil
}

// place fills the place of a section, and says what is wrong with it.
func (x *planner) place(path, name string, queue, core int) (Place, *config.Interface) {
	at := Place{Path: path, At: place(x.c, path), Interface: name, Queue: queue, Core: core}
	p, _ := x.iface(name)
	if p == nil {
		x.miss(path, fmt.Sprintf("there is no interface %q", name), "")
		return at, nil
	}
	at.Engine, at.Address = p.Engine, p.Address
	return at, p
}

// needs are what Load and Check say that the file needs and is not here, of what a benchmark opens.
func (x *planner) needs() {
	var all config.Diagnostics
	for _, d := range x.c.Needs() {
		if d.Code == config.CodePlaceholder {
			all = append(all, d)
		}
	}
	all = append(all, x.c.Check(x.o.Host).Only(config.Needs)...)
	for i := range x.c.Regions {
		if r, path := &x.c.Regions[i], item("memory_regions", i)+".kind"; r.OnGPU() {
			all = slices.DeleteFunc(all, func(d config.Diagnostic) bool { return d.Path == path })
			x.miss(path, fmt.Sprintf("memory of kind %s: the processor makes and checks the packets of a benchmark",
				r.Kind), "kind: host or kind: huge")
		}
	}
	for _, d := range all {
		if d.Code != config.CodePlaceholder && x.foreign(d.Path) {
			continue
		}
		m := Missing{Path: d.Path, At: fmt.Sprintf("%s:%d:%d", d.File, d.At.Line, d.At.Column), Text: textOf(&d),
			Hint: d.Hint}
		if d.At.IsZero() {
			m.At = place(x.c, d.Path)
		}
		switch {
		case d.Code == config.CodePlaceholder:
			m.Hint = "write the value in its place, or give it: " + x.setting(d.Path)
		case x.device(d.Path):
			m.Hint = "give the name of a network interface: " +
				x.setting(strings.TrimSuffix(d.Path, "engine")+"address")
		}
		x.p.Missing = append(x.p.Missing, m)
	}
}

// device reports whether a path is the engine of an interface that is a card, which the kernel's
// network interface stands for.
func (x *planner) device(path string) bool {
	for i := range x.c.Interfaces {
		if e := x.c.Interfaces[i].Engine; path == item("interfaces", i)+".engine" {
			s := e.Spec()
			return s != nil && s.Needs.Interface && !s.Needs.Frames
		}
	}
	return false
}

// setting is how the command line gives a value.
func (x *planner) setting(path string) string {
	for i := range x.c.Interfaces {
		if path == item("interfaces", i)+".address" {
			return "--address " + x.c.Interfaces[i].Name + "=INTERFACE"
		}
	}
	return "--set '" + path + "=VALUE'"
}

// foreign reports whether a path belongs to what a benchmark does not open: other parts of the
// file, or interfaces of the other role.
func (x *planner) foreign(path string) bool {
	for _, part := range []string{"transfers", "security", "registry", "applications", "metrics", "logging"} {
		if strings.HasPrefix(path, part) {
			return true
		}
	}
	if !strings.HasPrefix(path, "interfaces[") {
		return false
	}
	for i := range x.c.Interfaces {
		if strings.HasPrefix(path, item("interfaces", i)) {
			return !x.opens(x.c.Interfaces[i].Name)
		}
	}
	return false
}

// opens reports whether the plan opens an interface. A file whose sections name no interface opens
// all, so that what they would need is said.
func (x *planner) opens(name string) bool {
	if len(x.p.Sockets) == 0 || len(x.p.Senders)+len(x.p.Receivers) > 0 || x.p.Latency != nil {
		return true
	}
	for _, s := range x.p.Sockets {
		if s.Interface == name {
			return true
		}
	}
	return false
}
