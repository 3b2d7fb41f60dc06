//go:build dpdk

package dpdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
)

// Available implements engine.Engine.
func (*Engine) Available() error { return nil }

// OpenPort implements engine.Engine. spec.Address is a place on the PCI bus, an interface with a
// card, or a virtual device with its arguments, and spec.Options an Options or a pointer to one.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, o, err := resolve(&spec)
	if err != nil {
		return nil, err
	}
	if _, err := (*Engine)(nil).PortCapabilities(spec); err != nil {
		return nil, err
	}
	if _, err := findDevice(&a); err != nil {
		return nil, err
	}
	running, m := cdpdk.Running(), thisMachine(a)
	if o.EALMemory > m.Memory { // EAL ends the process
		return nil, &engine.SettingError{Engine: Name, Address: spec.Address,
			Wrong:    fmt.Sprintf("eal_memory is %d bytes", o.EALMemory),
			Expected: fmt.Sprintf("at most the %d bytes of the machine", m.Memory)}
	}
	args := o.startArgs(running, m)
	if running != nil && !slices.Equal(args, running) {
		return nil, fmt.Errorf("dpdk: %s: DPDK runs in this process with %q, and this port asks for %q: give all "+
			"ports the same: %w", spec.Address, strings.Join(running, " "), strings.Join(args, " "), engine.ErrInUse)
	}
	if running == nil {
		slog.Debug("dpdk: starting EAL", "arguments", strings.Join(args, " "))
	}
	if err := cdpdk.Start(args); err != nil {
		return nil, unavailable(err)
	}
	if err := removeDead(listens(a.Where)); err != nil {
		return nil, err
	}
	return open(spec, a.Where, o)
}

// unavailable is the error of something that DPDK refused, with what to do about it.
func unavailable(err error) error {
	if known := advised(err); known != err {
		return fmt.Errorf("dpdk: %w", known)
	}
	return fmt.Errorf("dpdk: %w: %w", engine.ErrUnavailable, err)
}

// advised is an error that wraps engine.ErrUnavailable and says what to do, or the same where that
// is not known.
func advised(err error) error {
	var e *cdpdk.Error
	log := ""
	if errors.As(err, &e) {
		log = e.Log
	}
	if do := advice(err, log); do != "" {
		return fmt.Errorf("%w: %w: %s", engine.ErrUnavailable, err, do)
	}
	return err
}
