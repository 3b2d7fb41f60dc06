package socket

import (
	"context"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/mem"
)

// Engine opens sockets as ports. The zero Engine is ready to use, by any goroutine.
type Engine struct{}

// New makes an Engine.
func New() *Engine { return &Engine{} }

var _ engine.Engine = (*Engine)(nil)

// Name implements engine.Engine: it is "socket".
func (*Engine) Name() string { return "socket" }

// Available implements engine.Engine: sockets are everywhere.
func (*Engine) Available() error { return nil }

// Capabilities implements engine.Engine. No port has all of them: those of UDP keep the borders of
// packets, those of TCP lose nothing.
func (*Engine) Capabilities() engine.Capabilities {
	c := capabilities()
	c.RxQueues, c.Timestamps, c.HardwareTime = maxQueues, true, true
	c.Notes = []string{"Stream is true for tcp:// addresses", "ExactDrops is false with UDPOptions.GRO",
		noteHardwareTime, noteSegments}
	unbound := pace.Probe("") // as most ports are
	unbound.Describe(&c)
	return c
}

const (
	noteHardwareTime = "hardware receive times need a port on one interface, whose driver takes them"
	noteSegments     = "packets of several segments are sent, but each is received in one"
)

// capabilities are those that all ports have.
func capabilities() engine.Capabilities {
	return engine.Capabilities{
		Connections: true, TxQueues: maxQueues, Chains: true, ZeroCopyForward: true, ExactDrops: true, Pacing: true,
		SendAt: true, SendAtIn: "software",
		Memory: []mem.Kind{mem.Host, mem.Huge}, MemoryUse: engine.UseInPlace, TxChecksum: "kernel",
	}
}

// OpenPort implements engine.Engine. Options are nil, a UDPOptions or a TCPOptions, or a pointer to
// one.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	a, udp, tcp, err := resolve(spec)
	if err != nil {
		return nil, err
	}
	if spec.Name == "" {
		spec.Name = spec.Address
	}
	if a.scheme == "udp" {
		return openUDP(ctx, spec, a, udp)
	}
	return openTCP(ctx, spec, a, tcp)
}
