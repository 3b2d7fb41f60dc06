package gpucard

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

// command is the program as a contributor calls it.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PENSTOCK_") })
	return cmd
}

// Without a driver nothing is run or written, and the program says what is missing.
func TestWithoutACard(t *testing.T) {
	if running() {
		return // this is a test of the program, not of a card
	}
	file := filepath.Join(t.TempDir(), "result.json")
	cmd := command(t, "-result", file, "-library", filepath.Join(t.TempDir(), "libcuda.so.1"))
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != exitMissing {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"nothing was run", "no such library", "install NVIDIA's driver"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in: %s", want, out)
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("a result file was written: %v", err)
	}
	cmd = command(t, "-nothing")
	if out, _ = cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != exitMissing ||
		!strings.Contains(string(out), "-result") {
		t.Errorf("an unknown flag: %s", out)
	}
}

// On the fake driver the whole program runs, and the result file says that no card was there.
func TestOnTheFake(t *testing.T) {
	if running() {
		return // this is a test of the program, not of a card
	}
	testenv.Once(t)
	library, bodies := built(t)
	file := filepath.Join(t.TempDir(), "result.json")
	cmd := command(t, "-result", file, "-library", library)
	cmd.Env = append(cmd.Env, "PENSTOCK_FAKE_CUDA_KERNELS="+bodies)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := read(t, file)
	if !r.Fake || r.Failed != 0 || r.Passed < 60 || len(r.Devices) != 2 || r.Exit != 0 || r.Driver != "CUDA 12.8" ||
		r.NoNVML == "" {
		t.Errorf("%+v", r)
	}
	for _, name := range []string{"TestDriver/Arguments", "TestDriver/Lost", "TestRuntime/device1/Kernels",
		"TestRuntime/device0/OutOfMemory", "TestMemory/device1/Process", "TestTransfer/Bytes", "TestTransfer/Lost",
		"TestFigures", "TestStream", "TestPTX/0/copy.sm_70"} {
		if !slices.ContainsFunc(r.Tests, func(x Test) bool { return x.Name == name && x.Result == "PASS" }) {
			t.Errorf("%s did not pass", name)
		}
	}
	for _, want := range []string{"fake GPU", "passed, 0 failed", "nothing was shown on a card"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in what it printed", want)
		}
	}
	testenv.Record(t, "fake", "cuda", "gpu-test")
}

// A test that fails is a result, and the program's exit status.
func TestAFailureIsAResult(t *testing.T) {
	if running() {
		return // this is a test of the program, not of a card
	}
	library, bodies := built(t)
	file := filepath.Join(t.TempDir(), "result.json")
	cmd := command(t, "-result", file, "-library", library, "-run", "TestDriver/^(Fills|Memory)$")
	cmd.Env = append(cmd.Env, "PENSTOCK_FAKE_CUDA_KERNELS="+bodies,
		"PENSTOCK_FAKE_CUDA=fail cuMemsetD32Async CUDA_ERROR_INVALID_VALUE")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit status %d: %s", code, out)
	}
	r := read(t, file)
	want := map[string]string{"TestDriver": "FAIL", "TestDriver/Memory": "PASS", "TestDriver/Fills": "FAIL"}
	got := map[string]string{}
	for _, x := range r.Tests {
		got[x.Name] = x.Result
	}
	if !reflect.DeepEqual(got, want) || r.Failed != 2 || r.Exit == 0 ||
		!strings.Contains(r.Output, "CUDA_ERROR_INVALID_VALUE") {
		t.Errorf("%v, %d failed, exit %d:\n%s", got, r.Failed, r.Exit, r.Output)
	}
}

func built(t *testing.T) (library, bodies string) {
	t.Helper()
	library, err := fake.Build()
	if err != nil {
		if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
			testenv.Missing(t, "a C compiler", missing)
		}
		t.Fatal(err)
	}
	dir, err := filepath.Abs("../../kernels/cl")
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := testenv.HashFiles(sources...)
	if err != nil {
		t.Fatal(err)
	}
	bodies, err = fake.Kernels([]string{"../../cuda/cudatest/testdata/kernels.c",
		"../../../gpu/cuda/testdata/kernels.c"}, "-I"+dir, "-fgnu89-inline",
		"-DINCLUDED="+testenv.Hash(content))
	if err != nil {
		t.Fatal(err)
	}
	return library, bodies
}

func read(t *testing.T, file string) *Result {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r := new(Result)
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatal(err)
	}
	if r.Format != Format || r.When.IsZero() {
		t.Errorf("format %d of %v", r.Format, r.When)
	}
	return r
}

func TestParse(t *testing.T) {
	got := Parse("=== RUN   TestA\n--- PASS: TestA (0.25s)\n    --- FAIL: TestA/b (1.00s)\n        x.go:1: --- FAIL: " +
		"TestX (0.00s)\n--- SKIP: TestC (0.00s)\nPASS\n")
	want := []Test{{"TestA", "PASS", 0.25}, {"TestA/b", "FAIL", 1}, {"TestC", "SKIP", 0}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}
