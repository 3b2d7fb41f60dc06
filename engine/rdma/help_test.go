package rdma

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/fake/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is the stand-in for libibverbs. It has one state for the whole process, which each test
// resets.
type fake struct {
	engine *Engine
	lib    *dl.Library
}

var loaded = sync.OnceValues(func() (*fake, error) {
	path, err := verbs.Build()
	if err != nil {
		return nil, err
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	return &fake{engine: New(path), lib: lib}, nil
})

// onFake is the fake with a script. When the test ends nothing may be left, and no rule may have
// been broken.
func onFake(t testing.TB, script string) *fake {
	t.Helper()
	f, err := loaded()
	if errors.Is(err, verbs.ErrMissing) {
		testenv.Missing(t, "the headers of libibverbs", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.run(t, "reset")
	if script != "" {
		f.run(t, script)
	}
	t.Cleanup(func() {
		if r := f.report(t); r != "" && !t.Failed() {
			t.Errorf("the fake reports:\n%s", r)
		}
	})
	return f
}

func (f *fake) symbol(t testing.TB, name string) dl.Func {
	t.Helper()
	s, err := f.lib.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run adds lines to the script.
func (f *fake) run(t testing.TB, lines string) {
	t.Helper()
	if wrong := dl.GoString(callString(t, f.symbol(t, "penstock_fake_script"), lines)); wrong != "" {
		t.Fatalf("script %q: %s", lines, wrong)
	}
}

// count is how often a function of the fake was called, or how many things of that kind there were.
func (f *fake) count(t testing.TB, name string) int {
	t.Helper()
	return int(int64(callString(t, f.symbol(t, "penstock_fake_count"), name)))
}

// report is what the fake says of leaks and of broken rules; "" when there is nothing.
func (f *fake) report(t testing.TB) string {
	t.Helper()
	s := strings.TrimSpace(dl.GoString(f.symbol(t, "penstock_fake_report").Call0()))
	s = strings.TrimSpace(strings.TrimPrefix(s, "penstock fake verbs report:"))
	if s == "clean" {
		return ""
	}
	return s
}

// within is a context that ends only when something hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
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

// world is where ports are: on the fake, or on a real device in a guest.
type world interface {
	// pair is a server and a client, connected. id is the server's for the client.
	pair(t testing.TB, server, client Options) (s, c *Port, id uint32)
}

// open opens a port.
func (f *fake) open(t testing.TB, address string, o Options) *Port {
	t.Helper()
	p, err := f.engine.OpenPort(within(t), engine.PortSpec{Address: address, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("closing %s: %v", address, err)
		}
	})
	return p.(*Port)
}

// pair is a server and a client on two devices, connected. id is the server's for the client.
func (f *fake) pair(t testing.TB, server, client Options) (s, c *Port, id uint32) {
	t.Helper()
	s = f.open(t, "roce://127.0.0.1:0?listen=1&device=fake0", server)
	c = f.open(t, "roce://"+s.LocalAddr().String()+"?device=fake1", client)
	if err := s.WaitConnected(within(t)); err != nil {
		t.Fatal(err)
	}
	return s, c, s.Find(c.LocalAddr())
}
