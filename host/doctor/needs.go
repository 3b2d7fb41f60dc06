package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
)

// Engines are the packet engines that needs can name: those of the table that need something of a
// machine.
func Engines() (out []string) {
	for _, s := range drivers.Table() {
		if s.Needs.Interface || s.Needs.IP || len(s.Needs.Capabilities) > 0 || s.Needs.Kernel != [2]int{} {
			out = append(out, s.Name)
		}
	}
	return out
}

// wants is what an engine needs of a machine; nothing for names that are not in the table.
func wants(name string) engine.Needs {
	if s := drivers.Get(name); s != nil {
		return s.Needs
	}
	return engine.Needs{}
}

// Properties of engines, for Needs.engine.
var (
	pins    = func(w engine.Needs) bool { return w.Pins }
	vfio    = func(w engine.Needs) bool { return w.VFIO }
	rdma    = func(w engine.Needs) bool { return w.RDMA }
	buffers = func(w engine.Needs) bool { return w.Buffers }
	// kernel says that packets come by the kernel's receive path, or by its interrupts.
	kernel = func(w engine.Needs) bool { return w.Buffers || w.Frames }
)

// Needs is what a program wants of a machine. The zero value wants nothing: Run looks at the
// machine in general.
type Needs struct {
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Cores are the processors that pollers and workers are bound to, by the kernel's numbers.
	Cores []int `json:"cores,omitempty"`
	// Huge is memory to be free in huge pages.
	Huge []Huge `json:"huge_pages,omitempty"`
	// Locked is how much memory is locked or registered, in bytes. 0: what is in huge pages, if an
	// engine locks it.
	Locked uint64 `json:"locked_bytes,omitempty"`
	// Receive and Send are the largest buffers of a socket, in bytes. 0: what the engine socket
	// does well with.
	Receive uint64 `json:"receive_buffer_bytes,omitempty"`
	Send    uint64 `json:"send_buffer_bytes,omitempty"`
	// GPUs are the PCI addresses of GPUs whose memory takes part, or their numbers in the order of
	// addresses; AnyGPU stands for any one. nil: all are looked at in general; empty and not nil:
	// none takes part.
	GPUs []string `json:"gpus,omitempty"`
	// RDMA are the names of RDMA devices that are used, such as mlx5_0; AnyDevice stands for one
	// with an active port. nil: those of Interfaces whose engine needs one.
	RDMA []string `json:"rdma_devices,omitempty"`
	// Clock: a service has to keep the system's clock on time.
	Clock bool `json:"clock,omitempty"`

	// Whole: that is all. Without it Run also looks at the machine in general.
	Whole bool `json:"whole,omitempty"`
	// What only a configuration says: see NeedsOf.
	Uses    []Use    `json:"core_uses,omitempty"` // what each of Cores is for
	Memory  []Memory `json:"memory,omitempty"`
	Sockets []Socket `json:"sockets,omitempty"`
	Timed   []Place  `json:"timed,omitempty"` // where times of packets are compared with those of other machines
}

// Place is where something was written: in a configuration file. The zero Place is nowhere.
type Place struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path"` // such as memory_regions[0].num_bufs
}

func (p Place) String() string {
	if p.Line == 0 {
		return strings.TrimSpace(p.File + " " + p.Path)
	}
	return fmt.Sprintf("%s:%d:%d %s", p.File, p.Line, p.Column, p.Path)
}

// Use is what a core is for.
type Use struct {
	Core      int    `json:"core"`
	What      string `json:"what"`
	Interface string `json:"interface,omitempty"` // whose packets it works on, as Interface.Name; empty: of none
	Polls     bool   `json:"polls,omitempty"`     // all the time, so that nothing else can run there
	At        Place  `json:"at,omitzero"`
}

// Memory is memory that packets lie in.
type Memory struct {
	Name       string   `json:"name"`
	Kind       string   `json:"kind"` // host, huge, host_pinned, device
	Bytes      uint64   `json:"bytes"`
	Page       uint64   `json:"page_bytes,omitempty"` // of kind huge
	Fallback   bool     `json:"fallback,omitempty"`   // of kind huge: plain memory will do
	Locked     bool     `json:"locked,omitempty"`     // an engine pins it
	Node       int      `json:"node"`                 // NUMA node; AnyNode: wherever
	GPU        string   `json:"gpu,omitempty"`        // of kinds device and host_pinned: one of Needs.GPUs
	Interfaces []string `json:"interfaces,omitempty"` // whose packets they are, as Interface.Name
	At         Place    `json:"at,omitzero"`
}

// Socket is an end of a connection, or of datagrams, that is opened by an IP address, or a port of
// an engine that needs no interface.
type Socket struct {
	Name   string `json:"name"`
	Engine string `json:"engine"`          // one of Engines
	Local  string `json:"local,omitempty"` // IP address; empty: any
	Group  string `json:"group,omitempty"` // multicast group that it joins, in the place of Local
	// Receive and Send are the kernel's buffers that are asked for, in bytes; 0: those that the
	// engine chooses.
	Receive uint64 `json:"receive_buffer_bytes,omitempty"`
	Send    uint64 `json:"send_buffer_bytes,omitempty"`
	// Looked: the caller has looked for Local on this machine; Interface is where it is, empty for
	// nowhere.
	Looked    bool             `json:"looked,omitempty"`
	Interface string           `json:"interface,omitempty"`
	Packet    int              `json:"packet_bytes,omitempty"` // the longest packet of IP that it sends; 0: any
	At        Place            `json:"at,omitzero"`
	Places    map[string]Place `json:"places,omitempty"` // of the members above, by their name in JSON
}

