// Package scope runs a part of a test with cleanups of its own, so that the test sees what that
// part leaves behind.
package scope

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// scope is a testing.TB with its own cleanups and context.
type scope struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (s *scope) Cleanup(f func())         { s.cleanups = append(s.cleanups, f) }
func (s *scope) Context() context.Context { return s.ctx }

func (s *scope) close() {
	for len(s.cleanups) > 0 {
		last := len(s.cleanups) - 1
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		f()
	}
}

// Run runs f and then its cleanups, also when f ends the test. The context that f sees ends before
// them.
func Run(t testing.TB, f func(t testing.TB)) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &scope{TB: t, ctx: ctx}
	defer s.close()
	defer cancel()
	f(s)
}

// Guarded is Run, after which the test fails when a goroutine or a file descriptor is left. It
// reports whether nothing is, and says nothing of parts that failed or were skipped.
func Guarded(t testing.TB, f func(t testing.TB)) bool {
	t.Helper()
	running := goleak.IgnoreCurrent()
	fds := FDs(t)
	Run(t, f)
	if t.Failed() || t.Skipped() {
		return false
	}
	goleak.VerifyNone(t, running)
	n := FDs(t)
	for start := time.Now(); n > fds && time.Since(start) < 5*time.Second; n = FDs(t) {
		runtime.Gosched() // a thread of a library may be about to close it
	}
	if n > fds {
		t.Errorf("%d file descriptors before, %d after everything was closed", fds, n)
	}
	return !t.Failed()
}

// FDs is how many file descriptors this process has open, the one that looks included.
func FDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
