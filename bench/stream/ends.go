package stream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/drivers"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// cell is one place of the grid: what both ends are opened for.
type cell struct {
	Engine   string        `json:"engine"` // one of Engines()
	Protocol string        `json:"protocol"`
	Size     int           `json:"size"`
	Burst    int           `json:"burst"`
	Queues   int           `json:"queues"`
	Flows    int           `json:"flows"` // streams of each queue
	Workload Workload      `json:"workload"`
	Reflect  bool          `json:"reflect"`
	Spin     time.Duration `json:"spin"` // of receivers
	Seed     uint64        `json:"seed"` // of the pattern
}

func (c *cell) streams() int { return c.Queues * c.Flows }
func (c *cell) frames() bool {
	s := drivers.Get(c.Engine)
	return s == nil || s.Capabilities.Frames
}
func (c *cell) bytes() bool { return c.Protocol == "tcp" }

// inMemory is the number of bytes of a packet as the engine sees it, and where in it the Header is.
func (c *cell) inMemory() (size, at int) {
	if c.frames() {
		return c.Size - fcsLen, headersLen
	}
	return PayloadLen(c.Size), 0
}

// chunk is the room for a packet of an engine that has chunks, and segments how many of them a
// packet takes.
func (c *cell) chunk() (size, segments int) {
	n, _ := c.inMemory()
	switch {
	case n <= 2048-256:
		return 2048, 1
	case n <= 4096-256:
		return 4096, 1
	}
	return 4096, (n + 4096 - 256 - 1) / (4096 - 256)
}

// check says what is wrong with a cell, also with one that came from another machine: everything
// that is allocated is bounded here.
func (c *cell) check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: stream: %s", engine.ErrInvalid, fmt.Sprintf(format, a...))
	}
	if err := checkSize(c.Size); err != nil {
		return err
	}
	switch {
	case !slices.Contains(Engines(), c.Engine):
		return bad("engine %q: expected one of %s", c.Engine, strings.Join(Engines(), ", "))
	case c.Protocol != "udp" && (c.Protocol != "tcp" || c.frames()):
		return bad("protocol %q of engine %s: expected udp, or tcp with sockets", c.Protocol, c.Engine)
	case c.Burst < 1 || c.Burst > MaxBurst:
		return bad("bursts of %d packets: expected 1 to %d", c.Burst, MaxBurst)
	case c.Queues < 1 || c.Queues > MaxQueues:
		return bad("%d queues: expected 1 to %d", c.Queues, MaxQueues)
	case c.Flows < 1 || c.streams() > MaxStreams:
		return bad("%d flows of each of %d queues: expected 1 or more, and at most %d in all", c.Flows, c.Queues,
			MaxStreams)
	case int(c.Workload) >= len(workloadNames):
		return bad("%v: expected one of %s", c.Workload, strings.Join(workloadNames, ", "))
	case c.Size < c.Workload.MinSize():
		return bad("packets of %d bytes: the workload %v needs %d", c.Size, c.Workload, c.Workload.MinSize())
	case c.Reflect && c.bytes():
		return bad("a byte stream is not reflected: its packets have no borders; use udp")
	case c.Spin < 0 || c.Spin > time.Second:
		return bad("receivers that look for %v: expected 0 to 1s", c.Spin)
	}
	return nil
}

// Bounds of a stream.
const (
	MaxBurst  = 512
	MaxQueues = 64

	depth    = 4096 // packets that wait for a receiver
	basePort = 5000 // of the receiver's first queue
	flowPort = 49152
)

// The addresses of frames are of the range that is set aside for benchmarks (RFC 2544, appendix
// C.2.2).
var (
	nearIP = netip.MustParseAddr("198.18.0.1")
	farIP  = netip.MustParseAddr("198.18.0.2")
)

// Engines are the words that Options.Engines takes: engines with frames on network interfaces, with
// UDP, and those that make a pair of ports by themselves.
func Engines() (out []string) {
	for _, s := range drivers.Table() {
		if s.Built() && (s.Pair != nil || s.Capabilities.Frames && s.Needs.Interface ||
			slices.Contains(s.Schemes, "udp")) {
			out = append(out, s.Name)
		}
	}
	return out
}

