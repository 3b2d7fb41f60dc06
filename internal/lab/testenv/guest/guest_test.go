package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// envInside tells TestInside what to do.
const envInside = "PENSTOCK_TEST_INSIDE"

// TestInside is what the tests of this file run in guests. By itself, outside, it has nothing to
// do.
func TestInside(t *testing.T) {
	switch os.Getenv(envInside) {
	case "verdicts":
		fmt.Println("printed, not logged")
		t.Log("id", ID())
		t.Run("good", func(t *testing.T) { t.Log("from good") })
		t.Run("bad", func(t *testing.T) {
			t.Run("deep", func(t *testing.T) { t.Error("from deep") })
			t.Run("fine", func(t *testing.T) {})
		})
		t.Run("left out", func(t *testing.T) { testenv.Missing(t, "something", errors.New("from left out")) })
		t.Run("panics", func(t *testing.T) { panic("from panics") })
	case "emulator":
		t.Log(exec.Command("/bin/sh", "-c", dieOfEmulator).Run())
		select {}
	case "hang":
		fmt.Println("hanging")
		select {}
	case "enter":
		// The harness of TestGuestEndsWithItsProcess: a process that boots a guest and is killed.
		fake := newFake("TestInside")
		t.Log(Enter(fake, Spec{Profile: Numa, Env: []string{envInside + "=hang"}}))
	}
}

// A fake is a test that may fail.
type fake struct {
	name string
	mu   sync.Mutex
	log  []string
	subs []*fake
	fail bool
	skip bool
	end  []func()
}

func newFake(name string) *fake { return &fake{name: name} }

func (f *fake) Helper()          {}
func (f *fake) Name() string     { return f.name }
func (f *fake) Failed() bool     { return f.fail }
func (f *fake) Cleanup(g func()) { f.end = append(f.end, g) }
func (f *fake) Logf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
	if os.Getenv(envInside) == "enter" {
		fmt.Println(f.log[len(f.log)-1])
	}
}
func (f *fake) Errorf(format string, args ...any) {
	f.fail = true
	f.Logf(format, args...)
}
func (f *fake) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
func (f *fake) Skipf(format string, args ...any) {
	f.skip = true
	f.Logf(format, args...)
	runtime.Goexit()
}
func (f *fake) Run(name string, g func(*fake)) bool {
	sub := newFake(f.name + "/" + strings.ReplaceAll(name, " ", "_"))
	f.subs = append(f.subs, sub)
	sub.do(g)
	f.fail = f.fail || sub.fail
	return !sub.fail
}

// do runs g as a test.
func (f *fake) do(g func(*fake)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g(f)
	}()
	<-done
}

func (f *fake) text() string { return strings.Join(f.log, "\n") }

// sub finds a subtest.
func (f *fake) sub(t *testing.T, name string) *fake {
	t.Helper()
	for _, s := range f.subs {
		if s.name == f.name+"/"+name {
			return s
		}
	}
	t.Fatalf("%s has no subtest %q; log:\n%s", f.name, name, f.text())
	return nil
}

// skipUnlessGuests skips where Enter would.
func skipUnlessGuests(t *testing.T) {
	t.Helper()
	testenv.Once(t)
	for tool, pkg := range map[string]string{"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static"} {
		if _, err := testenv.Tool(tool, pkg); err != nil {
			testenv.Missing(t, "a guest", err)
		}
	}
	if _, err := findKernel(t.Context(), false); err != nil {
		testenv.Missing(t, "a guest's kernel", err)
	}
}

// has reports a missing piece of text.
func has(t *testing.T, what, text string, pieces ...string) {
	t.Helper()
	for _, p := range pieces {
		if !strings.Contains(text, p) {
			t.Errorf("%s: no %q in:\n%s", what, p, text)
		}
	}
}

