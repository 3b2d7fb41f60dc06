package cuda

import (
	"testing"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gputest"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

// The suite of runtimes on the fake driver, which reports every call that the manual does not
// allow. Kernels are the C functions of testdata, made of the OpenCL C that their PTX is made of:
// what the suite says of kernels' results is true of launches and arguments, not of the PTX.
func TestConformance(t *testing.T) {
	library, _ := built(t)
	var f *fake.Control
	gputest.Run(t, gputest.Harness{
		Open: func(t testing.TB) *gpu.Runtime {
			if f == nil || f.Live() == 0 { // the suite opens a runtime for each check, and several at once in some
				_, f = start(t, "devices 2; device * memory 64M")
			}
			return must[*gpu.Runtime](t)(Open(Options{Library: library}))
		},
		Small: true,
		Lose: func(t testing.TB, c *gpu.Context) {
			ok(t, f.Script("sticky * CUDA_ERROR_ILLEGAL_ADDRESS"))
		},
		Idle: func(t testing.TB) { clean(t, f) },
	})
}
