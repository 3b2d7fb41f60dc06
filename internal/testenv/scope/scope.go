// Package scope lets one test look at what a part of it leaves behind: that part runs with cleanups of its own.
package scope

import (
	"context"
	"os"
	"testing"
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

// Run runs f and then its cleanups, also when f ends the test. The context that f sees ends before them.
func Run(t testing.TB, f func(t testing.TB)) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &scope{TB: t, ctx: ctx}
	defer s.close()
	defer cancel()
	f(s)
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
