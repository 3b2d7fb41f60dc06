package sim

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// PortCapabilities implements engine.Checker.
func (n *Network) PortCapabilities(spec engine.PortSpec) (engine.Capabilities, error) {
	_, _, err := resolve(spec)
	return n.capabilities(MaxMTU), err
}

// CheckPort implements engine.Checker. A port holds its place in the network.
func (n *Network) CheckPort(ctx context.Context, spec engine.PortSpec) (holds string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	name, o, err := n.complete(&spec)
	if err != nil {
		return "", err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return "port " + name, n.vacant(name, o.Loop)
}

// complete is the name and the options of a port; it fills in the MTU.
func (n *Network) complete(spec *engine.PortSpec) (name string, o PortOptions, err error) {
	if name, o, err = resolve(*spec); err != nil {
		return name, o, err
	}
	if spec.MTU == 0 {
		spec.MTU = n.opts.MTU
	}
	if err := checkMTU(spec.MTU); err != nil {
		return name, o, fmt.Errorf("port %q: %w", name, err)
	}
	return name, o, nil
}

// vacant says why a port of that name cannot be opened now. The caller holds mu.
func (n *Network) vacant(name string, loop bool) error {
	s := n.endpoints[name]
	switch there := s != nil && s.out != nil; {
	case n.closed:
		return engine.ErrClosed
	case !there && !loop && !n.opts.Shared:
		return fmt.Errorf("%w: sim: network %q has no port %q: join it with Link or Loop; there are %s",
			engine.ErrNotFound,
			n.opts.Name, name, list(n.endpoints))
	case there && loop && s.out.port != s:
		return fmt.Errorf("%w: sim: port %q is not looped to itself but on %v", engine.ErrInUse, name, s.out)
	case s != nil && s.port != nil:
		return fmt.Errorf("%w: sim: port %q is open", engine.ErrInUse, name)
	}
	return nil
}