// place is where an end is opened: an address, and who opens it.
type place struct {
	address string
	do      func(func() error) error // in another network namespace; nil: here
	engine  engine.Engine            // nil: one of the cell's
}

func (p *place) in(f func() error) error {
	if p.do == nil {
		return f()
	}
	return p.do(f)
}

// target is what the near end must know of the far one.
type target struct {
	Address string     `json:"address"` // of sockets: host and port
	MAC     packet.MAC `json:"mac"`
}

// parts are those of an open end: everything that is to be closed.
type parts struct {
	ports []engine.Port
	pools []*mem.Pool
	more  []func() error // closed last, in this order
	notes []string
}

func (e *parts) close() error {
	var err error
	for _, p := range e.ports {
		err = errors.Join(err, p.Close())
	}
	for _, p := range e.pools {
		if n := p.Stats().InUse; n > 0 {
			err = errors.Join(err, fmt.Errorf("stream: %d of %d slots of pool %s are not back", n, p.Slots(), p.Name()))
		}
		err = errors.Join(err, p.Close())
	}
	for _, f := range e.more {
		err = errors.Join(err, f())
	}
	return err
}

// drops are what the ports say they lost on the way in and on the way out.
func (e *parts) drops() (in, out engine.Drops) {
	for _, p := range e.ports {
		var s engine.PortStats
		p.Stats(&s)
		in.Add(&s.Drops)
		in.Add(&s.Rx.Drops)
		out.Add(&s.Tx.Drops)
	}
	return in, out
}

