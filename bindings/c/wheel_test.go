package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// sameTag compares the tag in the name of a wheel with what its library needs: the machine, and the
// newest version of the C library's symbols.
func sameTag(t *testing.T, wheel, library string) elf.Machine {
	t.Helper()
	f, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		t.Fatal(err)
	}
	newest := 17 // the oldest that manylinux names by its version
	for _, lib := range needs {
		for _, v := range lib.Needs {
			var minor int
			if n, _ := fmt.Sscanf(v.Dep, "GLIBC_2.%d", &minor); n == 1 {
				newest = max(newest, minor)
			}
		}
	}
	machine := map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64"}[f.Machine]
	if want := fmt.Sprintf("penstock-0.1.0-py3-none-manylinux_2_%d_%s.whl", newest,
		machine); filepath.Base(wheel) != want || newest < 20 {
		t.Errorf("the wheel is %s, its library needs %s", filepath.Base(wheel), want)
	}
	return f.Machine
}

// The wheel for arm64, which the machine's own compiler does not make, has a library and a command
// for arm64, and both run there.
func TestCrossWheel(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants|testenv.WithRace,
		"it builds everything for another machine, which takes minutes: make nightly has it")
	const cc, emulator, root = "aarch64-linux-gnu-gcc", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
	if runtime.GOARCH != "amd64" {
		testenv.Missing(t, "a machine that is not arm64", fmt.Errorf("this one is %s", runtime.GOARCH))
	}
	for tool, pkg := range map[string]string{cc: "gcc-aarch64-linux-gnu", emulator: "qemu-user-static",
		"make": "make"} {
		if _, err := testenv.Tool(tool, pkg); err != nil {
			testenv.Missing(t, tool, err)
		}
	}
	dir := t.TempDir()
	do := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	do("../..", "make", "cross-wheel", "DIST="+dir, "VERSION=0.1.0")
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels: %v, %v", wheels, err)
	}
	unpacked := filepath.Join(dir, "unpacked")
	do(dir, "python3", "-m", "zipfile", "-e", wheels[0], unpacked)
	library := filepath.Join(unpacked, "penstock", "libpenstock.so")
	if m := sameTag(t, wheels[0], library); m != elf.EM_AARCH64 {
		t.Errorf("the library is for %v", m)
	}
	command := filepath.Join(unpacked, "penstock-0.1.0.data", "scripts", "penstock")
	if err := os.Chmod(command, 0o755); err != nil { // as an installer does
		t.Fatal(err)
	}
	if out := do(dir, emulator, "-L", root, command, "--help"); !strings.Contains(out, "mirror") {
		t.Errorf("the command says %q", out)
	}
	if err := os.Symlink("libpenstock.so", filepath.Join(unpacked, "penstock", "libpenstock.so.1")); err != nil {
		// its soname
		t.Fatal(err)
	}
	program := filepath.Join(dir, "put")
	do(".", cc, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-I.", "-o", program,
		"testdata/put.c", "-L"+filepath.Dir(library), "-lpenstock")
	if out := do(dir, emulator, "-L", root, "-E", "LD_LIBRARY_PATH="+filepath.Dir(library), program,
		filepath.Join(dir, "s")); !strings.HasSuffix(out, "ok\n") {
		// the peer that closes is a warning
		t.Errorf("the program says %q", out)
	}
	testenv.Record(t, "peer", "qemu-user", "the wheel for arm64")
}
