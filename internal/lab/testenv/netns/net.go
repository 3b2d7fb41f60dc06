package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// Topology says which hosts there are and what joins them. The zero value is two hosts on one veth
// pair.
type Topology struct {
	Hosts int // 0: 2; at most 200. One host has links only with Bridge
	// Rails is how many separate networks join the hosts; each host has a link on each rail, called
	// eth0, eth1 ... 0 means 1.
	Rails int
	// Bridge joins the hosts of a rail by a bridge, which is in a namespace of its own; more than
	// two always are.
	Bridge bool
	// Neighbours gives every host the MAC addresses of all others as permanent entries, so that no
	// host asks (ARP, ND).
	Neighbours bool
	// Localnet gives every link an address in 127.77.0.0/16 besides, which the hosts reach over the
	// link: for programs that accept only loopback addresses. 127.0.0.1 stays the host's own.
	Localnet bool
	Link     LinkSpec // for all links
	// Each, if any, may change the spec of one link, which is complete when Each sees it. rail and
	// host count from 0.
	Each func(rail, host int, s *LinkSpec)
}

// LinkSpec describes a host's end of a link. Zero values get defaults.
type LinkSpec struct {
	MTU    int              // 0: 1500; up to 65535
	Queues int              // receive and transmit queues at both ends; 0: 1
	MAC    net.HardwareAddr // nil: 02:77:00:RAIL:00:HOST
	IPv4   netip.Prefix     // zero: 10.77.RAIL.HOST+1/24
	IPv6   netip.Prefix     // zero: fd77:0:0:RAIL::HOST+1/64; usable at once, without duplicate address detection
	// bits per second that the host may send (a token bucket, or the emulator's); 0: no limit
	Rate       uint64
	NoOffloads bool // no segmentation, aggregation or checksums left to the device, at the host's end
	Promisc    bool // takes packets for other MAC addresses

	// What any of these is set for at one end of a pair goes through this process, which does it to
	// what that host sends.
	Delay time.Duration // of each packet
	Loss  float64       // probability that a packet is lost, by a generator that Seed begins
	Seed  uint64
	Queue int // bytes that may wait for the Rate, behind which packets are lost; 0: 256 KiB
}

// emulated reports whether packets are to be delayed, lost or queued.
func (s *LinkSpec) emulated() bool { return s.Delay != 0 || s.Loss != 0 || s.Queue != 0 }

// Net is a set of hosts.
type Net struct {
	Hosts []*Host

	fabric   *Host // holds the bridges; nil for pairs
	emulated []*emulated
	topology Topology
}

// MissingError is what this machine lacks for a topology.
type MissingError struct {
	What string // in words, with what brings it
	Err  error  // what the attempt said
}

func (e *MissingError) Error() string { return fmt.Sprintf("missing %s: %v", e.What, e.Err) }

// Unwrap gives what the attempt said.
func (e *MissingError) Unwrap() error { return e.Err }

// New makes the topology for a test and closes it with the test. Where the machine lacks something
// for it, the test is skipped, or fails where CI is set.
func New(t testenv.TB, topology Topology) *Net {
	t.Helper()
	start := time.Now()
	n, err := Open(topology)
	if err != nil {
		var m *MissingError
		if errors.As(err, &m) {
			testenv.Missing(t, m.What, m.Err)
		}
		t.Fatalf("%v", err)
		return nil
	}
	what := "pair"
	if n.fabric != nil {
		what = "bridge"
	}
	testenv.Record(t, "netns", what, fmt.Sprintf("%d hosts, MTU %d, %d queues, %.0f ms",
		len(n.Hosts), n.topology.Link.MTU, n.topology.Link.Queues, time.Since(start).Seconds()*1000))
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return n
}

