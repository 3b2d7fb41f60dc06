package null

import (
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// Spec describes the engine.
var Spec = engine.Spec{
	Name: Name, Doc: "Packets made and dropped at memory speed: no network.", Schemes: []string{Name},
	New: func() engine.Engine { return New() },
	Options: []engine.Option{
		{Key: "size", Type: engine.Int, Min: minSize, Max: maxSize, Unit: "bytes", Default: "64", Field: "Size", Doc: "Bytes of each received packet."},
	},
	PortOptions:  func(string) any { return new(Options) },
	Capabilities: (*Engine).Capabilities(nil),
}

// Options are the options of a port, given as engine.PortSpec.Options.
type Options struct {
	Size int // of received packets in bytes; 0 for 64
}

// resolve returns the options of a port, with the defaults filled in.
func resolve(spec engine.PortSpec) (Options, error) {
	o, err := engine.Given[Options](spec.Options)
	if err != nil {
		return o, fmt.Errorf("null: port %q: %w", spec.Address, err)
	}
	a, err := Spec.Read(spec.Address, &o)
	if o.Size == 0 {
		o.Size = defaultSize
	}
	switch {
	case err != nil:
		return o, err
	case a.Scheme == "" || a.Where != "":
		return o, fmt.Errorf("null: address %q: expected null:// or null://?size=N: %w", spec.Address,
			engine.ErrInvalid)
	case o.Size < minSize || o.Size > maxSize:
		return o, fmt.Errorf("null: Size is %d: expected %d to %d bytes: %w", o.Size, minSize, maxSize,
			engine.ErrInvalid)
	case spec.Isolated:
		return o, engine.CannotIsolate(Name, &spec, "there is no kernel to leave packets to")
	}
	return o, nil
}
