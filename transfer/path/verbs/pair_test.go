package verbs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	fake "github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/pathtest"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialPair connects two ends inside this process; a is the side that asks.
func dialPair(t testing.TB, o Options, ca, cb setup.Config) (*Path, *Path) {
	t.Helper()
	return dialWith(t, New(o), ca, cb)
}

func dialWith(t testing.TB, d *Driver, ca, cb setup.Config) (*Path, *Path) {
	t.Helper()
	pa, pb, err := connect(t.Context(), d, ca, cb)
	if err != nil {
		t.Fatal(err)
	}
	return pa, pb
}

// connect makes two endpoints and connects them, as two nodes do. If one end fails nothing is left
// of the other.
func connect(ctx context.Context, d *Driver, ca, cb setup.Config) (pa, pb *Path, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := d.Endpoint(ca, nil)
	if err != nil {
		return nil, nil, err
	}
	b, err := d.Endpoint(cb, a.Description())
	if err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	accepted := make(chan error, 1)
	go func() {
		p, err := b.Connect(ctx, a.Description())
		if err != nil {
			cancel() // what is missing here does not come by waiting
		} else {
			pb = p.(*Path)
		}
		accepted <- err
	}()
	p, err := a.Connect(ctx, b.Description())
	if err != nil {
		cancel()
	} else {
		pa = p.(*Path)
	}
	if err = errors.Join(err, <-accepted); err != nil {
		for _, p := range []*Path{pa, pb} {
			if p != nil {
				err = errors.Join(err, p.Close())
			}
		}
		return nil, nil, err
	}
	return pa, pb, nil
}

// world is the stand-in in this process: one state, which each test begins with.
type world struct {
	lib                         string
	script, report, count, pump dl.Func
}

var loaded = sync.OnceValues(func() (*world, error) {
	file, err := fake.Build()
	if err != nil {
		return nil, err
	}
	l, err := dl.Open(file)
	if err != nil {
		return nil, err
	}
	w := &world{lib: file}
	for name, f := range map[string]*dl.Func{"script": &w.script, "report": &w.report, "count": &w.count,
		"pump": &w.pump} {
		if *f, err = l.Symbol("penstock_fake_" + name); err != nil {
			return nil, err
		}
	}
	return w, nil
})

// newWorld is the stand-in with a script. When the test ends, no object may be left and no rule may
// have been broken.
func newWorld(t testing.TB, script string) *world {
	t.Helper()
	w, err := loaded()
	if errors.Is(err, fake.ErrMissing) {
		testenv.Missing(t, "a C compiler and the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.do(t, "reset; mode post")
	w.do(t, script)
	t.Cleanup(func() {
		w.clean(t)
		w.do(t, "reset; mode post; limit max_mw 1024")
	})
	return w
}

// do adds lines to the script.
func (w *world) do(t testing.TB, s string) {
	t.Helper()
	c, err := dl.CString(s)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := dl.GoString(w.script.Call1(cAddress(c))); wrong != "" {
		t.Fatalf("script %q: %s", s, wrong)
	}
}

// counted is how often a function of the library was called, or one of the stand-in's other counts.
func (w *world) counted(t testing.TB, name string) int {
	t.Helper()
	c, err := dl.CString(name)
	if err != nil {
		t.Fatal(err)
	}
	return int(int64(w.count.Call1(cAddress(c))))
}

// clean demands that nothing is left at the library, and that no rule was broken.
func (w *world) clean(t testing.TB) {
	t.Helper()
	s := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(dl.GoString(w.report.Call0())),
		"penstock fake verbs report:"))
	if s != "" && s != "clean" && !t.Failed() {
		t.Errorf("the stand-in reports:\n%s", s)
	}
}

func factory(o Options, streams int) pathtest.Factory {
	return pathtest.Factory{
		New: func(t testing.TB, a, b setup.Config) (path.Path, path.Path) {
			a.Streams, b.Streams = streams, streams
			return dialPair(t, o, a, b)
		},
		Boundaries: []int{220, bulkBytes, 1 << 20, bulkAhead},
		Verifies:   true,
		NoSparse:   true, // an adapter wants every page of a region, also the stand-in
	}
}

// just is one value that a path takes.
func just(v uint64) Bounds { return Bounds{v, v} }

// tight has operations wait for each other: small pieces, and few of them under way.
var tight = Tuning{Piece: Bounds{4096, 8192}, Ahead: Bounds{64 << 10, 128 << 10}}

// TestConformance runs the suite over every way of being set up: requests executed as they are
// posted, and by another thread after a while; with windows and without; with one queue pair and
// with several; on Ethernet and on InfiniBand.
func TestConformance(t *testing.T) {
	const basic, access = "Sizes PartOfRegion Window Notify Refusals", "Cancel Fence FenceRead Close"
	for _, c := range []struct {
		name, script string
		o            Options
		qps          int
		checks       string // "": all
	}{
		{"Post", "", Options{}, 1, ""},
		{"WireThreeQPs", "mode wire; delay 20us; seed 8",
			Options{Tuning: Tuning{Piece: just(64 << 10)}, Depth: 128, NoInline: true}, 3,
			basic + " " + access + " Empty Visible CloseDelivers PeerGone Quiet Wake PingPong Stats Leaks Program"},
		{"Tight", "mode wire; delay 20us; seed 9", Options{Depth: 128, Tuning: tight}, 2,
			basic + " " + access + " Wake Program"},
		{"InfiniBand", "link infiniband", Options{}, 2, basic + " Fence"},
		{"Domains", "mode wire", Options{NoWindows: true, Tuning: Tuning{Piece: just(100_000), Signal: just(5)}}, 2, basic + " " + access + " Wake"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.script)
			c.o.Library = w.lib
			dev, err := New(c.o).device()
			if err != nil {
				t.Fatal(err)
			}
			if is := dev.port.Link == ibv.LinkInfiniBand; is != strings.Contains(c.script, "infiniband") {
				t.Errorf("the link of the port is %v", dev.port.Link)
			}
			dev.put()
			f := factory(c.o, c.qps)
			if c.checks != "" {
				f.Checks = strings.Fields(c.checks)
			}
			pathtest.Run(t, f)
		})
	}
}
