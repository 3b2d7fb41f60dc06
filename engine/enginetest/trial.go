package enginetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
)

// trial is a testing.TB that only remembers failures, so that others can demand or study them.
type trial struct {
	testing.TB
	ctx context.Context

	mu     sync.Mutex
	failed bool
	log    []string
}

// try runs f, which may fail without failing t, in a goroutine of its own. It returns when f and
// its cleanups have ended.
func try(t testing.TB, f func(t testing.TB)) *trial {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &trial{TB: t, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil { // builds with invariants find some mistakes before a check does
				r.note(true, fmt.Sprint("panic: ", p))
			}
		}()
		scope.Run(r, f)
	}()
	<-done
	return r
}

func (r *trial) note(fail bool, s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.log = append(r.log, s)
}

func (r *trial) Helper()                   {}
func (r *trial) Name() string              { return r.TB.Name() + " (trial)" }
func (r *trial) Context() context.Context  { return r.ctx }
func (r *trial) Log(a ...any)              { r.note(false, fmt.Sprint(a...)) }
func (r *trial) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *trial) Error(a ...any)            { r.note(true, fmt.Sprint(a...)) }
func (r *trial) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *trial) Fail()                     { r.note(true, "Fail") }
func (r *trial) FailNow()                  { r.note(true, "FailNow"); runtime.Goexit() }
func (r *trial) Fatal(a ...any)            { r.note(true, fmt.Sprint(a...)); runtime.Goexit() }
func (r *trial) Fatalf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *trial) Skipped() bool             { return false }

func (r *trial) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// text is what was logged.
func (r *trial) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}
