package host

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gputest"
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

func TestConformance(t *testing.T) {
	gputest.Run(t, gputest.Harness{
		Open: func(t testing.TB) *gpu.Runtime {
			rt, err := Open(Options{Devices: 2, Memory: 64 << 20})
			if err != nil {
				t.Fatal(err)
			}
			return rt
		},
		Lose: func(t testing.TB, c *gpu.Context) {
			fault(t, c, func(gpu.Grid, []gpu.GoArg) { panic("a fault") })
		},
		Small: true,
	})
}

// fault runs a kernel that does what a kernel must not.
func fault(t testing.TB, c *gpu.Context, f gpu.GoFunc) {
	t.Helper()
	p := &gpu.Program{Name: "fault", Kernels: []gpu.Signature{{Name: "fault"}}, Go: map[string]gpu.GoFunc{"fault": f}}
	m, err := c.Load(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	k, err := m.Kernel("fault")
	if err != nil {
		t.Fatal(err)
	}
	call, err := k.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { call.Close() })
	s, err := c.NewStream(gpu.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Launch(call, gpu.Grid{Groups: 1, Group: 1}); err != nil {
		t.Fatal(err)
	}
	s.Wait(t.Context())
}

// TestFaults shows that what kills a process elsewhere loses the device here, once, with a reason,
// and that the next context works.
func TestFaults(t *testing.T) {
	rt, err := Open(Options{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	gone, err := sys.Mmap(int(f.Fd()), 0, 4096, sys.ProtRead, sys.MapShared)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Munmap(gone)
	if err := f.Truncate(0); err != nil { // touching it is a SIGBUS from now on
		t.Fatal(err)
	}
	var sum byte
	for _, x := range []struct {
		name, says string
		kernel     gpu.GoFunc
	}{
		{"a panic", "with words of its own", func(gpu.Grid, []gpu.GoArg) { panic("with words of its own") }},
		{"an index", "index out of range", func(_ gpu.Grid, a []gpu.GoArg) { a[len(a)].Bytes[0] = 1 }},
		{"memory that is gone", "memory that is not there", func(gpu.Grid, []gpu.GoArg) { sum += gone[0] }},
	} {
		t.Run(x.name, func(t *testing.T) {
			c, err := rt.Devices()[0].Open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			fault(t, c, x.kernel)
			err = c.Err()
			if !errors.Is(err, gpu.ErrDeviceLost) || !strings.Contains(err.Error(), x.says) ||
				!strings.Contains(err.Error(), "kernel fault") {
				t.Errorf("the context is lost by %v, expected ErrDeviceLost that says %q", err, x.says)
			}
		})
	}
	c, err := rt.Devices()[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.NewStream(gpu.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Wait(t.Context()); err != nil {
		t.Errorf("a new context after lost ones: %v", err)
	}
}

// TestManyTimes opens and closes everything a thousand times, and counts what stays.
func TestManyTimes(t *testing.T) {
	rt, err := Open(Options{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	count := func() (fds, maps int) { // goroutines are TestMain's: one that has ended may take a moment to be gone
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		maps = strings.Count(string(b), "penstock:gpu/host")
		return len(d), maps
	}
	cycle := func() {
		c, err := rt.Devices()[0].Open()
		if err != nil {
			t.Fatal(err)
		}
		m, err1 := c.Alloc(gpu.MemoryOptions{Size: 5000})
		s, err2 := c.NewStream(gpu.StreamOptions{})
		e, err3 := c.NewEvent(gpu.EventOptions{Timing: true})
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Fill(m.All(), 1, 1), s.Record(e), e.Wait(t.Context()), e.Close(), s.Close(), m.Close(),
			c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	count() // reading files starts Go's poller, which has descriptors of its own
	fds, maps := count()
	for range 1000 {
		cycle()
	}
	if f, m := count(); f != fds || m != maps {
		t.Errorf("%d descriptors and %d mappings before, %d and %d after 1000 times", fds, maps, f, m)
	}
	c, err := rt.Devices()[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if free, total, err := c.MemoryInfo(); free != total || err != nil {
		t.Errorf("%d of %d bytes are free: %v", free, total, err)
	}
}

func TestOptions(t *testing.T) {
	for _, n := range []int{-1, 65} {
		if _, err := Open(Options{Devices: n}); !errors.Is(err, gpu.ErrArgument) {
			t.Errorf("%d devices: %v", n, err)
		}
	}
	rt, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if n := len(rt.Devices()); n != 1 || rt.Devices()[0].Info().Memory == 0 {
		t.Errorf("%d devices by default, the first with %d bytes", n, rt.Devices()[0].Info().Memory)
	}
}
