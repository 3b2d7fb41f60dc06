package guest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// Environment of a program inside a guest.
const (
	envProfile = "PENSTOCK_GUEST"    // the profile's name
	envID      = "PENSTOCK_GUEST_ID" // 1 or 2, set by init
)

// Test is what Enter needs of *testing.T.
type Test[T any] interface {
	testenv.TB
	Run(name string, f func(t T)) bool
}

// ID is the number of the guest that this process runs in, 1 or 2; 0 outside.
func ID() int {
	if os.Getenv(envProfile) == "" {
		return 0
	}
	id, _ := strconv.Atoi(os.Getenv(envID))
	return id
}

// Enter runs the calling test in a guest. It returns true outside, when the guest has run the test
// and everything that it said is reported: the caller then returns. It returns false inside, where
// the test goes on. It must be the first call of a test.
//
// Logs come as they are printed, subtests when they end. The test fails when the test inside fails,
// when the guest hangs (Spec.Timeout) or dies, and then its kernel log is printed. What is skipped
// inside is skipped outside, and is a failure in CI. Builds with the race detector or with
// invariants skip: the plain build runs the same tests.
func Enter[T Test[T]](t T, s Spec) bool {
	t.Helper()
	if inside := os.Getenv(envProfile); inside != "" {
		if inside != s.Profile.Name {
			t.Fatalf("guest: this guest is of profile %s; expected %s", inside, s.Profile.Name)
		}
		return false
	}
	testenv.Once(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	binary, done, err := testBinary(ctx, s.Linked)
	if err != nil {
		t.Fatalf("guest: no test binary for the guest: %v", err)
	}
	defer done()
	s.Files = append([]File{{binary, "/guest/bin/test"}}, s.Files...)
	s.Env = append([]string{envProfile + "=" + s.Profile.Name, "CI=" + os.Getenv("CI"), "GOTRACEBACK=all"}, s.Env...)
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	argv := []string{"/guest/bin/test", "-test.run=" + pattern(t.Name()), "-test.v=test2json", "-test.count=1",
		"-test.paniconexit0",
		"-test.timeout=" + (s.Timeout * 3 / 4).String(), fmt.Sprintf("-test.short=%t", flagIs("test.short", "true"))}

	var rep *report[T]
	var r Result
	for again := 0; ; again++ {
		rep = newReport(t, max(s.Guests, 1))
		r, err = runReported(ctx, s, argv, rep)
		if err != nil || again == maxAgain || !r.emulator() {
			break
		}
		t.Logf("guest: the emulator's own fault ended the guest (see Verdict.emulator); once more, with all " +
			"tests inside")
	}
	if errors.Is(err, ErrMissing) || errors.Is(err, exec.ErrNotFound) {
		testenv.Missing(t, "a guest", err)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	testenv.Record(t, "guest", s.Profile.Name, r.String())
	rep.finish(r)
	t.Logf("guest %s: %s", s.Profile.Name, r)
	return true
}

// runReported runs the guests and gives their lines to the report, in the calling goroutine.
func runReported[T Test[T]](ctx context.Context, s Spec, argv []string, rep *report[T]) (r Result, err error) {
	rep.t.Helper()
	type line struct {
		id   int
		text string
	}
	lines := make(chan line)
	go func() {
		defer close(lines)
		r, err = Run(ctx, s, argv, func(id int, text string) { lines <- line{id, text} })
	}()
	for l := range lines {
		rep.line(l.id, l.text)
	}
	return r, err
}

// pattern selects exactly one test, and those subtests that the caller's own -run asks for.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	if f := flag.Lookup("test.run"); f != nil {
		if asked := strings.Split(f.Value.String(), "/"); len(asked) > len(parts) {
			parts = append(parts, asked[len(parts):]...)
		}
	}
	return strings.Join(parts, "/")
}

func flagIs(name, value string) bool {
	f := flag.Lookup(name)
	return f != nil && f.Value.String() == value
}

// testBinary is a test binary of the package whose test runs: this process's own if it is static or
// linked says that it need not be, or a static one built for the purpose, which stays locked until
// done.
func testBinary(ctx context.Context, linked bool) (file string, done func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	if static, err := isStatic(self); err != nil || static || linked {
		return self, func() {}, err
	}
	tool, err := testenv.Tool("go", "golang")
	if err != nil {
		return "", nil, err
	}
	dir, err := os.Getwd() // go test runs a test in the directory of its package
	if err != nil {
		return "", nil, err
	}
	cache, err := testenv.CacheDir()
	if err != nil {
		return "", nil, err
	}
	// The go command finds out by itself whether a binary is current, so it keeps its place.
	name := "guest-test-" + testenv.Hash(dir)
	unlock, err := testenv.Lock(name)
	if err != nil {
		return "", nil, err
	}
	file, err = buildTest(ctx, tool, dir, filepath.Join(cache, name))
	if err != nil {
		unlock()
		return "", nil, err
	}
	return file, unlock, nil
}

