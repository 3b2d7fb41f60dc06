package neigh

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
)

// MachineOptions say who a Machine is and how patient.
type MachineOptions struct {
	MAC   packet.MAC   // of the port
	Addrs []netip.Addr // that the port owns, IPv4 and IPv6; it asks from the first one of a family
	// Answer answers hosts that ask for Addrs. Without it, the Machine only asks its own questions.
	Answer bool
	// Tries is how often to ask, and Retry how long to wait for an answer each time; 0 is 3 and 1 s
	// (RFC 4861 section 10).
	Tries int
	Retry time.Duration
	// Fresh is how long an answer is used; after that it is used for as long again while the
	// neighbour is asked again. 0 is 30 s.
	Fresh time.Duration
	// Failed is how long the Machine waits before it asks a silent neighbour again; 0 is 3 s.
	Failed time.Duration
	// Entries is the most neighbours; the one that was used longest ago makes room. 0 is 1024.
	Entries int
}

// State is what is known of a neighbour.
type State uint8

// The states.
const (
	Asking State = iota // no answer yet
	Known
	Silent // no answer at all
)

type entry struct {
	mac    packet.MAC
	state  State
	tries  int       // questions in this round
	next   time.Time // when to ask again, to give up, or to forget
	fresh  time.Time // until when mac needs no question; the zero time: never asked
	used   time.Time
	asking bool
}

// Machine resolves addresses of IPv4 (ARP, RFC 826) and IPv6 (neighbour discovery, RFC 4861 section
// 7) on one link. It is pure: frames and times go in, frames and deadlines come out. One goroutine
// at a time uses it. What others send changes only neighbours that Lookup asked for, and its memory
// is bounded.
type Machine struct {
	o       MachineOptions
	entries map[netip.Addr]*entry
	out     [][]byte // frames to be sent
	spare   [][]byte
}

// frameRoom is room for every frame that a Machine makes.
const frameRoom = packet.EthernetLen + packet.IPv6Len + packet.NeighborLen

// maxOut is the most frames that wait to be sent; what comes on top is asked again later, or not
// answered.
const maxOut = 64

// NewMachine makes a Machine.
func NewMachine(o MachineOptions) (*Machine, error) {
	if o.MAC.IsZero() || o.MAC.IsMulticast() {
		return nil, fmt.Errorf("neigh: the port's address %v: expected a unicast address: %w", o.MAC,
			engine.ErrInvalid)
	}
	for _, a := range o.Addrs {
		if !a.IsValid() || a.Is4In6() || a.IsMulticast() || a.IsUnspecified() {
			return nil, fmt.Errorf("neigh: own address %v: expected that of one host: %w", a, engine.ErrInvalid)
		}
	}
	if o.Tries < 0 || o.Retry < 0 || o.Fresh < 0 || o.Failed < 0 || o.Entries < 0 {
		return nil, fmt.Errorf("neigh: negative option: %w", engine.ErrInvalid)
	}
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&o.Retry, time.Second)
	set(&o.Fresh, 30*time.Second)
	set(&o.Failed, 3*time.Second)
	if o.Tries == 0 {
		o.Tries = 3
	}
	if o.Entries == 0 {
		o.Entries = 1024
	}
	return &Machine{o: o, entries: map[netip.Addr]*entry{}}, nil
}

// Lookup says what is known of a neighbour on the link, and asks for it where that is needed: see
// Output. The error wraps ErrNoRoute where the port owns no address of its family, and
// engine.ErrInvalid where a is no unicast address.
func (m *Machine) Lookup(now time.Time, a netip.Addr) (packet.MAC, State, error) {
	a = a.Unmap().WithZone("")
	if !a.IsValid() || a.IsMulticast() || a.IsUnspecified() {
		return packet.MAC{}, Silent, fmt.Errorf("neigh: %v is no unicast address: %w", a, engine.ErrInvalid)
	}
	e := m.entries[a]
	if e == nil {
		if !m.source(a).IsValid() {
			return packet.MAC{}, Silent, fmt.Errorf("neigh: the port owns no address to ask for %v from: %w", a,
				ErrNoRoute)
		}
		m.makeRoom()
		e = &entry{}
		m.entries[a] = e
		m.ask(now, a, e)
	}
	e.used = now
	if e.state == Known && !e.asking && !now.Before(e.fresh) {
		e.tries = 0
		m.ask(now, a, e)
	}
	return e.mac, e.state, nil
}

