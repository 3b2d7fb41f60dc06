package gpucard

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/gpu"
	gpucuda "github.com/penstock-io/penstock/gpu/cuda"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/gpu/gputest"
	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/cuda/cudatest"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/nvml"
)

func TestMain(m *testing.M) {
	cudatest.Child()
	gpumemtest.Child(func() (*gpu.Runtime, error) { return gpucuda.Open(gpucuda.Options{Library: library()}) })
	Main(m)
}

// card ends a test that is not run by the program: go test has no card, and tests the program instead.
func card(t *testing.T) {
	t.Helper()
	if !running() {
		t.Skip("this is run on a card, by make gpu-test")
	}
}

// The driver does everything that we rely on.
func TestDriver(t *testing.T) {
	card(t)
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
	card(t)
	gputest.Run(t, gputest.Harness{Open: open})
}

func open(t testing.TB) *gpu.Runtime {
	t.Helper()
	rt, err := gpucuda.Open(gpucuda.Options{Library: library()})
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// The card's memory as regions: pools, copies, adoption, another process, and whether the CPU reaches it (TestMemory/DMABuf says).
func TestMemory(t *testing.T) {
	card(t)
	gpumemtest.Run(t, gpumemtest.Harness{Open: open, Importer: []string{libraryEnv + "=" + library()}})
}

// Every form of every kernel that is for the card or an older one is taken by the driver, also those that a newer form stands in front of.
func TestPTX(t *testing.T) {
	card(t)
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
				t.Run(fmt.Sprintf("%d/%s.sm_%d", dev.Ordinal(), p.Name, x.SM), func(t *testing.T) {
					if sm := 10*info.Major + info.Minor; x.SM > sm {
						t.Skipf("the card is sm_%d", sm)
					}
					m, log, err := c.Load([]byte(x.Text))
					var newer *cuda.Error
					if errors.As(err, &newer) && newer.Result.Kind() == cuda.ErrDriver {
						t.Skipf("the driver reads no PTX %d.%d: %v", x.Version/10, x.Version%10, err)
					}
					if err != nil {
						t.Fatal(err, log)
					}
					for _, k := range p.Kernels {
						f, err := m.Function(k.Name)
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
	card(t)
	r, err := look(library())
	if err != nil {
		t.Fatal(err)
	}
	if r.NoNVML != "" {
		t.Skip(r.NoNVML)
	}
	for i, s := range r.NVML {
		d := r.Devices[i]
		t.Logf("%+v", s)
		if s.Bus != d.Bus || s.MemoryTotal < d.Memory || s.Name == "" {
			t.Errorf("NVML says %+v, and CUDA %+v", s, d)
		}
	}
	l, err := nvml.Load("")
	if err != nil {
		t.Fatal(err)
	}
	all, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range all {
		for k, b := range all[:i] {
			d, known, err := a.Distance(b)
			t.Logf("card %d to card %d: %v, %v, %v", i, k, d, known, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
