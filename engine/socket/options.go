package socket

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/internal/sys"
)

// Option is a socket option by its numbers (man 2 setsockopt), for those that have no field here.
type Option struct{ Level, Name, Value int }

// Group is a multicast group to receive from.
type Group struct {
	Addr netip.Addr
	// Source takes only packets of this sender (RFC 4607); the zero Addr takes all.
	Source netip.Addr
	// Interface is the device to join on; "" is that of the port, or else what the routes say.
	Interface string
}

// Spread is how several receive queues of a port share its packets.
type Spread uint8

// The ways. By flow is the kernel's own: all packets of one sender come to one queue.
const (
	SpreadFlow   Spread = iota // by a hash of both addresses and ports
	SpreadCPU                  // by the processor that the packet was received on
	SpreadRandom               // at random
)

// UDPOptions are the options of a port with a udp:// address. The zero value is right for most.
type UDPOptions struct {
	// ReceiveBuffer and SendBuffer are the kernel's buffers in bytes of memory, packets and their
	// descriptions together. 0 makes the first large enough for the queue's Depth, and leaves the
	// second. Where the kernel gives less (net.core.rmem_max), a note in the port's Capabilities
	// says so.
	ReceiveBuffer, SendBuffer int
	// Batch is the number of datagrams for one system call; 0 is 64, at most 1024.
	Batch int
	// GRO lets the kernel put packets of a sender together, so that one system call brings more of
	// them. The pools of receive queues must have slots of at least 65535 bytes then. It pays for
	// packets that are small against the MTU of a link that does GRO, or that were sent on the same
	// machine; a small packet that comes alone takes a whole slot. What the kernel drops, it counts
	// as one packet then, so that DropKernel is only a lower bound.
	GRO bool
	// NoGSO sends each packet by itself.
	NoGSO bool
	// Peers is the number of senders that have an id at a time; 0 is 4096, at most 65535. Negative:
	// packets carry no ids.
	Peers int
	// KeepTruncated delivers datagrams that were longer than a slot, with the flag burst.Truncated,
	// instead of dropping them.
	KeepTruncated bool
	// MaxPayload is the longest payload of a datagram in bytes: longer ones that come are treated
	// as if the slots were no larger, longer ones cannot be sent. 0 is what slots, and UDP, have
	// room for. It does not go with GRO, which makes payloads longer.
	MaxPayload int
	// Queues is the number of receive queues that the port can have; 0 is 1, at most 64. More than
	// one lets other sockets of the same user bind to the same address too (SO_REUSEPORT).
	Queues int
	Spread Spread
	// BusyPoll is how long a read that finds nothing lets the kernel poll the device
	// (SO_BUSY_POLL); PreferBusyPoll and BusyPollBudget (packets) are the options of the same
	// names. Without the rights for them a note says so.
	BusyPoll       time.Duration
	PreferBusyPoll bool
	BusyPollBudget int
	// Interface keeps the port to one network device, as interface= in the address does.
	Interface string
	// Groups are multicast groups to join, besides those of the address. Where the host of the
	// address is a group itself, the port joins it, and is bound to it: nothing else comes. Then
	// Groups only say from which sender, or on which interface.
	Groups []Group
	// TTL is the time to live (hop limit) of what is sent, 1 to 255; MulticastTTL that of multicast
	// packets, which is 1 without it.
	TTL, MulticastTTL int
	// NoMulticastLoop keeps multicast packets from receivers on this machine.
	NoMulticastLoop bool
	// TOS is the type of service (traffic class) byte of what is sent.
	TOS int
	// IPv6Only keeps a port on an IPv6 address from IPv4 packets.
	IPv6Only bool
	// Set are further options, in this order.
	Set []Option
}

// TCPOptions are the options of a port with a tcp:// address. The zero value is right for most.
type TCPOptions struct {
	conns.Options
	// Backlog is the number of connections that may wait to be accepted; 0 is 1024.
	Backlog int
	// HalfOpen keeps a connection whose peer has ended its direction until CloseWrite or CloseConn;
	// otherwise it is closed when what waits for it has been sent.
	HalfOpen bool
	// Delay lets the kernel wait for more before it sends a small segment (no TCP_NODELAY).
	Delay bool
	// ReceiveBuffer and SendBuffer are the kernel's buffers in bytes; 0 lets it choose.
	ReceiveBuffer, SendBuffer int
	// KeepAlive probes a silent peer that often; 0 does not. UserTimeout ends a connection whose
	// peer has not acknowledged for so long; 0 leaves the kernel's.
	KeepAlive, UserTimeout time.Duration
	// Congestion is the congestion control by its name, "" for the kernel's choice.
	Congestion string
	// BusyPoll is as in UDPOptions.
	BusyPoll time.Duration
	// Batch is the number of slots for one read; 0 is 16, at most 64.
	Batch int
	// MaxPayload is the most bytes that one packet brings; 0 is what its slot has room for.
	MaxPayload int
	// Interface keeps the port to one network device.
	Interface string
	// Set are further options, in this order, for each connection.
	Set []Option
}

