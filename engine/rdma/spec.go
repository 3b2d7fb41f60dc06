package rdma

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/conns"
	"github.com/penstock-io/penstock/engine/pace"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: "rdma", Doc: "Connections over RDMA queue pairs: messages that devices fetch from slots and put into slots.",
	Section: "roce", DAQIRI: "roce_config", Schemes: []string{"roce", "rdma"},
	New: func() engine.Engine { return New("") },
	Options: slices.Concat([]engine.Option{
		{Key: "listen", Type: engine.Bool, Default: "false", Doc: "Peers connect to the address."},
		{Key: "local", Type: engine.IP, Doc: "IP address to connect from."},
		{Key: "engine", Type: engine.Word, Words: []string{"ibverbs"}, Doc: "DAQIRI's files have it."},
		{Key: "transport", DAQIRI: "transport_mode", Type: engine.Word, Words: transportNames[:], Default: "RC",
			Field: "Transport", Doc: "Reliable connection, unreliable connection, unreliable datagrams."},
		{Key: "connect", Type: engine.Word, Words: connectorNames[:], Default: "tcp", Field: "Connect",
			Doc: "`tcp`: the other side is Penstock, and says how many messages it has room for. `cm`: it is any " +
				"program that connects by the connection manager of RDMA (rdma_cm), DAQIRI's for instance; without " +
				"credits, so that UC and UD lose what finds no buffer."},
		{Key: "device", Type: engine.Text, Field: "Device", Parse: parseDevice,
			Doc: "RDMA device such as `mlx5_0`; without it the one that has the IP address."},
		{Key: "port", Type: engine.Int, Min: 1, Max: 255, Default: "1", Field: "Port", Doc: "Port of the device."},
		{Key: "gid", Type: engine.Int, Min: 0, Max: 1<<15 - 1, Field: "GID",
			Doc: "Place of the address in the device's table, from 0; without it what fits the address."},
		{Key: "send_depth", Type: engine.Int, Min: 1, Max: maxDepth, Unit: "messages", Default: "256",
			Field: "SendDepth", Doc: "Messages of one connection that the device may have at a time."},
		{Key: "inline", Type: engine.Int, Min: 0, Max: 1 << 16, Unit: "bytes", Default: "64", Zero: -1, Field: "Inline",
			Doc: "Up to how many bytes a message is copied into its request; 0: never."},
		{Key: "signal_every", Type: engine.Int, Min: 1, Max: maxDepth, Unit: "messages", Default: "16",
			Field: "SignalEvery", Doc: "How many messages at most one completion stands for."},
		{Key: "segments", Type: engine.Int, Min: 1, Max: 64, Unit: "segments", Default: "8", Field: "Segments",
			Doc: "Segments that a message to be sent may have, or as many as the device takes if that is less."},
		{Key: "ack_timeout", Type: engine.Time, Min: 1, Max: 3600e9, Default: "67ms", Field: "AckTimeout",
			Doc: "How long the device waits for an acknowledgement at least; it takes 4.096us times a power of two."},
		{Key: "min_rnr", Type: engine.Time, Min: 1, Max: 655360e3, Field: "MinRNR",
			Doc: "Pause that a receiver without a buffer asks for; without it 10us, and 640us with `connect: cm`."},
		{Key: "retries", Type: engine.Int, Min: 1, Max: 7, Default: "6", Field: "Retries", Doc: "How often the device tries again; 7 is for ever on some."},
		{Key: "mtu", Type: engine.Int, Min: 256, Max: 4096, Unit: "bytes", Field: "MTU",
			Doc: "Most that one packet on the wire carries: 256, 512, 1024, 2048 or 4096; without it what the port has."},
		{Key: "linger", Type: engine.Time, Min: 1, Max: 3600e9, Default: "2s", Field: "Linger",
			Doc: "How long closing waits for what the device has already been given."},
		{Key: "max_message", Of: engine.OfRx, Type: engine.Bytes, Min: 1, Max: maxMessage, Field: "MaxMessage",
			Doc: "The longest message; without it what one slot holds. Longer ones take several slots."},
		{Key: "grh", Of: engine.OfRx, Type: engine.Bool, Default: "false", Field: "GRH",
			Doc: "UD: delivers the routing header of a datagram as a segment of 40 bytes in front of its payload."},
	}, conns.Settings("socket", nil), pace.Settings),
	PortOptions:  func(string) any { return new(Options) },
	RxOptions:    func() any { return new(RxOptions) },
	TxOptions:    func() any { return new(pace.Options) },
	Capabilities: (*Engine).Capabilities(nil),
	Needs:        engine.Needs{IP: true, RDMA: true, Pins: true, Libraries: []string{"libibverbs.so.1"}},
}

// resolve returns the address and the options of a port, with the defaults filled in.
func resolve(spec engine.PortSpec) (a address, o Options, err error) {
	if a, err = parseAddress(spec.Address); err != nil {
		return a, o, err
	}
	if o, err = engine.Given[Options](spec.Options); err == nil {
		a.text = spec.Address
		_, err = Spec.Read(spec.Address, &o)
	}
	switch {
	case err != nil:
		return a, o, fmt.Errorf("rdma: port %q: %w", spec.Address, err)
	case spec.Isolated:
		return a, o, engine.CannotIsolate(Spec.Name, &spec, "a connection brings what its peer sends, and has no rules")
	}
	return a, o, o.complete()
}

func parseDevice(s string) (any, error) {
	if s == "" || strings.ContainsAny(s, "/ ") {
		return nil, fmt.Errorf("expected the name of an RDMA device")
	}
	return s, nil
}
