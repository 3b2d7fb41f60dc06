package socket

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/engine/pace"
)

var udp, tcp = []string{"udp"}, []string{"tcp"}

// Spec describes the engine.
var Spec = engine.Spec{
	Name: "socket", Doc: "UDP and TCP sockets of the kernel; payload is read straight into slots.",
	Schemes: []string{"udp", "tcp"},
	New:     func() engine.Engine { return New() },
	Options: slices.Concat([]engine.Option{
		{Key: "remote", Schemes: udp, Type: engine.Text, Doc: "Host and port of the one peer."},
		{Key: "local", Schemes: tcp, Type: engine.Text, Doc: "Host and port to connect from."},
		{Key: "listen", Schemes: tcp, Type: engine.Bool, Default: "false", Doc: "Peers connect to the address."},
		{Key: "max_payload_size", DAQIRI: "max_payload_size", Type: engine.Int, Min: 1, Max: 1 << 30, Unit: "bytes",
			Field: "MaxPayload", Asks: "packet_bytes",
			Doc: "The largest payload in bytes of one datagram or of one read. Without it the slots of the queue say."},
		{Key: "receive_buffer", Type: engine.Bytes, Min: 0, Max: 1 << 30, Default: "0B", Field: "ReceiveBuffer",
			Asks: "receive_buffer_bytes", Doc: "Buffer of the kernel; 0: enough for the queue."},
		{Key: "send_buffer", Type: engine.Bytes, Min: 0, Max: 1 << 30, Default: "0B", Field: "SendBuffer",
			Asks: "send_buffer_bytes", Doc: "Buffer of the kernel; 0: as the system has it."},
		{Key: "interface", Type: engine.Text, Field: "Interface", Doc: "Keeps the port to one network interface, on which it joins multicast groups."},
		{Key: "batch", Type: engine.Int, Min: 1, Max: maxBatch, Field: "Batch",
			Doc: "UDP: datagrams of one system call, 64 without it. TCP: slots of one read, 16 without it, at most 64."},
		{Key: "busy_poll", Type: engine.Time, Min: 0, Max: 1e9, Default: "0s", Field: "BusyPoll", Asks: "busy_poll",
			Doc: "How long a read that finds nothing lets the kernel poll the device."},
		{Key: "prefer_busy_poll", Schemes: udp, Type: engine.Bool, Default: "false", Field: "PreferBusyPoll", Doc: "Busy polling comes before interrupts."},
		{Key: "busy_poll_budget", Schemes: udp, Type: engine.Int, Min: 0, Max: 1<<16 - 1, Unit: "packets", Default: "0",
			Field: "BusyPollBudget", Doc: "Packets that busy polling takes at once; 0: as the kernel has it."},
		{Key: "gro", Schemes: udp, Type: engine.Bool, Default: "false", Field: "GRO",
			Doc: "The kernel puts packets of a sender together: slots have at least 65535 bytes then, and drops are " +
				"counted as a lower bound."},
		{Key: "gso", Schemes: udp, Type: engine.Bool, Default: "true", Field: "!NoGSO",
			Doc: "The kernel takes several packets at once to send. `false`: each by itself."},
		{Key: "peers", Schemes: udp, Type: engine.Int, Min: 0, Max: maxPeers, Unit: "senders", Default: "4096",
			Zero: -1, Field: "Peers", Doc: "Senders that have an id at a time; 0: packets carry no ids."},
		{Key: "keep_truncated", Schemes: udp, Type: engine.Bool, Default: "false", Field: "KeepTruncated",
			Doc: "Delivers datagrams that were longer than a slot, cut off, instead of dropping them."},
		{Key: "queues", Schemes: udp, Type: engine.Int, Min: 1, Max: maxQueues, Unit: "receive queues", Field: "Queues",
			Follows: "rx.queues",
			Doc:     "Receive queues that the port can have; without it 1, and in a file those that there are."},
		{Key: "spread", Schemes: udp, Type: engine.Word, Words: []string{"flow", "cpu", "random"}, Default: "flow",
			Field: "Spread", Doc: "How several receive queues share the packets."},
		{Key: "group", Schemes: udp, Type: engine.Text, List: true, Field: "Groups", Parse: parseGroup,
			Doc: "Multicast groups to receive from: `GROUP`, `SOURCE@GROUP` for one sender only, `GROUP%INTERFACE` to join on an interface. Without one, and without `interface`, the route to the group says on which. An address with a group for its host, such as `udp://239.1.1.1:5000`, joins that group."},
		{Key: "ttl", Schemes: udp, Type: engine.Int, Min: 1, Max: 255, Field: "TTL",
			Doc: "Time to live (hop limit) of what is sent; without it as the system has it."},
		{Key: "multicast_ttl", Schemes: udp, Type: engine.Int, Min: 1, Max: 255, Default: "1", Field: "MulticastTTL",
			Doc: "Time to live of multicast packets."},
		{Key: "multicast_loop", Schemes: udp, Type: engine.Bool, Default: "true", Field: "!NoMulticastLoop",
			Doc: "Multicast packets also come to receivers on this machine."},
		{Key: "tos", Schemes: udp, Type: engine.Int, Min: 0, Max: 255, Default: "0", Field: "TOS", Doc: "Type of service (traffic class) of what is sent."},
		{Key: "ipv6_only", Schemes: udp, Type: engine.Bool, Default: "false", Field: "IPv6Only", Doc: "A port on an IPv6 address takes no IPv4 packets."},
		{Key: "backlog", Schemes: tcp, Type: engine.Int, Min: 1, Max: 65535, Unit: "connections", Default: "1024",
			Field: "Backlog", Doc: "Connections that may wait to be accepted."},
		{Key: "half_open", Schemes: tcp, Type: engine.Bool, Default: "false", Field: "HalfOpen", Doc: "Keeps a connection whose peer has ended its direction."},
		{Key: "nodelay", Schemes: tcp, Type: engine.Bool, Default: "true", Field: "!Delay", Doc: "Small segments leave at once (TCP_NODELAY)."},
		{Key: "keep_alive", Schemes: tcp, Type: engine.Time, Min: 0, Max: 86400e9, Default: "0s", Field: "KeepAlive",
			Doc: "How often a silent peer is probed; 0: never."},
		{Key: "user_timeout", Schemes: tcp, Type: engine.Time, Min: 0, Max: 86400e9, Default: "0s",
			Field: "UserTimeout",
			Doc:   "Ends a connection whose peer has not acknowledged for so long; 0: as the kernel has it."},
		{Key: "congestion", Schemes: tcp, Type: engine.Text, Field: "Congestion",
			Doc: "Congestion control by its name, such as `bbr`; without it the kernel's choice."},
		{Key: "set", Type: engine.Text, List: true, Field: "Set", Parse: parseOption,
			Doc: "Further socket options (man 2 setsockopt), each as `LEVEL:NAME:VALUE` in numbers."},
	}, conns.Settings("", tcp), pace.Settings),
	PortOptions: func(scheme string) any {
		if scheme == "tcp" {
			return new(TCPOptions)
		}
		return new(UDPOptions)
	},
	TxOptions:    func() any { return new(pace.Options) },
	Capabilities: (*Engine).Capabilities(nil),
	Needs:        engine.Needs{IP: true, Buffers: true},
}

