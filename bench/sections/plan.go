package sections

import (
	"cmp"
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
	// Record is a file that gets what receivers do, in the format that its extension names (pcapng;
	// pcap, raw, npy, safetensors); "": none. Of several queues each has its own.
	Record string
	// Engines are those that interfaces may name; nil: all of this build.
	Engines *engine.Table
}

func (o *Options) complete() error {
	o.Duration, o.Settle = cmp.Or(o.Duration, 10*time.Second), cmp.Or(o.Settle, 2*time.Second)
	o.Samples, o.Warmup = cmp.Or(o.Samples, 10_000), max(0, cmp.Or(o.Warmup, 1000))
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

	split bool // its transmit queue has a region for headers and one for the rest
}

// err says where in the file an error belongs.
func (p *Place) err(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sections: %s: %w", p.At, err)
}

func (p *Place) name() string { return fmt.Sprintf("%s/%d", p.Interface, p.Queue) }

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
	for i := range c.BenchTx {
		x.sender(item("bench_tx", i), &c.BenchTx[i])
	}
	for i := range c.BenchRx {
		x.receiver(item("bench_rx", i), &c.BenchRx[i])
	}
	sections := len(c.BenchTx) + len(c.BenchRx) + x.sockets()
	if c.Latency != nil {
		sections++
		x.latency("bench_latency", c.Latency)
	}
	if c.Quantize != nil {
		sections++
	}
	x.reorders()
	x.needs()
	if sections == 0 {
		x.miss("", "expected bench_rx, bench_tx, bench_latency, socket_bench_server, socket_bench_client, "+
			"rdma_bench_server or "+
			"rdma_bench_client", "the file has no bench section")
	}
	if c.Transfers != nil || c.Registry != nil || len(c.Applications) > 0 || c.Metrics != nil {
		x.p.note("transfers, registry, applications and metrics of the file are not part of a benchmark of streams: " +
			"penstock run has them")
	}
	return x.p
}

// miss notes something that is missing, once.
func (x *planner) miss(path, hint, format string, args ...any) {
	m := Missing{Path: path, At: place(x.c, path), Text: fmt.Sprintf(format, args...), Hint: hint}
	if !slices.ContainsFunc(x.p.Missing, func(o Missing) bool { return o.Path == m.Path && o.Text == m.Text }) {
		x.p.Missing = append(x.p.Missing, m)
	}
}

func (p *Plan) note(text string) {
	if !slices.Contains(p.Notes, text) {
		p.Notes = append(p.Notes, text)
	}
}

// region is that of a name. config.Load has checked that there is one, but a program may not have.
func (x *planner) region(name string) *config.Region {
	if i := slices.IndexFunc(x.c.Regions, func(r config.Region) bool { return r.Name == name }); i >= 0 {
		return &x.c.Regions[i]
	}
	return nil
}

// place fills the place of a section, and says what is wrong with it.
func (x *planner) place(path, name string, queue, core int) (Place, *config.Interface) {
	at := Place{Path: path, At: place(x.c, path), Interface: name, Queue: queue, Core: core}
	i := slices.IndexFunc(x.c.Interfaces, func(p config.Interface) bool { return p.Name == name })
	if i < 0 {
		x.miss(path, "", "there is no interface %q", name)
		return at, nil
	}
	p := &x.c.Interfaces[i]
	at.Engine, at.Address = p.Engine, p.Address
	return at, p
}

// frames reports whether an engine carries whole Ethernet frames.
func frames(e config.Engine) bool {
	s := e.Spec()
	return s == nil || s.Capabilities.Frames
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
			x.miss(path, "kind: host or kind: huge", "memory of kind %s: "+onlyHost, r.Kind)
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
		p, key := x.within(d.Path)
		switch {
		case d.Code == config.CodePlaceholder && key == ".address":
			m.Hint = "write the value in its place, or give it: --address " + p.Name + "=INTERFACE"
		case d.Code == config.CodePlaceholder:
			m.Hint = "write the value in its place, or give it: --set '" + d.Path + "=VALUE'"
		case key == ".engine":
			// A card, which the kernel's network interface stands for.
			if s := p.Engine.Spec(); s != nil && s.Needs.Interface && !s.Needs.Frames {
				m.Hint = "give the name of a network interface: --address " + p.Name + "=INTERFACE"
			}
		}
		x.p.Missing = append(x.p.Missing, m)
	}
}

// within is the interface that a path is in, and the rest of the path.
func (x *planner) within(path string) (*config.Interface, string) {
	for i := range x.c.Interfaces {
		if rest, ok := strings.CutPrefix(path, item("interfaces", i)); ok {
			return &x.c.Interfaces[i], rest
		}
	}
	return nil, ""
}

// foreign reports whether a path belongs to what a benchmark does not open: other parts of the
// file, or interfaces of the other role.
func (x *planner) foreign(path string) bool {
	for _, part := range []string{"transfers", "security", "registry", "applications", "metrics", "logging"} {
		if strings.HasPrefix(path, part) {
			return true
		}
	}
	p, _ := x.within(path)
	return p != nil && !x.p.opens(p.Name)
}

// opens reports whether the plan opens an interface. A file whose sections name no interface opens
// all, so that what they would need is said.
func (p *Plan) opens(name string) bool {
	return len(p.Sockets) == 0 || len(p.Senders)+len(p.Receivers) > 0 || p.Latency != nil ||
		slices.ContainsFunc(p.Sockets, func(s Socket) bool { return s.Interface == name })
}
