package cudatest

import (
	_ "embed"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/cuda"
	"github.com/penstock-io/penstock/internal/dl"
)

// Kernels is the PTX of the suite's kernels: arguments, increment, remember.
//
//go:embed kernels.ptx
var Kernels []byte

// Harness says which driver is asked.
type Harness struct {
	// Open is the driver, called once for each check.
	Open func(t testing.TB) *cuda.Driver
	// Idle is called when a check has ended and everything of it is closed. nil: no check of what
	// is left.
	Idle func(t testing.TB)
	// Misuse runs f, which makes calls that are wrong on purpose. nil: it is just run.
	Misuse func(f func())
	// Env is what processes that the suite starts need to find the driver, beside the environment.
	Env []string
}

// checks is the suite.
var checks = []struct {
	name string
	run  func(r *rig)
}{
	{"Devices", devices},
	{"Memory", memory},
	{"Pinned", pinnedMemory},
	{"Copies", copies},
	{"Fills", fills},
	{"Events", events},
	{"StreamValues", streamValues},
	{"Modules", modules},
	{"BadModules", badModules},
	{"Arguments", arguments},
	{"Threads", threads},
	{"VirtualMemory", virtualMemory},
	{"DMABuf", dmaBuf},
	{"Flush", flush},
	{"Peers", peers},
	{"Processes", processes},
	{"Lost", lost},
	{"Released", released},
	{"OutOfMemory", outOfMemory},
	{"Allocations", allocations},
}

// Run asks the driver. Each check is a sub-test.
func Run(t *testing.T, h Harness) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if h.Idle != nil {
				t.Cleanup(func() { h.Idle(t) }) // after those of the check
			}
			r := &rig{T: t, h: h, d: h.Open(t)}
			r.dev = must[*cuda.Device](t)(r.d.Device(0))
			r.info = must[cuda.Info](t)(r.dev.Info())
			c.run(r)
		})
	}
}

// rig is a check that runs.
type rig struct {
	*testing.T
	h    Harness
	d    *cuda.Driver
	dev  *cuda.Device
	info cuda.Info
}

func (r *rig) ok(errs ...error) {
	r.Helper()
	if err := errors.Join(errs...); err != nil {
		r.Error(err)
	}
}

// must is a value, or the end of the check.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wants fails unless err is of a kind, where kind is not nil, and has the texts.
func (r *rig) wants(err, kind error, texts ...string) {
	r.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		r.Errorf("%v is not of the kind %v", err, kind)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			r.Errorf("%q does not say %q", err, s)
		}
	}
}

func (r *rig) misuse(f func()) {
	if r.h.Misuse == nil {
		f()
	} else {
		r.h.Misuse(f)
	}
}

// lacks reports whether the card cannot do what a check is about; the check then ends.
func (r *rig) lacks(has bool, what string) bool {
	r.Helper()
	if !has {
		r.Logf("%s (%s) has no %s", r.info.Name, r.info.Bus, what)
	}
	return !has
}

// older reports whether the driver is older than what a check is about, and says so in its error;
// the check then ends.
func (r *rig) older(f cuda.Feature) bool {
	r.Helper()
	err := r.d.Has(f)
	if err != nil {
		r.wants(err, cuda.ErrDriver)
		r.Log(err)
	}
	return err != nil
}

func (r *rig) open() *cuda.Context { return r.openOn(r.dev) }

func (r *rig) openOn(d *cuda.Device) *cuda.Context {
	r.Helper()
	c := must[*cuda.Context](r)(d.Retain())
	r.Cleanup(func() { r.ok(c.Release()) })
	return c
}

func (r *rig) stream(c *cuda.Context) *cuda.Stream {
	r.Helper()
	s := must[*cuda.Stream](r)(c.NewStream(0))
	r.Cleanup(func() { r.ok(s.Synchronize(), s.Close()) })
	return s
}

func (r *rig) alloc(c *cuda.Context, n uint64) cuda.Pointer {
	r.Helper()
	p := must[cuda.Pointer](r)(c.Alloc(n))
	r.Cleanup(func() { r.ok(c.Free(p)) })
	return p
}

func (r *rig) pinned(c *cuda.Context, n int, flags cuda.HostFlags) []byte {
	r.Helper()
	p := must[uintptr](r)(c.AllocHost(uint64(n), flags))
	r.Cleanup(func() { r.ok(c.FreeHost(p)) })
	return dl.Bytes(p, n)
}

func (r *rig) event(c *cuda.Context, o cuda.EventSpec) *cuda.Event {
	r.Helper()
	e := must[*cuda.Event](r)(c.NewEvent(o))
	r.Cleanup(func() { r.ok(e.Close()) })
	return e
}

func (r *rig) module(c *cuda.Context) *cuda.Module {
	r.Helper()
	m, log, err := c.Load(Kernels)
	if err != nil {
		r.Fatal(err, log)
	}
	r.Cleanup(func() { r.ok(m.Close()) })
	return m
}

func (r *rig) launch(m *cuda.Module, name string, sizes ...int) *cuda.Launch {
	r.Helper()
	l := must[*cuda.Launch](r)(must[*cuda.Function](r)(m.Function(name)).NewLaunch(sizes...))
	r.Cleanup(l.Close)
	return l
}

// content is what is in device memory.
func (r *rig) content(c *cuda.Context, p cuda.Pointer, n int) []byte {
	r.Helper()
	b := must[[]byte](r)(dl.Alloc(n))
	defer dl.Free(b)
	r.ok(c.FromDevice(dl.Address(b), p, uint64(n)))
	return slices.Clone(b)
}

// RoleEnv is set in processes that the suite starts; [Child] is what they do.
const RoleEnv = "PENSTOCK_CUDATEST_ROLE"

// Child does what a process was started for, and ends it; it returns where the process is not one
// of the suite's. Programs that run the suite call it first.
func Child() {
	if role := os.Getenv(RoleEnv); role != "" {
		os.Exit(roles[role]())
	}
}

var roles = map[string]func() int{"sharer": sharer, "loser": loser}

// process is this program again, in a role.
func (r *rig) process(role string) *exec.Cmd {
	cmd := exec.CommandContext(r.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), RoleEnv+"="+role, "PENSTOCK_CUDATEST_LIBRARY="+r.d.Path()), r.h.Env...)
	cmd.Stderr = os.Stderr
	return cmd
}
