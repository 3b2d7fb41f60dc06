package cuda_test

import (
	"errors"
	"os"
	"testing"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/cuda/cudatest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

func init() { cudatest.Child() }

// The suite on the fake driver, which must have nothing to complain of but what is wrong on
// purpose, and nothing left. Kernels are the C functions of cudatest/testdata: a card runs the PTX.
func TestDriver(t *testing.T) {
	library, err := fake.Build()
	var bodies string
	if err == nil {
		bodies, err = fake.Kernels([]string{"cudatest/testdata/kernels.c"})
	}
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	t.Setenv("PENSTOCK_FAKE_CUDA_KERNELS", bodies) // for the processes that the suite starts, and for this one
	f, err := fake.Load(library)
	if err != nil {
		t.Fatal(err)
	}
	misused := 0
	cudatest.Run(t, cudatest.Harness{
		Open: func(t testing.TB) *cuda.Driver {
			misused = 0
			if err := errors.Join(f.Restart(), f.Script("")); err != nil {
				t.Fatal(err)
			}
			d, err := cuda.Load(library)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Idle: func(t testing.TB) {
			report, err := f.Report()
			if err != nil {
				t.Error(err)
			}
			if f.Live() != 0 || f.Violations() != misused {
				t.Errorf("%d objects are alive, and there were %d violations, of which %d on purpose:\n%s", f.Live(),
					f.Violations(), misused, report)
			}
		},
		Misuse: func(wrong func()) {
			before := f.Violations()
			wrong()
			misused += f.Violations() - before
		},
	})
}
