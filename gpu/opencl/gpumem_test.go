package opencl

import (
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

// Its memory as regions: the CPU does not see buffers of OpenCL, whatever the device is.
func TestMemory(t *testing.T) {
	platform := peers.PoCL(t)
	gpumemtest.Run(t, gpumemtest.Harness{Open: func(t testing.TB) *gpu.Runtime {
		return open(t, Options{Platform: platform})
	}})
}
