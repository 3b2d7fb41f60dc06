package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
)

// The wheel installs into a fresh environment, without an index, and its tests pass there, with
// Debian's numpy and torch.
func TestWheel(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import numpy, torch, venv, ensurepip").CombinedOutput(); err != nil {
		testenv.Missing(t, "numpy, torch and venv of "+python, &buildError{err, out})
	}
	dir := t.TempDir()
	do := func(dir string, env []string, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	library := filepath.Join(built(t), "libpenstock.so")
	wheel := do(".", nil, python, "../python/wheel.py", library, filepath.Join(built(t), "libpenstock-agent.so"),
		filepath.Join(built(t), "penstock"), "0.1.0", dir)
	sameTag(t, wheel, library)
	tests, err := filepath.Abs("../python/tests")
	if err != nil {
		t.Fatal(err)
	}
	do(dir, nil, python, "-m", "venv", "--system-site-packages", "fresh")
	fresh := filepath.Join(dir, "fresh", "bin")
	do(dir, nil, filepath.Join(fresh, "pip"), "install", "--no-index", "--quiet", wheel)
	if out := do(dir, nil, filepath.Join(fresh, "python"), "-c",
		"import penstock; print(penstock.__file__)"); !strings.HasPrefix(out, dir) {
		t.Fatalf("the tests would run with %s", out)
	}
	for _, agent := range []string{"", "1"} { // in the process, and by an agent
		t.Log(do(dir, []string{"PENSTOCK_AGENT=" + agent}, filepath.Join(fresh, "python"), "-m", "unittest", "discover",
			"-s", tests))
	}
	if out := do(dir, nil, filepath.Join(fresh, "penstock"), "--help"); !strings.Contains(out, "mirror") {
		t.Errorf("the command says %q", out)
	}
	testenv.Record(t, "peer", "python", "wheel")
}

// Memory of a device, which the lab's driver stands in for: adopted by its address, put, got and
// exported.
func TestDevice(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import numpy").CombinedOutput(); err != nil {
		testenv.Missing(t, "numpy of "+python, &buildError{err, out})
	}
	driver, err := cuda.Build()
	if err != nil {
		testenv.Missing(t, "a C compiler", err)
	}
	dir := t.TempDir()
	if err := os.Symlink(driver, filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	tests, err := filepath.Abs("../python/tests/test_cuda.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{"0", "1"} { // which opens the memory of the other process
		cmd := exec.Command(python, tests, "-v")
		cmd.Dir = "../python"
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1",
			"PENSTOCK_AGENT="+agent,
			"PENSTOCK_LIBRARY="+filepath.Join(built(t), "libpenstock.so"))
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "no libcuda.so.1") {
			t.Fatalf("agent %s: %v\n%s", agent, err, out)
		}
	}
}
