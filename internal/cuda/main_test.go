package cuda

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// built is the fake driver and the library with the bodies of the tests' kernels.
func built(t testing.TB) (driver, kernels string) {
	t.Helper()
	driver, err := fake.Build()
	if err == nil {
		kernels, err = fake.Kernels([]string{"cudatest/testdata/kernels.c"})
	}
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	return driver, kernels
}

// start is a fake driver that knows nothing yet but the script. The test fails when it ends with
// violations that were not allowed, or something alive.
func start(t testing.TB, script string) (*Driver, *fake.Control) {
	t.Helper()
	driver, kernels := built(t)
	f, err := fake.Load(driver)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Restart(), f.Script(script)); err != nil {
		t.Fatal(err)
	}
	bodies(t, f, kernels)
	d, err := Load(driver)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Record(t, "fake", "cuda", "driver API")
	t.Cleanup(func() {
		r, err := f.Report()
		if err != nil {
			t.Error(err)
		}
		if f.Live() != 0 || f.Violations() != allowed[t] {
			t.Errorf("%d objects are alive, and there were %d violations, want %d:\n%s", f.Live(), f.Violations(),
				allowed[t], r)
		}
		delete(allowed, t)
	})
	return d, f
}

// allowed is how many violations a test makes on purpose.
var allowed = map[testing.TB]int{}

// bodies gives the kernels of kernels.ptx their bodies.
func bodies(t testing.TB, f *fake.Control, kernels string) {
	t.Helper()
	l, err := dl.Open(kernels)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"arguments", "increment", "remember"} {
		body, err := l.Symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Kernel(name, body, false); err != nil {
			t.Fatal(err)
		}
	}
}

// open is a context of a device.
func open(t testing.TB, d *Driver, ordinal int) *Context {
	t.Helper()
	dev, err := d.Device(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Retain()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ok(t, c.Release()) })
	return c
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// must is a value, or the end of the test.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// stream is a stream that ends with the test.
func stream(t testing.TB, c *Context) *Stream {
	t.Helper()
	s := must[*Stream](t)(c.NewStream(0))
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// alloc is device memory that ends with the test.
func alloc(t testing.TB, c *Context, n uint64) Pointer {
	t.Helper()
	p := must[Pointer](t)(c.Alloc(n))
	t.Cleanup(func() { ok(t, c.Free(p)) })
	return p
}

// wants fails unless err is of a kind and has the texts.
func wants(t testing.TB, err, kind error, texts ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Errorf("%v is not of the kind %v", err, kind)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
}
