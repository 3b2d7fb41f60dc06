package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// fakeTB records what happened to it. Skipf and Fatalf end the goroutine, as in package testing.
type fakeTB struct {
	TB
	end      string
	cleanups []func()
	failed   bool
}

func (f *fakeTB) Helper()           {}
func (f *fakeTB) Name() string      { return "TestFake" }
func (f *fakeTB) Failed() bool      { return f.failed }
func (f *fakeTB) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeTB) Errorf(s string, a ...any) {
	f.failed = true
	f.end += "error: " + fmt.Sprintf(s, a...)
}
func (f *fakeTB) Skipf(s string, a ...any) {
	f.end = "skip: " + fmt.Sprintf(s, a...)
	runtime.Goexit()
}
func (f *fakeTB) Fatalf(s string, a ...any) {
	f.end = "fail: " + fmt.Sprintf(s, a...)
	runtime.Goexit()
}

func (f *fakeTB) run(fn func()) {
	var wg sync.WaitGroup
	wg.Go(fn)
	wg.Wait()
	for _, c := range f.cleanups {
		c()
	}
}

func TestMissingSkipsOnALaptopAndFailsInCI(t *testing.T) {
	t.Setenv("PENSTOCK_LAB_LEDGER", "") // these are no real skips
	for _, c := range []struct {
		ci   string
		err  error
		want string
	}{
		{"", errors.New("EPERM"), "skip: needs a thing: EPERM"},
		{"false", errors.New("EPERM"), "skip: needs a thing: EPERM"},
		{"true", errors.New("EPERM"), "fail: needs a thing, which a machine of CI must have: EPERM"},
		{"", nil, "fail: testenv: a thing is said to be missing without a proof"},
		{"true", nil, "fail: testenv: a thing is said to be missing without a proof"},
	} {
		t.Setenv("CI", c.ci)
		var f fakeTB
		f.run(func() { Missing(&f, "a thing", c.err) })
		if f.end != c.want {
			t.Errorf("CI=%q, %v: %q, want %q", c.ci, c.err, f.end, c.want)
		}
	}
}

// LeaveOut skips only in a run that has one of the properties, and refuses what would leave a test
// out of every run.
func TestLeaveOut(t *testing.T) {
	for _, c := range []struct {
		run, in   Build
		why, want string
	}{
		{WithoutInvariants, WithRace, "it allocates", ""},
		{WithoutInvariants, WithRace | WithInvariants, "it allocates", ""},
		{WithoutInvariants | WithRace, WithRace, "it allocates", "skip: left out of this build: it allocates"},
		{WithInvariants, WithRace | WithInvariants, "it allocates", "skip: left out of this build: it allocates"},
		{WithoutInvariants, WithoutInvariants, "about invariants", "skip: left out of this build: about invariants"},
		{WithInvariants, WithoutInvariants, "about invariants", ""},
		{WithoutInvariants | Short, Short, "long", "skip: left out of this build: long"},
		{WithoutInvariants, Short, "long", ""},
		{WithoutInvariants, WithInvariants | WithoutInvariants, "never", "fail: "},
		{WithoutInvariants, 0, "nothing", "fail: "},
		{WithoutInvariants, 1 << 10, "unknown", "fail: "},
		{WithoutInvariants | WithRace, WithRace, "", "fail: "},
	} {
		var f fakeTB
		f.run(func() { leaveOut(&f, c.run, c.in, c.why) })
		if c.want == "" && f.end != "" || !strings.HasPrefix(f.end, c.want) {
			t.Errorf("%#x of %#x, %q: %q, want %q", int(c.in), int(c.run), c.why, f.end, c.want)
		}
	}
	now := here()
	if now&WithRace != 0 != Race || now&WithInvariants != 0 != Invariants || now&WithoutInvariants != 0 == Invariants ||
		now&Short != 0 != testing.Short() {
		t.Errorf("this run is %#x", int(now))
	}
}

// A run makes all rounds of a test that explores, and with -short a tenth of them, but never none.
func TestRounds(t *testing.T) {
	for _, c := range []struct{ n, whole, short int }{{0, 0, 0}, {1, 1, 1}, {10, 10, 1}, {11, 11, 2},
		{1000, 1000, 100}} {
		if w, s := rounds(c.n, WithRace), rounds(c.n, WithRace|Short); w != c.whole || s != c.short {
			t.Errorf("%d rounds: %d, and %d with -short; expected %d and %d", c.n, w, s, c.whole, c.short)
		}
	}
	if want := map[bool]int{false: 10, true: 1}[testing.Short()]; Rounds(10) != want {
		t.Errorf("this run makes %d of 10 rounds, expected %d", Rounds(10), want)
	}
}