func TestGuestVerdicts(t *testing.T) {
	skipUnlessGuests(t)
	t.Setenv("CI", "")
	f := newFake("TestInside")
	f.do(func(f *fake) { Enter(f, Spec{Profile: Numa, Env: []string{envInside + "=verdicts"}}) })
	if !f.fail || f.skip {
		t.Errorf("failed %v, skipped %v; expected a failure", f.fail, f.skip)
	}
	has(t, "test", f.text(), "printed, not logged", "guest_test.go:", "id 1", "failed inside the guest", "console:",
		"go test -count=1 -v -run '^TestInside$' ./internal/lab/testenv/guest")
	if good := f.sub(t, "good"); good.fail || good.skip {
		t.Errorf("good: failed %v, skipped %v", good.fail, good.skip)
	} else {
		has(t, "good", good.text(), "from good")
	}
	bad := f.sub(t, "bad")
	if deep := bad.sub(t, "deep"); !deep.fail || !bad.fail {
		t.Errorf("bad %v, deep %v: expected both to fail", bad.fail, deep.fail)
	} else {
		has(t, "deep", deep.text(), "from deep")
	}
	if fine := bad.sub(t, "fine"); fine.fail {
		t.Errorf("fine failed: %s", fine.text())
	}
	if left := f.sub(t, "left_out"); !left.skip {
		t.Error("the skip inside is none outside")
	}
	if panics := f.sub(t, "panics"); !panics.fail || !strings.Contains(f.text()+panics.text(), "panic: from panics") {
		t.Errorf("panics: failed %v\n%s\n%s", panics.fail, panics.text(), f.text())
	}
	if len(f.subs) != 4 {
		t.Errorf("%d subtests, want 4", len(f.subs))
	}
}

// TestGuestCommand runs a program of the host that needs libraries.
func TestGuestCommand(t *testing.T) {
	skipUnlessGuests(t)
	env, err := testenv.Tool("env", "coreutils")
	if err != nil {
		testenv.Missing(t, "env", err)
	}
	var out strings.Builder
	exit, err := RunCommand(t.Context(), Spec{Profile: Numa, Env: []string{"A=it's"}},
		[]string{env, "B=b", "sh", "-c", "echo $A $B; ls /guest/bin; exit 3"}, &out)
	if err != nil || exit != 3 || out.String() != "it's b\nenv\n" {
		t.Errorf("exit status %d, %v, output:\n%s", exit, err, out.String())
	}
}

// TestGuestHang: a guest that does not end is killed.
func TestGuestHang(t *testing.T) {
	skipUnlessGuests(t)
	var got []string
	r, err := Run(t.Context(), Spec{Profile: Numa, Timeout: 5 * time.Second},
		[]string{"sh", "-c", "echo begun; sleep 1000"},
		func(_ int, line string) { got = append(got, line) })
	if err != nil {
		t.Fatal(err)
	}
	if r.OK() || r.Guests[0].Err == nil || !strings.Contains(r.Guests[0].Err.Error(), "longer than 5s") {
		t.Errorf("a hanging guest ended with %v", r.Guests[0].Err)
	}
	if text := strings.Join(got, "\n"); r.Guests[0].Boot > 0 && !strings.Contains(text, "begun") {
		t.Errorf("its output is lost: %q", text)
	}
}

// TestGuestEndsWithItsProcess kills a process that has booted a guest, and looks for what is left.
func TestGuestEndsWithItsProcess(t *testing.T) {
	skipUnlessGuests(t)
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestInside$", "-test.v")
	cmd.Env = append(os.Environ(), envInside+"=enter", "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	wait, err := sys.StartTied(cmd)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	hanging := false
	for s := bufio.NewScanner(out); s.Scan(); {
		fmt.Fprintln(&said, s.Text())
		if strings.Contains(s.Text(), "hanging") {
			hanging = true
			break
		}
	}
	if !hanging {
		wait()
		t.Fatalf("the guest never got to hang:\n%s", said.String())
	}
	before := descendants(t, cmd.Process.Pid)
	if len(before) == 0 {
		t.Fatal("no qemu below the process")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait()
	// The kernel kills qemu when its parent is dead; when qemu is gone is its own affair, so it is
	// waited for.
	deadline := time.Now().Add(time.Minute)
	for _, pid := range before {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d lives on", pid)
			}
			time.Sleep(10 * time.Millisecond) // there is no event for the end of another process's child
		}
	}
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// descendants are the children of a process.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that ended
		}
		for s := range strings.FieldsSeq(string(b)) {
			var n int
			fmt.Sscan(s, &n)
			out = append(out, n)
		}
	}
	return out
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}

// TestEmulatorFault: what a kernel says when the emulator killed it, and what it says when it died
// of something else.
func TestEmulatorFault(t *testing.T) {
	for console, want := range map[string]bool{
		"[    3.303794] Oops: int3: 0000 [#1] SMP NOPTI\n[    3.311152] Code: 53 66 <90> e8": true,
		"[   14.220938] RIP: 0010:__text_poke+0x29c/0x400":                                   true,
		"[    1.5] int3: 0000 [#1] PREEMPT SMP NOPTI":                                        true,
		"[    9.1] sysrq: Trigger a crash\n[    9.2] Kernel panic - not syncing":             false,
		"[    9.1] Oops: general protection fault: 0000 [#1] SMP":                            false,
	} {
		died := Verdict{Exit: -1, Err: fmt.Errorf("guest 1: %w", errNoVerdict), Console: console}
		if died.emulator() != want {
			t.Errorf("%q: of the emulator %v, want %v", console, !want, want)
		}
		if (Verdict{Console: console}).emulator() ||
			(Verdict{Exit: 1, Err: errors.New("it was killed"), Console: console}).emulator() {
			t.Errorf("%q: a guest that ended, or was killed, is taken for one that died of the emulator", console)
		}
	}
}

