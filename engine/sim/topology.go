package sim

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

// Link is what joins a port to another port, to a switch, or to itself.
type Link struct {
	net  *Network
	a, b *station // b is nil at a switch
	// from a and to a; one and the same for a loop.
	out, back *wire
}

// Link joins two ports. The error is ErrInvalid for two equal or empty names, and ErrInUse if one
// of them is on a link already.
func (n *Network) Link(a, b string) (*Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a == b {
		return nil, fmt.Errorf("%w: sim: link of %q with itself: use Loop", engine.ErrInvalid, a)
	}
	if err := n.unused(a, b); err != nil {
		return nil, err
	}
	x, y := n.station(a), n.station(b)
	l := &Link{net: n, a: x, b: y, out: n.newWire(a+">"+b, y), back: n.newWire(b+">"+a, x)}
	l.out.port, l.back.port = y, x
	x.out, y.out = l.out, l.back
	x.cable, y.cable = l, l
	return l, nil
}

// Loop joins a port to itself. Errors are those of Link.
func (n *Network) Loop(name string) (*Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.unused(name); err != nil {
		return nil, err
	}
	return n.loop(n.station(name)), nil
}

func (n *Network) loop(s *station) *Link {
	w := n.newWire(s.name+">"+s.name, s)
	w.port = s
	s.out = w
	s.cable = &Link{net: n, a: s, b: s, out: w, back: w}
	return s.cable
}

func (n *Network) unused(names ...string) error {
	if n.closed {
		return engine.ErrClosed
	}
	for _, name := range names {
		if name == "" {
			return fmt.Errorf("%w: sim: a port without a name", engine.ErrInvalid)
		}
		if s := n.stations[name]; s != nil && s.out != nil {
			return fmt.Errorf("%w: sim: port %q is on %v", engine.ErrInUse, name, s.out)
		}
	}
	return nil
}

// Cable is the link of a port. The error is ErrNotFound if it has none.
func (n *Network) Cable(port string) (*Link, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	s := n.stations[port]
	if s == nil || s.cable == nil {
		return nil, fmt.Errorf("%w: sim: no link at port %q: there are %s", engine.ErrNotFound, port, list(n.stations))
	}
	return s.cable, nil
}

// Up reports whether the link is up.
func (l *Link) Up() bool { return l.out.up.Load() }

// SetUp takes the link down or up again. What is sent while it is down, and what would arrive then,
// is lost: DropDown.
func (l *Link) SetUp(up bool) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.out.up.Load() == up {
		return
	}
	l.out.up.Store(up)
	l.back.up.Store(up)
	for i, s := range []*station{l.a, l.b} {
		if s != nil && s.port != nil && (i == 0 || s != l.a) {
			s.port.changes++
			s.port.bell.Ring()
		}
	}
}

// SetFaults sets the faults of both directions. What is on its way already arrives as before.
func (l *Link) SetFaults(f Faults) error {
	f, err := f.defaults()
	if err != nil {
		return err
	}
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.out.set(f)
	l.back.set(f)
	return nil
}

// SetFaultsFrom sets those of the direction away from a port, and of a link to a switch with the
// name of the switch those towards its port. The error is ErrNotFound if neither end has that name.
func (l *Link) SetFaultsFrom(end string, f Faults) error {
	f, err := f.defaults()
	if err != nil {
		return err
	}
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	switch {
	case end == l.a.name:
		l.out.set(f)
	case l.b != nil && end == l.b.name || l.b == nil && end == l.a.on.name:
		l.back.set(f)
	default:
		return fmt.Errorf("%w: sim: link %v has no end %q", engine.ErrNotFound, l.out, end)
	}
	return nil
}

// Switch joins any number of ports. It learns which Ethernet address is where from the frames that
// come in, sends a frame for an address that it knows to that port only, and others, broadcasts and
// multicasts to all ports that are open but the one they came from.
type Switch struct {
	net  *Network
	name string
	hub  bool // learns nothing
	// Guarded by Network.mu.
	ports []*station

	in, made, out atomic.Uint64
	drops         [engine.NumDrops]atomic.Uint64

	mu    sync.Mutex
	table map[packet.MAC]*station
}

// maxLearned is how many addresses a switch remembers. When there are more it forgets all, as it
// then floods and loses nothing.
const maxLearned = 8192

// Switch makes a switch with these ports on it. Errors are those of Link, and ErrExists for a
// second switch of that name.
func (n *Network) Switch(name string, ports ...string) (*Switch, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.switches {
		if s.name == name {
			return nil, fmt.Errorf("%w: sim: switch %q", engine.ErrExists, name)
		}
	}
	for i, p := range ports {
		for _, o := range ports[:i] {
			if o == p {
				return nil, fmt.Errorf("%w: sim: port %q twice on switch %q", engine.ErrInvalid, p, name)
			}
		}
	}
	if err := n.unused(ports...); err != nil {
		return nil, err
	}
	s := n.newSwitch(name, false)
	for _, p := range ports {
		n.attach(s, n.station(p))
	}
	return s, nil
}