// AnyGPU in Needs.GPUs is one GPU, whichever.
const AnyGPU = "any"

// AnyDevice in Needs.RDMA is one RDMA device with an active port, whichever.
const AnyDevice = "any"

// Interface is a network interface that is used.
type Interface struct {
	Name   string `json:"name"`             // or the PCI address of its card
	Engine string `json:"engine,omitempty"` // one of Engines; empty: not known
	Queues int    `json:"queues,omitempty"` // receive queues; 0: as many as there are
	MTU    int    `json:"mtu,omitempty"`    // bytes at least; 0: any
	Ring   int    `json:"ring,omitempty"`   // receive descriptors at least; 0: what is right mostly
	// HardwareTime: packets carry the card's time of arrival.
	HardwareTime bool `json:"hardware_time,omitempty"`

	// What only a configuration says.
	slot   int // bytes of a packet that its smallest slot has room for, where a packet has one; 0: not known
	slotAt Place
	// bytes of the longest frame that its buffers have room for; 0: not known
	Frame    int  `json:"frame_bytes,omitempty"`
	Depth    int  `json:"depth,omitempty"`     // packets that its longest queue holds
	BusyPoll bool `json:"busy_poll,omitempty"` // the cores that poll also do the card's interrupt work
	// Of the engine xdp: what it must have.
	ZeroCopy bool             `json:"zero_copy,omitempty"`
	Native   bool             `json:"native,omitempty"`
	Chains   bool             `json:"chains,omitempty"` // frames of several buffers
	At       Place            `json:"at,omitzero"`
	Places   map[string]Place `json:"places,omitempty"` // of the members above, by their name in JSON
}

// Huge is memory in huge pages.
type Huge struct {
	Bytes uint64 `json:"bytes"`
	Page  uint64 `json:"page_bytes,omitempty"` // 0: 2 MiB
	Node  int    `json:"node"`                 // NUMA node; AnyNode: wherever
}

// AnyNode is memory on whatever node.
const AnyNode = -1

// defaultPage is the size of huge pages that every machine of the field has.
const defaultPage = 2 << 20

// ErrNeeds is an error of needs that make no sense on any machine.
var ErrNeeds = errors.New("doctor: needs")

// Check says what is wrong with needs by themselves. The error wraps ErrNeeds.
func (n Needs) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrNeeds, fmt.Sprintf(format, args...))
	}
	seen := map[[2]string]bool{}
	for _, i := range n.Interfaces {
		switch {
		case i.Name == "":
			return bad("an interface without a name")
		case seen[[2]string{i.Name, i.Engine}]:
			return bad("interface %q is there twice", i.Name)
		case i.Engine != "" && !slices.Contains(Engines(), i.Engine):
			return bad("no engine is called %q: expected one of %s", i.Engine, strings.Join(Engines(), ", "))
		case i.Queues < 0 || i.Queues > 4096:
			return bad("%d queues: expected 1 to 4096, or 0 for as many as there are", i.Queues)
		case i.MTU < 0 || i.MTU > 65535:
			return bad("MTU %d: expected at most 65535", i.MTU)
		case i.Ring < 0 || i.Ring > 1<<20:
			return bad("rings of %d descriptors: expected at most %d", i.Ring, 1<<20)
		}
		seen[[2]string{i.Name, i.Engine}] = true
	}
	for i, c := range n.Cores {
		switch {
		case c < 0 || c >= 1<<14:
			return bad("processor %d: expected 0 to %d", c, 1<<14-1)
		case slices.Contains(n.Cores[:i], c):
			return bad("processor %d is there twice", c)
		}
	}
	for i, d := range n.RDMA {
		switch {
		case d == "" || strings.ContainsAny(d, "/ "):
			return bad("RDMA device %q: expected a name such as mlx5_0, see /sys/class/infiniband", d)
		case slices.Contains(n.RDMA[:i], d):
			return bad("RDMA device %q is there twice", d)
		}
	}
	for _, h := range n.Huge {
		if h.Page&(h.Page-1) != 0 || h.Page != 0 && h.Page < 4096 || h.Page > 1<<40 {
			return bad("huge pages of %d bytes: expected a power of two, such as %d", h.Page, defaultPage)
		}
		if h.Bytes == 0 || h.Bytes > 1<<46 || h.Node < AnyNode || h.Node >= 1<<14 {
			return bad("%d bytes in huge pages on node %d: expected 1 to %d bytes on a node that can be", h.Bytes,
				h.Node, uint64(1)<<46)
		}
	}
	return nil
}

// of are the interfaces and sockets of an engine, by name.
func (n *Needs) of(name string) (out []string) {
	for _, i := range n.Interfaces {
		if i.Engine == name {
			out = append(out, i.Name)
		}
	}
	for _, s := range n.Sockets {
		if s.Engine == name {
			out = append(out, s.Name)
		}
	}
	return out
}

// engine are the interfaces and sockets whose engine is as a function says, by name.
func (n *Needs) engine(is func(engine.Needs) bool) (out []string) {
	for _, i := range n.Interfaces {
		if is(wants(i.Engine)) {
			out = append(out, i.Name)
		}
	}
	for _, s := range n.Sockets {
		if is(wants(s.Engine)) {
			out = append(out, s.Name)
		}
	}
	return out
}