// dieOfEmulator is a shell's way to end a guest as the emulator's fault does, as far as the lab
// sees it.
const dieOfEmulator = "echo 'Oops: int3: 0000 [#1]' >/dev/console; sleep 1; reboot -f"

// TestGuestBootsAgain: such guests are booted once more, but not for ever, and others are not.
func TestGuestBootsAgain(t *testing.T) {
	skipUnlessGuests(t)
	if r, err := Run(t.Context(), Spec{Profile: Numa}, []string{"sh", "-c", "reboot -f"},
		func(int, string) {}); err != nil || r.Again != 0 || r.OK() {
		t.Errorf("a guest that ended without a word: %v, %v; expected one boot and an error", r, err)
	}
	t.Setenv("CI", "")
	f := newFake("TestInside")
	f.do(func(f *fake) { Enter(f, Spec{Profile: Numa, Env: []string{envInside + "=emulator"}}) })
	if n := strings.Count(f.text(), "once more"); n != maxAgain || !f.fail {
		t.Errorf("a test was run once more %d times, failed %v; expected %d and a failure:\n%s", n, f.fail, maxAgain,
			f.text())
	}
}

// TestGuestStuck: a pair of which one does not come to its program is booted again, whatever the
// other has printed.
func TestGuestStuck(t *testing.T) {
	skipUnlessGuests(t)
	stuck := Profile{Name: "stuck", CPUs: 1, Memory: 256, Link: NIC{Model: "e1000e"},
		Setup: "if grep -q penstock.id=2 /proc/cmdline; then sleep 1000; fi"}
	s := Spec{Profile: stuck, Guests: 2, patience: 8 * time.Second}
	r, err := Run(t.Context(), s, []string{"echo", "begun"}, func(id int, line string) {
		t.Errorf("guest %d: line %q", id, line)
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Again != maxAgain || r.OK() || !r.emulator() {
		t.Errorf("booted %d times more (%v); expected %d and an error", r.Again, r.Guests, maxAgain)
	}
}

// TestGuestPowersOff: a guest that was to lose its power may end without a word, and no other way;
// whose program ends instead has failed.
func TestGuestPowersOff(t *testing.T) {
	skipUnlessGuests(t)
	run := func(program string) Verdict {
		t.Helper()
		r, err := Run(t.Context(), Spec{Profile: Numa, PowersOff: 1}, []string{"sh", "-c", program},
			func(int, string) {})
		if err != nil {
			t.Fatal(err)
		}
		return r.Guests[0]
	}
	if v := run("echo b >/proc/sysrq-trigger"); !v.Off || v.Err != nil || v.Exit != 0 {
		t.Errorf("a guest without power: %+v", v)
	}
	if v := run("exit 0"); v.Off || v.Err == nil || !strings.Contains(v.Err.Error(), "PowerOff") {
		t.Errorf("a guest that goes on: %+v", v)
	}
	if err := PowerOff(); err == nil || ID() != 0 {
		t.Errorf("this machine: %v", err)
	}
}

// TestPowered: what counts as having lost its power.
func TestPowered(t *testing.T) {
	gone := fmt.Errorf("guest 1: %w", errNoVerdict)
	for what, c := range map[string]struct {
		v   Verdict
		off bool
	}{
		"in its program": {Verdict{Exit: -1, Err: gone, Boot: time.Second}, true},
		"before it":      {Verdict{Exit: -1, Err: gone}, false},
		"killed":         {Verdict{Exit: -1, Err: errors.New("it was killed"), Boot: time.Second}, false},
		"the emulator's fault": {Verdict{Exit: -1, Err: gone, Boot: time.Second, Console: "Oops: int3: 0000 [#1]"},
			false},
		"its program ended":      {Verdict{Boot: time.Second}, false},
		"its program had failed": {Verdict{Exit: 1, Boot: time.Second}, false},
	} {
		if c.v.powered(); c.v.Off != c.off || (c.v.Err == nil) != c.off || (c.v.Exit == 0) != c.off {
			t.Errorf("%s: %+v", what, c.v)
		}
	}
	if _, err := Run(t.Context(), Spec{Profile: Rdma, Guests: 2, PowersOff: 3}, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "up to 2") {
		t.Errorf("a third guest of two: %v", err)
	}
}
