package identity

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	pairConns    = 128                   // connections at a time; a further one ends another one, see victim
	pairPatience = 10 * time.Second      // for one connection from beginning to end, without the time of Confirm
	acceptPause  = 50 * time.Millisecond // before the next try where a connection cannot be accepted
)

// pairConn is a connection to a pairing.
type pairConn struct {
	raw     net.Conn
	source  netip.Prefix
	knocked bool // its first message holds what only a joiner with the code can make, or an eavesdropper repeat
	proven  bool // it knows the code
}

// sourceOf is what counts as one caller: an IPv4 address, or the 64 bits of an IPv6 one that name a
// network.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	n, _ := ip.Prefix(bits) // an error gives the zero prefix, which is a caller as well
	return n
}

// add takes up a connection; nil: the pairing is over, or all connections are of machines that know
// the code. One too many ends another one.
func (p *Pairing) add(c net.Conn) *pairConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return nil
	}
	if len(p.conns) >= pairConns {
		k := p.victim()
		if k < 0 {
			return nil
		}
		p.conns[k].raw.Close()
		p.conns = slices.Delete(p.conns, k, k+1)
	}
	j := &pairConn{raw: c, source: sourceOf(c.RemoteAddr())}
	p.conns = append(p.conns, j)
	return j
}

// victim is the connection that makes room: the oldest of the caller with the most connections that
// have not knocked, else the oldest that has; never one that knows the code. The right joiner
// knocks with its first bytes, so a flood would have to bring pairConns connections between its own
// and these bytes, which are mostly there already.
func (p *Pairing) victim() int {
	load := map[netip.Prefix]int{}
	for _, j := range p.conns {
		if !j.knocked {
			load[j.source]++
		}
	}
	best := -1
	for k, j := range p.conns {
		switch {
		case j.proven:
		case best < 0, p.conns[best].knocked && !j.knocked, !j.knocked && load[j.source] > load[p.conns[best].source]:
			best = k
		}
	}
	return best
}

// remove forgets a connection that has ended.
func (p *Pairing) remove(j *pairConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(p.conns, func(x *pairConn) bool { return x == j })
}

// knocked marks a connection whose first message shows that its sender knows the code.
func (p *Pairing) knocked(raw net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range p.conns {
		if j.raw == raw {
			j.knocked = true
		}
	}
}

// prove keeps a connection from being ended for the sake of others; false: it was ended already.
func (p *Pairing) prove(j *pairConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.proven = true
	return slices.Contains(p.conns, j)
}

// hangUp closes the connections that there are.
func (p *Pairing) hangUp() {
	p.mu.Lock()
	open := p.conns
	p.conns = nil
	p.mu.Unlock()
	for _, j := range open {
		j.raw.Close()
	}
}
