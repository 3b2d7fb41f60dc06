package fault

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// reorderFor is how long a datagram or completion is held back at most when later ones do not come.
const reorderFor = 50 * time.Millisecond

// maxRoutes bounds how many clients a proxy of datagrams serves; those beyond it are not served.
const maxRoutes = 1024

// shaper is one direction of datagrams under a script.
type shaper struct {
	gate *gate
	rec  *recorder
	dir  Direction
	send func([]byte)

	mu     sync.Mutex // guards what follows, also while it sends: the order is the order
	s      *script
	held   []*heldDatagram
	closed bool
}

// heldDatagram waits for later ones to pass, or for its time.
type heldDatagram struct {
	b     []byte
	after uint64 // how many later datagrams pass first; 0: only time counts
	timer *time.Timer
}

func newShaper(p *Plan, conn int, d Direction, rec *recorder, send func([]byte)) *shaper {
	return &shaper{gate: newGate(), rec: rec, dir: d, send: send, s: p.script(Datagrams, conn, d)}
}

// pass deals with one datagram; b is only lent.
func (s *shaper) pass(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	copies, lost := 1, false
	var hold *heldDatagram
	var wait time.Duration
	for {
		_, e, ok := s.s.step(0)
		if !ok {
			break
		}
		if s.closed {
			continue
		}
		s.rec.add(e)
		switch e.Kind {
		case Cut:
			s.close0()
		case Stall:
			s.gate.close(e.For)
		case Drop:
			lost = true
		case Duplicate:
			copies++
		case Corrupt:
			b = append([]byte(nil), b...)
			for i := range e.N {
				if len(b) > 0 {
					bit := (e.Bits + i*0x9E3779B97F4A7C15) % uint64(8*len(b))
					b[bit/8] ^= 1 << (bit % 8)
				}
			}
		case Delay:
			hold, wait = &heldDatagram{}, e.For
		case Reorder:
			hold, wait = &heldDatagram{after: e.N}, e.For
			if wait == 0 {
				wait = reorderFor
			}
		}
	}
	s.s.step(1)
	if shut, _ := s.gate.state(); shut || lost || s.closed {
		return
	}
	if hold != nil {
		hold.b = append([]byte(nil), b...)
		hold.timer = time.AfterFunc(wait, func() { s.release(hold) })
		s.held = append(s.held, hold)
		copies--
	}
	for range copies {
		s.out(b)
	}
	if copies > 0 {
		s.count()
	}
}

func (s *shaper) out(b []byte) {
	s.rec.passed(s.dir, 1)
	s.send(b)
}

// count lets those go for which enough others have passed.
func (s *shaper) count() {
	for i := 0; i < len(s.held); {
		h := s.held[i]
		if h.after > 0 {
			if h.after--; h.after == 0 {
				s.held = append(s.held[:i], s.held[i+1:]...)
				h.timer.Stop()
				s.out(h.b)
				continue
			}
		}
		i++
	}
}

func (s *shaper) release(h *heldDatagram) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.held {
		if x == h {
			s.held = append(s.held[:i], s.held[i+1:]...)
			s.out(h.b)
			return
		}
	}
}

// cut loses everything from now on.
func (s *shaper) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close0()
}

func (s *shaper) close() { s.cut() }

func (s *shaper) close0() {
	s.closed = true
	for _, h := range s.held {
		h.timer.Stop()
	}
	s.held = nil
}

func (p *Proxy) listenDatagrams(at string) error {
	a, err := net.ResolveUDPAddr("udp", at)
	if err == nil {
		p.pc, err = net.ListenUDP("udp", a)
	}
	if err != nil {
		return fmt.Errorf("fault: %w", err)
	}
	p.addr = p.pc.LocalAddr().String()
	p.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := p.pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if l := p.route(net.UDPAddrFromAddrPort(from)); l != nil {
				l.datagrams[0].pass(buf[:n])
			}
		}
	})
	return nil
}

// route finds the link of a client, or makes it.
func (p *Proxy) route(from *net.UDPAddr) *Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.routes[from.String()]; l != nil {
		return l
	}
	if p.closed || p.refuse || len(p.routes) >= maxRoutes {
		return nil
	}
	out, err := net.Dial("udp", p.target)
	if err != nil {
		return nil
	}
	l := &Link{proxy: p, number: len(p.links) + 1, out: out, stop: make(chan struct{})}
	l.datagrams[0] = newShaper(&p.plan, l.number, Up, &l.rec, func(b []byte) { out.Write(b) })
	l.datagrams[1] = newShaper(&p.plan, l.number, Down, &l.rec, func(b []byte) { p.pc.WriteToUDP(b, from) })
	p.links = append(p.links, l)
	p.routes[from.String()] = l
	p.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := out.Read(buf)
			select {
			case <-l.stop:
				return
			default:
			}
			if err == nil {
				l.datagrams[1].pass(buf[:n])
			} else if errors.Is(err, net.ErrClosed) {
				return
			}
			// Otherwise an ICMP error: no socket listens there, which may change.
		}
	})
	return l
}