func TestToolNamesThePackage(t *testing.T) {
	if _, err := Tool("penstock-no-such-program", "some-package"); err == nil ||
		!strings.Contains(err.Error(), "apt-get install some-package") {
		t.Errorf("error %v does not say what to install", err)
	}
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	if err := os.WriteFile(prog, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if p, err := Tool("prog", "x"); err != nil || p != prog {
		t.Errorf("Tool = %q, %v", p, err)
	}
}

func TestRootHasTheModule(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil || !strings.HasPrefix(string(b), "module github.com/penstock-io/penstock\n") {
		t.Errorf("%s: %q, %v", root, b, err)
	}
	t.Chdir(t.TempDir())
	if _, err := Root(); err == nil || !strings.Contains(err.Error(), "no go.mod") {
		t.Errorf("outside a module: %v", err)
	}
}

func TestCachedBuildsOnce(t *testing.T) {
	t.Setenv("PENSTOCK_LAB_CACHE", t.TempDir())
	var built atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			p, err := Cached("thing", func(tmp string) error {
				built.Add(1)
				return os.WriteFile(tmp, []byte("content"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(p); string(b) != "content" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if n := built.Load(); n != 1 {
		t.Errorf("built %d times", n)
	}
}

func TestCachedForgetsFailures(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PENSTOCK_LAB_CACHE", dir)
	boom := errors.New("boom")
	_, err := Cached("thing", func(tmp string) error {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error %v", err)
	}
	if _, err := Cached("thing", func(string) error { return nil }); err == nil {
		t.Error("a builder that made nothing succeeded")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*thing*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
	for _, key := range []string{"", "a/b", ".hidden", ".."} {
		if _, err := Cached(key, func(string) error { t.Error("built"); return nil }); err == nil {
			t.Errorf("key %q was taken", key)
		}
	}
}

// A builder that is killed leaves nothing that a later one could take for the result, and does not
// block it.
func TestCachedAfterAKilledBuilder(t *testing.T) {
	if os.Getenv("PENSTOCK_TESTENV_DIE") != "" {
		Cached("thing", func(tmp string) error {
			if err := os.WriteFile(tmp, []byte("half"), 0o644); err != nil {
				return err
			}
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		})
		t.Fatal("still alive")
	}
	dir := t.TempDir()
	t.Setenv("PENSTOCK_LAB_CACHE", dir)
	cmd := exec.Command(os.Args[0], "-test.run=^TestCachedAfterAKilledBuilder$")
	cmd.Env = append(os.Environ(), "PENSTOCK_TESTENV_DIE=1")
	out, err := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the builder was not killed: %v\n%s", err, out)
	}
	if half, _ := filepath.Glob(filepath.Join(dir, "building-*")); len(half) != 1 {
		t.Fatalf("the killed builder left %v, expected one half-built file", half)
	}
	p, err := Cached("thing", func(tmp string) error { return os.WriteFile(tmp, []byte("whole"), 0o644) })
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(p); string(b) != "whole" {
		t.Errorf("content %q", b)
	}
	if half, _ := filepath.Glob(filepath.Join(dir, "building-*")); half != nil {
		t.Errorf("left behind: %v", half)
	}
}

func TestHashKnowsBorders(t *testing.T) {
	if Hash("ab", "c") == Hash("a", "bc") || Hash("a") == Hash([]byte("b")) || Hash("a", 1) == Hash("a", 2) {
		t.Error("different parts, one key")
	}
	if Hash("a", []byte("b")) != Hash("a", "b") {
		t.Error("same bytes, different keys")
	}
	dir := t.TempDir()
	f := filepath.Join(dir, "f")
	keys := map[string]bool{}
	for _, content := range []string{"", "x", "y"} {
		if err := os.WriteFile(f, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		k, err := HashFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		keys[k] = true
	}
	if len(keys) != 3 {
		t.Errorf("three contents gave %d keys", len(keys))
	}
	if _, err := HashFiles(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file has a key")
	}
}

func TestCompile(t *testing.T) {
	t.Setenv("PENSTOCK_LAB_CACHE", t.TempDir())
	dir := t.TempDir()
	src, hdr := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.h")
	write := func(p, s string) {
		t.Helper()
		if err := os.WriteFile(p, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(hdr, "#define CODE 7\n")
	write(src, "#include \"a.h\"\nint main(void) { return CODE; }\n")
	code := func() int {
		t.Helper()
		p, err := Compile("prog", []string{src}, "-Wall")
		if err != nil {
			if _, tool := Tool("gcc", "gcc"); tool != nil {
				Missing(t, "a C compiler", tool)
			}
			t.Fatal(err)
		}
		exec.Command(p).Run()
		cmd := exec.Command(p)
		cmd.Run()
		return cmd.ProcessState.ExitCode()
	}
	if c := code(); c != 7 {
		t.Errorf("exit status %d, want 7", c)
	}
	write(hdr, "#define CODE 8\n")
	if c := code(); c != 8 {
		t.Errorf("exit status %d after a change of the header, want 8", c)
	}
	write(src, "int main(void) { return nothing; }\n")
	if _, err := Compile("prog", []string{src}); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a wrong program: %v", err)
	}
	write(src, "int f(void) { return 1; }\n")
	if p, err := Compile("lib", []string{src}, "-shared"); err != nil || !strings.HasSuffix(p, ".so") {
		t.Errorf("library: %q, %v", p, err)
	}
}

func TestLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	t.Setenv("PENSTOCK_LAB_LEDGER", file)
	a, b := &fakeTB{}, &fakeTB{}
	a.run(func() { Record(a, "guest", "net", "2 s"); Record(a, "guest", "net", "3 s") })
	b.run(func() { Record(b, "guest", "rdma", "4 s"); b.failed = true })
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries, err := ReadLedger(f)
	if err != nil {
		t.Fatal(err)
	}
	uses := Uses(entries)
	if len(uses) != 2 || uses[0].What != "net" || uses[0].Passed != 1 || uses[1].What != "rdma" ||
		uses[1].Passed != 0 || uses[1].Failed != 1 {
		t.Errorf("uses %+v", uses)
	}
	if _, err := ReadLedger(strings.NewReader("{}\n{")); err == nil || !strings.Contains(err.Error(), "entry 2") {
		t.Errorf("half an entry: %v", err)
	}
}