func (n *Network) newSwitch(name string, hub bool) *Switch {
	s := &Switch{net: n, name: name, hub: hub, table: map[packet.MAC]*station{}}
	n.switches = append(n.switches, s)
	return s
}

// Attach joins another port to the switch. Errors are those of Link.
func (s *Switch) Attach(port string) (*Link, error) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if err := s.net.unused(port); err != nil {
		return nil, err
	}
	return s.net.attach(s, s.net.station(port)), nil
}

func (n *Network) attach(s *Switch, p *station) *Link {
	l := &Link{net: n, a: p, out: n.newWire(p.name+">"+s.name, p), back: n.newWire(s.name+">"+p.name, p)}
	l.out.sw, l.back.port = s, p
	p.out, p.down, p.on, p.cable = l.out, l.back, s, l
	s.ports = append(s.ports, p)
	return l
}

// Forget empties the table of learned addresses.
func (s *Switch) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.table)
}

// unlearn forgets the addresses at a port.
func (s *Switch) unlearn(p *station) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for mac, at := range s.table {
		if at == p {
			delete(s.table, mac)
		}
	}
}

// Learned is the number of addresses that the switch knows.
func (s *Switch) Learned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.table)
}

// everywhere is where frames go whose destination is not known.
var everywhere = &station{name: "everywhere"}

// find learns where frame came from and says where it goes: a port, everywhere, or nil for nowhere.
// The caller holds mu.
func (s *Switch) find(frame []byte, from *station) *station {
	if s.hub {
		return everywhere
	}
	dst, src := packet.MAC(frame[0:6]), packet.MAC(frame[6:12])
	if !src.IsMulticast() && !src.IsZero() && s.table[src] != from {
		if len(s.table) >= maxLearned {
			clear(s.table)
		}
		s.table[src] = from
	}
	if dst.IsMulticast() {
		return everywhere
	}
	switch to := s.table[dst]; to {
	case nil:
		return everywhere
	case from:
		return nil
	default:
		return to
	}
}

// carry takes packets from to to-1 of a burst. The caller holds Network.mu for reading.
func (s *Switch) carry(c *cargo, from, to int) {
	s.in.Add(uint64(to - from))
	c.dest = c.dest[:0]
	s.mu.Lock()
	for i := from; i < to; i++ {
		var short [packet.EthernetLen]byte
		head := c.b.Bytes(i, 0)
		if len(head) < packet.EthernetLen {
			head = short[:c.b.CopyTo(short[:], i)]
		}
		dest := everywhere
		if len(head) >= packet.EthernetLen {
			dest = s.find(head, c.from)
		} else if !s.hub {
			dest = nil
		}
		c.dest = append(c.dest, dest)
	}
	s.mu.Unlock()
	dest := c.dest
	for i := from; i < to; {
		d := dest[i-from]
		end := i + 1
		for end < to && dest[end-from] == d {
			end++
		}
		if d == everywhere {
			if only, n := s.others(c.from); n == 1 {
				d = only // the only other port: the packets need not be written to several
			}
		}
		switch d {
		case everywhere:
			for ; i < end; i++ {
				c.scratch = gather(c.scratch, c.b, i)
				s.flood(c.scratch, c.from, c.now())
			}
		case nil:
			s.lose(c.from, end-i)
		default:
			s.out.Add(uint64(end - i))
			d.down.carry(c, i, end)
		}
		i = end
	}
}

// lose counts frames that have no business on another port: too short for an address, or their
// receiver is where they came from.
func (s *Switch) lose(from *station, n int) {
	s.drops[engine.DropNoRoute].Add(uint64(n))
	from.unroutable.Add(uint64(n))
}

// frame takes one frame, which the switch may keep until it returns. The caller holds Network.mu
// for reading.
func (s *Switch) frame(frame []byte, from *station, now int64) {
	s.in.Add(1)
	dest := everywhere
	switch {
	case len(frame) >= packet.EthernetLen:
		s.mu.Lock()
		dest = s.find(frame, from)
		s.mu.Unlock()
	case !s.hub:
		dest = nil
	}
	switch dest {
	case everywhere:
		s.flood(frame, from, now)
	case nil:
		s.lose(from, 1)
	default:
		s.out.Add(1)
		dest.down.frame(frame, from, now)
	}
}

// others counts the open ports but one, and returns the last of them.
func (s *Switch) others(but *station) (last *station, n int) {
	for _, p := range s.ports {
		if p != but && p.port != nil {
			last = p
			n++
		}
	}
	return last, n
}

func (s *Switch) flood(frame []byte, from *station, now int64) {
	n := 0
	for _, p := range s.ports {
		if p != from && p.port != nil {
			n++
			p.down.frame(frame, from, now)
		}
	}
	if n == 0 {
		s.drops[engine.DropDown].Add(1) // no port is there
		from.unheard.Add(1)
		return
	}
	s.out.Add(uint64(n))
	s.made.Add(uint64(n - 1))
}
