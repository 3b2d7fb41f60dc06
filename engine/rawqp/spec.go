package rawqp

import (
	"github.com/penstock-io/penstock/engine"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Aliases: []string{"ibverbs"},
	Doc: "Whole frames past the kernel by queue pairs of raw packets of an RDMA card, with steering rules of the card.",
	Bus: true,
	New: func() engine.Engine { return New("") },
	Options: []engine.Option{
		{Key: "port", Type: engine.Int, Min: 1, Max: 255, Field: "Port",
			Doc: "Port of the device; without it the one that has the interface which the address names, else 1."},
		{Key: "receives", Type: engine.Int, Min: 1, Max: 1 << 24, Unit: "receives", Default: "32768", Field: "Receives",
			Doc: "Receives that all queues together may have posted."},
		{Key: "send_depth", Type: engine.Int, Min: 1, Max: 1 << 20, Unit: "frames", Default: "1024", Field: "SendDepth",
			Doc: "Frames of each transmit queue that the device has at a time."},
		{Key: "checksum", Type: engine.Bool, Default: "false", Field: "Checksum",
			Doc: "The device writes the checksums of IPv4, TCP and UDP into what is sent."},
	},
	PortOptions:  func(string) any { return new(Options) },
	Capabilities: (*Engine).Capabilities(nil),
	Needs: engine.Needs{Interface: true, Takes: true, RDMA: true, Pins: true,
		Capabilities: []string{"CAP_NET_RAW"}, Libraries: []string{"libibverbs.so.1"}},
}

// resolve returns the address and the options of a port, with the defaults filled in.
func resolve(spec engine.PortSpec) (engine.Address, Options, error) {
	return engine.ReadPort(&Spec, &spec, (*Options).complete)
}