func (e *parts) open(ctx context.Context, at *place, c *cell, spec engine.PortSpec) (engine.Port, error) {
	eng := at.engine
	if eng == nil {
		eng = drivers.Get(c.Engine).New()
	}
	if err := eng.Available(); err != nil {
		return nil, err
	}
	var p engine.Port
	err := at.in(func() (err error) {
		p, err = eng.OpenPort(ctx, spec)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("stream: %s %s: %w", eng.Name(), spec.Address, err)
	}
	e.ports = append(e.ports, p)
	return p, nil
}

func (e *parts) pool(o mem.PoolOptions) (*mem.Pool, error) {
	p, err := mem.NewPool(o)
	if err == nil {
		e.pools = append(e.pools, p)
	}
	return p, err
}

// frameMemory is the pools of an end of frames: to receive into, and to send from.
func (e *parts) frameMemory(c *cell, receives bool) (in, out *mem.Pool, err error) {
	size, _ := c.inMemory()
	send := max(1024, 2*c.Burst) * c.Queues
	if drivers.Get(c.Engine).Slots == nil {
		slots := send
		if receives {
			slots += (depth + 2*MaxBurst) * c.Queues
		}
		in, err = e.pool(mem.PoolOptions{Name: "stream", SlotSize: size + 64, Slots: slots})
		return in, in, err
	}
	// One memory in two parts, in slots that the engine uses in place, so that nothing is copied
	// here.
	chunk, segments := c.chunk()
	slots := []int{(depth*segments*5)/4 + 512, send * segments}
	region, err := mem.Alloc(mem.Options{Name: "stream", Size: (slots[0] + slots[1]) * chunk})
	if err != nil {
		return nil, nil, err
	}
	e.more = append(e.more, region.Close)
	at := 0
	for i, p := range []**mem.Pool{&in, &out} {
		if *p, err = e.pool(mem.PoolOptions{Name: []string{"received", "to send"}[i], SlotSize: chunk, Align: chunk,
			Slots: slots[i], Region: region, Offset: at}); err != nil {
			return nil, nil, err
		}
		at += slots[i] * chunk
	}
	return in, out, nil
}

// framePort opens a port for frames that takes what the rules match and leaves the rest to the
// kernel, for that many queues.
func (e *parts) framePort(ctx context.Context, at *place, c *cell, rx, tx int) (engine.Port, error) {
	spec := engine.PortSpec{Address: at.address, Isolated: true, RxQueues: rx, TxQueues: tx}
	s := drivers.Get(c.Engine)
	if s.Rings != nil {
		packets := depth
		if s.Slots != nil {
			_, segments := c.chunk()
			packets *= segments
		}
		o, err := s.Port(at.address, s.Rings(packets))
		if err != nil {
			return nil, err
		}
		spec.Options = o
	}
	p, err := e.open(ctx, at, c, spec)
	if errors.Is(err, engine.ErrUnsupported) { // a port of which nothing is for the kernel
		spec.Isolated = false
		p, err = e.open(ctx, at, c, spec)
	}
	return p, err
}

func applyRules(p engine.Port, rules []string) error {
	var changes []flow.Change
	for _, text := range rules {
		r, err := flow.ParseRule(text)
		if err != nil {
			return err
		}
		changes = append(changes, flow.Add(r))
	}
	_, err := p.Rules().Apply(changes...)
	return err
}

// openFar opens the receiving end and its sinks.
func openFar(ctx context.Context, at *place, c *cell, k *clock) (_ *localReceiver, t target, err error) {
	h := newLocalReceiver(c, k)
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if c.frames() {
		in, out, err := h.frameMemory(c, true)
		if err != nil {
			return h, t, err
		}
		replies := 0
		if c.Reflect {
			replies = c.Queues
		}
		p, err := h.framePort(ctx, at, c, c.Queues, replies)
		if err != nil {
			return h, t, err
		}
		t.MAC = p.Info().MAC
		var rules []string
		for q := range c.Queues {
			rx, err := p.AddRxQueue(engine.RxSpec{ID: engine.Queue(q), Pools: []*mem.Pool{in}, Depth: depth})
			if err != nil {
				return h, t, fmt.Errorf("stream: receive queue %d of %s: %w", q, at.address, err)
			}
			s := h.add(c, rx)
			rules = append(rules, fmt.Sprintf("udp dst %d -> queue %d", basePort+q, q))
			if c.Reflect {
				if s.tx, err = p.AddTxQueue(engine.TxSpec{ID: engine.Queue(q), Pools: []*mem.Pool{out},
					Depth: max(1024, 2*c.Burst)}); err != nil {
					return h, t, fmt.Errorf("stream: transmit queue %d of %s: %w", q, at.address, err)
				}
			}
		}
		return h, t, applyRules(p, rules)
	}
	address := at.address
	slot, slots := PayloadLen(c.Size)+64, depth
	if c.bytes() {
		slot, slots = 64<<10, 64
	} else {
		address += fmt.Sprintf("?queues=%d", c.Queues)
	}
	p, err := h.open(ctx, at, c, engine.PortSpec{Address: address})
	if err != nil {
		return h, t, err
	}
	l, ok := p.(interface{ LocalAddr() netip.AddrPort })
	if !ok {
		return h, t, fmt.Errorf("%w: stream: ports of the engine %s have no LocalAddr", engine.ErrUnsupported, c.Engine)
	}
	t.Address = l.LocalAddr().String()
	for q := range c.Queues {
		pool, err := h.pool(mem.PoolOptions{Name: fmt.Sprintf("received %d", q), SlotSize: slot, Slots: slots})
		if err != nil {
			return h, t, err
		}
		rx, err := p.AddRxQueue(engine.RxSpec{ID: engine.Queue(q), Pools: []*mem.Pool{pool}, Depth: depth})
		if err != nil {
			return h, t, fmt.Errorf("stream: receive queue %d of %s: %w", q, at.address, err)
		}
		s := h.add(c, rx)
		if c.Reflect {
			if s.tx, err = p.AddTxQueue(engine.TxSpec{ID: engine.Queue(q), Pools: []*mem.Pool{pool},
				Depth: 1024}); err != nil {
				return h, t, fmt.Errorf("stream: transmit queue %d of %s: %w", q, at.address, err)
			}
		}
	}
	h.notes = p.Capabilities().Notes
	return h, t, nil
}

// near is the sending end.
type near struct {
	parts
	gens []*generator
	back *localReceiver // of what comes back; nil one-way
}

func (n *near) close() error {
	var err error
	if n.back != nil {
		err = n.back.close()
	}
	return errors.Join(err, n.parts.close())
}

// openNear opens the sending end, with senders goroutines.
func openNear(ctx context.Context, at *place, to target, c *cell, k *clock, senders int) (_ *near, err error) {
	n := &near{}
	if c.Reflect {
		n.back = newLocalReceiver(c, k)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	senders = min(senders, c.streams())
	_, segments := c.chunk()
	for range senders {
		n.gens = append(n.gens, &generator{b: burst.NewSegmented(c.Burst, c.Burst*segments), c: k,
			w: pace.NewWaiter(k.now)})
	}
	open := n.frameStreams
	if !c.frames() {
		open = n.socketStreams
	}
	return n, open(ctx, at, to, c)
}

func (n *near) frameStreams(ctx context.Context, at *place, to target, c *cell) error {
	in, out, err := n.frameMemory(c, c.Reflect)
	if err != nil {
		return err
	}
	replies := 0
	if n.back != nil {
		replies = 1
	}
	p, err := n.framePort(ctx, at, c, replies, len(n.gens))
	if err != nil {
		return err
	}
	var txs []engine.TxQueue
	for i := range n.gens {
		tx, err := p.AddTxQueue(engine.TxSpec{ID: engine.Queue(i), Pools: []*mem.Pool{out},
			Depth: max(1024, 2*c.Burst)})
		if err != nil {
			return fmt.Errorf("stream: transmit queue %d of %s: %w", i, at.address, err)
		}
		txs = append(txs, tx)
	}
	size, header := c.inMemory()
	for s := range c.streams() {
		f := packet.UDPFrame{SrcMAC: p.Info().MAC, DstMAC: to.MAC, Checksum: packet.ChecksumNone,
			Src: netip.AddrPortFrom(nearIP, uint16(flowPort+s)),
			Dst: netip.AddrPortFrom(farIP, uint16(basePort+s%c.Queues))}
		frame := make([]byte, size)
		if _, err := f.Fill(frame, size-header); err != nil {
			return err
		}
		copy(frame[header+HeaderLen:], pattern(size-header-HeaderLen, c.Seed, c.Workload))
		g := s % len(n.gens)
		n.gens[g].streams = append(n.gens[g].streams,
			&outStream{tx: txs[g], stream: uint16(s), frame: frame, at: header})
	}
	if n.back == nil {
		return nil
	}
	rx, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{in}, Depth: depth})
	if err != nil {
		return fmt.Errorf("stream: receive queue of %s: %w", at.address, err)
	}
	n.back.add(c, rx)
	var rules []string
	for q := range c.Queues {
		rules = append(rules, fmt.Sprintf("udp src %d -> queue 0", basePort+q))
	}
	return applyRules(p, rules)
}

