package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

const loopback = "udp://127.0.0.1:0"

func peerOf(t testing.TB, p, of *UDPPort) uint32 {
	t.Helper()
	id, err := p.Peer(of.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestUDPAnswersWhom has a server answer the first of three clients, not the one that wrote last.
func TestUDPAnswersWhom(t *testing.T) {
	server := openUDPPort(t, loopback, UDPOptions{})
	in, out := newReader(t, server, engine.RxSpec{}), newWriter(t, server, engine.TxSpec{})
	var clients []*UDPPort
	var readers []*reader
	for i := range 3 {
		c := openUDPPort(t, "udp://?remote="+server.LocalAddr().String(), UDPOptions{})
		clients = append(clients, c)
		readers = append(readers, newReader(t, c, engine.RxSpec{}))
		newWriter(t, c, engine.TxSpec{}).send(0, fmt.Sprint("I am ", i))
	}
	ids := map[string]uint32{}
	for len(ids) < 3 {
		b := in.more()
		for i := range b.Len() {
			ids[string(b.Bytes(i, 0))] = b.Conn(i)
			if a, ok := server.PeerAddr(b.Conn(i)); !ok || !strings.HasPrefix(a.String(), "127.0.0.1:") {
				t.Errorf("the address of peer %d is %v, %v", b.Conn(i), a, ok)
			}
		}
	}
	for i, c := range clients {
		a, ok := server.PeerAddr(ids[fmt.Sprint("I am ", i)])
		if own := peerOf(t, server, c); !ok || a != c.LocalAddr() || own != ids[fmt.Sprint("I am ", i)] {
			t.Errorf("client %d at %v has the address %v, %v, and is %d", i, c.LocalAddr(), a, ok, own)
		}
	}
	out.send(ids["I am 0"], "you are the first")
	if b := readers[0].more(); string(b.Bytes(0, 0)) != "you are the first" || b.Len() != 1 {
		t.Errorf("the first client got %d packets: %q", b.Len(), b.Bytes(0, 0))
	}
	readers[1].none()
	readers[2].none()
}

// TestUDPForgets fills the table of peers: the one that was silent longest goes, and its id names
// no peer.
func TestUDPForgets(t *testing.T) {
	p := openUDPPort(t, loopback, UDPOptions{Peers: 2})
	w := newWriter(t, p, engine.TxSpec{})
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	first, _ := p.Peer(at(1001))
	second, _ := p.Peer(at(1002))
	p.PeerAddr(first)
	third, _ := p.Peer(at(1003)) // in the place of the second
	if _, ok := p.PeerAddr(second); ok {
		t.Error("the second of three peers is still there in a table of 2")
	}
	if a, ok := p.PeerAddr(third); !ok || a != at(1003) {
		t.Errorf("the third peer is %v, %v", a, ok)
	}
	w.send(second, "who")
	w.send(0, "nobody")
	if s := w.stats(); s.Drops[engine.DropNoRoute] != 2 || s.Packets != 0 {
		t.Errorf("packets to nobody: %+v", s)
	}
	if _, err := p.Peer(netip.AddrPort{}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("the id of no address: %v", err)
	}
}

// TestUDPNoQueue counts what comes while there is no queue.
func TestUDPNoQueue(t *testing.T) {
	a, b := openUDPPort(t, loopback, UDPOptions{}), openUDPPort(t, loopback, UDPOptions{})
	w, to := newWriter(t, a, engine.TxSpec{}), peerOf(t, a, b)
	w.send(to, "1", "2", "3")
	want := func(n uint64) {
		t.Helper()
		var s engine.PortStats
		if b.Stats(&s); s.Drops[engine.DropNoQueue] != n || s.Drops.Total() != n {
			t.Fatalf("packets without a queue: %v, expected %d", &s.Drops, n)
		}
	}
	want(3)
	r := newReader(t, b, engine.RxSpec{})
	w.send(to, "4")
	if m := r.more(); string(m.Bytes(0, 0)) != "4" || m.Len() != 1 {
		t.Fatalf("%d packets, the first is %q", m.Len(), m.Bytes(0, 0))
	}
	w.send(to, "5", "6")
	r.b.Release()
	r.q.Close()
	want(3)
	if d := r.drops(); d[engine.DropClosed] != 2 {
		t.Errorf("two packets waited when the queue was closed: %v", &d)
	}
	w.send(to, "7")
	want(4)
}

// TestUDPKernelDrops overflows the kernel's buffer: sent = received + dropped, to the packet.
func TestUDPKernelDrops(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	var ports [2]*UDPPort
	for i, h := range n.Hosts {
		if err := h.Do(func() error {
			ports[i] = openUDPPort(t, "udp://"+h.Link().IPv4.String()+":0",
				UDPOptions{ReceiveBuffer: 64 << 10, NoGSO: i == 0})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	r, w := newReader(t, ports[1], engine.RxSpec{}), newWriter(t, ports[0], engine.TxSpec{})
	to := peerOf(t, ports[0], ports[1])
	sent, got := uint64(0), uint64(0)
	for range 20 {
		for range 200 {
			w.send(to, numbered(sent, 700))
			sent++
		}
		for {
			r.b.Release()
			k, err := r.q.TryRecv(r.b)
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				break
			}
			got += uint64(k)
		}
	}
	if s := w.drained(); s.Packets != sent || s.Drops.Total() != 0 {
		t.Fatalf("%d packets were sent: %+v", sent, s)
	}
	if d := r.drops(); d[engine.DropKernel] == 0 || d.Total() != d[engine.DropKernel] ||
		got+d[engine.DropKernel] != sent {
		t.Errorf("%d packets were sent, %d received, and these dropped: %v", sent, got, &d)
	}
}

// TestUDPMulticast receives from groups, of IPv4 and IPv6, until it leaves them.
func TestUDPMulticast(t *testing.T) {
	n := netns.New(t, netns.Topology{Hosts: 2, Neighbours: true})
	open := func(h *netns.Host, address string, o UDPOptions) (p *UDPPort) {
		if err := h.Do(func() error { p = openUDPPort(t, address, o); return nil }); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ any, group, other string }{{"0.0.0.0", "239.7.7.7", "239.7.7.8"},
		{"[::]", "ff15::7", "ff15::8"}} {
		in := open(n.Hosts[1], "udp://"+c.any+":0?interface=eth0&group="+c.group, UDPOptions{})
		r := newReader(t, in, engine.RxSpec{})
		out := open(n.Hosts[0], "udp://"+c.any+":0?interface=eth0",
			UDPOptions{MulticastTTL: 4, NoMulticastLoop: true, TTL: 9, TOS: 8})
		w := newWriter(t, out, engine.TxSpec{})
		to := func(group string) uint32 {
			id, err := out.Peer(netip.AddrPortFrom(netip.MustParseAddr(group), in.LocalAddr().Port()))
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		w.send(to(c.other), "not joined")
		w.send(to(c.group), "joined")
		if b := r.more(); string(b.Bytes(0, 0)) != "joined" || b.Len() != 1 {
			t.Fatalf("%d packets, the first is %q", b.Len(), b.Bytes(0, 0))
		}
		for group, want := range map[string]error{"10.0.0.1": engine.ErrInvalid,
			c.other + "%nope0": engine.ErrNotFound} {
			address, device, _ := strings.Cut(group, "%")
			o := UDPOptions{Groups: []Group{{Addr: netip.MustParseAddr(address), Interface: device}}}
			if _, err := New().OpenPort(t.Context(),
				engine.PortSpec{Address: "udp://" + c.any + ":0", Options: o}); !errors.Is(err, want) {
				t.Errorf("a port of group %s: %v", group, err)
			}
		}
	}
}

// TestUDPSegmentation sends packets of many sizes merged and one by one, and receives them merged
// and one by one: the bytes are the same.
func TestUDPSegmentation(t *testing.T) {
	for _, gso := range []bool{true, false} {
		for _, gro := range []bool{true, false} {
			t.Run(fmt.Sprintf("gso=%v/gro=%v", gso, gro), func(t *testing.T) {
				a := openUDPPort(t, loopback, UDPOptions{NoGSO: !gso})
				b := openUDPPort(t, loopback, UDPOptions{GRO: gro, ReceiveBuffer: 4 << 20})
				pool := newPool(t, 1<<16, 64)
				r := newReader(t, b, engine.RxSpec{Pools: []*mem.Pool{pool}})
				r.b = burst.New(7) // so that merged ones come in parts
				w, to := newWriter(t, a, engine.TxSpec{}), peerOf(t, a, b)
				got := uint64(0)
				for round := range uint64(30) {
					var packets []string
					for i := range uint64(40) {
						size := 1000
						if i%13 == 12 {
							size = 8 + int(i*round%900)
						}
						packets = append(packets, numbered(round*40+i, size))
					}
					w.send(to, packets...)
					for got < (round+1)*40 {
						m := r.more()
						for i := range m.Len() {
							if n := number(t, m.Bytes(i, 0)); n != got {
								t.Fatalf("packet %d came where %d was expected", n, got)
							}
							if m.PacketLen(i) != len(packets[got-round*40]) || m.Conn(i) == 0 {
								t.Fatalf("packet %d has %d bytes and comes from %d", got, m.PacketLen(i), m.Conn(i))
							}
							got++
						}
					}
				}
				var s engine.RxStats
				if r.q.Stats(&s); s.Packets != got || gso && w.stats().Calls > 30*2 {
					t.Errorf("%d packets: %+v; %+v", got, s, w.stats())
				}
				w.send(to, numbered(got, 900), numbered(got+1, 900), numbered(got+2, 900), numbered(got+3, 900))
				r.b.Release()
				r.b = burst.New(1)
				r.more()
				r.q.Close() // the rest of a merged one goes with it
				if d := r.drops(); d[engine.DropClosed] != 3 {
					t.Errorf("3 packets waited when the queue was closed: %v", &d)
				}
			})
		}
	}
}

// TestUDPTruncated receives datagrams that are longer than a slot.
func TestUDPTruncated(t *testing.T) {
	for _, keep := range []bool{false, true} {
		a, b := openUDPPort(t, loopback, UDPOptions{}), openUDPPort(t, loopback, UDPOptions{KeepTruncated: keep})
		r := newReader(t, b, engine.RxSpec{Pools: []*mem.Pool{newPool(t, 100, 64)}})
		w, to := newWriter(t, a, engine.TxSpec{}), peerOf(t, a, b)
		w.send(to, numbered(1, 500), numbered(2, 100))
		m := r.more()
		if !keep {
			if d := r.drops(); m.Len() != 1 || number(t, m.Bytes(0, 0)) != 2 || d[engine.DropTooLong] != 1 {
				t.Errorf("%d packets; drops %v", m.Len(), &d)
			}
			continue
		}
		for m.Len() < 2 {
			if _, err := r.q.TryRecv(m); err != nil {
				t.Fatal(err)
			}
		}
		if m.Flags(0)&burst.Truncated == 0 || m.WireLen(0) != 500 || m.PacketLen(0) != 100 || m.Flags(1) != 0 ||
			m.WireLen(1) != 100 {
			t.Errorf("flags %v and %v, lengths on the wire %d and %d", m.Flags(0), m.Flags(1), m.WireLen(0),
				m.WireLen(1))
		}
	}
}

// TestUDPRefused sends to a port that no socket has: the port goes on.
func TestUDPRefused(t *testing.T) {
	// an address that other tests do not use: no process takes the port meanwhile
	c, err := net.ListenPacket("udp", "127.77.66.55:0")
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().String()
	c.Close()
	p := openUDPPort(t, "udp://?remote="+at, UDPOptions{})
	r, w := newReader(t, p, engine.RxSpec{}), newWriter(t, p, engine.TxSpec{})
	for range 20 {
		w.send(0, "anybody there?")
		r.none()
	}
	s, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.send(0, "and now?")
	buf := make([]byte, 100)
	if n, _, err := s.ReadFrom(buf); err != nil || string(buf[:n]) != "and now?" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if st := w.stats(); st.Drops.Total() != 0 {
		t.Errorf("drops: %v", &st.Drops)
	}
}

// TestUDPLink takes the interface down and up under load.
func TestUDPLink(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true})
	var ports [2]*UDPPort
	for i, h := range n.Hosts {
		if err := h.Do(func() error {
			ports[i] = openUDPPort(t, "udp://"+h.Link().IPv4.String()+":0?interface=eth0", UDPOptions{})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	r, w := newReader(t, ports[1], engine.RxSpec{}), newWriter(t, ports[0], engine.TxSpec{})
	to := peerOf(t, ports[0], ports[1])
	sent := uint64(0)
	through := func() bool {
		w.send(to, numbered(sent, 64), numbered(sent+1, 64))
		sent += 2
		r.b.Release()
		k, err := r.q.TryRecv(r.b)
		if err != nil {
			t.Fatal(err)
		}
		return k > 0
	}
	for range 3 {
		eventually(t, "packets", through)
		if !ports[0].Info().Up || ports[0].Info().MTU != 1500 {
			t.Errorf("%+v", ports[0].Info())
		}
		setLink(t, n.Hosts[0].Link(), false, ports[:]...)
		for range 10 {
			through()
		}
		setLink(t, n.Hosts[0].Link(), true, ports[:]...)
	}
	eventually(t, "packets again", through)
	var changes engine.PortStats
	if ports[0].Stats(&changes); changes.LinkChanges != 6 {
		t.Errorf("the link changed %d times, expected 6", changes.LinkChanges)
	}
	s := w.drained()
	if s.Packets+s.Drops.Total() != sent || s.Drops.Total() < 60 ||
		s.Drops.Total() != s.Drops[engine.DropNoRoute]+s.Drops[engine.DropDown] {
		t.Errorf("%d packets: %d left, dropped: %v", sent, s.Packets, &s.Drops)
	}
}

// TestUDPQueues spreads packets over queues that come and go; the port sends from the same address
// all the time.
func TestUDPQueues(t *testing.T) {
	for _, spread := range []Spread{SpreadFlow, SpreadCPU, SpreadRandom} {
		b := openUDPPort(t, loopback, UDPOptions{Queues: 3, Spread: spread})
		var rs []*reader
		for range 3 {
			rs = append(rs, newReader(t, b, engine.RxSpec{}))
		}
		_, err := b.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{newPool(t, 64, 4)}})
		if !errors.Is(err, engine.ErrInUse) {
			t.Errorf("a fourth of three queues: %v", err)
		}
		out := newWriter(t, b, engine.TxSpec{})
		var from []*UDPPort
		sent := 0
		for range 16 {
			a := openUDPPort(t, "udp://?remote="+b.LocalAddr().String(), UDPOptions{})
			from = append(from, a)
			newWriter(t, a, engine.TxSpec{}).send(0, "1", "2", "3", "4")
			sent += 4
		}
		got, queues := 0, 0
		eventually(t, "all packets", func() bool {
			for _, r := range rs {
				k, err := r.q.TryRecv(r.b)
				if err != nil {
					t.Fatal(err)
				}
				got += k
				r.b.Release()
			}
			return got >= sent
		})
		for _, r := range rs {
			var s engine.RxStats
			if r.q.Stats(&s); s.Packets > 0 {
				queues++
			}
		}
		if got != sent || queues < 2 && spread != SpreadCPU {
			t.Errorf("spread %d: %d of %d packets in %d queues", spread, got, sent, queues)
		}
		rs[0].q.Close() // whose socket the port sends from
		back := newReader(t, from[0], engine.RxSpec{})
		out.send(peerOf(t, b, from[0]), "from the same address") // a connected socket takes no others
		if m := back.more(); string(m.Bytes(0, 0)) != "from the same address" {
			t.Errorf("%q", m.Bytes(0, 0))
		}
	}
}

// TestUDPBlocked fills the socket's send buffer behind a slow link: what does not fit waits, and
// nothing is lost.
func TestUDPBlocked(t *testing.T) {
	n := netns.New(t, netns.Topology{Neighbours: true, Link: netns.LinkSpec{Rate: 50e6}})
	var ports [2]*UDPPort
	for i, h := range n.Hosts {
		if err := h.Do(func() error {
			ports[i] = openUDPPort(t, "udp://"+h.Link().IPv4.String()+":0", UDPOptions{SendBuffer: 4096, NoGSO: true})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	r, w := newReader(t, ports[1], engine.RxSpec{}), newWriter(t, ports[0], engine.TxSpec{})
	to := peerOf(t, ports[0], ports[1])
	const packets = 300
	for i := range uint64(packets) {
		w.send(to, numbered(i, 1400))
	}
	if err := w.q.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	var sent engine.TxStats
	if w.q.Stats(&sent); sent.Packets != packets || sent.Drops.Total() != 0 {
		t.Errorf("%d packets sent, dropped %v", sent.Packets, &sent.Drops)
	}
	for range 3 { // says that no more will come
		w.send(to, numbered(packets, 1400))
	}
	// Behind the socket the kernel may lose or reorder one now and then: the receive queues of the
	// processors are shared with all that goes on in the machine, and packets leave the qdisc on
	// the processor that sends or that whose timer fires.
	var seen [packets]bool
	got, overtook, ended := uint64(0), 0, false
	for !ended {
		m := r.more()
		for i := range m.Len() {
			k := number(t, m.Bytes(i, 0))
			if k == packets {
				ended = true
				continue
			}
			if k > packets || seen[k] {
				t.Fatalf("packet %d came again, or was never sent", k)
			}
			if seen[k] = true; k != got {
				overtook++
			}
			got++
		}
	}
	t.Logf("%d of %d packets, %d of them not in their place", got, packets, overtook)
	if got < packets-5 {
		t.Errorf("%d of %d packets arrived", got, packets)
	}
}

// TestUDPChain sends a packet of several segments, with headers and payload from two pools.
func TestUDPChain(t *testing.T) {
	a, b := openUDPPort(t, loopback, UDPOptions{}), openUDPPort(t, loopback, UDPOptions{})
	r := newReader(t, b, engine.RxSpec{Timestamps: true})
	w := newWriter(t, a, engine.TxSpec{Pools: []*mem.Pool{newPool(t, 16, 8), newPool(t, 100, 8)}, Headroom: 4})
	m := burst.NewSegmented(4, 8)
	if n, err := w.q.Alloc(m, 2, 50); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for i := range 2 {
		copy(m.Bytes(i, 0), "header......")
		copy(m.Bytes(i, 1), strings.Repeat("payload...", 5))
		m.SetConn(i, peerOf(t, a, b))
	}
	if err := w.q.Send(m); err != nil {
		t.Fatal(err)
	}
	want := "header......" + strings.Repeat("payload...", 5)
	for n := 0; n < 2; {
		g := r.more()
		for i := range g.Len() {
			if at, ok := g.Time(i); string(g.Bytes(i, 0)) != want || !ok || at == 0 {
				t.Errorf("%q at %d, %v", g.Bytes(i, 0), at, ok)
			}
		}
		n += g.Len()
	}
}

// TestUDPNotes sees that a buffer that is too small is noted, and options by number are set.
func TestUDPNotes(t *testing.T) {
	p := openUDPPort(t, loopback, UDPOptions{Set: []Option{{sys.SolSocket, sys.SoPriority, 3}}, BusyPoll: 1000,
		PreferBusyPoll: true, BusyPollBudget: 8})
	newReader(t, p, engine.RxSpec{})
	v, err := sys.Option(p.fd, sys.SolSocket, sys.SoPriority)
	if err != nil || v != 3 {
		t.Errorf("the priority is %d, %v", v, err)
	}
	p.short("receive", "rmem_max", 5, 10)
	p.short("receive", "rmem_max", 5, 10)
	if notes := strings.Join(p.Capabilities().Notes, "\n"); strings.Count(notes, "raise net.core.rmem_max") != 1 {
		t.Errorf("the notes are:\n%s", notes)
	}
}

// TestRefusals gives what cannot be.
func TestRefusals(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		address string
		o       any
		as      error
	}{
		{"", nil, engine.ErrInvalid},
		{"udp:127.0.0.1:1", nil, engine.ErrInvalid},
		{"sctp://1.2.3.4:5", nil, engine.ErrInvalid},
		{"udp://1.2.3.4", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:70000", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:0?remote=1.2.3.4", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:0?group=1.2.3.4", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:0?nonsense=1", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:0?listen=1", nil, engine.ErrInvalid},
		{"udp://127.0.0.1:0?remote=[::1]:5", nil, engine.ErrInvalid},
		{"udp://192.0.2.1:0", nil, engine.ErrNotFound},
		{"udp://127.0.0.1:0?interface=nope0", nil, nil},
		{"udp://127.0.0.1:0", TCPOptions{}, engine.ErrInvalid},
		{"udp://127.0.0.1:0", (*UDPOptions)(nil), engine.ErrNil},
		{"udp://127.0.0.1:0", UDPOptions{Batch: -1}, engine.ErrInvalid},
		{"udp://127.0.0.1:0", UDPOptions{Queues: 65}, engine.ErrInvalid},
		{"udp://127.0.0.1:0", UDPOptions{TTL: 256}, engine.ErrInvalid},
		{"udp://127.0.0.1:0", UDPOptions{Peers: 1 << 16}, engine.ErrInvalid},
		{"udp://127.0.0.1:0?remote=127.0.0.1:5", UDPOptions{Queues: 2}, engine.ErrInvalid},
		{"tcp://127.0.0.1:0", nil, engine.ErrInvalid},
		{"tcp://127.0.0.1:5?listen=perhaps", nil, engine.ErrInvalid},
		{"tcp://127.0.0.1:0?listen=1", UDPOptions{}, engine.ErrInvalid},
		{"tcp://127.0.0.1:0?listen=1", TCPOptions{Batch: 65}, engine.ErrInvalid},
		{"tcp://127.0.0.1:0?listen=1", TCPOptions{Options: conns.Options{BackoffMin: 2, BackoffMax: 1}}, engine.ErrInvalid},
		{"tcp://192.0.2.1:0?listen=1", nil, engine.ErrNotFound},
		{"tcp://127.0.0.1:5?local=192.0.2.1:0", nil, engine.ErrNotFound},
		{"tcp://127.0.0.1:5?congestion=none", TCPOptions{Options: conns.Options{Reconnect: true}}, sys.ENOENT},
	} {
		p, err := New().OpenPort(ctx, engine.PortSpec{Address: c.address, Options: c.o})
		if err == nil || c.as != nil && !errors.Is(err, c.as) {
			t.Errorf("%q with %+v: %v, expected %v", c.address, c.o, err, c.as)
		}
		if p != nil && err == nil {
			p.Close()
		}
	}
	p := openUDPPort(t, loopback, UDPOptions{})
	if _, err := New().OpenPort(ctx, engine.PortSpec{Address: "udp://" + p.LocalAddr().String()}); !errors.Is(err,
		engine.ErrInUse) {
		t.Errorf("an address that is in use: %v", err)
	}
	if _, err := New().OpenPort(ctx, engine.PortSpec{Address: loopback, Isolated: true}); !errors.Is(err,
		engine.ErrUnsupported) {
		t.Errorf("an isolated port: %v", err)
	}
	pools := []*mem.Pool{newPool(t, 64, 4)}
	for _, s := range []engine.RxSpec{{}, {Pools: append(pools, pools...)}, {Pools: pools, Depth: -1},
		{Pools: pools, Options: 1}, {Pools: pools, Conn: 1},
		{Pools: pools, HardwareTime: true}, {Pools: []*mem.Pool{nil}}} {
		if _, err := p.AddRxQueue(s); err == nil {
			t.Errorf("a receive queue of %+v is not refused", s)
		}
	}
	for _, s := range []engine.TxSpec{{}, {Pools: pools, Depth: -1}, {Pools: pools, Options: 1},
		{Pools: pools, SourceMAC: true}, {Pools: pools, Headroom: 65}} {
		if _, err := p.AddTxQueue(s); err == nil {
			t.Errorf("a transmit queue of %+v is not refused", s)
		}
	}
	if _, err := openUDPPort(t, loopback,
		UDPOptions{GRO: true}).AddRxQueue(engine.RxSpec{Pools: pools}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("GRO with small slots: %v", err)
	}
}
