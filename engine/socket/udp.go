package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/internal/sys"
)

// UDPPort is a port with a udp:// address. Besides engine.Port it knows peers by id, groups, and
// what other machines answered.
//
// The first receive queue uses the socket that the port was opened with and that it sends from;
// others have one of their own on the same address.
type UDPPort struct {
	address string // as it was opened
	name    string
	o       UDPOptions
	local   netip.AddrPort // as bound, IPv4 as IPv4
	remote  netip.AddrPort // of a connected port
	ipv6    bool
	device  string
	zone    uint32
	peers   *peers // nil without ids
	hw      bool   // the device takes receive times
	// down says that the interface is down, by the events of links, which is nil where the port is
	// on none.
	down  atomic.Bool
	bell  engine.LinkBell
	links *sys.LinkEvents
	ltag  uint64
	// support is what the device's qdisc does with times, and timed what reads its complaints: nil
	// where it gets none.
	support pace.Support
	timed   atomic.Pointer[pace.TxTime]

	sendMu sync.RWMutex // held to read while fd is used for sending, to write when it changes
	fd     int          // to send from

	rx     engine.RxSet[*udpRx] // its lock guards what follows; taken before sendMu and before a queue's
	base   udpSocket            // where no queue is
	idle   bool                 // base is one that belongs to the port, with no queue
	tx     []*txQueue           // open ones, in the order in which they came
	ended  []*txQueue           // closed ones, the latest
	groups []Group              // joined
	notes  []string             // for Capabilities
	pastTx engine.TxStats
	sum    engine.PortStats // of the port itself: Drops
}

// udpSocket is a socket with what the kernel had dropped at the last look.
type udpSocket struct {
	fd    int
	drops uint32
}

// lately is the number of packets that the kernel has dropped since the last look. Asking more than
// once in 2^32 drops keeps it exact.
func (s *udpSocket) lately() uint64 {
	now, e := sys.SocketDrops(s.fd)
	if e != 0 {
		return 0
	}
	n := now - s.drops
	s.drops = now
	return uint64(n)
}

func openUDP(ctx context.Context, spec engine.PortSpec, a address, o UDPOptions) (*UDPPort, error) {
	p := &UDPPort{name: spec.Name, address: spec.Address, o: o, device: o.Interface}
	var err error
	var like netip.Addr // what decides between IPv4 and IPv6 where the address does not
	if a.remote.given() {
		if p.remote, err = a.remote.resolve(ctx, netip.Addr{}); err != nil {
			return nil, err
		}
		like = p.remote.Addr()
	} else if len(o.Groups) > 0 {
		like = o.Groups[0].Addr
	}
	if p.local, err = a.local.resolve(ctx, like); err != nil {
		return nil, err
	}
	if p.remote.IsValid() && p.remote.Addr().Is4() != p.local.Addr().Is4() &&
		!(p.local.Addr() == netip.IPv6Unspecified() && !o.IPv6Only) {
		return nil, invalid("port %q: one address is of IPv4 and one of IPv6", spec.Address)
	}
	if err := p.o.joinHost(p.local.Addr()); err != nil { // where a name has become a group
		return nil, err
	}
	p.ipv6 = p.local.Addr().Is6()
	if o.Peers > 0 && !p.remote.IsValid() {
		p.peers = newPeers(o.Peers)
	}
	if p.zone, err = zoneOf(p.local.Addr(), p.remote.Addr()); err != nil {
		return nil, err
	}
	fd, err := p.socket(p.local)
	if err != nil {
		return nil, err
	}
	p.base, p.fd, p.idle = udpSocket{fd: fd}, fd, true
	if err := p.start(spec); err != nil {
		p.rx.Lock()
		defer p.rx.Unlock()
		p.unwatchLink()
		sys.Close(fd)
		return nil, err
	}
	return p, nil
}

