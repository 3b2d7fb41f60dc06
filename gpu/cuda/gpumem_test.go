package cuda

import (
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	fake "github.com/penstock-io/penstock/internal/testenv/fake/cuda"
)

// Its memory as regions, on the fake driver, which reports every call that the manual does not allow.
func TestMemory(t *testing.T) {
	library, _ := built(t)
	var f *fake.Control
	gpumemtest.Run(t, gpumemtest.Harness{
		Open: func(t testing.TB) *gpu.Runtime {
			if f == nil || f.Live() == 0 {
				_, f = start(t, "devices 2; device * memory 256M")
			}
			return must[*gpu.Runtime](t)(Open(Options{Library: library}))
		},
		Lose: func(t testing.TB, c *gpu.Context) {
			ok(t, f.Script("sticky * CUDA_ERROR_ILLEGAL_ADDRESS"))
		},
		Idle: func(t testing.TB) { clean(t, f) },
	})
}