const (
	maxBatch   = 1024
	maxQueues  = 64
	maxPeers   = 1<<16 - 1
	maxPayload = 65507 // of a UDP datagram over IPv4; over IPv6 it is 20 more
)

func invalid(format string, args ...any) error {
	return failed(engine.ErrInvalid, format, args...)
}

// failed is an error of this package that wraps err.
func failed(err error, format string, args ...any) error {
	return fmt.Errorf("socket: %s: %w", fmt.Sprintf(format, args...), err)
}

func (o *UDPOptions) complete() error {
	o.Batch = cmp.Or(o.Batch, 64)
	o.Queues = cmp.Or(o.Queues, 1)
	o.Peers = cmp.Or(o.Peers, 4096)
	switch {
	case o.Batch < 1 || o.Batch > maxBatch:
		return invalid("Batch is %d: expected 1 to %d datagrams", o.Batch, maxBatch)
	case o.Queues < 1 || o.Queues > maxQueues:
		return invalid("Queues is %d: expected 1 to %d", o.Queues, maxQueues)
	case o.Peers > maxPeers:
		return invalid("Peers is %d: expected at most %d", o.Peers, maxPeers)
	case o.MaxPayload < 0 || o.MaxPayload > 0 && o.GRO:
		return invalid("MaxPayload is %d: expected 0 or more, and 0 with GRO", o.MaxPayload)
	case o.Spread > SpreadRandom:
		return invalid("Spread is %d: expected SpreadFlow, SpreadCPU or SpreadRandom", o.Spread)
	case o.TTL < 0 || o.TTL > 255 || o.MulticastTTL < 0 || o.MulticastTTL > 255:
		return invalid("TTL %d and MulticastTTL %d: expected 0 to 255", o.TTL, o.MulticastTTL)
	case o.TOS < 0 || o.TOS > 255:
		return invalid("TOS is %d: expected 0 to 255", o.TOS)
	case o.ReceiveBuffer < 0 || o.SendBuffer < 0 || o.BusyPoll < 0 || o.BusyPollBudget < 0:
		return invalid("a buffer or a busy-poll value is negative")
	}
	return nil
}

// joinHost has a port whose host is a multicast group join that group.
func (o *UDPOptions) joinHost(host netip.Addr) error {
	host, zone := host.WithZone(""), host.Zone()
	if !host.IsMulticast() {
		return nil
	}
	for _, g := range o.Groups {
		if g.Addr != host {
			return invalid("the port is bound to group %s and gets nothing that is sent to group %s: expected udp://:PORT?group=%s&group=%s", host, g.Addr, host, g.Addr)
		}
	}
	if len(o.Groups) == 0 {
		o.Groups = []Group{{Addr: host, Interface: zone}}
	}
	return nil
}

func (o *TCPOptions) complete() error {
	if err := o.Options.Complete(); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	o.Backlog = cmp.Or(o.Backlog, 1024)
	o.Batch = cmp.Or(o.Batch, 16)
	switch {
	case o.Batch < 1 || o.Batch > 64:
		return invalid("Batch is %d: expected 1 to 64 slots", o.Batch)
	case o.KeepAlive < 0 || o.UserTimeout < 0 || o.BusyPoll < 0:
		return invalid("a time is negative")
	case o.MaxPayload < 0:
		return invalid("MaxPayload is %d: expected 0 or more", o.MaxPayload)
	case o.Backlog < 1:
		return invalid("Backlog is %d: expected at least 1", o.Backlog)
	case o.ReceiveBuffer < 0 || o.SendBuffer < 0:
		return invalid("a buffer's size is negative")
	}
	return nil
}

// longest is the longest payload to send, as Alloc allows it.
func (o *UDPOptions) longest() int {
	if o.MaxPayload > 0 {
		return min(o.MaxPayload, maxPayload)
	}
	return maxPayload
}

// setBuffer makes a socket's buffer that large, by force where that is allowed, and says what the
// kernel gave, in bytes as the user counts: the kernel doubles the number for its own use.
func setBuffer(fd, name, force, bytes int) (given int, err error) {
	bytes = min(bytes, 1<<30-1)
	if sys.SetOption(fd, sys.SolSocket, force, bytes) != nil {
		if err := sys.SetOption(fd, sys.SolSocket, name, bytes); err != nil {
			return 0, err
		}
	}
	v, err := sys.Option(fd, sys.SolSocket, name)
	return v / 2, err
}

// setting is an option of a socket that is set in some cases.
type setting struct {
	when               bool
	level, name, value int
}

func apply(fd int, settings ...setting) error {
	for _, x := range settings {
		if x.when {
			if err := sys.SetOption(fd, x.level, x.name, x.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// further sets options by their numbers.
func further(fd int, options []Option) error {
	for _, o := range options {
		if err := sys.SetOption(fd, o.Level, o.Name, o.Value); err != nil {
			return err
		}
	}
	return nil
}

// bit is a truth as options of sockets have it.
func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