// start does what is done once, with the first socket.
func (p *UDPPort) start(spec engine.PortSpec) error {
	// Until there is a queue nothing is kept; the kernel counts.
	if err := sys.DropAll(p.fd, true); err != nil {
		return err
	}
	if p.remote.IsValid() {
		if err := sys.Connect(p.fd, family(p.remote, p.ipv6), p.zone); err != nil {
			return fmt.Errorf("socket: port %q: %w: %w", spec.Address, err, engine.ErrConnect)
		}
	}
	at, err := sys.LocalAddr(p.fd)
	if err != nil {
		return err
	}
	p.local = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	for _, g := range p.o.Groups {
		if err := p.join(p.fd, g); err != nil {
			return err
		}
		p.groups = append(p.groups, g)
		on := cmp.Or(g.Interface, p.device)
		if on != "" {
			p.notes = append(p.notes, fmt.Sprintf("joined the multicast group %s on %s", g.Addr, on))
		} else {
			p.notes = append(p.notes,
				fmt.Sprintf("joined the multicast group %s on the interface of the route to it: interface= names "+
					"another one", g.Addr))
		}
	}
	if p.o.SendBuffer > 0 {
		given, err := setBuffer(p.fd, sys.SoSndBuf, sys.SoSndBufForce, p.o.SendBuffer)
		if err != nil {
			return err
		}
		p.short("send", "wmem_max", given, p.o.SendBuffer)
	}
	if p.device != "" {
		up, mtu, err := sys.InterfaceState(p.fd, p.device)
		if err != nil {
			return fmt.Errorf("socket: interface %q: %w: %w", p.device, err, engine.ErrNotFound)
		}
		if spec.MTU > mtu {
			return failed(engine.ErrUnsupported,
				"port %q: MTU %d: interface %s has %d; change it there (ip link set %s mtu %d)", spec.Address, spec.MTU,
				p.device, mtu, p.device, spec.MTU)
		}
		if err := p.watchLink(up); err != nil {
			return err
		}
		p.hw, err = sys.HardwareReceiveTimes(p.fd, p.device)
		if err != nil || !p.hw {
			p.notes = append(p.notes, "the driver of "+p.device+" takes no receive times of all packets")
		}
	} else {
		p.notes = append(p.notes, noteHardwareTime)
	}
	p.support = pace.Probe(p.device)
	p.notes = append(p.notes, noteSegments)
	return nil
}

// short notes that the kernel gave less than was wanted.
func (p *UDPPort) short(what, limit string, given, want int) {
	if given >= want {
		return
	}
	note := fmt.Sprintf("the %s buffer has %d of %d bytes: raise net.core.%s, or give the process CAP_NET_ADMIN", what,
		given, want, limit)
	if !slices.Contains(p.notes, note) {
		p.notes = append(p.notes, note)
	}
}