// Open makes the topology. All links have their carrier when it returns. The caller closes the Net.
// An error that wraps a MissingError says what the machine lacks.
func Open(topology Topology) (*Net, error) {
	n := &Net{topology: topology}
	if err := n.open(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Cable is two hosts, near and far, on a cable that carries packets of mtu bytes, on which only the
// programs that run there say anything: their interfaces are called eth0, and the neighbours are
// known. The caller calls close. It is what bench/stream asks for.
func Cable(mtu int) (near, far func(func() error) error, close func() error, err error) {
	n, err := Open(Topology{Neighbours: true, Link: LinkSpec{MTU: mtu}})
	if err != nil {
		return nil, nil, nil, err
	}
	for _, h := range n.Hosts {
		if err := h.Sysctl("net.ipv6.conf.eth0.disable_ipv6", "1"); err != nil {
			return nil, nil, nil, errors.Join(err, n.Close())
		}
	}
	return n.Hosts[0].Do, n.Hosts[1].Do, n.Close, nil
}

// Close kills every program in the hosts and gives the namespaces up. They are gone as soon as the
// sockets that were opened in them are closed.
func (n *Net) Close() error {
	var err error
	for _, e := range n.emulated {
		err = errors.Join(err, e.close())
	}
	n.emulated = nil
	for _, h := range n.Hosts {
		err = errors.Join(err, h.close())
	}
	if n.fabric != nil {
		err = errors.Join(err, n.fabric.close())
	}
	return err
}

func (n *Net) open() error {
	t := &n.topology
	if err := t.complete(); err != nil {
		return err
	}
	for i := range t.Hosts {
		h, err := openHost(fmt.Sprintf("host%d", i))
		if err != nil {
			return err
		}
		n.Hosts = append(n.Hosts, h)
	}
	if t.Bridge {
		var err error
		if n.fabric, err = openHost("bridge"); err != nil {
			return err
		}
	}
	if t.Hosts > 1 || t.Bridge {
		for r := range t.Rails {
			if err := n.addRail(r); err != nil {
				return err
			}
		}
	}
	return n.configure()
}

// complete fills in what is zero and refuses what cannot be.
func (t *Topology) complete() error {
	if t.Hosts == 0 {
		t.Hosts = 2
	}
	if t.Rails == 0 {
		t.Rails = 1
	}
	if t.Hosts < 0 || t.Hosts > 200 || t.Rails < 0 || t.Rails > 200 {
		return fmt.Errorf("netns: %d hosts on %d rails: expected 1 to 200 of each", t.Hosts, t.Rails)
	}
	t.Bridge = t.Bridge || t.Hosts > 2
	if t.Link.MTU == 0 {
		t.Link.MTU = 1500
	}
	if t.Link.Queues == 0 {
		t.Link.Queues = 1
	}
	return nil
}

// spec is the complete description of a link.
func (t *Topology) spec(rail, host int) (LinkSpec, error) {
	s := t.Link
	if s.MAC == nil {
		s.MAC = net.HardwareAddr{0x02, 0x77, 0, byte(rail), 0, byte(host + 1)}
	}
	if !s.IPv4.IsValid() {
		s.IPv4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(rail), byte(host + 1)}), 24)
	}
	if !s.IPv6.IsValid() {
		s.IPv6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: byte(rail), 15: byte(host + 1)}), 64)
	}
	if t.Each != nil {
		t.Each(rail, host, &s)
	}
	switch {
	case s.MTU < 1280 || s.MTU > 65535: // below 1280 the kernel turns IPv6 off
		return s, fmt.Errorf("netns: MTU %d: expected 1280 to 65535", s.MTU)
	case s.Queues < 1 || s.Queues > 256:
		return s, fmt.Errorf("netns: %d queues: expected 1 to 256", s.Queues)
	case len(s.MAC) != 6 || s.MAC[0]&1 != 0:
		return s, fmt.Errorf("netns: MAC address %s: expected 6 bytes, the first of them even", s.MAC)
	case s.emulated() && t.Bridge:
		return s, errors.New("netns: Delay, Loss and Queue are those of a pair: expected two hosts without a bridge")
	case s.emulated() && s.Queues > 1:
		return s, fmt.Errorf("netns: %d queues of a link with Delay, Loss or Queue: expected 1", s.Queues)
	case s.Delay < 0 || s.Loss < 0 || s.Loss > 1 || s.Queue < 0:
		return s, fmt.Errorf("netns: delay %v, loss %v, queue %d: expected none below zero, and a loss of at most 1",
			s.Delay, s.Loss, s.Queue)
	case !s.IPv4.Addr().Is4() || !s.IPv6.Addr().Is6():
		return s, fmt.Errorf("netns: addresses %s and %s: expected one of IPv4 and one of IPv6", s.IPv4, s.IPv6)
	}
	return s, nil
}

