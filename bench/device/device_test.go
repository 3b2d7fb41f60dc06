package device

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/gpu/opencl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/peers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small is a run of a second or so.
func small(t testing.TB, open func() (*gpu.Runtime, error)) Options {
	return Options{Table: gpu.Table{{Name: "test", Open: open}}, Sizes: []uint64{100, 300 << 10}, Total: 1 << 20,
		Pairs: 2, Samples: 2, Budget: 200 * time.Microsecond,
		Conditions: bench.Conditions{Seed: 7, Progress: func(l string) { t.Log(l) }}}
}

func openHost() (*gpu.Runtime, error) { return host.Open(host.Options{}) }

// TestHost runs everything on the runtime that is always there.
func TestHost(t *testing.T) { everything(t, small(t, openHost)) }

// TestPoCL runs everything on the CPU as an OpenCL device.
func TestPoCL(t *testing.T) {
	name := peers.PoCL(t)
	everything(t, small(t, func() (*gpu.Runtime, error) { return opencl.Open(opencl.Options{Platform: name}) }))
}

func everything(t *testing.T, o Options) {
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := r.Write(&file); err != nil {
		t.Fatal(err)
	}
	if _, err := paired.Read(&file); err != nil {
		t.Error(err)
	}
	names := map[string]*paired.Row{}
	for i := range r.Rows {
		names[r.Rows[i].Name] = &r.Rows[i]
	}
	for _, want := range []string{"h2d pageable 100 B", "d2h pageable 300 KiB", "h2d pinned 300 KiB",
		"d2h pinned 100 B", "h2d mapped 300 KiB", "d2h mapped 300 KiB",
		"both ways pinned 300 KiB", "d2d copy 300 KiB", "d2d kernel 100 B", "h2d kernel, mapped 300 KiB",
		"d2h kernel, mapped 300 KiB"} {
		x := names[want]
		if x == nil {
			t.Errorf("no row %q", want)
			continue
		}
		verified := 2 * x.Size // of two samples
		if x.What == bothWays {
			verified *= 2
		}
		if x.Ours.Verified != verified || x.Ceiling == nil || x.Ceiling.Enforced {
			t.Errorf("%s: %d bytes verified, expected %d; ceiling %+v", want, x.Ours.Verified, verified, x.Ceiling)
		}
	}
	for name, verified := range map[string]uint64{"pipeline h2d 1 MiB, 2 slots of 64 KiB": 2 << 20,
		"pipeline h2d 1 MiB, 4 slots of 16 KiB": 2 << 20, "staged h2d 1 MiB, 4 slots of 16 KiB, 1 core copy": 2 << 20,
		"staged d2h 1 MiB, 4 slots of 16 KiB, 1 core copy": 2 << 20,
		"pipeline d2h 1 MiB, 2 slots of 64 KiB":            4 * 64 << 10,
		"pipeline d2h 1 MiB, 4 slots of 16 KiB":            8 * 16 << 10} {
		x := names[name]
		if x == nil {
			t.Errorf("no row %q", name)
			continue
		}
		if last := x.Theirs[len(x.Theirs)-1]; x.Ours.Verified != verified || last.Name != "one pinned copy" ||
			last.Verified != 2<<20 || last.Ratio == nil {
			t.Errorf("%s: %d bytes verified, expected %d; beside it %+v", name, x.Ours.Verified, verified, last)
		}
	}
	for _, name := range []string{"launch of one item, seen", "launch of one item, waited for",
		"Enqueue of 64 launches, a launch", "Enqueue of 64 launches, seen, a launch"} {
		x := names[name]
		if x == nil || x.Ours.Verified != 16 || x.Latency == nil || x.Cost == nil {
			t.Errorf("%s: %+v", name, x)
			continue
		}
		// Nothing is allocated by launches in batches, but by the test's other goroutines
		// meanwhile, and by builds that check themselves.
		if x.Blocks == perBatch && x.Cost.Allocs > 0.1 && !testenv.Race && !testenv.Invariants {
			t.Errorf("%s: %v allocations", name, x.Cost.Allocs)
		}
	}
	if x := names["reorder int16 to f16, batch of 1 MiB, packets of 8 KiB"]; x == nil || x.Ours.Verified != 2<<20 ||
		len(x.Theirs) != 1 || x.Theirs[0].Verified != 2<<20 || x.Theirs[0].Ratio == nil {
		t.Errorf("batches: %+v", x)
	}
	for _, name := range []string{"reorder, burst of 64 packets of 64 B, launched and released", "event recorded, seen",
		"query of an event that happened", "allocate and free device memory, 4 KiB",
		"allocate and free pinned memory, 4 KiB"} {
		if names[name] == nil {
			t.Errorf("no row %q", name)
		}
	}
	if r.Bench != "gpu" || !strings.Contains(r.Machine.Accelerator, r.Rows[0].Path+" 0: ") {
		t.Errorf("bench %q on %q, rows of %q", r.Bench, r.Machine.Accelerator, r.Rows[0].Path)
	}
	if !slices.IsSortedFunc(r.Rows[:2], func(a, b paired.Row) int { return int(a.Size) - int(b.Size) }) {
		t.Error("sizes are not in order")
	}
}

