// Package toy is an engine from outside: this folder and one line, drivers.Add(&toy.Spec), are all
// that a program needs to have it. Its ports are those of a network in memory, with an Ethernet
// address that ends as its one option says.
package toy

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/packet"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: "toy", Doc: "Ports in memory, to show what an engine takes.", Schemes: []string{"toy"},
	New: func() engine.Engine { return Engine{sim.Default} },
	Options: []engine.Option{
		{Key: "last_byte", Type: engine.Int, Min: 1, Max: 255, Default: "1", Field: "LastByte", Doc: "The last byte of the port's Ethernet address."},
		{Key: "loop", Type: engine.Bool, Default: "false", Field: "Loop", Doc: "Joins the port to itself."},
	},
	PortOptions:  func(string) any { return new(Options) },
	Capabilities: sim.Spec.Capabilities,
	Needs:        engine.Needs{Capabilities: []string{"CAP_NET_RAW"}, Kernel: [2]int{4, 0}},
	Pair: func(seed uint64) (engine.Engine, string, string, func() error, error) {
		n, err := sim.NewNetwork(sim.Options{Seed: seed, Shared: true})
		if err != nil {
			return nil, "", "", nil, err
		}
		return Engine{n}, "toy://a?last_byte=3", "toy://b?last_byte=5", n.Close, nil
	},
}

// Options are the options of a port.
type Options struct {
	LastByte int
	Loop     bool
}

func odd(p engine.PortSpec) error {
	if o, err := engine.Given[Options](p.Options); err != nil || o.LastByte == 13 {
		return &engine.SettingError{Engine: "toy", Key: "last_byte", Value: "13", Wrong: "the toy is superstitious",
			Expected: "another number"}
	}
	return nil
}

// Engine opens ports.
type Engine struct{ net *sim.Network }

// Name implements engine.Engine.
func (Engine) Name() string { return "toy" }

// Available implements engine.Engine.
func (Engine) Available() error { return nil }

// Capabilities implements engine.Engine.
func (e Engine) Capabilities() engine.Capabilities { return e.net.Capabilities() }

// PortCapabilities implements engine.Checker.
func (e Engine) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	return e.net.Capabilities(), odd(spec)
}

// CheckPort implements engine.Checker.
func (Engine) CheckPort(_ context.Context, spec engine.PortSpec) (holds string, err error) {
	return "", odd(spec)
}

// OpenPort implements engine.Engine.
func (e Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	o, err := engine.Given[Options](spec.Options)
	if err != nil {
		return nil, fmt.Errorf("toy: %w", err)
	}
	a, err := Spec.Read(spec.Address, &o)
	if err != nil {
		return nil, err
	}
	spec.Address, spec.Options = a.Where, sim.PortOptions{MAC: packet.MAC{2, 0, 0, 0, 0, byte(max(o.LastByte, 1))},
		Loop: o.Loop}
	p, err := e.net.OpenPort(ctx, spec)
	if err != nil {
		return nil, err
	}
	return port{p}, nil
}

type port struct{ engine.Port }

// Info implements engine.Port.
func (p port) Info() engine.PortInfo {
	i := p.Port.Info()
	i.Engine = "toy"
	return i
}
