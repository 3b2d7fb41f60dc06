package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/gpu/driver"
	"github.com/penstock-io/penstock/gpu/host"
	"github.com/penstock-io/penstock/internal/kernels"
	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// TestMain fails the run when a test left a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var always = context.Background()

// desk is a context of the host with what most tests use. It is all closed at the end.
type desk struct {
	t *testing.T
	c *gpu.Context
	s *gpu.Stream
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	rt, err := host.Open(host.Options{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t}
	d.later(rt.Close)
	if d.c, err = rt.Devices()[0].Open(); err != nil {
		t.Fatal(err)
	}
	d.later(d.c.Close)
	d.s = d.stream()
	return d
}

func (d *desk) later(f func() error) {
	d.t.Cleanup(func() {
		if err := f(); err != nil {
			d.t.Error(err)
		}
	})
}

func (d *desk) ok(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) stream() *gpu.Stream {
	s, err := d.c.NewStream(gpu.StreamOptions{})
	d.ok(err)
	d.later(s.Close)
	return s
}

func (d *desk) alloc() *gpu.Memory {
	m, err := d.c.Alloc(gpu.MemoryOptions{Name: "weights", Size: 4096})
	d.ok(err)
	d.later(m.Close)
	return m
}

func (d *desk) event() *gpu.Event {
	e, err := d.c.NewEvent(gpu.EventOptions{})
	d.ok(err)
	d.later(e.Close)
	return e
}

func (d *desk) call(m *gpu.Memory) (*gpu.Module, *gpu.Call) {
	mod, err := d.c.Load(kernels.Fill)
	d.ok(err)
	d.later(mod.Close)
	k, err := mod.Kernel("fill")
	d.ok(err)
	c, err := k.Prepare(gpu.Buffer(m.All()), gpu.U64(0), gpu.U64(64), gpu.U64(7))
	d.ok(err)
	d.later(c.Close)
	return mod, c
}

// panics is what f panics with, "" when it does not.
func panics(f func()) (text string) {
	defer func() {
		if v := recover(); v != nil {
			text = fmt.Sprint(v)
		}
	}()
	f()
	return ""
}

// TestClosedUnderWork shows what -tags invariants finds: each case closes memory or a call, and
// says whether the end of the work that used it was seen.
func TestClosedUnderWork(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants, "only builds with -tags invariants follow the work")
	one := gpu.Grid{Groups: 1, Group: 1}
	for _, x := range []struct {
		name string
		bad  bool
		do   func(d *desk, m *gpu.Memory) interface{ Close() error }
	}{
		{"no work", false, func(d *desk, m *gpu.Memory) interface{ Close() error } { return m }},
		{"a fill", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			d.ok(d.s.Fill(m.All(), 1, 1))
			return m
		}},
		{"a fill and a wait", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			d.ok(d.s.Fill(m.All(), 1, 1))
			d.ok(d.s.Wait(always))
			return m
		}},
		{"a fill, a wait, a copy from it", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			other := d.alloc()
			d.ok(d.s.Fill(m.All(), 1, 1))
			d.ok(d.s.Wait(always))
			d.ok(d.s.Copy(other.All(), m.All()))
			d.t.Cleanup(func() { d.s.Wait(always) })
			return m
		}},
		{"a fill and a read", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			d.ok(d.s.Fill(m.All(), 1, 1))
			d.ok(d.s.Read(make([]byte, 4096), m.All()))
			return m
		}},
		{"a fill and a query", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			d.ok(d.s.Fill(m.All(), 1, 1))
			for done := false; !done; runtime.Gosched() {
				var err error
				done, err = d.s.Query()
				d.ok(err)
			}
			return m
		}},
		{"a fill and an event", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			e := d.event()
			d.ok(errors.Join(d.s.Fill(m.All(), 1, 1), d.s.Record(e), e.Wait(always)))
			return m
		}},
		{"an event and a fill", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			e := d.event()
			d.ok(errors.Join(d.s.Record(e), d.s.Fill(m.All(), 1, 1), e.Wait(always)))
			return m
		}},
		{"a fill and another stream that waited", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			e, s := d.event(), d.stream()
			d.ok(errors.Join(d.s.Fill(m.All(), 1, 1), d.s.Record(e), s.WaitFor(e), s.Wait(always)))
			return m
		}},
		{"a fill and another stream that did not", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			e, s := d.event(), d.stream()
			d.ok(errors.Join(d.s.Fill(m.All(), 1, 1), d.s.Record(e), s.Wait(always)))
			return m
		}},
		{"a fill and the end of its stream", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			s := d.stream()
			d.ok(errors.Join(s.Fill(m.All(), 1, 1), s.Close()))
			return m
		}},
		{"a launch", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			_, c := d.call(m)
			d.ok(d.s.Launch(c, one))
			d.t.Cleanup(func() { d.s.Wait(always) })
			return m
		}},
		{"a launch of a call", true, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			_, c := d.call(m)
			d.ok(d.s.Launch(c, one))
			d.t.Cleanup(func() { d.s.Wait(always) })
			return c
		}},
		{"a launch of a call and a wait", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			_, c := d.call(m)
			d.ok(errors.Join(d.s.Launch(c, one), d.s.Wait(always)))
			return c
		}},
		{"a launch with other memory", false, func(d *desk, m *gpu.Memory) interface{ Close() error } {
			_, c := d.call(m)
			d.ok(errors.Join(c.Set(0, gpu.Buffer(d.alloc().All())), d.s.Launch(c, one)))
			d.t.Cleanup(func() { d.s.Wait(always) })
			return m
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			d := newDesk(t)
			m, err := d.c.Alloc(gpu.MemoryOptions{Name: "weights", Size: 4096})
			d.ok(err)
			what := x.do(d, m)
			text := panics(func() { d.ok(what.Close()) })
			if x.bad != (text != "") || x.bad && (!strings.Contains(text, "may be under way") ||
				!strings.Contains(text, "gpu_test.go")) {
				t.Errorf("closed after %s: panic %q, expected one: %v, which says where it was made", x.name, text,
					x.bad)
			}
			d.ok(d.s.Wait(always))
			d.ok(m.Close())
		})
	}
}

