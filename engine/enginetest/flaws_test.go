package enginetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// tryCheck runs one check of the suite and returns what it complained about.
func tryCheck(t *testing.T, name string, h Harness) (failed bool, log string) {
	t.Helper()
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no check %q", name)
	}
	done := make(chan *trial, 1)
	go func() {
		done <- try(t, func(t testing.TB) { checks[i].guarded(t, h.defaults(), func(run func(testing.TB)) { run(t) }) })
	}()
	select {
	case r := <-done:
		return r.Failed(), r.text()
	case <-time.After(60 * time.Second):
		t.Fatalf("check %s hangs", name)
		return
	}
}

// hanging are the flaws that make a check wait until its deadline.
var hanging = []flaw{losesUncounted, waitsInTryRecv, forgetsWake, keepsFirstWaker, leaksOnClose, leaksSlots,
	leaksDescriptor}

// TestFlaws shows that the suite can fail: each engine here is broken in one way, and the named
// checks must notice, the first with a complaint that says what is wrong. The last column lists
// checks that must still pass, so that a failure means the flaw and not the harness.
func TestFlaws(t *testing.T) {
	for _, c := range []struct {
		name   string
		flaw   flaw
		open   func(testing.TB) Pair
		fails  []string
		says   string
		passes []string
	}{
		{"loses a packet silently", losesSilently, simulated, []string{"Order", "Senders", "Program"}, "lost without a trace", []string{"Sizes", "Alloc"}},
		{"does not count what it drops", losesUncounted, simulated, []string{"Stalled", "Exhausted"}, "counted as a drop", []string{"Order"}},
		{"releases twice", releasesTwice, simulated, []string{"Order", "Stats"}, "released twice", []string{"Alloc"}},
		{"waits in TryRecv", waitsInTryRecv, simulated, []string{"Empty"}, "a queue never waits", []string{"QueueIDs"}},
		{"forgets a wake-up", forgetsWake, simulated, []string{"PingPong"}, "no wake-up", []string{"Alloc"}},
		{"wakes the Waker of an earlier Arm", keepsFirstWaker, simulated, []string{"Wake"}, "no Wake", []string{"Sizes", "Order"}},
		{"leaks on close", leaksOnClose, simulated, []string{"CloseWaiting"}, "slots of pool", []string{"Sizes", "Order"}},
		{"leaks slots", leaksSlots, simulated, []string{"Order", "Stats"}, "slots of pool", []string{"Empty"}},
		{"reorders", reorders, simulated, []string{"Order"}, "out of order", []string{"Sizes"}},
		{"delivers twice", repeats, simulated, []string{"Order", "Program"}, "twice", []string{"Sizes"}},
		{"counts under the wrong reason", wrongReason, simulated, []string{"Discard"}, "DropFlushed", []string{"Order", "Stalled"}},
		{"changes a bit", corrupts, simulated, []string{"Order", "Program"}, "its bytes have changed", []string{"Empty"}},
		{"cuts off a byte", shortens, simulated, []string{"Order"}, "only", []string{"Empty"}},
		{"loses a bit of a stream", corrupts, overTCP, []string{"Order"}, "checksum", []string{"Empty"}},
		{"loses descriptors of an Alloc without memory", losesReservations, simulated, []string{"Alloc"}, "no descriptor free", []string{"Order"}},
		{"says the wrong thing about a short Alloc", wrongAllocError, simulated, []string{"Alloc", "Reservations"}, "expected 8", []string{"Order"}},
		{"accepts an id twice", acceptsDuplicates, simulated, []string{"QueueIDs"}, "expected a refusal", []string{"Order"}},
		{"counts wrongly", countsWrong, simulated, []string{"Stats"}, "RxStats", []string{"Order"}},
		{"splits in the wrong place", splitsWrong, simulated, []string{"Split"}, "expected", []string{"Order"}},
		{"takes times of another epoch", wrongEpoch, simulated, []string{"Timestamps"}, "another epoch", []string{"Order"}},
		{"keeps a burst that it refused", keepsUnreserved, simulated, []string{"Unreserved"}, "expected engine.ErrUnreserved", []string{"Order"}},
		{"leaves packets in the burst", keepsAfterSend, simulated, []string{"Order"}, "after Send the burst still holds", []string{"Empty"}},
		{"forgets that it is closed", forgetsItIsClosed, simulated, []string{"AfterClose"}, "expected engine.ErrClosed", []string{"Order"}},
		{"allocates", allocates, simulated, []string{"Allocations"}, "allocations for each burst", []string{"Order"}},
		{"leaks a goroutine", leaksGoroutine, simulated, []string{"Order"}, "found unexpected goroutines", nil},
		{"leaks a descriptor", leaksDescriptor, simulated, []string{"Order"}, "file descriptors", nil},
		{"leaves the source address", keepsSourceMAC, simulated, []string{"SourceMAC"}, "expected the port's own", []string{"Order"}},
		{"ignores rules", ignoresRule, simulated, []string{"Rules"}, "came to queues [0]", []string{"Order", "Queues"}},
		{"applies half a batch of rules", halfBatch, simulated, []string{"Rules"}, "a batch that was refused", []string{"Order"}},
		{"forgets what rules counted", forgetsRuleCounts, simulated, []string{"Rules"}, "after Close", []string{"Order"}},
		{"has one descriptor too many", oneTooMany, simulated, []string{"Alloc", "Reservations"}, "expected", []string{"Order"}},
		{"copies what it forwards", copiesForwarded, simulated, []string{"Forward"}, "ZeroCopyForward", []string{"Order"}},
		{"takes what it cannot do", takesAnything, simulated, []string{"Refusals"}, "RxSpec.Conn", []string{"Order"}},
		{"binds a queue to any connection", takesAnything, overTCP, []string{"Conn"}, "RxSpec.Conn of no connection", []string{"Order"}},
		{"ignores a rate", ignoresRate, simulated, []string{"Rate"}, "expected at least", []string{"Order"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer leaked.stop()
			for _, name := range slices.Concat(c.fails, c.passes) {
				if (name == "Allocations" || name == "Rate") && (testenv.Race || testenv.Invariants) {
					continue // such builds allocate, and are slow
				}
				must := slices.Contains(c.fails, name)
				h := broken(c.flaw, c.open)
				h.rounds = 300
				if must && (slices.Contains(hanging, c.flaw) || name == "Program") {
					h.Patience = 300 * time.Millisecond // the others get all the time they need
				}
				failed, log := tryCheck(t, name, h)
				// A run need not meet the flaw (one that forgets a wake-up has to sleep at that
				// moment): another one will.
				for more := 0; must && !failed && more < 40; more++ {
					failed, log = tryCheck(t, name, h)
				}
				switch {
				case must && !failed:
					t.Errorf("check %s did not notice", name)
				case !must && failed:
					t.Errorf("check %s failed, although it does not look at this:\n%s", name, log)
				case name == c.fails[0] && !strings.Contains(log, c.says) && !testenv.Invariants:
					t.Errorf("check %s did not say %q, but:\n%s", name, c.says, log)
				}
			}
		})
	}
}
