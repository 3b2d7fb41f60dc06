package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// CI reports whether this run is one that must not skip: the environment variable CI is set and not "false" or "0".
func CI() bool {
	switch os.Getenv("CI") {
	case "", "0", "false":
		return false
	}
	return true
}

// Missing ends a test that needs something which this machine does not have. what names the thing; err is what the attempt to
// use it said, and is the proof: without one the test fails. Outside CI the test is skipped, in CI it fails. Missing does not
// return.
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

// Root is the directory of this module: the first one with a go.mod, from the working directory upwards.
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

// Tool finds a program by name, also in the directories that hold programs for root. The error names the Debian package that
// brings it.
func Tool(name, pkg string) (string, error) {
	p, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(p)
	}
	if !strings.Contains(name, "/") && errors.Is(err, exec.ErrNotFound) {
		for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
			if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("testenv: %w; on Debian: apt-get install %s", err, pkg)
}

// Once skips a test that is mostly the work of other programs (a guest, a browser) in builds with the race detector or with
// invariants: the plain build of the same run has it.
func Once(t TB) {
	t.Helper()
	if Race || Invariants {
		t.Skipf("the plain build runs this test; another build of it would try the same programs again")
	}
}
