package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/flow"
)

// Bounds of networks and their ports.
const (
	DefaultMTU = 9000  // bytes, L3 and up
	MaxMTU     = 65000 // bytes; a frame and two VLAN tags fit into 16 bits
	MaxQueues  = 256   // receive queues of a port, and as many transmit queues
)

// Options describe a network. The zero value is a good network without surprises.
type Options struct {
	Name string // for messages; "" is "sim"
	// Seed is where all faults come from. Each direction of each link has numbers of its own, made
	// from the seed and its name: what happens on one does not depend on the others.
	Seed uint64
	// MTU in bytes, of ports that do not ask for one; 0 is DefaultMTU.
	MTU int
	// Shared lets any name be opened as a port: names that are on no link are on one common
	// segment, where what one sends all others receive. Without it a port must be on a link or
	// a loop before it is opened.
	Shared bool
	// Hash has ports read the headers of each packet and note its type and receive hash, the
	// Toeplitz hash with packet.MicrosoftKey, as network cards do for RSS. Without it only packets
	// that rules steer have a type.
	Hash bool
}

// Network is an engine.Engine whose ports are joined in memory. All methods may be called from any
// goroutine.
type Network struct {
	opts Options

	// mu is held for reading while packets move, from the sender's queue into the receiver's, and
	// for writing to change what they move through and to read the accounts. Below it come, in this
	// order, the mutexes of a wire to the segment, of a wire to a port, of a receive queue, of the
	// scheduler.
	mu        sync.RWMutex
	closed    bool
	endpoints map[string]*endpoint
	wires     []*wire
	segment   *segment // of Options.Shared, nil until a port is on it

	events scheduler
}

// Default is the network of the process, made for quick starts: Options.Shared is set.
var Default = mustNetwork(Options{Name: "default", Seed: 1, Shared: true})

func mustNetwork(o Options) *Network {
	n, err := NewNetwork(o)
	if err != nil {
		panic(err)
	}
	return n
}

// NewNetwork makes a network with nothing in it. It runs no goroutine and needs no Close unless
// packets are late in it.
func NewNetwork(o Options) (*Network, error) {
	if o.Name == "" {
		o.Name = "sim"
	}
	if o.MTU == 0 {
		o.MTU = DefaultMTU
	}
	if err := checkMTU(o.MTU); err != nil {
		return nil, err
	}
	n := &Network{opts: o, endpoints: map[string]*endpoint{}}
	n.events.net = n
	return n, nil
}

func checkMTU(mtu int) error {
	if mtu < 68 || mtu > MaxMTU { // RFC 791: every link carries 68 bytes
		return fmt.Errorf("%w: sim: MTU of %d bytes: expected 68 to %d", engine.ErrInvalid, mtu, MaxMTU)
	}
	return nil
}

// Name implements engine.Engine.
func (n *Network) Name() string { return "sim" }

// Available implements engine.Engine: it always is.
func (n *Network) Available() error { return nil }

// Now implements engine.Clock: receive times are by it. It is the machine's time, or the virtual
// one of a synctest bubble.
func (n *Network) Now() time.Time { return time.Now() }

// Capabilities implements engine.Engine.
func (n *Network) Capabilities() engine.Capabilities { return n.capabilities(MaxMTU) }

func (n *Network) capabilities(mtu int) engine.Capabilities {
	return engine.Capabilities{
		Frames:          true,
		RxQueues:        MaxQueues,
		TxQueues:        MaxQueues,
		Rules:           true,
		RulesIn:         "software",
		Steering:        &flow.Software,
		Split:           true,
		Timestamps:      true,
		Hash:            n.opts.Hash,
		Types:           n.opts.Hash,
		Pacing:          true,
		SendAt:          true,
		SendAtIn:        "software",
		TxChecksum:      "software",
		TxSegmentation:  "software",
		ZeroCopyForward: true,
		Memory:          []mem.Kind{mem.Host, mem.Huge, mem.HostPinned, mem.Foreign},
		MemoryUse:       engine.UseInPlace,
		ExactDrops:      true,
		MaxPacket:       mtu + packet.EthernetLen,
	}
}

// endpoint is a place where a port can be opened. It stays when the port is closed, and keeps its
// counts.
type endpoint struct {
	net  *Network
	name string
	mac  packet.MAC
	// Guarded by Network.mu.
	out    *wire    // its frames go there
	down   *wire    // from the segment, nil where there is none
	on     *segment // nil for links and loops
	cable  *Link
	port   *Port  // nil while none is open
	closed totals // sums over the ports that were closed
	// Frames of the endpoint that reached no other port.
	unheard atomic.Uint64
}

// endpoint finds or makes the one of that name. The caller holds mu.
func (n *Network) endpoint(name string) *endpoint {
	s := n.endpoints[name]
	if s == nil {
		h := fnv.New64a()
		h.Write([]byte(name))
		x := h.Sum64()
		s = &endpoint{net: n, name: name}
		for taken := true; taken; x++ { // locally administered, unicast, the same in every run
			s.mac = packet.MAC{2, byte(x >> 32), byte(x >> 24), byte(x >> 16), byte(x >> 8), byte(x)}
			taken = false
			for _, o := range n.endpoints {
				taken = taken || o.mac == s.mac
			}
		}
		n.endpoints[name] = s
	}
	return s
}

// PortOptions are PortSpec.Options of this engine.
type PortOptions struct {
	MAC  packet.MAC // the zero address: one made from the name
	Loop bool       // joins the port to itself, as "?loop" in the address does
}

// OpenPort implements engine.Engine. The address is the name of a port, "a" or "sim://a"; with
// "sim://a?loop" it is looped to itself if it is on no link yet. The error is ErrNotFound for a
// name that is on no link, unless Options.Shared is set, and ErrInUse if the port is open.
func (n *Network) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name, o, err := n.complete(&spec)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.vacant(name, o.Loop); err != nil {
		return nil, err
	}
	s := n.endpoints[name]
	if s == nil || s.out == nil {
		s = n.endpoint(name)
		if o.Loop {
			n.loop(s)
		} else {
			n.attach(s)
		}
	}
	if o.MAC != (packet.MAC{}) {
		s.mac = o.MAC
	}
	p := newPort(s, spec)
	s.port = p
	return p, nil
}

func list[V any](m map[string]V) string {
	if len(m) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// At calls f at that time, or at once if it has passed, from the network's goroutine, between two
// packets: to take a link down. f must neither wait nor close the network.
// Calls of one time are made in the order of At, before packets of that time arrive. What is due
// after Close is not called.
func (n *Network) At(t time.Time, f func()) { n.events.add(event{at: t.UnixNano(), call: f}) }

// Close closes all ports, drops what is on its way as DropClosed, and ends the goroutine. The
// ledger can still be read.
func (n *Network) Close() error {
	n.mu.Lock()
	n.closed = true
	var ports []*Port
	for _, name := range slices.Sorted(maps.Keys(n.endpoints)) {
		if p := n.endpoints[name].port; p != nil {
			ports = append(ports, p)
		}
	}
	n.mu.Unlock()
	for _, p := range ports {
		p.Close()
	}
	n.events.close()
	return nil
}
