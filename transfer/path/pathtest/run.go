package pathtest

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// Factory makes connected paths of one implementation.
type Factory struct {
	// New connects two ends inside this process: a's operations reach b's exports and the other way
	// round. The suite closes both; New cleans up what else it needed with t.Cleanup.
	New func(t testing.TB, a, b setup.Config) (pa, pb path.Path)
	// Boundaries are sizes in bytes where the implementation changes its way: frames, inline
	// limits, stripes, buffers. Each is probed at -1, 0 and +1.
	Boundaries []int
	// Large is the size in bytes of an operation that one Post and one Poll cannot finish; 0 means
	// 16 MiB.
	Large int
	// Verifies says that with -tags invariants the path looks after itself with means that
	// allocate: its own counts are compared after each call, or a mem.RegCache remembers who took
	// each registration. Allocations are not counted in such builds.
	Verifies bool
	// NoSparse says that the path cannot serve an export of which only a few pages exist.
	NoSparse bool
	// Patience is how long nothing may happen before a wait counts as hung; 0 means 20 s. It is no
	// part of any measurement.
	Patience time.Duration

	// Checks are the names of those that run; nil means all. It is for emulated machines, where all
	// of them take too long.
	Checks []string

	rounds int // of ping-pong; fewer for paths that are broken on purpose
}

func (f Factory) defaults() Factory {
	if f.Large == 0 {
		f.Large = 16 << 20
	}
	if f.Patience == 0 {
		f.Patience = 20 * time.Second
	}
	if f.rounds == 0 {
		f.rounds = testenv.Rounds(20_000)
	}
	return f
}

type check struct {
	name string
	run  func(t testing.TB, f Factory)
}

// checks is the suite, in the order in which it runs: what everything else needs comes first.
var checks = []check{
	{"Sizes", checkSizes},
	{"Unaligned", checkUnaligned},
	{"HighOffsets", checkHighOffsets},
	{"Blocks", checkBlocks},
	{"PartOfRegion", checkPartOfRegion},
	{"Empty", checkEmpty},
	{"Window", checkWindow},
	{"Notify", checkNotify},
	{"Visible", checkVisible},
	{"Refusals", checkRefusals},
	{"Cancel", checkCancel},
	{"Fence", checkFence},
	{"FenceRead", checkFenceRead},
	{"Close", checkClose},
	{"CloseDelivers", checkCloseDelivers},
	{"PeerGone", checkPeerGone},
	{"Quiet", checkQuiet},
	{"Wake", checkWake},
	{"Immediate", checkImmediate},
	{"PingPong", checkPingPong},
	{"Stats", checkStats},
	{"Leaks", checkLeaks},
	{"Allocations", checkAllocations},
	{"Program", checkProgram},
}

// Run tests a path. Every sub-test also checks that it leaves no goroutine and no file descriptor
// behind, that every accepted operation ended exactly once, and that EventDown was the last event.
func Run(t *testing.T, f Factory) {
	f = f.defaults()
	// The first pair may start what stays for the life of the process, such as the runtime's
	// poller.
	scope.Run(t, func(t testing.TB) { newPair(t, f) })
	for _, name := range f.Checks {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			t.Fatalf("pathtest: no check %q", name)
		}
	}
	for _, c := range checks {
		if f.Checks == nil || slices.Contains(f.Checks, c.name) {
			t.Run(c.name, func(t *testing.T) { c.runChecked(t, f) })
		}
	}
}

func (c check) runChecked(t testing.TB, f Factory) {
	time.AfterFunc(time.Hour, func() {}).Stop() // the first timer of a process opens descriptors of the runtime
	scope.Guarded(t, func(t testing.TB) { c.run(t, f) })
}

// SeedEnv is the environment variable that makes the random program run one given seed, as printed
// by a failure.
const SeedEnv = "PENSTOCK_PATHTEST_SEED"

func seeds(t testing.TB) []uint64 {
	if v := os.Getenv(SeedEnv); v != "" {
		s, err := strconv.ParseUint(v, 0, 64)
		if err != nil {
			t.Fatalf("%s=%q: expected a number: %v", SeedEnv, v, err)
		}
		return []uint64{s}
	}
	now := uint64(time.Now().UnixNano())
	if testing.Short() { // make nightly tries the others
		return []uint64{1, now}
	}
	return []uint64{1, 2, 3, now}
}