// source is the address to ask for a from.
func (m *Machine) source(a netip.Addr) netip.Addr {
	var found netip.Addr
	for _, own := range m.o.Addrs {
		if own.Is4() != a.Is4() {
			continue
		}
		if !found.IsValid() || own.IsLinkLocalUnicast() == a.IsLinkLocalUnicast() &&
			found.IsLinkLocalUnicast() != a.IsLinkLocalUnicast() {
			found = own
		}
	}
	return found
}

// makeRoom forgets the neighbour that was used longest ago, if there are as many as may be.
func (m *Machine) makeRoom() {
	if len(m.entries) < m.o.Entries {
		return
	}
	var oldest netip.Addr
	for a, e := range m.entries {
		if o := m.entries[oldest]; o == nil || e.used.Before(o.used) || e.used.Equal(o.used) && a.Less(oldest) {
			oldest = a
		}
	}
	delete(m.entries, oldest)
}

// ask sends a question, and notes when to ask again.
func (m *Machine) ask(now time.Time, a netip.Addr, e *entry) {
	e.asking = true
	e.tries++
	e.next = now.Add(m.o.Retry)
	own := m.source(a)
	switch {
	case !own.IsValid():
	case a.Is4():
		m.sendARP(packet.BroadcastMAC, packet.ARPHeader{Op: packet.ARPRequest, SenderMAC: m.o.MAC, SenderIP: own,
			TargetIP: a})
	case e.state == Known: // is it still there?
		m.sendNeighbor(e.mac, a, packet.NeighborHeader{Src: own, Target: a, LinkAddr: m.o.MAC})
	default:
		group := packet.SolicitedNode(a)
		to, _ := packet.MulticastMAC(group)
		m.sendNeighbor(to, group, packet.NeighborHeader{Src: own, Target: a, LinkAddr: m.o.MAC})
	}
}

// frame makes room for a frame to be sent, nil where too many wait.
func (m *Machine) frame() []byte {
	if len(m.out) >= maxOut {
		return nil
	}
	if n := len(m.spare); n > 0 {
		b := m.spare[n-1]
		m.spare = m.spare[:n-1]
		return b[:frameRoom]
	}
	return make([]byte, frameRoom)
}

func (m *Machine) sendARP(to packet.MAC, h packet.ARPHeader) {
	b := m.frame()
	if b == nil {
		return
	}
	e := packet.EthernetHeader{Dst: to, Src: m.o.MAC, Type: packet.EtherTypeARP}
	n, _ := e.Fill(b)
	k, err := h.Fill(b[n:])
	if err == nil {
		m.out = append(m.out, b[:n+k])
	}
}

func (m *Machine) sendNeighbor(to packet.MAC, dst netip.Addr, h packet.NeighborHeader) {
	b := m.frame()
	if b == nil {
		return
	}
	h.Dst = dst
	e := packet.EthernetHeader{Dst: to, Src: m.o.MAC, Type: packet.EtherTypeIPv6}
	n, _ := e.Fill(b)
	ip := packet.IPv6Header{Src: h.Src, Dst: dst, NextHeader: packet.ProtoICMPv6, HopLimit: 255}
	k, err := ip.Fill(b[n:], h.Len())
	n += k
	if err == nil {
		if k, err = h.Fill(b[n:]); err == nil {
			m.out = append(m.out, b[:n+k])
		}
	}
}

// Output copies the next frame to be sent to b and returns its length, 0 when there is none. b has
// 86 bytes at least.
func (m *Machine) Output(b []byte) int {
	if len(m.out) == 0 || len(b) < frameRoom {
		return 0
	}
	n := copy(b, m.out[0])
	m.spare = append(m.spare, m.out[0])
	m.out = m.out[:copy(m.out, m.out[1:])]
	return n
}

// Handle takes a frame that came in. changed says that more is known of some neighbour now. Frames
// that are none of its business, and those that are malformed, do nothing.
func (m *Machine) Handle(now time.Time, frame []byte) (changed bool) {
	var l packet.Layers
	if packet.Parse(frame, &l) != packet.OK || l.NumTags > 0 {
		return false
	}
	switch {
	case l.EtherType == packet.EtherTypeARP:
		return m.arp(now, frame, packet.ARP(frame[l.L3:]))
	case l.IPVersion == 6 && l.Proto == packet.ProtoICMPv6 && !l.IsFragment():
		ip := packet.IPv6(frame[l.L3:])
		// From the link itself, not from beyond a router (RFC 4861 section 7.1), and without
		// extension headers.
		if msg := packet.ICMPv6(frame[l.L4:l.End]); ip.HopLimit() == 255 && ip.NextHeader() == packet.ProtoICMPv6 &&
			msg.Valid() && msg.Code() == 0 && msg.ChecksumOK(ip.Src(), ip.Dst()) {
			return m.neighbor(now, packet.Ethernet(frame).Src(), ip, packet.Neighbor(msg))
		}
	}
	return false
}

