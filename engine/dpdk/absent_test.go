//go:build !dpdk

package dpdk

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/engine"
)

// A build without DPDK says how to get one that has it, after what is wrong with the port.
func TestNotBuilt(t *testing.T) {
	_, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "dpdk://net_null0"})
	if !errors.Is(err, engine.ErrNotBuilt) || !strings.Contains(err.Error(), "libdpdk-dev") ||
		!strings.Contains(err.Error(), "-tags dpdk") {
		t.Error(err)
	}
	if _, err := New().CheckPort(t.Context(), engine.PortSpec{Address: "dpdk://net_null0"}); !errors.Is(err,
		engine.ErrNotBuilt) {
		t.Error(err)
	}
	if _, err := New().OpenPort(t.Context(), engine.PortSpec{Address: "dpdk://net_null0?huge_dir=x"}); !errors.Is(err,
		engine.ErrInvalid) {
		t.Error(err)
	}
}