// socket makes a socket on an address with the port's options.
func (p *UDPPort) socket(at netip.AddrPort) (fd int, err error) {
	fd, err = sys.SocketUDP(p.ipv6)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			sys.Close(fd)
		}
	}()
	v4, v6, loop := !p.ipv6 || !p.o.IPv6Only, p.ipv6, bit(!p.o.NoMulticastLoop)
	err = apply(fd,
		setting{p.o.Queues > 1, sys.SolSocket, sys.SoReusePort, 1},
		setting{len(p.o.Groups) > 0, sys.SolSocket, sys.SoReuseAddr, 1},
		setting{v6, sys.SolIPv6, sys.IPv6Only, bit(p.o.IPv6Only)},
		// only the groups of this very socket
		setting{v6, sys.SolIPv6, sys.IPv6MulticastAll, 0}, setting{v4, sys.SolIP, sys.IPMulticastAll, 0},
		setting{v6, sys.SolIPv6, sys.IPv6MulticastLoop, loop}, setting{v4, sys.SolIP, sys.IPMulticastLoop, loop},
		setting{v6 && p.o.TTL > 0, sys.SolIPv6, sys.IPv6UnicastHops, p.o.TTL},
		setting{v4 && p.o.TTL > 0, sys.SolIP, sys.IPTTL, p.o.TTL},
		setting{v6 && p.o.MulticastTTL > 0, sys.SolIPv6, sys.IPv6MulticastHops, p.o.MulticastTTL},
		setting{v4 && p.o.MulticastTTL > 0, sys.SolIP, sys.IPMulticastTTL, p.o.MulticastTTL},
		setting{v6 && p.o.TOS > 0, sys.SolIPv6, sys.IPv6TClass, p.o.TOS},
		setting{v4 && p.o.TOS > 0, sys.SolIP, sys.IPTOS, p.o.TOS},
		setting{p.o.GRO, sys.SolUDP, sys.UDPGRO, 1})
	if err != nil {
		return -1, err
	}
	for _, b := range []setting{{p.o.BusyPoll > 0, sys.SolSocket, sys.SoBusyPoll, int(p.o.BusyPoll.Microseconds())},
		{p.o.PreferBusyPoll, sys.SolSocket, sys.SoPreferBusyPoll, 1},
		{p.o.BusyPollBudget > 0, sys.SolSocket, sys.SoBusyPollBudget, p.o.BusyPollBudget}} {
		if e := apply(fd, b); sys.IsErrno(e, sys.EPERM) {
			p.notes = append(p.notes, "busy polling needs CAP_NET_ADMIN: "+e.Error())
		} else if e != nil {
			return -1, e
		}
	}
	if err = further(fd, p.o.Set); err != nil {
		return -1, err
	}
	if p.device != "" {
		if err = sys.BindToDevice(fd, p.device); err != nil {
			return -1, err
		}
		index, err := sys.InterfaceIndex(fd, p.device)
		if err == nil {
			err = sys.SetMulticastInterface(fd, p.ipv6, index)
		}
		if err != nil {
			return -1, err
		}
	}
	if err = sys.Bind(fd, family(at, p.ipv6), p.zone); err != nil {
		return -1, bindError(at, err)
	}
	return fd, nil
}

func bindError(at netip.AddrPort, err error) error {
	switch {
	case sys.IsErrno(err, sys.EADDRINUSE):
		return fmt.Errorf("socket: %w: another socket has the address %s: %w", err, at, engine.ErrInUse)
	case sys.IsErrno(err, sys.EADDRNOTAVAIL):
		return fmt.Errorf("socket: %w: expected an address of this machine: %w", err, engine.ErrNotFound)
	}
	return fmt.Errorf("socket: %w", err)
}

// zoneOf is the interface number of link-local addresses, 0 for others.
func zoneOf(as ...netip.Addr) (uint32, error) {
	for _, a := range as {
		if a.Zone() == "" {
			continue
		}
		if n, err := strconv.ParseUint(a.Zone(), 10, 32); err == nil {
			return uint32(n), nil
		}
		fd, err := sys.SocketUDP(true) // in whose network namespace the name is looked up
		if err != nil {
			return 0, err
		}
		defer sys.Close(fd)
		n, err := sys.InterfaceIndex(fd, a.Zone())
		if err != nil {
			return 0, fmt.Errorf("socket: address %s: %w: %w", a, err, engine.ErrNotFound)
		}
		return uint32(n), nil
	}
	return 0, nil
}

// Name implements engine.Port.
func (p *UDPPort) Name() string { return p.name }

// LocalAddr is the address that the port receives on, with the port number that the kernel chose if
// it was 0.
func (p *UDPPort) LocalAddr() netip.AddrPort { return p.local }

// LinkState implements engine.LinkReporter. A port that is on no interface is up; one whose
// interface was removed goes on when it is back.
func (p *UDPPort) LinkState(w *engine.Waker) engine.LinkState {
	p.bell.Set(w)
	p.rx.Lock()
	defer p.rx.Unlock()
	return engine.LinkState{Up: !p.down.Load(), Changes: p.sum.LinkChanges}
}

