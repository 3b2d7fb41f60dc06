package opencl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/gputest"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
	"github.com/penstock-io/penstock/internal/ocl"
)

// TestMain fails the run when a test left a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(t testing.TB, o Options) *gpu.Runtime {
	t.Helper()
	rt, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func TestConformance(t *testing.T) {
	platform := peers.PoCL(t)
	gputest.Run(t, gputest.Harness{Open: func(t testing.TB) *gpu.Runtime {
		return open(t, Options{Platform: platform})
	}})
}

// TestConformanceOfOldDevices is the suite on a device that knows OpenCL 1.2 and no shared virtual
// memory, as far as the runtime sees.
func TestConformanceOfOldDevices(t *testing.T) {
	testenv.Once(t)
	platform := peers.PoCL(t)
	gputest.Run(t, gputest.Harness{Open: func(t testing.TB) *gpu.Runtime {
		l, err := ocl.Load("")
		if err != nil {
			t.Fatal(err)
		}
		r := &openclRuntime{l: l}
		if err := r.find(Options{Platform: platform, NoSVM: true}); err != nil {
			t.Fatal(err)
		}
		for _, d := range r.devices {
			d.(*device).version = 1.2
		}
		rt, err := gpu.New(r)
		if err != nil {
			t.Fatal(err)
		}
		return rt
	}})
}

// TestCapabilities shows that what PoCL is known to do is claimed: otherwise the suite would pass
// by asking for nothing.
func TestCapabilities(t *testing.T) {
	rt := open(t, Options{Platform: peers.PoCL(t)})
	defer rt.Close()
	f := rt.Devices()[0].Info()
	for _, c := range []gpu.Capability{gpu.CapMapped, gpu.CapShared, gpu.CapSharedAtomics, gpu.CapElapsed,
		gpu.CapSource} {
		if err := f.Capabilities.Check(c); err != nil {
			t.Errorf("%v", err)
		}
	}
	if f.Units > 1 && !f.Capabilities.Has(gpu.CapResident) {
		t.Errorf("%d cores and no resident kernels: %+v", f.Units, f.Capabilities[gpu.CapResident])
	}
	if !strings.Contains(rt.Version(), "PoCL") || f.Arch != "opencl 3.0" {
		t.Logf("the platform is %s, the device %s", rt.Version(), f.Arch)
	}
}

func TestUnavailable(t *testing.T) {
	_, err := Open(Options{Library: filepath.Join(t.TempDir(), "libOpenCL.so.1")})
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("no library: %v; expected one that wraps ErrUnavailable and says what to install", err)
	}
	platform := peers.PoCL(t)
	_, err = Open(Options{Platform: "no platform has this name"})
	if !errors.Is(err, gpu.ErrUnavailable) || !strings.Contains(err.Error(), platform) {
		t.Errorf("no platform: %v; expected one that wraps ErrUnavailable and lists the platforms", err)
	}
}

// TestErrors shows what each code of the library becomes: PoCL cannot be brought to give most of
// them.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		code           int
		setting, queue error // what it is when something is made, and when a queue says it
	}{
		{-2, driver.ErrDeviceLost, driver.ErrDeviceLost},
		{-3, driver.ErrUnsupported, driver.ErrUnsupported},
		{-4, driver.ErrOutOfMemory, driver.ErrOutOfMemory},
		{-5, driver.ErrOutOfMemory, driver.ErrDeviceLost},
		{-6, driver.ErrOutOfMemory, driver.ErrOutOfMemory},
		{-14, driver.ErrDriver, driver.ErrDeviceLost},
		{-36, driver.ErrDriver, driver.ErrDeviceLost},
		{-48, driver.ErrDriver, driver.ErrDriver},
		{-61, driver.ErrOutOfMemory, driver.ErrOutOfMemory},
		{-9999, driver.ErrDriver, driver.ErrDriver},
	} {
		e := &ocl.Error{Op: "clSomething", Code: c.code}
		for what, pair := range map[string][2]error{"setting up": {wrap(e, "test"), c.setting},
			"a queue": {lost(e, "test"), c.queue}} {
			var typed *driver.Error
			if !errors.Is(pair[0], pair[1]) || !errors.As(pair[0], &typed) || typed.Code != c.code ||
				typed.Op != "clSomething" || !strings.Contains(pair[0].Error(), e.Name()) {
				t.Errorf("%d at %s is %v, expected one that wraps %v", c.code, what, pair[0], pair[1])
			}
		}
	}
	if !errors.Is(lost(&ocl.Error{Op: "the command of an event", Code: -30}, "test"), driver.ErrDeviceLost) {
		t.Error("a command that failed does not lose the device")
	}
	if other := errors.New("other"); wrap(other, "test") != other || lost(other, "test") != other ||
		wrap(nil, "") != nil || lost(nil, "") != nil {
		t.Error("errors of others are changed")
	}
}
