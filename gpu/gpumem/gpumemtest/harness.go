package gpumemtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/gpumem"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/scope"
	"github.com/penstock-io/penstock/mem"
)

// Harness says how to open the runtime, and what cannot be asked of it. The zero value of every
// field but Open is right for most.
type Harness struct {
	// Open opens the runtime; the suite closes it. It is called for each check, and gives the same
	// devices each time.
	Open func(t testing.TB) *gpu.Runtime
	// Options are those of every Provider of the suite.
	Options gpumem.Options
	// Lose makes the device of the context lost, at the latest when something waits for it. nil: it
	// cannot be done.
	Lose func(t testing.TB, c *gpu.Context)
	// Importer says that this program's TestMain calls Child, so that the suite can start it as
	// another process with these variables added to its environment.
	Importer []string
	// Idle is called after each check, when everything is closed. nil: there is nothing to look at.
	Idle func(t testing.TB)

	device int
}

type check struct {
	name string
	run  func(r *rig)
}

// checks is the suite; what everything else needs comes first.
var checks = []check{
	{"Device", checkDevice},
	{"Pinned", checkPinned},
	{"Refused", checkRefused},
	{"Moves", checkMoves},
	{"Model", checkModel},
	{"Together", checkTogether},
	{"Dropped", checkDropped},
	{"Broken", checkBroken},
	{"Others", checkOthers},
	{"Pool", checkPool},
	{"Allocator", checkAllocator},
	{"RegCache", checkRegCache},
	{"Adopt", checkAdopt},
	{"Address", checkAddress},
	{"DMABuf", checkDMABuf},
	{"Export", checkExport},
	{"Process", checkProcess},
	{"InUse", checkInUse},
	{"Lost", checkLost},
	{"Allocations", checkAllocations},
}

// Run runs the suite on each device of the runtime.
func Run(t *testing.T, h Harness) {
	time.AfterFunc(time.Hour, func() {}).Stop() // Go's poller, with descriptors of its own, comes with the first timer
	n := 0
	scope.Run(t, func(t testing.TB) { // what the library starts once for the process is started
		n = len(newRig(t, h).rt.Devices())
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
			t.Run(fmt.Sprintf("device%d", h.device), run)
		}
	}
}

// guarded runs a check and looks at what it has left.
func (c check) guarded(t testing.TB, h Harness) {
	before := len(mem.LeakReport())
	if !scope.Guarded(t, func(t testing.TB) { c.run(newRig(t, h)) }) {
		return
	}
	if ls := mem.LeakReport(); len(ls) > before {
		t.Errorf("memory is left:\n%s", ls)
	}
	if h.Idle != nil {
		h.Idle(t)
	}
}

// instrumented says that this build allocates for its own checks.
const instrumented = testenv.Race || testenv.Invariants

// rig is a Provider on the device under test, and short ways to use it that fail the test.
type rig struct {
	testing.TB
	h    Harness
	rt   *gpu.Runtime
	c    *gpu.Context
	info gpu.Info
	p    *gpumem.Provider
}

func newRig(t testing.TB, h Harness) *rig {
	t.Helper()
	r := &rig{TB: t, h: h, rt: h.Open(t)}
	r.closeLater(r.rt)
	d := r.rt.Devices()[h.device]
	r.info = d.Info()
	r.c = must(d.Open())(r)
	r.closeLater(r.c)
	r.p = r.provider(h.Options)
	return r
}

func (r *rig) provider(o gpumem.Options) *gpumem.Provider {
	r.Helper()
	p := must(gpumem.New(r.c, o))(r)
	r.closeLater(p)
	return p
}

func (r *rig) has(c gpu.Capability) bool { return r.info.Capabilities.Has(c) }

// opaque says that the CPU does not see device memory, so that its regions have a Mover.
func (r *rig) opaque() bool { return r.h.Options.Opaque || !r.has(gpu.CapDeviceBytes) }

func (r *rig) closeLater(c interface{ Close() error }) {
	r.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.Errorf("close: %v", err)
		}
	})
}

func (r *rig) alloc(k mem.Kind, size int) *mem.Region {
	r.Helper()
	x := must(mem.Alloc(mem.Options{Name: k.String(), Kind: k, Size: size, Provider: r.p}))(r)
	r.closeLater(x)
	return x
}

// host is memory that the runtime knows nothing of.
func (r *rig) host(size int) *mem.Region {
	r.Helper()
	x := must(mem.Alloc(mem.Options{Name: "other", Size: size}))(r)
	r.closeLater(x)
	return x
}

// bytes are those of a region, which is leased as long as the check runs.
func (r *rig) bytes(x *mem.Region) []byte {
	r.Helper()
	l := must(x.Lease())(r)
	r.Cleanup(func() { l.Release() })
	return l.Bytes()
}

func (r *rig) ok(errs ...error) {
	if err := errors.Join(errs...); err != nil {
		r.Helper()
		r.Fatal(err)
	}
}

// is fails unless err wraps want.
func (r *rig) is(what string, err, want error) {
	if !errors.Is(err, want) {
		r.Helper()
		r.Errorf("%s: got error %v, expected one that wraps %q", what, err, want)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return v
	}
}
