package pathtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/transfer/path"
)

// recorder is a testing.TB that only remembers failures, so that a test can demand them.
type recorder struct {
	testing.TB
	ctx context.Context

	mu     sync.Mutex
	failed bool
	log    []string
}

func (r *recorder) note(fail bool, s string) {
	r.mu.Lock()
	r.failed = r.failed || fail
	r.log = append(r.log, s)
	r.mu.Unlock()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return "broken" }
func (r *recorder) Context() context.Context  { return r.ctx }
func (r *recorder) Log(a ...any)              { r.note(false, fmt.Sprint(a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.note(true, fmt.Sprint(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.note(true, "Fail") }
func (r *recorder) FailNow()                  { r.note(true, "FailNow"); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.note(true, fmt.Sprint(a...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)); runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// try runs one check of the suite against a broken path and returns what it complained about.
func try(t *testing.T, c check, f Factory) (failed bool, log string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &recorder{TB: t, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.runChecked(r, f)
	}()
	<-done
	return r.Failed(), strings.Join(r.log, "\n")
}

// TestFlaws shows that the suite can fail: each path here is broken in one way, and the named
// checks must notice, with a complaint that says what is wrong. The last column lists checks that
// must still pass, so that a failure means the flaw and not the harness.
func TestFlaws(t *testing.T) {
	for _, c := range []struct {
		name   string
		flaw   flaw
		fails  []string // checks that must fail
		says   string   // in the first one's complaint
		passes []string
	}{
		{"drops an event", dropsDone, []string{"Sizes", "Window"}, "nothing happened", nil},
		{"reports an end twice", doublesDone, []string{"Sizes", "Window", "Program"}, "EventDone number 2", nil},
		{"forgets the last byte", forgetsLastByte, []string{"Sizes", "Unaligned", "HighOffsets", "Blocks", "Program"}, "is wrong", []string{"Notify"}},
		{"writes after completion", writesLate, []string{"Visible", "Sizes", "Program"}, "is not there yet", []string{"Notify"}},
		{"ignores rights", ignoresRights, []string{"Refusals"}, "succeeded", []string{"Sizes", "Program"}},
		{"loses a wake-up", losesWakeup, []string{"PingPong"}, "no wake-up", []string{"Sizes", "Window"}},
		{"cuts imm to 32 bits", wrongImm, []string{"Notify", "Program"}, "imm", []string{"Sizes"}},
		{"cuts the longest message", truncatesMsg, []string{"Notify"}, "wrong message", []string{"Sizes"}},
		{"writes beyond the destination", writesBeyond, []string{"Sizes", "Blocks", "Program"}, "not to be written", []string{"Notify"}},
		{"leaks places in the window", leaksCredits, []string{"Window"}, "room in the window", []string{"Sizes"}},
		{"cuts offsets to 32 bits", narrowOffsets, []string{"HighOffsets", "Refusals"}, "is wrong", []string{"Sizes", "Program"}},
		{"lets offset + length wrap", boundsOverflow, []string{"Refusals"}, "offset 2^64-1: succeeded", []string{"Sizes", "HighOffsets"}},
		{"completes a fence too early", fenceTooEarly, []string{"FenceRead", "Fence"}, "after the fence", []string{"Sizes"}},
		{"writes after a cancellation", writesAfterCancel, []string{"Cancel", "Program"}, "written afterwards", []string{"Sizes"}},
		{"notifies before the bytes are there", notifiesEarly, []string{"Visible"}, "is not there yet", []string{"Sizes"}},
		{"swaps notifications", swapsNotices, []string{"Notify"}, "out of order", []string{"Sizes", "PingPong"}},
		{"does not tell the peer about Close", silentDown, []string{"PeerGone", "Close", "Wake"}, "no wake-up", nil},
		{"reports the end of the path twice", doubleDown, []string{"Sizes", "Close"}, "after EventDown", nil},
		{"accepts more than the window", exceedsWindow, []string{"Window"}, "accepted before ErrFull", []string{"Sizes"}},
		{"reports wrong byte counts", wrongBytes, []string{"Sizes", "Stats"}, "EventDone says", []string{"Wake"}},
		{"counts wrongly", wrongStats, []string{"Stats"}, "Stats.OpsDone", []string{"Sizes"}},
		{"allocates in Post", allocates, []string{"Allocations"}, "allocations per operation", []string{"Sizes"}},
		{"leaks a file descriptor", leaksFD, []string{"Sizes", "Leaks"}, "file descriptors", nil},
		{"leaks a goroutine", leaksGoroutine, []string{"Sizes", "Leaks"}, "found unexpected goroutines", nil},
		{"dies of a refusal", failureKills, []string{"Refusals"}, "a bad operation and its neighbours", []string{"Sizes"}},
		{"writes after Close", writesAfterClose, []string{"Close"}, "after Close had returned", []string{"Sizes"}},
		{"keeps FD readable", alwaysReadable, []string{"Quiet"}, "does not go quiet", []string{"Sizes", "Window"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := memoryFactory(c.flaw)
			f.rounds = 2000
			f = f.defaults()
			seen := 0
			for _, k := range checks {
				must, mustNot := slices.Contains(c.fails, k.name), slices.Contains(c.passes, k.name)
				// Some flaws make a check hang; a check that must pass gets all the time it needs.
				f.Patience = 300 * time.Millisecond
				if mustNot {
					f.Patience = 20 * time.Second
				}
				if !must && !mustNot {
					continue
				}
				seen++
				failed, log := try(t, k, f)
				// A run need not meet the flaw (a random program has to cancel in the middle of a
				// put, say): another one will.
				for more := 0; must && !failed && more < 40; more++ {
					failed, log = try(t, k, f)
				}
				if must && !failed {
					t.Errorf("check %s did not notice", k.name)
				}
				if mustNot && failed {
					t.Errorf("check %s failed, although it does not look at this:\n%s", k.name, log)
				}
				if k.name == c.fails[0] && failed && !strings.Contains(log, c.says) {
					t.Errorf("check %s did not say %q, but:\n%s", k.name, c.says, log)
				}
			}
			if seen != len(c.fails)+len(c.passes) {
				t.Errorf("%d of %d named checks exist", seen, len(c.fails)+len(c.passes))
			}
		})
	}
	// The same harness finds nothing wrong with the sound path.
	if failed, log := try(t, checks[0], memoryFactory(sound).defaults()); failed {
		t.Errorf("the sound path failed:\n%s", log)
	}
}

var _ path.Path = (*memoryEnd)(nil)