func (m *Machine) arp(now time.Time, frame []byte, a packet.ARP) bool {
	if !a.Valid() || a.SenderMAC().IsMulticast() || a.SenderMAC().IsZero() || a.Op() != packet.ARPRequest &&
		a.Op() != packet.ARPReply {
		return false
	}
	changed := m.learn(now, a.SenderIP(), a.SenderMAC())
	if m.o.Answer && a.Op() == packet.ARPRequest && m.owns(a.TargetIP()) && !m.owns(a.SenderIP()) {
		m.sendARP(packet.Ethernet(frame).Src(), packet.ARPHeader{Op: packet.ARPReply, SenderMAC: m.o.MAC,
			SenderIP:  a.TargetIP(),
			TargetMAC: a.SenderMAC(), TargetIP: a.SenderIP()})
	}
	return changed
}

func (m *Machine) neighbor(now time.Time, from packet.MAC, ip packet.IPv6, n packet.Neighbor) bool {
	if !n.Valid() {
		return false
	}
	mac, told := n.LinkAddr()
	if told && (mac.IsMulticast() || mac.IsZero()) {
		return false
	}
	if !n.Solicitation() {
		if ip.Dst().IsMulticast() && n.Solicited() {
			return false
		}
		e := m.entries[n.Target()]
		switch {
		case e == nil:
			return false
		case !told: // of an answer to a question that was not sent to all
			if e.state != Known || !n.Solicited() {
				return false
			}
			mac = e.mac
		case e.state == Known && mac != e.mac && !n.Override():
			return false // a proxy answers: RFC 4861 section 7.2.5
		}
		return m.learn(now, n.Target(), mac)
	}
	changed := false
	if ip.Src().IsUnspecified() {
		if told {
			return false // RFC 4861 section 7.1.1
		}
	} else if told {
		changed = m.learn(now, ip.Src(), mac)
		from = mac
	}
	if !m.o.Answer || !m.owns(n.Target()) || from.IsMulticast() {
		return changed
	}
	h := packet.NeighborHeader{Advertise: true, Src: n.Target(), Target: n.Target(), LinkAddr: m.o.MAC, Override: true}
	if ip.Src().IsUnspecified() { // it looks whether the address is in use: the answer goes to all hosts
		all := netip.IPv6LinkLocalAllNodes()
		to, _ := packet.MulticastMAC(all)
		m.sendNeighbor(to, all, h)
		return changed
	}
	h.Solicited = true
	m.sendNeighbor(from, ip.Src(), h)
	return changed
}

func (m *Machine) owns(a netip.Addr) bool {
	for _, own := range m.o.Addrs {
		if own == a {
			return true
		}
	}
	return false
}

// learn notes the address of a neighbour that Lookup has asked for.
func (m *Machine) learn(now time.Time, a netip.Addr, mac packet.MAC) bool {
	e := m.entries[a]
	if e == nil {
		return false
	}
	changed := e.state != Known || e.mac != mac
	e.mac, e.state, e.asking, e.tries = mac, Known, false, 0
	e.fresh = now.Add(m.o.Fresh)
	e.next = e.fresh.Add(m.o.Fresh)
	return changed
}

// Poll does what is due: it asks again, gives up, forgets. changed says that some neighbour's state
// is another one.
func (m *Machine) Poll(now time.Time) (changed bool) {
	for a, e := range m.entries {
		if now.Before(e.next) {
			continue
		}
		switch {
		case e.asking && e.tries < m.o.Tries:
			m.ask(now, a, e)
		case e.asking: // no host has the address, or not any more
			e.asking, e.state, e.mac = false, Silent, packet.MAC{}
			e.next = now.Add(m.o.Failed)
			changed = true
		default:
			delete(m.entries, a)
			changed = true
		}
	}
	return changed
}

// Deadline is when Poll has something to do; ok is false for never.
func (m *Machine) Deadline() (at time.Time, ok bool) {
	for _, e := range m.entries {
		if !ok || e.next.Before(at) {
			at, ok = e.next, true
		}
	}
	return at, ok
}

// Len is the number of neighbours that are known, or being asked for.
func (m *Machine) Len() int { return len(m.entries) }
