package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
)

// Table is the engines that a program has, by name. The program makes it; package engine/drivers
// lists those of this build.
//
//	t, err := engine.NewTable(sim.New(...), socket.New(), afpacket.New(), engine.NotBuilt("dpdk", "build with -tags dpdk"))
//	eng, err := t.Get("socket")
type Table struct{ engines []Engine }

// NewTable makes a table. A nil engine is ErrNil, one without a name ErrInvalid, and a name that
// occurs twice ErrExists.
func NewTable(engines ...Engine) (*Table, error) {
	t := &Table{}
	for i, e := range engines {
		switch {
		case e == nil:
			return nil, fmt.Errorf("engine: engine %d of the table: %w", i, ErrNil)
		case e.Name() == "":
			return nil, fmt.Errorf("engine: engine %d of the table has no name: %w", i, ErrInvalid)
		case t.find(e.Name()) != nil:
			return nil, fmt.Errorf("engine: engine %q is in the table twice: %w", e.Name(), ErrExists)
		}
		t.engines = append(t.engines, e)
	}
	return t, nil
}

func (t *Table) find(name string) Engine {
	for _, e := range t.engines {
		if e.Name() == name {
			return e
		}
	}
	return nil
}

// Engines are all engines in the order of the table, also those that cannot run here.
func (t *Table) Engines() []Engine { return append([]Engine(nil), t.engines...) }

// Get is the engine of that name, if it can run here. Otherwise the error wraps what its Available
// says, or ErrNotFound, and then names what there is and what was perhaps meant.
func (t *Table) Get(name string) (Engine, error) {
	if e := t.find(name); e != nil {
		if err := e.Available(); err != nil {
			return nil, fmt.Errorf("engine: %q cannot run here: %w", name, err)
		}
		return e, nil
	}
	var s strings.Builder
	fmt.Fprintf(&s, "engine: no engine is called %q", name)
	var names []string
	for _, e := range t.engines {
		names = append(names, e.Name())
	}
	if n := input.Nearest(name, names); n != "" {
		fmt.Fprintf(&s, "; did you mean %q?", n)
	}
	var can, cannot []string
	for _, e := range t.engines {
		if err := e.Available(); err != nil {
			cannot = append(cannot, fmt.Sprintf("%s (%v)", e.Name(), err))
		} else {
			can = append(can, e.Name())
		}
	}
	if can != nil {
		fmt.Fprintf(&s, "; there is: %s", strings.Join(can, ", "))
	}
	if cannot != nil {
		fmt.Fprintf(&s, "; not here: %s", strings.Join(cannot, ", "))
	}
	return nil, fmt.Errorf("%s: %w", s.String(), ErrNotFound)
}

// NotBuilt stands in a Table for an engine that this build does not have; how says how to get a
// build that has it.
func NotBuilt(name, how string) Engine { return absent{name, how} }

type absent struct{ name, how string }

func (a absent) Name() string { return a.name }

func (a absent) Available() error { return fmt.Errorf("%w: %s", ErrNotBuilt, a.how) }

func (a absent) Capabilities() Capabilities {
	return Capabilities{Notes: []string{a.Available().Error()}}
}

func (a absent) OpenPort(context.Context, PortSpec) (Port, error) { return nil, a.Available() }
