//go:build dpdk

package dpdk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/cdpdk"
)

// Available implements engine.Engine.
func (*Engine) Available() error { return nil }

// OpenPort implements engine.Engine. spec.Address is a place on the PCI bus, an interface whose card is there, or a virtual device with its
// arguments, and spec.Options an Options or a pointer to one.
func (*Engine) OpenPort(ctx context.Context, spec engine.PortSpec) (engine.Port, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a, o, err := settle(spec)
	if err != nil {
		return nil, err
	}
	if _, err := findDevice(&a); err != nil {
		return nil, err
	}
	running := cdpdk.Running()
	args := o.EAL.startArgs(running, thisMachine())
	if running == nil {
		slog.Debug("dpdk: starting EAL", "arguments", strings.Join(args, " "))
	}
	if err := cdpdk.Start(args); err != nil {
		return nil, fmt.Errorf("dpdk: %w%s: %w", err, advice(err), engine.ErrUnavailable)
	}
	return open(spec, a.Where, o)
}

// advice is what to do about an error of DPDK, as the rest of a sentence.
func advice(err error) string {
	var e *cdpdk.Error
	if !errors.As(err, &e) {
		return ""
	}
	if do := adviceFor(err, e.Log); do != "" {
		return ": " + do
	}
	return ""
}

// key is the key of RSS, which complete has checked.
func (o *Options) key() ([]byte, error) { return o.RSSKey, nil }

// reads reports whether the driver also sends from memory that is not DPDK's.
func reads(where string) bool {
	ok, _ := external(where)
	return ok || driver(where) == "net_af_xdp" // which copies what is not in its area
}

// dials reports whether the driver connects to another process when it starts, and only then.
func dials(where string) bool {
	return driver(where) == "net_memif" && !strings.Contains(where, "role=server")
}