// A device that is wrong is found: each flaw in a row of its kind.
func TestWrongBytes(t *testing.T) {
	for name, flaw := range map[string]flaw{
		"a copy that does nothing":       {skip: 5},
		"a copy that leaves out an end":  {short: true},
		"a launch that computes nothing": {noLaunch: true},
		"a write that does nothing":      {noWrite: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Run(t.Context(), small(t, func() (*gpu.Runtime, error) {
				d, err := host.Driver(host.Options{})
				if err != nil {
					return nil, err
				}
				return gpu.New(&flawed{d, flaw})
			}))
			if !errors.Is(err, paired.ErrFailed) || !strings.Contains(err.Error(), "wrong") &&
				!strings.Contains(err.Error(), "the kernel has left") {
				t.Errorf("%v, %d rows", err, len(r.Rows))
			}
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Sizes: []uint64{}}, {Sizes: []uint64{8}}, {Sizes: []uint64{1 << 50}}, {Total: 1000},
		{Total: 1 << 50}, {Pairs: -1}, {Samples: -1}, {Budget: -1}} {
		if r, err := Run(t.Context(), o); !errors.Is(err, ErrOptions) || r != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := Run(t.Context(), Options{Runtime: "steam"}); !errors.Is(err, gpu.ErrArgument) {
		t.Errorf("a runtime that is not in the table: %v", err)
	}
	for _, n := range []int{-1, 1} {
		o := small(t, openHost)
		o.Device = n
		if _, err := Run(t.Context(), o); !errors.Is(err, gpu.ErrUnavailable) ||
			!strings.Contains(err.Error(), "it has 1") {
			t.Errorf("device %d: %v", n, err)
		}
	}
}

// What was taken instead of what is said, and what has no room is missing and not measured.
func TestInstead(t *testing.T) {
	o := small(t, func() (*gpu.Runtime, error) { return host.Open(host.Options{Memory: 16 << 20}) })
	o.Table = append(gpu.Table{{Name: "steam", Open: func() (*gpu.Runtime, error) {
		return nil, gpu.ErrUnavailable
	}}}, o.Table...)
	o.Sizes = []uint64{1000, 4 << 20}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.Join(r.Notes, "\n"); !strings.Contains(s, "host, because steam: ") {
		t.Errorf("notes: %s", s)
	}
	if len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "copies of 4 MiB") {
		t.Errorf("missing: %q", r.Missing)
	}
	for _, x := range r.Rows {
		if x.Size == 4<<20 {
			t.Errorf("%s was measured", x.Name)
		}
	}
}

// A run that is cancelled ends with what it has, whatever is under way.
func TestCancelled(t *testing.T) {
	for _, at := range []string{"h2d pinned 100 B", "pipeline h2d 1 MiB, 2 slots of 64 KiB", "launch of one item, seen",
		"event recorded, seen"} {
		ctx, cancel := context.WithCancel(t.Context())
		o := small(t, openHost)
		o.Progress = func(l string) {
			if l == at {
				cancel()
			}
		}
		r, err := Run(ctx, o)
		if !errors.Is(err, context.Canceled) || len(r.Rows) == 0 && at != "h2d pinned 100 B" {
			t.Errorf("%s: %v", at, err)
		}
		cancel()
	}
}

func TestPattern(t *testing.T) {
	b := make([]byte, 3*grain+5)
	pattern(b, 9)
	if err := verify(b, 9, 0); err != nil {
		t.Error(err)
	}
	if err := verify(b[grain-3:], 9, grain-3); err != nil {
		t.Error(err)
	}
	if verify(b, 8, 0) == nil || verify(b[1:], 9, 0) == nil {
		t.Error("another pattern passed")
	}
	b[2*grain+1] ^= 1
	if err := verify(b, 9, 0); !errors.Is(err, paired.ErrFailed) || !strings.Contains(err.Error(), "byte 2097153 of") {
		t.Error(err)
	}
}

// flaw is what is wrong with a device.
type flaw struct {
	skip     int  // every so many copies do nothing
	short    bool // copies leave out their last byte
	noLaunch bool
	noWrite  bool
}

type flawed struct {
	driver.Runtime
	flaw
}

func (r *flawed) Devices() (out []driver.Device) {
	for _, d := range r.Runtime.Devices() {
		out = append(out, &flawedDevice{d, r.flaw})
	}
	return out
}

type flawedDevice struct {
	driver.Device
	flaw
}

// Info has less than the device: what is put in front of it has only the methods that every runtime
// has.
func (d *flawedDevice) Info() driver.Info {
	f := d.Device.Info()
	for _, c := range []driver.Capability{driver.CapAdopt, driver.CapPeer} {
		f.Capabilities[c] = driver.Support{Why: "a test's"}
	}
	return f
}

func (d *flawedDevice) Open() (driver.Context, error) {
	c, err := d.Device.Open()
	return &flawedContext{c, d.flaw}, err
}

type flawedContext struct {
	driver.Context
	flaw
}

func (c *flawedContext) NewStream(o driver.StreamSpec) (driver.Stream, error) {
	s, err := c.Context.NewStream(o)
	return &flawedStream{Stream: s, flaw: c.flaw}, err
}

type flawedStream struct {
	driver.Stream
	flaw
	copies int
}

func (s *flawedStream) Copy(dst driver.Memory, dstOff uint64, src driver.Memory, srcOff, n uint64) error {
	if s.copies++; s.skip > 0 && s.copies%s.skip != 0 {
		return nil
	}
	if s.short {
		n--
	}
	return s.Stream.Copy(dst, dstOff, src, srcOff, n)
}

func (s *flawedStream) Launch(c driver.Call, g driver.Grid) error {
	if s.noLaunch {
		return nil
	}
	return s.Stream.Launch(c, g)
}

func (s *flawedStream) Write(dst driver.Memory, off uint64, src []byte) error {
	if s.noWrite {
		return nil
	}
	return s.Stream.Write(dst, off, src)
}
