package gputest

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
)

// Harness says how to open the runtime under test, and what cannot be asked of it. The zero value
// of every field but Open is right for most.
type Harness struct {
	// Open opens the runtime; the suite closes it. It is called once or a few times for each check,
	// and gives the same devices each time.
	Open func(t testing.TB) *gpu.Runtime
	// NoKernels says that launches are taken but nothing is computed (a driver without a device):
	// results are not looked at.
	NoKernels bool
	// Block puts work into s that is not done before release is called, which may be called twice.
	// nil: kernels.Hold, where the device can.
	Block func(t testing.TB, s *gpu.Stream) (release func())
	// Lose makes the device of the context lost, at the latest when something waits for it. nil: it
	// cannot be done.
	Lose func(t testing.TB, c *gpu.Context)
	// Small says that all memory of the device may be allocated without harm to the machine, and
	// that nothing else uses it: what is free is known to the byte.
	Small bool
	// Discrete says that the devices have memory of their own, so that all of it may be allocated
	// without harm to the machine. The driver and other programs may keep some of it.
	Discrete bool
	// Idle is called after each check, when everything is closed: what the library says is left.
	// nil: it says nothing.
	Idle func(t testing.TB)

	device int // the one under test
	rounds int // of work with random choices
}

func (h Harness) defaults() Harness {
	if h.rounds == 0 {
		h.rounds = 300
		if testenv.Race || testenv.Invariants {
			h.rounds = 80
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
	{"Info", checkInfo},
	{"Alloc", checkAlloc},
	{"AllocRefused", checkAllocRefused},
	{"WriteRead", checkWriteRead},
	{"Copy", checkCopy},
	{"Fill", checkFill},
	{"Order", checkOrder},
	{"Batch", checkBatch},
	{"Refused", checkRefused},
	{"Events", checkEvents},
	{"Elapsed", checkElapsed},
	{"AcrossStreams", checkAcrossStreams},
	{"Blocked", checkBlocked},
	{"BlockedWait", checkBlockedWait},
	{"BlockedRead", checkBlockedRead},
	{"BlockedSet", checkBlockedSet},
	{"BrokenOff", checkBrokenOff},
	{"Programs", checkPrograms},
	{"Arguments", checkArguments},
	{"Kernels", checkKernels},
	{"Set", checkSet},
	{"Grids", checkGrids},
	{"Resident", checkResident},
	{"ResidentBatch", checkResidentBatch},
	{"ResidentHolds", checkResidentHolds},
	{"ResidentStuck", checkResidentStuck},
	{"ResidentLost", checkResidentLost},
	{"Adopt", checkAdopt},
	{"Peer", checkPeer},
	{"Exports", checkExports},
	{"OutOfMemory", checkOutOfMemory},
	{"Lost", checkLost},
	{"Closed", checkClosed},
	{"InUse", checkInUse},
	{"Random", checkRandom},
	{"Together", checkTogether},
	{"ComeAndGo", checkComeAndGo},
	{"Allocations", checkAllocations},
}

// Run tests a runtime on each of its devices. Each check is a sub-test, which also fails when an
// object, a goroutine or a file descriptor is left.
func Run(t *testing.T, h Harness) {
	h = h.defaults()
	warm()
	n := 0
	scope.Run(t, func(t testing.TB) { // and what the library starts once for the process is started
		rt := open(t, h)
		n = len(rt.Devices())
		for h.device = range n {
			newRig(t, rt, h)
		}
	})
	for h.device = range n {
		run := func(t *testing.T) {
			for _, c := range checks {
				t.Run(c.name, func(t *testing.T) { c.guarded(t, h) })
			}
		}
		if n == 1 {
			run(t)
		} else {
			t.Run("device"+string(rune('0'+h.device%10)), run)
		}
	}
}

// warm starts what Go itself starts once for the process: its poller, with descriptors of its own,
// comes with the first timer.
func warm() { time.AfterFunc(time.Hour, func() {}).Stop() }

// guarded runs the check and looks at what it has left.
func (c check) guarded(t testing.TB, h Harness) {
	if scope.Guarded(t, func(t testing.TB) { c.run(t, h) }) && h.Idle != nil {
		h.Idle(t)
	}
}

// instrumented says that this build allocates for its own checks.
const instrumented = testenv.Race || testenv.Invariants
