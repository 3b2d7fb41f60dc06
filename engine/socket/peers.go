package socket

import (
	"net/netip"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// peers numbers addresses: a bounded table in which the address that was not used for longest makes
// room for a new one. An id is the entry's number plus one in the low half, and how often the entry
// has changed its address in the high half, so an old id does not name another peer (until the
// entry has changed 65,536 times). Any goroutine may use it.
type peers struct {
	mu    sync.Mutex
	ids   map[sys.SockAddr]uint32 // entry numbers
	all   []peer                  // in use
	size  int
	first uint32 // used last, noPeer while there is none
	last  uint32 // used first
}

type peer struct {
	addr       sys.SockAddr
	turn       uint16
	prev, next uint32
}

const noPeer = ^uint32(0)

func newPeers(size int) *peers {
	return &peers{ids: make(map[sys.SockAddr]uint32, min(size, 256)), size: size, first: noPeer, last: noPeer}
}

func (p *peers) id(i uint32) uint32 { return uint32(p.all[i].turn)<<16 | (i + 1) }

// of is the id of an address, a new one if it has none. The caller holds p.mu.
func (p *peers) of(a *sys.SockAddr) uint32 {
	if i, ok := p.ids[*a]; ok {
		p.touch(i)
		return p.id(i)
	}
	i := uint32(len(p.all))
	if int(i) < p.size {
		p.all = append(p.all, peer{prev: noPeer, next: noPeer})
	} else {
		i = p.last
		p.unlink(i)
		delete(p.ids, p.all[i].addr)
		p.all[i].turn++
	}
	p.all[i].addr = *a
	p.ids[*a] = i
	p.link(i)
	return p.id(i)
}

// find is the address of an id. The caller holds p.mu.
func (p *peers) find(id uint32) (*sys.SockAddr, bool) {
	i := id&0xffff - 1
	if id&0xffff == 0 || int(i) >= len(p.all) || p.all[i].turn != uint16(id>>16) {
		return nil, false
	}
	p.touch(i)
	return &p.all[i].addr, true
}

func (p *peers) touch(i uint32) {
	if p.first != i {
		p.unlink(i)
		p.link(i)
	}
}

func (p *peers) unlink(i uint32) {
	e := &p.all[i]
	if e.prev == noPeer {
		p.first = e.next
	} else {
		p.all[e.prev].next = e.next
	}
	if e.next == noPeer {
		p.last = e.prev
	} else {
		p.all[e.next].prev = e.prev
	}
}

func (p *peers) link(i uint32) {
	e := &p.all[i]
	e.prev, e.next = noPeer, p.first
	if p.first == noPeer {
		p.last = i
	} else {
		p.all[p.first].prev = i
	}
	p.first = i
}

// addrPort is an address for people: IPv4 as IPv4.
func addrPort(a *sys.SockAddr) netip.AddrPort {
	v, _ := a.AddrPort()
	return netip.AddrPortFrom(v.Addr().Unmap(), v.Port())
}

// Peer is the id of an address, given to it now if it had none. An id is valid until so many other
// addresses have been used as UDPOptions.Peers says.
func (p *UDPPort) Peer(a netip.AddrPort) (uint32, error) {
	if p.peers == nil {
		return 0, failed(engine.ErrUnsupported, "the port has one peer, or its option Peers turns ids off")
	}
	zone, err := zoneOf(a.Addr())
	if err != nil {
		return 0, err
	}
	if !a.Addr().IsValid() || a.Port() == 0 || a.Addr().Unmap().Is6() && !p.ipv6 {
		return 0, invalid("peer %s: expected an address and a port of the port's kind", a)
	}
	to := sys.MakeSockAddr(family(a, p.ipv6), zone)
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	return p.peers.of(&to), nil
}

// PeerAddr is the address of an id; false when the id has made room for others, or was never given.
func (p *UDPPort) PeerAddr(id uint32) (netip.AddrPort, bool) {
	if p.remote.IsValid() {
		return p.remote, true
	}
	if p.peers == nil {
		return netip.AddrPort{}, false
	}
	p.peers.mu.Lock()
	defer p.peers.mu.Unlock()
	a, ok := p.peers.find(id)
	if !ok {
		return netip.AddrPort{}, false
	}
	return addrPort(a), true
}
