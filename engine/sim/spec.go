package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/pace"
	"github.com/penstock-io/penstock/packet"
)

// Spec describes the engine. Its New is Default, the network of the process.
var Spec = engine.Spec{
	Name: "sim", Doc: "A network in memory: ports of one process, for tests and tries.", Schemes: []string{"sim"},
	New: func() engine.Engine { return Default },
	Options: append([]engine.Option{
		{Key: "loop", Type: engine.Bool, Default: "false", Field: "Loop", Doc: "Joins the port to itself: what it sends it receives."},
		{Key: "mac", Type: engine.Text, Field: "MAC",
			Doc:   "Ethernet address of the port; without it one that is made from the name.",
			Parse: func(s string) (any, error) { return packet.ParseMAC(s) }},
	}, pace.Settings...),
	PortOptions:  func(string) any { return new(PortOptions) },
	TxOptions:    func() any { return new(pace.Options) },
	Capabilities: new(Network).capabilities(0),
	Pair: func(seed uint64) (engine.Engine, string, string, func() error, error) {
		n, err := NewNetwork(Options{Seed: seed})
		if err != nil {
			return nil, "", "", nil, err
		}
		if _, err := n.Link("a", "b"); err != nil {
			return nil, "", "", nil, errors.Join(err, n.Close())
		}
		return n, "a", "b", n.Close, nil
	},
}

// resolve returns the name and the options of a port.
func resolve(spec engine.PortSpec) (name string, o PortOptions, err error) {
	if o, err = engine.Given[PortOptions](spec.Options); err != nil {
		return "", o, fmt.Errorf("sim: port %q: %w", spec.Address, err)
	}
	a, err := Spec.Read(spec.Address, &o)
	switch name = strings.TrimSuffix(a.Where, "/"); {
	case err != nil:
		return "", o, err
	case name == "" || strings.Contains(name, "/"):
		return "", o, fmt.Errorf("%w: sim: address %q: there is no name: expected a name, sim://NAME or sim://NAME?loop", engine.ErrInvalid, spec.Address)
	case o.MAC.IsMulticast():
		return "", o, fmt.Errorf("%w: sim: port %q: address %v is one of a group: expected an even first byte",
			engine.ErrInvalid, name, o.MAC)
	}
	return name, o, nil
}