// buildTest builds the test binary of the package in dir into a directory of the cache.
func buildTest(ctx context.Context, tool, dir, into string) (string, error) {
	tmp := filepath.Join(into, "tmp") // what a killed go command leaves is in a place where the next run removes it
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755)); err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	file := filepath.Join(into, filepath.Base(dir)+".test")
	cmd := exec.CommandContext(ctx, tool, "test", "-c", "-o", file, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTMPDIR="+tmp)
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	wait, err := sys.StartTied(cmd)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return "", fmt.Errorf("CGO_ENABLED=0 go test -c in %s: %w\n%s", dir, err, said.String())
	}
	return file, nil
}

// A report tells the test outside what the test inside says.
type report[T Test[T]] struct {
	t      T
	trees  []*testTree
	single bool
}

func newReport[T Test[T]](t T, guests int) *report[T] {
	r := &report[T]{t: t, single: guests == 1}
	for range guests {
		r.trees = append(r.trees, newTree())
	}
	return r
}

// line takes a line of a guest: what the test itself says is passed on at once, a subtest when it
// has ended.
func (r *report[T]) line(id int, text string) {
	r.t.Helper()
	tree := r.trees[id-1]
	for _, e := range tree.line(text) {
		switch {
		case e.action == actLog && (e.test == r.t.Name() || e.test == ""):
			if e.test == "" && (e.text == "" || e.text == "PASS" || e.text == "FAIL") {
				continue
			}
			r.t.Logf("%s%s", r.prefix(id), strings.TrimPrefix(e.text, "    "))
		case e.action != actLog && e.action != actRun:
			if top := tree.nodes[r.t.Name()]; top != nil {
				for _, n := range top.children {
					if n.name == e.test {
						r.subtest(r.t, id, r.t.Name(), n)
					}
				}
			}
		}
	}
}

func (r *report[T]) prefix(id int) string {
	if r.single {
		return ""
	}
	return fmt.Sprintf("guest %d: ", id)
}

// subtest makes a subtest outside of one inside, with those below it.
func (r *report[T]) subtest(t T, id int, parent string, n *node) {
	if n.reported {
		return
	}
	n.reported = true
	name := strings.TrimPrefix(n.name, parent+"/")
	if !r.single && parent == r.t.Name() {
		name += fmt.Sprintf("@guest%d", id)
	}
	t.Run(name, func(t T) {
		t.Helper()
		for _, l := range n.lines {
			t.Logf("%s", strings.TrimPrefix(l, "    "))
		}
		for _, c := range n.children {
			r.subtest(t, id, n.name, c)
		}
		if n.took != "" {
			t.Logf("%s inside", n.took)
		}
		switch n.verdict {
		case actFail:
			if !t.Failed() {
				t.Errorf("failed inside the guest")
			}
		case actSkip:
			skip(t)
		case actRun, actLog:
			t.Errorf("did not end inside the guest")
		}
	})
}

// errSkipped is the proof of a test that was skipped inside: its log has the guest's own.
var errSkipped = errors.New("skipped inside the guest")

// skip passes a skip on.
func skip(t testenv.TB) {
	t.Helper()
	testenv.Missing(t, "what the test names inside the guest", errSkipped)
}

// finish gives the verdict.
func (r *report[T]) finish(res Result) {
	r.t.Helper()
	skipped := false
	failed := func(v Verdict, format string, args ...any) {
		r.t.Helper()
		r.t.Errorf("%s%s", r.prefix(v.ID), fmt.Sprintf(format, args...))
	}
	for _, v := range res.Guests {
		before := r.t.Failed()
		tree := r.trees[v.ID-1]
		top := tree.nodes[r.t.Name()]
		if top != nil && !v.Off {
			for _, n := range top.children {
				r.subtest(r.t, v.ID, r.t.Name(), n)
			}
		}
		switch {
		case v.Err != nil:
			failed(v, "%v", v.Err)
		case v.Off:
		case top == nil:
			failed(v, "the test %s did not run inside (exit status %d)", r.t.Name(), v.Exit)
		case top.verdict == actFail:
			failed(v, "failed inside the guest")
		case top.verdict != actPass && top.verdict != actSkip:
			failed(v, "%s did not end inside the guest (exit status %d)", r.t.Name(), v.Exit)
		case v.Exit != 0:
			failed(v, "exit status %d although the test ended well", v.Exit)
		case top.verdict == actSkip:
			skipped = true
		}
		if r.t.Failed() && (!before || v.Err != nil || v.Exit != 0) {
			r.t.Logf("%sthe guest's console:\n%s\nTo run this test alone: %s", r.prefix(v.ID),
				strings.TrimSpace(v.Console), rerun(r.t.Name()))
		}
	}
	if skipped && !r.t.Failed() {
		r.t.Logf("guest: %s", res)
		skip(r.t)
	}
}

// rerun is the command that runs one test again.
func rerun(name string) string {
	pkg := "."
	if root, err := testenv.Root(); err == nil {
		if dir, err := os.Getwd(); err == nil {
			if rel, err := filepath.Rel(root, dir); err == nil {
				pkg = "./" + filepath.ToSlash(rel)
			}
		}
	}
	top, _, _ := strings.Cut(name, "/")
	return fmt.Sprintf("CGO_ENABLED=0 go test -count=1 -v -run '^%s$' %s", top, pkg)
}