// addRail adds a link to every host and joins them.
func (n *Net) addRail(rail int) error {
	t := &n.topology
	dev := fmt.Sprintf("eth%d", rail)
	var specs []LinkSpec
	for i := range n.Hosts {
		s, err := t.spec(rail, i)
		if err != nil {
			return err
		}
		specs = append(specs, s)
	}
	ends := func(s LinkSpec) string { return fmt.Sprintf("numtxqueues %d numrxqueues %d", s.Queues, s.Queues) }
	links := make([]*Link, len(n.Hosts))
	for i, h := range n.Hosts {
		s := specs[i]
		l := &Link{Name: dev, MTU: s.MTU, Queues: s.Queues, MAC: s.MAC, IPv4: s.IPv4.Addr(), IPv6: s.IPv6.Addr(),
			near: end{host: h, dev: dev, ipv6: s.IPv6.Addr()}, spec: s}
		if t.Localnet {
			l.Local = netip.AddrFrom4([4]byte{127, 77, byte(rail), byte(i + 1)})
		}
		links[i] = l
		h.Links = append(h.Links, l)
	}
	if !t.Bridge {
		a, b := links[0], links[1]
		emulated := a.spec.emulated() || b.spec.emulated()
		a.near.tap, b.near.tap = emulated, emulated
		a.far, b.far, a.peer, b.peer = b.near, a.near, b, a
		if emulated {
			return n.emulate(a, b)
		}
		return a.near.host.ip(fmt.Sprintf("link add %s %s mtu %d address %s type veth peer name %s %s mtu %d address "+
			"%s netns %d",
			dev, ends(a.spec), a.MTU, a.MAC, dev, ends(b.spec), b.MTU, b.MAC, b.near.host.tid))
	}
	// Without its own addresses and snooping the bridge says nothing by itself and passes
	// everything on at once.
	bridge := fmt.Sprintf("br%d", rail)
	batch := []string{fmt.Sprintf("link add %s type bridge stp_state 0 forward_delay 0 mcast_snooping 0", bridge),
		fmt.Sprintf("link set %s addrgenmode none", bridge)}
	for i, l := range links {
		l.far = end{host: n.fabric, dev: fmt.Sprintf("p%d-%d", rail, i)}
		batch = append(batch,
			fmt.Sprintf("link add %s %s mtu %d type veth peer name %s %s mtu %d address %s netns %d",
				l.far.dev, ends(l.spec), l.MTU, dev, ends(l.spec), l.MTU, l.MAC, l.near.host.tid),
			fmt.Sprintf("link set %s master %s addrgenmode none up", l.far.dev, bridge))
	}
	return n.fabric.ip(append(batch, fmt.Sprintf("link set %s up", bridge))...)
}

// configure brings all links up with their addresses and waits for them.
func (n *Net) configure() error {
	for _, h := range n.Hosts {
		batch := []string{"link set lo up"}
		if n.topology.Localnet {
			batch = append(batch, "addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo")
		}
		for r, l := range h.Links {
			if n.topology.Localnet {
				if err := h.Sysctl("net.ipv4.conf."+l.Name+".route_localnet", "1"); err != nil {
					return fmt.Errorf("netns: %s: %w", h.Name, err)
				}
			}
			if n.topology.Neighbours {
				for _, o := range n.Hosts {
					if o != h {
						l.neighbours = append(l.neighbours, o.Links[r])
					}
				}
			}
			batch = append(batch, fmt.Sprintf("link set %s addrgenmode none", l.Name))
			batch = append(batch, l.up()...)
		}
		if err := h.ip(batch...); err != nil {
			return err
		}
		for _, l := range h.Links {
			if err := l.tune(); err != nil {
				return err
			}
		}
	}
	for _, h := range n.Hosts {
		for _, l := range h.Links {
			if err := l.await(true, l.near, l.far); err != nil {
				return err
			}
		}
	}
	return nil
}

// missing sees in what a program printed that this machine lacks something.
func missing(output string, err error) error {
	for _, m := range []struct{ says, what string }{
		{"Operation not permitted", "root (CAP_NET_ADMIN)"},
		{"Unknown device type", "a kernel with veth and bridge devices"},
		{"qdisc kind is unknown", "a kernel with the token bucket (CONFIG_NET_SCH_TBF)"},
		{"IPv6 is disabled", "a kernel with IPv6"},
	} {
		if strings.Contains(output, m.says) {
			return &MissingError{m.what, err}
		}
	}
	return err
}