// Info implements engine.Port.
func (p *UDPPort) Info() engine.PortInfo {
	i := engine.PortInfo{Engine: "socket", Address: "udp://" + p.local.String(), Device: p.device, Up: true, NUMA: -1}
	i.IPs = []netip.Prefix{netip.PrefixFrom(p.local.Addr(), p.local.Addr().BitLen())}
	if p.device != "" {
		p.rx.Lock()
		defer p.rx.Unlock()
		i.Up = false
		if !p.rx.Closed() {
			_, i.MTU, _ = sys.InterfaceState(p.fd, p.device)
			i.Up = !p.down.Load()
		}
	}
	return i
}

// Capabilities implements engine.Port.
func (p *UDPPort) Capabilities() engine.Capabilities {
	p.rx.Lock()
	defer p.rx.Unlock()
	return p.can()
}

// can are the port's Capabilities. The caller holds the set's lock.
func (p *UDPPort) can() engine.Capabilities {
	c := p.o.capabilities()
	c.Connections = p.peers != nil || p.remote.IsValid()
	c.HardwareTime = p.hw
	p.support.Describe(&c)
	c.Notes = append(c.Notes, p.notes...)
	return c
}

// Rules implements engine.Port: there are none.
func (p *UDPPort) Rules() engine.Rules { return nil }

// Stats implements engine.Port.
func (p *UDPPort) Stats(s *engine.PortStats) {
	p.rx.Lock()
	defer p.rx.Unlock()
	p.look()
	if t := p.timed.Load(); t != nil && !p.rx.Closed() {
		t.ReadReports(p.fd)
	}
	*s = engine.PortStats{Tx: p.pastTx, Drops: p.sum.Drops, LinkChanges: p.sum.LinkChanges}
	p.rx.Sum(&s.Rx)
	engine.SumTx(&s.Tx, p.tx, p.ended)
}

// look counts what came while there was no queue. The caller holds p.rx.
func (p *UDPPort) look() {
	if p.idle {
		p.sum.Drops[engine.DropNoQueue] += p.base.lately()
	}
}

// Close implements engine.Port.
func (p *UDPPort) Close() error {
	rx, first := p.rx.End()
	if !first {
		return nil
	}
	p.rx.Lock()
	p.look()
	p.unwatchLink()
	tx := slices.Clone(p.tx)
	p.rx.Unlock()
	var err error
	for _, q := range tx {
		err = errors.Join(err, q.Close())
	}
	for _, q := range rx {
		err = errors.Join(err, q.Close())
	}
	p.rx.Lock()
	defer p.rx.Unlock()
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	if p.idle {
		err = errors.Join(err, sys.Close(p.base.fd))
		p.idle = false
	}
	p.fd = -1
	return err
}

// join has a socket join a multicast group.
func (p *UDPPort) join(fd int, g Group) error {
	if !g.Addr.IsMulticast() || g.Addr.Is6() && !p.ipv6 {
		return invalid("group %s: expected a multicast address of the port's kind", g.Addr)
	}
	device, index := cmp.Or(g.Interface, p.device), 0
	if device != "" {
		var err error
		if index, err = sys.InterfaceIndex(fd, device); err != nil {
			return fmt.Errorf("socket: group %s: interface %q: %w: %w", g.Addr, device, err, engine.ErrNotFound)
		}
	}
	err := sys.JoinGroup(fd, g.Addr, g.Source, index)
	switch {
	case err != nil && device == "" && sys.IsErrno(err, sys.ENODEV):
		return fmt.Errorf("socket: group %s: %w: no route says on which interface: expected ?interface=eth0 behind "+
			"the address, or a route (ip route add %s dev eth0): %w",
			g.Addr, err, netip.PrefixFrom(g.Addr, g.Addr.BitLen()), engine.ErrNotFound)
	case err != nil:
		return fmt.Errorf("socket: group %s: %w", g.Addr, err)
	}
	return nil
}
