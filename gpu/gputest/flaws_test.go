package gputest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
)

func TestMain(m *testing.M) {
	warm()
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// trial is a testing.TB that only remembers failures, so that others can study them.
type trial struct {
	testing.TB
	ctx context.Context

	mu      sync.Mutex
	failed  bool
	skipped bool
	log     []string
}

// try runs f, which may fail without failing t. It returns when f and its cleanups have ended.
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
func (r *trial) Context() context.Context  { return r.ctx }
func (r *trial) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *trial) Error(a ...any)            { r.note(true, fmt.Sprint(a...)) }
func (r *trial) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *trial) Fatal(a ...any)            { r.note(true, fmt.Sprint(a...)); runtime.Goexit() }
func (r *trial) Fatalf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *trial) Skip(a ...any)             { r.skip(fmt.Sprint(a...)) }
func (r *trial) Skipf(f string, a ...any)  { r.skip(fmt.Sprintf(f, a...)) }
func (r *trial) Failed() bool              { r.mu.Lock(); defer r.mu.Unlock(); return r.failed }
func (r *trial) Skipped() bool             { r.mu.Lock(); defer r.mu.Unlock(); return r.skipped }
func (r *trial) skip(why string) {
	r.note(false, why)
	r.mu.Lock()
	r.skipped = true
	r.mu.Unlock()
	runtime.Goexit()
}

// tryCheck runs one check of the suite on a flawed runtime and returns what it complained about.
func tryCheck(t *testing.T, name string, f flaw) (failed bool, log string) {
	t.Helper()
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	h := Harness{Small: true, Open: func(t testing.TB) *gpu.Runtime {
		d, err := host.Driver(host.Options{Memory: 64 << 20, Devices: 2})
		if err != nil {
			t.Fatal(err)
		}
		rt, err := gpu.New(&flawedRuntime{d, f})
		if err != nil {
			t.Fatal(err)
		}
		return rt
	}, Lose: func(t testing.TB, c *gpu.Context) {
		p := &gpu.Program{Name: "fault", Kernels: []gpu.Signature{{Name: "fault"}},
			Go: map[string]gpu.GoFunc{"fault": func(gpu.Grid, []gpu.GoArg) {
				panic("a fault")
			}}}
		r := &rig{TB: t, c: c, loaded: map[*gpu.Program]*gpu.Module{}}
		s := r.stream()
		r.ok(s.Launch(r.call(p), gpu.Grid{Groups: 1, Group: 1}))
		s.Wait(always)
	}}
	done := make(chan *trial, 1)
	go func() { done <- try(t, func(t testing.TB) { checks[i].guarded(t, h.defaults()) }) }()
	select {
	case r := <-done:
		endLeft()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.skipped {
			t.Fatalf("check %s was skipped: %s", name, r.log)
		}
		return r.failed, strings.Join(r.log, "\n")
	case <-time.After(2 * time.Minute):
		t.Fatalf("check %s hangs", name)
		return
	}
}