// TestTwoUsersOfAStream shows that -tags invariants finds them: one is in the middle of a Read.
func TestTwoUsersOfAStream(t *testing.T) {
	testenv.LeaveOut(t, testenv.WithoutInvariants, "only builds with -tags invariants look")
	d := newDesk(t)
	m := d.alloc()
	hold, begun := make(chan struct{}), make(chan struct{})
	p := &gpu.Program{Name: "wait", Kernels: []gpu.Signature{{Name: "wait"}},
		Go: map[string]gpu.GoFunc{"wait": func(gpu.Grid, []gpu.GoArg) {
			close(begun)
			<-hold
		}}}
	mod, err := d.c.Load(p)
	d.ok(err)
	d.later(mod.Close)
	k, err := mod.Kernel("wait")
	d.ok(err)
	c, err := k.Prepare()
	d.ok(err)
	d.later(c.Close)
	d.ok(d.s.Launch(c, gpu.Grid{Groups: 1, Group: 1}))
	<-begun
	other := make(chan string, 1)
	go func() { other <- panics(func() { d.ok(d.s.Read(make([]byte, 4096), m.All())) }) }()
	text := ""
	for text == "" { // until both are inside; the second one panics
		text = panics(func() { d.ok(d.s.Fill(m.All(), 1, 1)) })
		select {
		case text = <-other: // the read did, and is over
			other <- ""
		default:
			runtime.Gosched()
		}
	}
	close(hold)
	<-other
	if !strings.Contains(text, "two goroutines") {
		t.Errorf("panic %q, expected one about two goroutines", text)
	}
	d.ok(d.s.Wait(always))
}

func TestContextInUseSaysWhatIsOpen(t *testing.T) {
	d := newDesk(t)
	var all []*gpu.Memory
	for i := range 15 {
		m, err := d.c.Alloc(gpu.MemoryOptions{Name: fmt.Sprintf("block %d", i), Size: 1})
		d.ok(err)
		all = append(all, m)
	}
	err := d.c.Close()
	if !errors.Is(err, gpu.ErrInUse) || !strings.Contains(err.Error(), `memory "block 3"`) ||
		!strings.Contains(err.Error(), "stream 1") {
		t.Errorf("close: %v", err)
	}
	if testenv.Invariants != strings.Contains(err.Error(), "gpu_test.go") ||
		testenv.Invariants == strings.Contains(err.Error(), "and 6 more") {
		t.Errorf("close with -tags invariants %v: %v", testenv.Invariants, err)
	}
	for _, m := range all {
		d.ok(m.Close())
	}
}

// fakeDevice is a device of a runtime that only describes itself.
type fakeDevice struct{ info driver.Info }

func (d fakeDevice) Info() driver.Info             { return d.info }
func (d fakeDevice) Open() (driver.Context, error) { return nil, driver.ErrOutOfMemory }

type fakeRuntime struct {
	devices []driver.Device
	closed  *int
}

func (r fakeRuntime) Name() string             { return "fake" }
func (r fakeRuntime) Version() string          { return "1" }
func (r fakeRuntime) Devices() []driver.Device { return r.devices }
func (r fakeRuntime) Close() error             { *r.closed++; return nil }

