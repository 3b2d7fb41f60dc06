package sim

import (
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
)

// Link is what joins a port to another port, to the segment, or to itself.
type Link struct {
	net  *Network
	a, b *endpoint // b is nil at the segment
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
	x, y := n.endpoint(a), n.endpoint(b)
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
	return n.loop(n.endpoint(name)), nil
}

func (n *Network) loop(s *endpoint) *Link {
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
		if s := n.endpoints[name]; s != nil && s.out != nil {
			return fmt.Errorf("%w: sim: port %q is on %v", engine.ErrInUse, name, s.out)
		}
	}
	return nil
}

// Cable is the link of a port. The error is ErrNotFound if it has none.
func (n *Network) Cable(port string) (*Link, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	s := n.endpoints[port]
	if s == nil || s.cable == nil {
		return nil, fmt.Errorf("%w: sim: no link at port %q: there are %s", engine.ErrNotFound, port, list(n.endpoints))
	}
	return s.cable, nil
}

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
	for i, s := range []*endpoint{l.a, l.b} {
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

// segment joins any number of ports: what one sends all others that are open receive.
type segment struct {
	net  *Network
	name string
	// Guarded by Network.mu.
	ports []*endpoint

	in, made, out atomic.Uint64
	drops         [engine.NumDrops]atomic.Uint64
}

// attach joins a port to the segment of the network. The caller holds mu.
func (n *Network) attach(p *endpoint) {
	s := n.segment
	if s == nil {
		s = &segment{net: n, name: "segment"}
		n.segment = s
	}
	l := &Link{net: n, a: p, out: n.newWire(p.name+">"+s.name, p), back: n.newWire(s.name+">"+p.name, p)}
	l.out.sw, l.back.port = s, p
	p.out, p.down, p.on, p.cable = l.out, l.back, s, l
	s.ports = append(s.ports, p)
}

// carry takes packets from to to-1 of a burst. The caller holds Network.mu for reading.
func (s *segment) carry(c *sending, from, to int) {
	if only, n := s.others(c.from); n == 1 { // the packets need not be written to several
		s.in.Add(uint64(to - from))
		s.out.Add(uint64(to - from))
		only.down.carry(c, from, to)
		return
	}
	for i := from; i < to; i++ {
		c.scratch = gather(c.scratch, c.b, i)
		s.frame(c.scratch, c.from, c.now())
	}
}

// others counts the open ports but one, and returns the last of them.
func (s *segment) others(but *endpoint) (last *endpoint, n int) {
	for _, p := range s.ports {
		if p != but && p.port != nil {
			last = p
			n++
		}
	}
	return last, n
}

// frame takes one frame, which the segment may keep until it returns. The caller holds Network.mu
// for reading.
func (s *segment) frame(frame []byte, from *endpoint, now int64) {
	s.in.Add(1)
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
