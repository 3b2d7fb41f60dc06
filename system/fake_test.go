package system

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/sim"
	"github.com/penstock-io/penstock/engine/socket"
	"github.com/penstock-io/penstock/packet/flow"
)

// diary is what was done, and which step is to fail.
type diary struct {
	mu    sync.Mutex
	lines []string
	fail  int // number of the step, from 1; 0: none
	steps int
	deny  func(port string, changes []flow.Change) error // of Apply; nil: none is denied
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// step is one that may fail.
func (d *diary) step(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	d.note("%s", what)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.steps++; d.steps == d.fail {
		return fmt.Errorf("step %d (%s) fails: %w", d.steps, what, engine.ErrInternal)
	}
	return nil
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

// noting is the engine sim with a network of its own, which keeps a diary.
type noting struct {
	*sim.Network
	d *diary
}

// noted is a table of that engine and of real sockets.
func noted(t testing.TB, d *diary) *engine.Table {
	t.Helper()
	n, err := sim.NewNetwork(sim.Options{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	table, err := engine.NewTable(&noting{n, d}, socket.New())
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func (n *noting) OpenPort(ctx context.Context, s engine.PortSpec) (engine.Port, error) {
	if err := n.d.step("open %s", s.Name); err != nil {
		return nil, err
	}
	p, err := n.Network.OpenPort(ctx, s)
	if err != nil {
		return nil, err
	}
	return &notingPort{p, n.d}, nil
}

type notingPort struct {
	engine.Port
	d *diary
}

func (p *notingPort) AddRxQueue(s engine.RxSpec) (engine.RxQueue, error) {
	if err := p.d.step("rx %s", s.Name); err != nil {
		return nil, err
	}
	q, err := p.Port.AddRxQueue(s)
	return &notingRx{q, s.Name, p.d}, err
}

func (p *notingPort) AddTxQueue(s engine.TxSpec) (engine.TxQueue, error) {
	if err := p.d.step("tx %s", s.Name); err != nil {
		return nil, err
	}
	q, err := p.Port.AddTxQueue(s)
	return &notingTx{q, s.Name, p.d}, err
}

func (p *notingPort) Rules() engine.Rules { return &notingRules{p.Port.Rules(), p} }

func (p *notingPort) Close() error { p.d.note("close %s", p.Name()); return p.Port.Close() }

// notingRules cannot be asked beforehand, like a card.
type notingRules struct {
	engine.Rules
	p *notingPort
}

func (r *notingRules) Apply(changes ...flow.Change) (flow.Result, error) {
	if err := r.p.d.step("rules %s", r.p.Name()); err != nil {
		return flow.Result{}, err
	}
	if deny := r.p.d.deny; deny != nil {
		if err := deny(r.p.Name(), changes); err != nil {
			return flow.Result{}, err
		}
	}
	return r.Rules.Apply(changes...)
}

type notingRx struct {
	engine.RxQueue
	name string
	d    *diary
}

func (q *notingRx) Close() error { q.d.note("close %s", q.name); return q.RxQueue.Close() }

type notingTx struct {
	engine.TxQueue
	name string
	d    *diary
}

func (q *notingTx) Close() error { q.d.note("close %s", q.name); return q.TxQueue.Close() }

// mustLoad reads a configuration that must have no errors.
// rxOf is a receive queue that is there.
func rxOf(t testing.TB, s *System, iface string, id int) *engine.Rx {
	t.Helper()
	r, err := s.Rx(iface, id)
	if err != nil {
		t.Error(err)
	}
	return r
}

// txOf is a transmit queue that is there.
func txOf(t testing.TB, s *System, iface string, id int) engine.TxQueue {
	t.Helper()
	q, err := s.Tx(iface, id)
	if err != nil {
		t.Error(err)
	}
	return q
}

func mustLoad(t testing.TB, text string) *config.Config {
	t.Helper()
	cfg, problems := config.Load("test.yaml", []byte(text), config.Options{})
	if cfg == nil {
		t.Fatal(problems.Text([]byte(text)))
	}
	return cfg
}

// mustOpen opens a configuration, and closes it when the test ends.
func mustOpen(t testing.TB, text string, o Options) *System {
	t.Helper()
	s, err := Open(context.Background(), mustLoad(t, text), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// silent is for what is meant to fail.
var silent = slog.New(slog.DiscardHandler)
