//go:build !dpdk

package dpdk

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
)

// Available implements engine.Engine. This build has no DPDK.
func (*Engine) Available() error {
	return fmt.Errorf("dpdk: %w: \"apt-get install libdpdk-dev\" and \"CGO_ENABLED=1 go build -tags dpdk "+
		"./cmd/penstock\" make one that has DPDK", engine.ErrNotBuilt)
}

// OpenPort implements engine.Engine.
func (e *Engine) OpenPort(_ context.Context, spec engine.PortSpec) (engine.Port, error) {
	if _, _, err := resolve(&spec); err != nil {
		return nil, err
	}
	return nil, e.Available()
}
