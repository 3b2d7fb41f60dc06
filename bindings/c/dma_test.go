package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/cuda"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
)

// What an adapter reaches, with stand-ins of libibverbs and of CUDA's driver: by dma-buf, and not
// without.
func TestReach(t *testing.T) {
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import numpy").CombinedOutput(); err != nil {
		testenv.Missing(t, "numpy of "+python, &buildError{err, out})
	}
	ibverbs, err := verbs.Dir()
	if err != nil {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	driver, err := cuda.Build()
	if err != nil {
		testenv.Missing(t, "a C compiler", err)
	}
	dir := t.TempDir()
	if err := os.Symlink(driver, filepath.Join(dir, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"devices 1", "devices 1; absent dmabuf"} {
		cmd := exec.Command(python, "../python/tests/test_allocator.py", "-v")
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+ibverbs+":"+dir, verbs.ScriptEnv+"="+script,
			"PYTHONPATH=../python", "PYTHONDONTWRITEBYTECODE=1",
			"PENSTOCK_LIBRARY="+filepath.Join(built(t), "libpenstock.so"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "test_way (") ||
			strings.Contains(string(out), "no libcuda.so.1") || strings.Count(string(out), "skipped 'an adapter") != 2 {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}
