package gpumem_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
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
	p := &gpu.Program{Name: "fault", Kernels: []gpu.Signature{{Name: "fault"}},
		Go: map[string]gpu.GoFunc{"fault": func(gpu.Grid, []gpu.GoArg) {
			panic("a fault")
		}}}
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

// Pinned memory can be huge pages, where there are some, or says that it is not.
func TestHugePinned(t *testing.T) {
	p := provider(t, gpumem.Options{})
	r := must[*mem.Region](t)(mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1, PageSize: 2 << 20,
		AllowFallback: true, Provider: p}))
	defer r.Close()
	if r.Kind() != mem.HostPinned || r.PageSize() != 2<<20 &&
		!strings.Contains(r.Note(), "base pages instead of huge pages") {
		t.Errorf("kind %s, pages of %d, note %q", r.Kind(), r.PageSize(), r.Note())
	}
	if m := gpumem.Memory(r); m == nil || m.Size() != r.Len() {
		t.Errorf("%v", m)
	}
}

// near is a runtime whose device is on a NUMA node.
type near struct {
	driver.Runtime
	node int
}

type nearDevice struct {
	driver.Device
	node int
}

func (r near) Devices() []driver.Device {
	var out []driver.Device
	for _, d := range r.Runtime.Devices() {
		out = append(out, nearDevice{d, r.node})
	}
	return out
}

func (d nearDevice) Info() driver.Info {
	f := d.Device.Info()
	f.NUMANode = d.node
	return f
}

// Pinned memory is on the node of the device, or says why not; what the caller asks for goes first.
func TestNode(t *testing.T) {
	nodes := must[[]int](t)(sys.MemoryNodes())
	wrong := 1000
	for _, node := range append(nodes, wrong) {
		d := must[driver.Runtime](t)(host.Driver(host.Options{Memory: 64 << 20}))
		rt := must[*gpu.Runtime](t)(gpu.New(near{d, node}))
		c := must[*gpu.Context](t)(rt.Devices()[0].Open())
		p := must[*gpumem.Provider](t)(gpumem.New(c, gpumem.Options{}))
		r, err := mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1 << 20, Provider: p})
		if err != nil {
			t.Fatal(err)
		}
		bound := node != wrong && r.NUMANode() == node && r.Note() == ""
		if !bound && !strings.Contains(r.Note(), "not bound to the NUMA node of the device") {
			t.Errorf("a device on node %d has pinned memory on node %d, with the note %q", node, r.NUMANode(), r.Note())
		}
		if node == wrong && bound {
			t.Errorf("memory on a node that is not there")
		}
		if _, err := mem.Alloc(mem.Options{Kind: mem.HostPinned, Size: 1, NUMANode: mem.OnNode(wrong),
			Provider: p}); err == nil || !strings.Contains(err.Error(), "1000") {
			t.Errorf("a node of the caller's choice that is not there: %v", err)
		}
		for _, x := range []interface{ Close() error }{r, p, c, rt} {
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A file that is cut off under a copy is an error, and the next copy is not hurt by it.
func TestTruncatedSource(t *testing.T) {
	p := provider(t, gpumem.Options{Bounce: 4096})
	x := region(t, mem.Device, 64<<10, p)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, bytes.Repeat([]byte{7}, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	f := must[*mem.Region](t)(mem.AdoptFile(name))
	defer f.Close()
	if err := os.Truncate(name, 20<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Mover().Store(0, f.All()); !errors.Is(err, mem.ErrFault) {
		t.Errorf("a store of a file that was cut off: %v", err)
	}
	if _, err := x.Mover().Load(f.All(), 0); !errors.Is(err, gpu.ErrArgument) {
		t.Errorf("a load into a file that is mapped for reading: %v", err)
	}
	m, err := x.Mover().Store(0, mem.Span{Region: f, Len: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// In builds that check ownership, a Move that is used after its end is found.
func TestMoveAfterItsEnd(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants, "builds with -tags invariants find it")
	p := provider(t, gpumem.Options{})
	x, h := region(t, mem.Device, 1, p), region(t, mem.HostPinned, 1, p)
	m, err := x.Mover().Store(0, mem.Span{Region: h, Len: 1})
	if err == nil {
		err = m.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "after its end") {
			t.Errorf("%v", v)
		}
	}()
	m.Done()
}
