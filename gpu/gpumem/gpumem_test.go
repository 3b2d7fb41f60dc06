package gpumem_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/mem"
)

// TestMain fails the run when a test left a goroutine or memory behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if ls := mem.LeakReport(); code == 0 && len(ls) > 0 {
		fmt.Fprintf(os.Stderr, "left behind by the tests:\n%s", ls)
		code = 1
	}
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func openHost(t testing.TB) *gpu.Runtime {
	t.Helper()
	return must[*gpu.Runtime](t)(host.Open(host.Options{Memory: 256 << 20}))
}

// loseHost runs a kernel that faults.
func loseHost(t testing.TB, c *gpu.Context) {
	t.Helper()
	p := &gpu.Program{Name: "fault", Kernels: []gpu.Signature{{Name: "fault"}}, Go: map[string]gpu.GoFunc{"fault": func(gpu.Grid, []gpu.GoArg) { panic("a fault") }}}
	m := must[*gpu.Module](t)(c.Load(p))
	t.Cleanup(func() { m.Close() })
	call := must[*gpu.Call](t)(must[*gpu.Kernel](t)(m.Kernel("fault")).Prepare())
	t.Cleanup(func() { call.Close() })
	s := must[*gpu.Stream](t)(c.NewStream(gpu.StreamOptions{}))
	t.Cleanup(func() { s.Close() })
	if err := s.Launch(call, gpu.Grid{Groups: 1, Group: 1}); err != nil {
		t.Fatal(err)
	}
	s.Wait(t.Context()) // the error is what is wanted
}

func TestHost(t *testing.T) {
	gpumemtest.Run(t, gpumemtest.Harness{Open: openHost, Lose: loseHost})
}

// TestOpaque is the host as a card: the CPU does not see device memory.
func TestOpaque(t *testing.T) {
	gpumemtest.Run(t, gpumemtest.Harness{Open: openHost, Lose: loseHost, Options: gpumem.Options{Opaque: true}})
}