func describe() driver.Info {
	f := driver.Info{Runtime: "fake", Name: "fake", Align: 256, ArgAlign: 1, MaxGroup: 1, MaxGroups: 1, MaxAlloc: 1}
	for c := range driver.NumCapabilities {
		f.Capabilities.Missing(c, "it is a fake")
	}
	return f
}

func TestNewHoldsRuntimesToTheirDescriptions(t *testing.T) {
	for name, change := range map[string]func(*driver.Info){
		"another runtime":  func(f *driver.Info) { f.Runtime = "host" },
		"another number":   func(f *driver.Info) { f.Index = 1 },
		"no name":          func(f *driver.Info) { f.Name = "" },
		"an odd alignment": func(f *driver.Info) { f.Align = 3 },
		"no alignment":     func(f *driver.Info) { f.ArgAlign = 0 },
		"no items":         func(f *driver.Info) { f.MaxGroup = 0 },
		"a missing reason": func(f *driver.Info) { f.Capabilities.Missing(driver.CapShared, "") },
		"a reason for nothing": func(f *driver.Info) {
			f.Capabilities[driver.CapIPC] = driver.Support{OK: true, Why: "but"}
		},
		"nothing of the matter": func(*driver.Info) {},
	} {
		f := describe()
		change(&f)
		closed := 0
		rt, err := gpu.New(fakeRuntime{[]driver.Device{fakeDevice{f}}, &closed})
		if good := name == "nothing of the matter"; good != (err == nil) || !good &&
			(!errors.Is(err, gpu.ErrDriver) || closed != 1) {
			t.Errorf("%s: %v; the runtime was closed %d times", name, err, closed)
		}
		if err != nil {
			continue
		}
		if _, err := rt.Devices()[0].Open(); !errors.Is(err, gpu.ErrOutOfMemory) {
			t.Errorf("open a device without memory: %v", err)
		}
		if err := rt.Close(); err != nil { // a context that was not opened does not count
			t.Error(err)
		}
	}
	closed := 0
	if _, err := gpu.New(fakeRuntime{nil, &closed}); !errors.Is(err, gpu.ErrUnavailable) || closed != 1 {
		t.Errorf("a runtime without devices: %v; closed %d times", err, closed)
	}
}

func TestTable(t *testing.T) {
	missing := gpu.Entry{Name: "cuda", Open: func() (*gpu.Runtime, error) {
		return nil, fmt.Errorf("%w: no libcuda.so.1", gpu.ErrUnavailable)
	}}
	here := gpu.Entry{Name: "host", Open: func() (*gpu.Runtime, error) { return host.Open(host.Options{}) }}
	c, err := gpu.Table{missing, here}.Open("")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != "host" || len(c.Skipped) != 1 || !strings.Contains(c.String(), "host, because cuda: ") ||
		!strings.Contains(c.String(), "libcuda.so.1") {
		t.Errorf("the choice is %s", c)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c, err = gpu.Table{here, missing}.Open("")
	if err != nil || len(c.Skipped) != 0 || c.String() != "host" {
		t.Fatalf("the first is here: %s, %v", c, err)
	}
	c.Close()
	for what, x := range map[string]struct {
		table gpu.Table
		name  string
		want  error
		says  string
	}{
		"one that is not here":    {gpu.Table{missing, here}, "cuda", gpu.ErrUnavailable, "libcuda.so.1"},
		"one that there is not":   {gpu.Table{missing, here}, "metal", gpu.ErrArgument, "cuda, host"},
		"none of them":            {gpu.Table{missing}, "", gpu.ErrUnavailable, "libcuda.so.1"},
		"any of an empty table":   {nil, "", gpu.ErrUnavailable, ""},
		"one of an empty table":   {nil, "host", gpu.ErrArgument, "host"},
		"none of two of the same": {gpu.Table{missing, missing}, "", gpu.ErrUnavailable, "cuda: "},
	} {
		if _, err := x.table.Open(x.name); !errors.Is(err, x.want) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, expected one that wraps %v and says %q", what, err, x.want, x.says)
		}
	}
}

func TestErrorText(t *testing.T) {
	e := &gpu.Error{Kind: gpu.ErrBuild, Op: "clBuildProgram", Code: -11, Name: "CL_BUILD_PROGRAM_FAILURE",
		Text: "-cl-std=CL3.0", Hint: "fix it", Log: "line 1\n"}
	if got, want := e.Error(), "program does not compile: clBuildProgram: CL_BUILD_PROGRAM_FAILURE (-11): "+
		"-cl-std=CL3.0: fix it\nline 1"; got != want {
		t.Errorf("got %q, expected %q", got, want)
	}
	if e := (&gpu.Error{Kind: gpu.ErrArch,
		Op: "load"}); e.Error() != "no form of the program fits this accelerator: load" || !errors.Is(e, gpu.ErrArch) {
		t.Errorf("got %q", e)
	}
}
