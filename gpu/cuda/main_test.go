package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem/gpumemtest"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("GPU_CUDA_TEST_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	gpumemtest.Child(func() (*gpu.Runtime, error) { return Open(Options{Library: os.Getenv("GPU_CUDA_TEST_LIBRARY")}) })
	goleak.VerifyTestMain(m)
}

// roles are what this program does when a test starts it as another process.
var roles = map[string]func() int{}

// built is the fake driver, and the library with the bodies of the kernels.
func built(t testing.TB) (driver, bodies string) {
	t.Helper()
	driver, err := fake.Build()
	if err == nil {
		bodies, err = kernelBodies()
	}
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	return driver, bodies
}

// kernelBodies compiles testdata/kernels.c with the sources of internal/kernels.
func kernelBodies() (string, error) {
	dir, err := filepath.Abs("../../internal/kernels/cl")
	if err != nil {
		return "", err
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return "", err
	}
	content, err := testenv.HashFiles(sources...)
	if err != nil {
		return "", err
	}
	// The cache knows a library by its sources and flags, and not by what they include from
	// elsewhere.
	return fake.Kernels([]string{"testdata/kernels.c"}, "-I"+dir, "-fgnu89-inline", "-DINCLUDED="+testenv.Hash(content))
}

// start is a fake driver that knows nothing yet but the script.
func start(t testing.TB, script string) (library string, f *fake.Control) {
	t.Helper()
	library, kernels := built(t)
	f, err := fake.Load(library)
	if err != nil {
		t.Fatal(err)
	}
	l, err := dl.Open(kernels)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Restart(), f.Script(script)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"copy", "fill", "gather", "scatter", "checksum", "process", "hold", "tally"} {
		body, err := l.Symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Kernel(name, body, name == "hold" || name == "tally"); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Record(t, "fake", "cuda", "gpu/cuda")
	return library, f
}

// clean fails when the fake has something to complain of, or has something left.
func clean(t testing.TB, f *fake.Control) {
	t.Helper()
	r, err := f.Report()
	if err != nil {
		t.Error(err)
	}
	if f.Live() != 0 || f.Violations() != 0 {
		t.Errorf("%d objects are alive, and there were %d violations:\n%s", f.Live(), f.Violations(), r)
	}
}

// opened is a runtime on the fake, closed with the test, after which the fake is clean.
func opened(t testing.TB, script string) (*gpu.Runtime, *fake.Control) {
	t.Helper()
	library, f := start(t, script)
	t.Cleanup(func() { clean(t, f) })
	rt, err := Open(Options{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ok(t, rt.Close()) })
	return rt, f
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
