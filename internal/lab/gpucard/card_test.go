package gpucard

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	gpucuda "github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/gpu/gputest"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/cuda/cudatest"
	"github.com/penstock-io/penstock/internal/kernels"
)

func TestMain(m *testing.M) {
	cudatest.Child()
	gpumemtest.Child(func() (*gpu.Runtime, error) { return gpucuda.Open(gpucuda.Options{Library: library()}) })
	if os.Getenv(cliEnv) != "" {
		os.Exit(asPenstock())
	}
	loser()
	Main(m)
}

// card reports whether this is the program, on a card. go test has none: tests of a card end at
// once there, and those of the program run instead.
func card(t *testing.T) bool {
	t.Helper()
	if !running() {
		t.Log("make gpu-test runs this on a card")
	}
	return running()
}

// The driver does everything that we rely on.
func TestDriver(t *testing.T) {
	if !card(t) {
		return
	}
	cudatest.Run(t, cudatest.Harness{Open: func(t testing.TB) *cuda.Driver {
		d, err := cuda.Load(library())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}})
}

// The runtime passes the suite of runtimes, with all its kernels against their reference in Go.
func TestRuntime(t *testing.T) {
	if !card(t) {
		return
	}
	r, err := look(library())
	if err != nil {
		t.Fatal(err)
	}
	integrated := slices.ContainsFunc(r.Devices, func(d cuda.Info) bool { return d.Integrated })
	gputest.Run(t, gputest.Harness{Discrete: !integrated, Open: open})
}

func open(t testing.TB) *gpu.Runtime {
	t.Helper()
	rt, err := gpucuda.Open(gpucuda.Options{Library: library()})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// The card's memory as regions: pools, copies, adoption, another process, and whether the CPU
// reaches it (TestMemory/DMABuf says).
func TestMemory(t *testing.T) {
	if !card(t) {
		return
	}
	gpumemtest.Run(t, gpumemtest.Harness{Open: open, Importer: []string{libraryEnv + "=" + library()}})
}

// The driver takes every form of every kernel that is for the card or an older one, also forms that
// a newer one stands in front of.
func TestPTX(t *testing.T) {
	if !card(t) {
		return
	}
	fake, err := look(library())
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.Load(library())
	if err != nil {
		t.Fatal(err)
	}
	all, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range all {
		info, err := dev.Info()
		if err != nil {
			t.Fatal(err)
		}
		c, err := dev.Retain()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range kernels.All() {
			for _, x := range p.PTX {
				if x.SM > 10*info.Major+info.Minor {
					continue
				}
				t.Run(fmt.Sprintf("%d/%s.sm_%d", dev.Ordinal(), p.Name, x.SM), func(t *testing.T) {
					m, log, err := c.Load([]byte(x.Text))
					var newer *cuda.Error
					if errors.As(err, &newer) && newer.Result.Kind() == cuda.ErrDriver {
						t.Logf("the driver reads no PTX %d.%d: %v", x.Version/10, x.Version%10, err)
						return
					}
					if err != nil {
						t.Fatal(err, log)
					}
					for _, k := range p.Kernels {
						f, err := m.Function(k.Name)
						if fake.Fake && errors.As(err, &newer) && newer.Result == cuda.ErrorNotFound {
							t.Logf("%s: the fake runs C functions instead of PTX, and has none for it", k.Name)
							continue
						}
						if err != nil {
							t.Error(err)
							continue
						}
						regs, err := f.Attribute(cuda.FunctionRegisters)
						t.Logf("%s: %d registers, %v; %s", k.Name, regs, err, log)
					}
					if err := m.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		}
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	}
}

// NVML knows the same cards.
func TestNVML(t *testing.T) {
	if !card(t) {
		return
	}
	r, err := look(library())
	if err != nil {
		t.Fatal(err)
	}
	if r.NoNVML != "" {
		t.Log(r.NoNVML)
		return
	}
	for i, s := range r.NVML {
		d := r.Devices[i]
		b, err := json.Marshal(s) // which has values where the structure has pointers
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s", b)
		if s.Bus != d.Bus || s.MemoryTotal < d.Memory || s.Name == "" {
			t.Errorf("NVML says %s, and CUDA %+v", b, d)
		}
	}
}
