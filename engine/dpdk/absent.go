//go:build !dpdk

package dpdk

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// ErrNotBuilt says that this build has no DPDK.
var ErrNotBuilt = fmt.Errorf("dpdk: this build is without it: install libdpdk (Debian: apt-get install libdpdk-dev), then build with CGO_ENABLED=1 go build -tags dpdk ./cmd/penstock: %w", engine.ErrNotBuilt)

// Available implements engine.Engine: it is ErrNotBuilt.
func (*Engine) Available() error { return ErrNotBuilt }

// OpenPort implements engine.Engine. The error is that of the options, or ErrNotBuilt.
func (*Engine) OpenPort(_ context.Context, spec engine.PortSpec) (engine.Port, error) {
	if _, _, err := settle(spec); err != nil {
		return nil, err
	}
	return nil, ErrNotBuilt
}

// CheckPort implements engine.Checker.
func (*Engine) CheckPort(_ context.Context, spec engine.PortSpec) (holds string, err error) {
	if _, _, err := settle(spec); err != nil {
		return "", err
	}
	return "", ErrNotBuilt
}