// resolve returns the address and the options of a port, with the defaults of its scheme filled in.
func resolve(spec engine.PortSpec) (a address, u UDPOptions, t TCPOptions, err error) {
	if a, err = parseAddress(spec.Address); err != nil {
		return a, u, t, err
	}
	if spec.Isolated {
		return a, u, t, engine.CannotIsolate(Spec.Name, &spec,
			"a socket gets what is sent to its address, and has no rules")
	}
	if a.scheme == "udp" {
		if u, err = engine.Given[UDPOptions](spec.Options); err == nil {
			groups := u.Groups
			if _, err = Spec.Read(spec.Address, &u); len(u.Groups) > 0 && len(groups) > 0 &&
				&u.Groups[0] != &groups[0] {
				u.Groups = append(groups[:len(groups):len(groups)], u.Groups...)
			}
		}
		if err == nil {
			err = u.complete()
		}
		if ip, e := netip.ParseAddr(a.local.host); e == nil && err == nil {
			err = u.joinHost(ip.Unmap())
		}
		if err == nil && a.remote.given() && u.Queues > 1 {
			err = invalid("port %q: a port with one peer has one receive queue, Queues is %d", spec.Address, u.Queues)
		}
	} else {
		if t, err = engine.Given[TCPOptions](spec.Options); err == nil {
			_, err = Spec.Read(spec.Address, &t)
		}
		if err == nil {
			err = t.complete()
		}
	}
	if err != nil {
		return a, u, t, fmt.Errorf("port %q: %w", spec.Address, err)
	}
	return a, u, t, nil
}

// parseGroup reads [SOURCE@]GROUP[%INTERFACE].
func parseGroup(s string) (any, error) {
	var g Group
	var err error
	text, device, named := strings.Cut(s, "%")
	if source, rest, ok := strings.Cut(text, "@"); ok {
		if g.Source, err = netip.ParseAddr(source); err != nil {
			return nil, fmt.Errorf("the sender is no IP address")
		}
		text = rest
	}
	if g.Addr, err = netip.ParseAddr(text); err != nil || !g.Addr.IsMulticast() || named && device == "" {
		return nil, fmt.Errorf("expected a multicast address")
	}
	g.Interface = device
	return g, nil
}

// parseOption reads LEVEL:NAME:VALUE.
func parseOption(s string) (any, error) {
	parts := strings.Split(s, ":")
	var n [3]int
	for i := range n {
		var err error
		if len(parts) != len(n) {
			return nil, fmt.Errorf("expected LEVEL:NAME:VALUE")
		}
		if n[i], err = strconv.Atoi(parts[i]); err != nil {
			return nil, fmt.Errorf("expected LEVEL:NAME:VALUE in numbers")
		}
	}
	return Option{n[0], n[1], n[2]}, nil
}
