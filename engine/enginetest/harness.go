package enginetest

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/mem"
)

// Harness says how to open the engine under test, and what cannot be asked of its ports. The zero
// value of every field but Open is right for most engines.
type Harness struct {
	// Open opens two connected ports inside this process: what one sends the other receives. Their
	// links are up. The suite closes both; Open cleans up what else it needed with t.Cleanup. It is
	// called once or a few times for each check.
	Open func(t testing.TB) Pair
	// Virtual runs each check in a bubble of testing/synctest, where time is virtual.
	Virtual bool
	// Lossy says that packets may be lost on the way although no queue is overloaded, such as by
	// injected faults. Those that are lost must still be counted; none may be repeated, changed or
	// overtaken.
	Lossy bool
	// Silent says that the device drops packets for lack of memory and counts none of them.
	Silent bool
	// Noise says that packets of others may arrive, such as the kernel's own on an interface. They
	// are released and not counted.
	Noise bool
	// LeavesFiles says that a library behind the engine leaves file descriptors open when a port is
	// closed.
	LeavesFiles bool
	// OwnRx says that receive queues use memory of the engine's own: the suite gives them no pools
	// then.
	OwnRx bool
	// MinPacket and MaxPacket are the sizes in bytes of the smallest and the largest packet that
	// gets through. MaxPacket is at most the Capabilities' MaxPacket; 0 takes that, or 9000 where
	// there is no limit.
	MinPacket, MaxPacket int
	// Boundaries are sizes in bytes where the implementation changes its way. Each is probed at -1,
	// 0 and +1.
	Boundaries []int
	// Alone says that the ports reach no other: packets that are sent are dropped there, and
	// receive queues make packets as long as they have memory. The suite asks what does not depend
	// on the way between two ports then: specifications, descriptors, counts, closing.
	Alone bool
	// Window is how many packets of up to 2048 bytes may be under way without loss, and leave while
	// no program receives (Drain); 0 means 32.
	Window int
	// Spread says that several receive queues of a port without rules share its packets; otherwise
	// its first queue gets them all.
	Spread bool
	// Buffered says that much more than RxSpec.Depth may wait elsewhere, such as in a kernel's
	// socket buffer, so that a stalled consumer loses nothing for long: a number of packets of 1024
	// bytes that is certainly too much. 0 means that twice the Depth is.
	Buffered int
	// Rx and Tx change each specification that the suite makes before it is used, nil for nothing:
	// the engine's own options.
	Rx func(*engine.RxSpec)
	Tx func(*engine.TxSpec)
	// Memory is what the suite makes pools of, but those for headers; the zero value is host
	// memory. The CPU reaches it.
	Memory mem.Options
	// Patience is how long nothing may happen before a wait counts as hung; 0 means 30 s. It is no
	// part of any measurement.
	Patience time.Duration

	rounds int // of stress; fewer for engines that are broken on purpose
}

// Pair is two connected ports.
type Pair struct {
	A, B engine.Port
	// Conn is the connection that packets sent from that port must name to reach the other one
	// (burst.Burst.SetConn); nil means 0.
	Conn func(from engine.Port) uint32
	// SetLink takes the link between the ports down or up again; nil where that cannot be done. It
	// returns when both ports know.
	SetLink func(up bool)
}

func (h Harness) defaults() Harness {
	if h.Window == 0 {
		h.Window = 32
	}
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	if h.rounds == 0 {
		h.rounds = testenv.Rounds(2000)
		if testenv.Race || testenv.Invariants {
			h.rounds = min(h.rounds, 300)
		}
	}
	return h
}

// check is one part of the suite.
type check struct {
	name string
	run  func(t testing.TB, h Harness)
}

// checks is the suite, in the order in which it runs: what everything else needs comes first.
var checks = []check{
	{"Sizes", checkSizes},
	{"Order", checkOrder},
	{"Room", checkRoom},
	{"Empty", checkEmpty},
	{"Wake", checkWake},
	{"PingPong", checkPingPong},
	{"Rx", checkRx},
	{"Alloc", checkAlloc},
	{"Reservations", checkReservations},
	{"Unreserved", checkUnreserved},
	{"Headroom", checkHeadroom},
	{"Forward", checkForward},
	{"Split", checkSplit},
	{"Chains", checkChains},
	{"TwoPools", checkTwoPools},
	{"SourceMAC", checkSourceMAC},
	{"SendAt", checkSendAt},
	{"Requests", checkRequests},
	{"Rate", checkRate},
	{"Conn", checkConn},
	{"Refusals", checkRefusals},
	{"TooLong", checkTooLong},
	{"Timestamps", checkTimestamps},
	{"Stats", checkStats},
	{"Drain", checkDrain},
	{"Senders", checkSenders},
	{"QueueIDs", checkQueueIDs},
	{"Queues", checkQueues},
	{"Rules", checkRules},
	{"ComeAndGo", checkComeAndGo},
	{"Exhausted", checkExhausted},
	{"Stalled", checkStalled},
	{"Discard", checkDiscard},
	{"Link", checkLink},
	{"BurstsOut", checkBurstsOut},
	{"CloseWaiting", checkCloseWaiting},
	{"AfterClose", checkAfterClose},
	{"CloseUnderLoad", checkCloseUnderLoad},
	{"Program", checkProgram},
	{"Allocations", checkAllocations},
}

// alone are the checks that make sense for Harness.Alone.
var alone = []string{"Alloc", "Reservations", "Unreserved", "Conn", "Refusals", "Stats", "Drain", "Senders", "QueueIDs",
	"ComeAndGo", "BurstsOut", "AfterClose",
	"CloseUnderLoad", "Allocations"}

// Run tests an engine. Each check is a sub-test, which also fails when a goroutine, a file
// descriptor or packet memory is left.
func Run(t *testing.T, h Harness) {
	h = h.defaults()
	warm(t, h)
	for _, c := range checks {
		if h.Alone && !slices.Contains(alone, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			c.guarded(t, h, func(run func(testing.TB)) {
				if h.Virtual {
					synctest.Test(t, func(t *testing.T) { run(t) })
				} else {
					run(t)
				}
			})
		})
	}
}

// warm opens a pair once: it may start what stays for the life of the process, such as the
// runtime's poller.
func warm(t *testing.T, h Harness) {
	time.AfterFunc(time.Hour, func() {}).Stop()
	open := func(t testing.TB) { scope.Run(t, func(t testing.TB) { newRig(t, h) }) }
	if h.Virtual {
		synctest.Test(t, func(t *testing.T) { open(t) })
	} else {
		open(t)
	}
}

// guarded runs the check by way of in, and looks at what it has left.
func (c check) guarded(t testing.TB, h Harness, in func(run func(testing.TB))) {
	running := goleak.IgnoreCurrent()
	fds := scope.FDs(t)
	in(func(t testing.TB) { scope.Run(t, func(t testing.TB) { c.run(t, h) }) })
	if t.Failed() || t.Skipped() {
		return
	}
	goleak.VerifyNone(t, running)
	n := scope.FDs(t)
	for start := time.Now(); n > fds && !h.LeavesFiles &&
		time.Since(start) < min(h.Patience, 5*time.Second); n = scope.FDs(t) {
		runtime.Gosched() // a goroutine of the engine may be about to close it
	}
	if n > fds && !h.LeavesFiles {
		t.Errorf("%d file descriptors before, %d after everything was closed", fds, n)
	}
}
