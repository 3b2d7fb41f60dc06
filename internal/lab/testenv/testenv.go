package testenv

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-io/penstock/internal/sys"
)

// TB is the part of *testing.T that the lab needs.
type TB interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// CI reports whether this run is one that must not skip: the environment variable CI is set and not
// "false" or "0".
func CI() bool {
	switch os.Getenv("CI") {
	case "", "0", "false":
		return false
	}
	return true
}

// Card reports whether tests that run on each runtime also run on an NVIDIA card:
// PENSTOCK_TEST_CARD is set. A card is then an error to lack.
func Card() bool { return os.Getenv("PENSTOCK_TEST_CARD") != "" }

// Missing ends a test that needs something which this machine does not have. what names the thing;
// err is what the attempt to use it said, and is the proof: without one the test fails. Outside CI
// the test is skipped, in CI it fails. Missing does not return.
func Missing(t TB, what string, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("testenv: %s is said to be missing without a proof", what)
		return
	}
	if CI() {
		t.Fatalf("needs %s, which a machine of CI must have: %v", what, err)
		return
	}
	Record(t, "skip", what, err.Error())
	t.Skipf("needs %s: %v", what, err)
}

// Root is the directory of this module: the first one with a go.mod, from the working directory
// upwards.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("testenv: no go.mod in %s or above it: run this inside a checkout", start)
		}
	}
}

// Tool is [sys.Program] for tests and the lab.
func Tool(name, pkg string) (string, error) { return sys.Program(name, pkg) }

// A Build is a property of this test binary or of its run, which [LeaveOut] looks up itself.
// Several are joined by |.
type Build int

const (
	WithRace          Build = 1 << iota // built with the race detector
	WithInvariants                      // built with -tags invariants
	WithoutInvariants                   // built without them
	Short                               // run with -test.short
)

// here is what this run is.
func here() Build {
	b := WithoutInvariants
	if Invariants {
		b = WithInvariants
	}
	if Race {
		b |= WithRace
	}
	if f := flag.Lookup("test.short"); f != nil && f.Value.String() == "true" {
		b |= Short
	}
	return b
}

// Rounds is how many of n rounds, seeds or points a test that explores runs: all n, or a tenth of
// them with -short, at least one.
func Rounds(n int) int { return rounds(n, here()) }

func rounds(n int, run Build) int {
	if run&Short == 0 {
		return n
	}
	return (n + 9) / 10
}

// LeaveOut skips a test, for the reason why, when this run has one of the properties. It returns
// when the run has none of them. A test that no run could have, because it leaves out builds with
// invariants and those without, fails.
func LeaveOut(t TB, in Build, why string) {
	t.Helper()
	leaveOut(t, here(), in, why)
}

func leaveOut(t TB, run, in Build, why string) {
	t.Helper()
	switch {
	case in&(WithInvariants|WithoutInvariants) == WithInvariants|WithoutInvariants || in <= 0 || in >= Short<<1 ||
		why == "":
		t.Fatalf("testenv: LeaveOut(%#x, %q): expected builds that leave the test to others, and a reason", int(in),
			why)
	case run&in != 0:
		t.Skipf("left out of this build: %s", why)
	}
}

// Once leaves a test that is mostly the work of other programs (a guest, a browser) to the plain
// build of the same run.
func Once(t TB) {
	t.Helper()
	LeaveOut(t, WithRace|WithInvariants,
		"the plain build runs this test; another build of it would try the same programs again")
}
