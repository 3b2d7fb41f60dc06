package rawqp

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
	"github.com/penstock-io/penstock/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stand is the stand-in for libibverbs, which has one state for the whole process.
type stand struct {
	eng *Engine
	lib *dl.Library

	pools []*mem.Pool // of the test that runs
}

var loaded = sync.OnceValues(func() (*stand, error) {
	path, err := verbs.Build()
	if err != nil {
		return nil, err
	}
	lib, err := dl.Open(path)
	return &stand{eng: New(path), lib: lib}, err
})

// onStand is the stand-in after a script. When the test ends nothing may be left, and no rule may
// have been broken.
func onStand(t testing.TB, script string) *stand {
	t.Helper()
	f, err := loaded()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.do(t, "reset; "+script)
	f.eng.tree = fstest.MapFS{} // without modules, whatever this machine has
	f.eng.dry = func(d *ibv.Device, _ int) (uint64, bool) {
		return f.count(t, "raw_dry_"+strings.TrimPrefix(d.Name(), "fake")), true
	}
	t.Cleanup(func() {
		for _, p := range f.pools {
			if s := p.Stats(); s.InUse != 0 && !t.Failed() {
				t.Errorf("%d slots are out", s.InUse)
			}
			p.Close()
		}
		f.pools = nil
		s, err := f.lib.Symbol("penstock_fake_report")
		if err != nil {
			t.Fatal(err)
		}
		if r := dl.GoString(s.Call0()); r != "" && !t.Failed() {
			t.Errorf("the stand-in reports:\n%s", r)
		}
	})
	return f
}

// do adds lines to the script.
func (f *stand) do(t testing.TB, lines string) {
	t.Helper()
	if wrong := dl.GoString(ask(t, f.lib, "penstock_fake_script", lines)); wrong != "" {
		t.Fatalf("script %q: %s", lines, wrong)
	}
}

// count is how often a function was called, or how many things of that kind there were.
func (f *stand) count(t testing.TB, name string) uint64 {
	return uint64(ask(t, f.lib, "penstock_fake_count", name))
}

// port opens a port, and closes it at the end.
func (f *stand) port(t testing.TB, spec engine.PortSpec) *Port {
	t.Helper()
	p, err := f.eng.OpenPort(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing %s: %v", p.Name(), err)
		}
	})
	return p.(*Port)
}

// until waits until something holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	limit := time.Now().Add(time.Minute)
	for pause := 50 * time.Microsecond; !holds(); pause = min(2*pause, 5*time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited a minute for %s", what)
		}
		<-time.After(pause)
	}
}