func (n *near) socketStreams(ctx context.Context, at *place, to target, c *cell) error {
	size, _ := c.inMemory()
	for s := range c.streams() {
		spec := engine.PortSpec{Address: "tcp://" + to.Address}
		if !c.bytes() {
			// Each flow has a port number of its own, by which the kernel spreads them.
			spec.Address = "udp://" + at.address + "?remote=" + to.Address
		}
		p, err := n.open(ctx, at, c, spec)
		if err != nil {
			return err
		}
		pool, err := n.pool(mem.PoolOptions{Name: fmt.Sprintf("to send %d", s), SlotSize: size,
			Slots: max(1024, 2*c.Burst)})
		if err != nil {
			return err
		}
		tx, err := p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}, Depth: max(1024, 2*c.Burst)})
		if err != nil {
			return fmt.Errorf("stream: transmit queue of stream %d: %w", s, err)
		}
		frame := make([]byte, size)
		copy(frame[HeaderLen:], pattern(size-HeaderLen, c.Seed, c.Workload))
		g := s % len(n.gens)
		n.gens[g].streams = append(n.gens[g].streams, &outStream{tx: tx, stream: uint16(s), frame: frame})
		if n.back == nil {
			continue
		}
		back, err := n.pool(mem.PoolOptions{Name: fmt.Sprintf("came back %d", s), SlotSize: size + 64, Slots: 1024})
		if err != nil {
			return err
		}
		rx, err := p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{back}, Depth: depth})
		if err != nil {
			return fmt.Errorf("stream: receive queue of stream %d: %w", s, err)
		}
		n.back.add(c, rx)
	}
	return nil
}