// TestFlaws shows that the suite can fail: each runtime here is broken in one way, and the named
// checks must notice, with a complaint that says what is wrong. The last column has checks that
// must still pass, so that a failure means the flaw and not the harness.
func TestFlaws(t *testing.T) {
	if testenv.Invariants {
		// The checks of that build find some of the flaws, such as work that is not done, before
		// the suite does, and with other words.
		testenv.Once(t)
	}
	for _, c := range []struct {
		name   string
		flaw   flaw
		fails  []string
		says   string
		passes []string
	}{
		{"has more for one allocation than there is", changesInfo, []string{"Info"}, "more for one allocation", []string{"Copy"}},
		{"gives addresses that are not aligned", misaligns, []string{"Alloc"}, "aligned", []string{"Copy"}},
		{"hides memory from the CPU", hidesBytes, []string{"Alloc"}, "the CPU sees 0", []string{"Order"}},
		{"copies short", copiesShort, []string{"Copy", "Random"}, "bytes are wrong", []string{"Fill", "Order"}},
		{"copies beyond the end", copiesBeside, []string{"Copy"}, "bytes are wrong", []string{"Fill"}},
		{"fills short", fillsShort, []string{"Fill"}, "bytes are wrong", []string{"Copy"}},
		{"fills with half a pattern", fillsOtherWidth, []string{"Fill"}, "bytes are wrong", []string{"Copy"}},
		{"does work in another order", swapsWork, []string{"Order"}, "bytes are wrong", []string{"WriteRead"}},
		{"leaves work out", dropsWork, []string{"Order"}, "bytes are wrong", []string{"WriteRead"}},
		{"ignores events of other streams", ignoresEvents, []string{"Blocked"}, "although it is held", []string{"Order", "Events"}},
		{"lets events happen early", happensEarly, []string{"Blocked", "BlockedWait"}, "although it is held", []string{"Order"}},
		{"does not wait for streams", waitsNot, []string{"BlockedWait"}, "returns before", []string{"WriteRead"}},
		{"does not wait for events", eventWaitsNot, []string{"BlockedWait"}, "returns before", []string{"WriteRead"}},
		{"reads at once", readsAtOnce, []string{"BlockedRead"}, "bytes are wrong", []string{"Alloc"}},
		{"writes at once", writesAtOnce, []string{"BlockedRead"}, "bytes are wrong", []string{"Alloc"}},
		{"sets no argument", setsNothing, []string{"Set", "BlockedSet", "Random"}, "bytes are wrong", []string{"Copy", "Kernels"}},
		{"does not launch", launchesNot, []string{"Kernels", "Set", "Grids"}, "bytes are wrong", []string{"Copy", "BlockedWait"}},
		{"launches twice", launchesTwice, []string{"Kernels"}, "bytes are wrong", []string{"Copy"}},
		{"measures time backwards", timesBackwards, []string{"Elapsed"}, "from a to b", []string{"Events"}},
		{"takes any program", takesAnyProgram, []string{"Programs"}, "got error <nil>", []string{"Kernels"}},
		{"has no type for a lack of memory", plainOutOfMemory, []string{"OutOfMemory"}, "out of accelerator memory", []string{"Alloc"}},
		{"does not give memory back", losesMemory, []string{"OutOfMemory"}, "cannot be had", []string{"Info"}},
		{"forgets that the device is lost", workNotLost, []string{"Lost"}, "accelerator lost", []string{"Copy"}},
		{"leaks a goroutine", leaksGoroutine, []string{"Order"}, "found unexpected goroutines", []string{"Info"}},
		{"leaks a descriptor", leaksDescriptor, []string{"Order"}, "file descriptors", []string{"Info"}},
		{"copies nothing between devices", copiesPeerNot, []string{"Peer"}, "bytes are wrong", []string{"Copy"}},
		{"adopts a copy", adoptsCopy, []string{"Adopt"}, "adopted", []string{"Copy"}},
		{"keeps no kernel", fitsNothing, []string{"Resident"}, "not one group fits", []string{"ResidentBatch"}},
		{"fills wrongly now and then", mixesUnderLoad, []string{"Random", "Together"}, "bytes are wrong", []string{"Copy"}},
		{"allocates", allocates, []string{"Allocations"}, "allocations for", []string{"Copy"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range c.fails {
				if name == "Allocations" && instrumented {
					continue
				}
				failed, log := tryCheck(t, name, c.flaw)
				if !failed {
					t.Errorf("check %s does not notice: %s", name, log)
				} else if name == c.fails[0] && !strings.Contains(log, c.says) {
					t.Errorf("check %s says\n%s\nexpected it to say %q", name, log, c.says)
				}
			}
			for _, name := range c.passes {
				if failed, log := tryCheck(t, name, c.flaw); failed {
					t.Errorf("check %s fails too: %s", name, log)
				}
			}
		})
	}
}
