package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/testenv"
)

// library is the shared library, built once for all tests.
var library = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "capi")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-o", filepath.Join(dir, "libpenstock.so"), ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", &buildError{err, out}
	}
	return dir, nil
})

type buildError struct {
	error
	out []byte
}

func (e *buildError) Error() string { return e.error.Error() + "\n" + string(e.out) }

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := library(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func built(t *testing.T) string {
	t.Helper()
	dir, err := library()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run compiles a program of testdata with the library, and runs it.
func run(t *testing.T, source string, flags []string, args ...string) {
	t.Helper()
	dir := built(t)
	program := filepath.Join(t.TempDir(), "program")
	cc := append([]string{"-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-I.", "-o", program, source}, flags...)
	if out, err := exec.Command("gcc", append(cc, "-L"+dir, "-lpenstock", "-lpthread", "-Wl,-rpath,"+dir)...).CombinedOutput(); err != nil {
		t.Fatalf("cc %v: %v\n%s", flags, err, out)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1", "LSAN_OPTIONS=exitcode=9")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Fatalf("%s %v: %v\n%s", source, flags, err, out)
	}
}

func TestTransfer(t *testing.T) {
	for name, flags := range map[string][]string{"plain": {"-O2"}, "AddressSanitizer": {"-fsanitize=address,undefined"}, "ThreadSanitizer": {"-fsanitize=thread"}} {
		t.Run(name, func(t *testing.T) { run(t, "testdata/transfer.c", flags) })
	}
}

func TestStream(t *testing.T) {
	run(t, "testdata/stream.c", []string{"-O2"}, "testdata/stream.yaml")
	run(t, "testdata/stream.c", []string{"-fsanitize=address,undefined"}, "testdata/stream.yaml")
}

// The header is C++ too.
func TestHeader(t *testing.T) {
	if out, err := exec.Command("g++", "-x", "c++", "-Wall", "-Werror", "-fsyntax-only", "penstock.h").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// The library has the functions of the header, and no others of its own.
func TestSymbols(t *testing.T) {
	out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(built(t), "libpenstock.so")).Output()
	if err != nil {
		testenv.Missing(t, "nm", err)
	}
	var have []string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[1] == "T" && strings.HasPrefix(f[2], "penstock_") {
			have = append(have, f[2])
		}
	}
	header, err := os.ReadFile("penstock.h")
	if err != nil {
		t.Fatal(err)
	}
	_, prototypes, _ := strings.Cut(string(header), "#ifndef PENSTOCK_NO_PROTOTYPES")
	var want []string
	for line := range strings.Lines(prototypes) {
		if name, _, ok := strings.Cut(line, "("); ok && !strings.HasPrefix(line, "/*") && !strings.HasPrefix(line, " *") {
			if f := strings.Fields(name); len(f) > 1 {
				want = append(want, strings.TrimPrefix(f[len(f)-1], "*"))
			}
		}
	}
	slices.Sort(have)
	slices.Sort(want)
	if len(want) < 20 || !slices.Equal(have, want) {
		t.Errorf("the library has\n%v\nthe header\n%v", have, want)
	}
}

// What TestCrossWheel runs on another machine, here.
func TestPut(t *testing.T) {
	run(t, "testdata/put.c", []string{"-O2"}, filepath.Join(t.TempDir(), "s"))
}
