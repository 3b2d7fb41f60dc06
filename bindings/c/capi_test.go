package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// library is the directory with the shared libraries and the command, built once for all tests.
var library = sync.OnceValues(func() (string, error) {
	agent, err := testenv.Compile("libpenstock-agent", sources(), "-std=c11", "-O1", "-g", "-shared", "-Wall",
		"-Wextra", "-Werror", "-Wl,-z,defs", "-pthread", "-ldl")
	if err != nil {
		return "", err
	}
	command, err := proc.Penstock()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "capi")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-o", filepath.Join(dir, "libpenstock.so"),
		".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	err = errors.Join(err, os.Symlink(agent, filepath.Join(dir, "libpenstock-agent.so")),
		os.Symlink(command, filepath.Join(dir, "penstock")))
	if err != nil {
		os.RemoveAll(dir)
	}
	return dir, err
})

// sources are those of the library without a Go runtime.
func sources() []string {
	all, _ := filepath.Glob("client/*.c") // the pattern is well formed
	return append(all, "python.c", "cuda.c", "loads.c")
}

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

// run compiles a program of testdata with a library, or with the sources of the one by the agent,
// and runs it.
func run(t *testing.T, name, source string, flags []string, args ...string) {
	t.Helper()
	dir := built(t)
	flags = append([]string{"-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-I."}, flags...)
	program := filepath.Join(t.TempDir(), "program")
	if name == agentInside {
		var err error
		if program, err = testenv.Compile("capi-"+filepath.Base(source), append([]string{source}, sources()...),
			append(flags, "-pthread", "-ldl")...); err != nil {
			t.Fatal(err)
		}
	} else if out, err := exec.Command("gcc", append(append(flags, "-o", program, source), "-L"+dir, name, "-lpthread",
		"-ldl", "-Wl,-rpath,"+dir)...).CombinedOutput(); err != nil {
		t.Fatalf("cc %v: %v\n%s", flags, err, out)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=1", "LSAN_OPTIONS=exitcode=9",
		"PENSTOCK_COMMAND="+filepath.Join(dir, "penstock"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "ok\n") {
		t.Fatalf("%s %v: %v\n%s", source, flags, err, out)
	}
}

// The libraries; the second one is there as such, and compiled into the program, where the
// sanitizers see it, too.
const inProcess, byAgent, agentInside = "-lpenstock", "-lpenstock-agent", "inside"

func TestTransfer(t *testing.T) {
	for name, flags := range map[string][]string{"plain": {"-O2"}, "AddressSanitizer": {"-fsanitize=address,undefined"},
		"ThreadSanitizer": {"-fsanitize=thread"}} {
		t.Run(name, func(t *testing.T) { run(t, inProcess, "testdata/transfer.c", flags) })
		t.Run("by agent/"+name, func(t *testing.T) {
			library := byAgent
			if name != "plain" {
				library = agentInside
			}
			run(t, library, "testdata/transfer.c", flags)
		})
	}
}

func TestStream(t *testing.T) {
	run(t, inProcess, "testdata/stream.c", []string{"-O2"}, "testdata/stream.yaml")
	run(t, inProcess, "testdata/stream.c", []string{"-fsanitize=address,undefined"}, "testdata/stream.yaml")
	run(t, byAgent, "testdata/stream.c", []string{"-O2"}, "testdata/stream.yaml")
	run(t, agentInside, "testdata/stream.c", []string{"-fsanitize=address,undefined"}, "testdata/stream.yaml")
}

// Opening a file runs its applications.
func TestApplications(t *testing.T) {
	run(t, inProcess, "testdata/apps.c", []string{"-O2"})
	run(t, byAgent, "testdata/apps.c", []string{"-O2"})
}

// What is known of batches is the same in the process and by the agent.
func TestBatch(t *testing.T) {
	run(t, inProcess, "testdata/batch.c", []string{"-fsanitize=address,undefined"}, "testdata/batch.yaml")
	run(t, byAgent, "testdata/batch.c", []string{"-O2"}, "testdata/batch.yaml")
	run(t, agentInside, "testdata/batch.c", []string{"-fsanitize=address,undefined"}, "testdata/batch.yaml")
}

// What the agent's library promises beyond the header: forks, an agent that is killed, one that
// cannot be started, no child of the program.
func TestAgent(t *testing.T) {
	dir := t.TempDir()
	command, pid := filepath.Join(dir, "penstock"), filepath.Join(dir, "pid")
	script := "#!/bin/sh\necho $$ > " + pid + "\nexec " + filepath.Join(built(t), "penstock") + ` "$@"` + "\n"
	if err := os.WriteFile(command, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, byAgent, "testdata/agent.c", []string{"-O2"}, command, pid)
	run(t, agentInside, "testdata/agent.c", []string{"-fsanitize=address,undefined"}, command, pid)
}

// The header is C++ too.
func TestHeader(t *testing.T) {
	if out, err := exec.Command("g++", "-x", "c++", "-Wall", "-Werror", "-fsyntax-only",
		"penstock.h").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// The libraries have the functions of the header, and no others of their own.
func TestSymbols(t *testing.T) {
	for _, name := range []string{"libpenstock.so", "libpenstock-agent.so"} {
		t.Run(name, func(t *testing.T) { symbols(t, name) })
	}
}

func symbols(t *testing.T, name string) {
	out, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(built(t), name)).Output()
	if err != nil {
		testenv.Missing(t, "nm", err)
	}
	var have []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 3 && f[1] == "T" && strings.HasPrefix(f[2], "penstock_"):
			have = append(have, f[2])
		case name == "libpenstock-agent.so":
			t.Errorf("%s has the symbol %s", name, line)
		}
	}
	header, err := os.ReadFile("penstock.h")
	if err != nil {
		t.Fatal(err)
	}
	_, prototypes, _ := strings.Cut(string(header), "#ifndef PENSTOCK_NO_PROTOTYPES")
	var want []string
	for line := range strings.Lines(prototypes) {
		if name, _, ok := strings.Cut(line, "("); ok && !strings.HasPrefix(line, "/*") &&
			!strings.HasPrefix(line, " *") {
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
	run(t, inProcess, "testdata/put.c", []string{"-O2"}, filepath.Join(t.TempDir(), "s"))
}
