package system

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/flow"
)

// Changes are what a Reload did, in the order of the configuration.
type Changes struct {
	Interfaces []InterfaceChanges `json:"interfaces"` // those with flows, before or after
}

// InterfaceChanges are what a Reload did to the flows of an interface, by name. Those that were
// changed or moved keep their counts.
type InterfaceChanges struct {
	Name      string   `json:"name"`
	Added     []string `json:"added,omitempty"`
	Changed   []string `json:"changed,omitempty"`
	Removed   []string `json:"removed,omitempty"`
	Moved     []string `json:"moved,omitempty"` // to another place in the order, and otherwise as they were
	Unchanged int      `json:"unchanged"`
}

// Any reports whether anything was changed.
func (c *Changes) Any() bool {
	for i := range c.Interfaces {
		if x := &c.Interfaces[i]; len(x.Added)+len(x.Changed)+len(x.Removed)+len(x.Moved) > 0 {
			return true
		}
	}
	return false
}

// String is a line for each interface.
func (c *Changes) String() string {
	var lines []string
	for i := range c.Interfaces {
		x := &c.Interfaces[i]
		s := x.Name + ":"
		for _, l := range []struct {
			what  string
			names []string
		}{{"added", x.Added}, {"changed", x.Changed}, {"removed", x.Removed}, {"moved", x.Moved}} {
			if len(l.names) > 0 {
				s += fmt.Sprintf(" %s %s;", l.what, strings.Join(l.names, ", "))
			}
		}
		lines = append(lines, fmt.Sprintf("%s %d unchanged", s, x.Unchanged))
	}
	if lines == nil {
		return "no flows"
	}
	return strings.Join(lines, "\n")
}

// ErrRestart is what the error of a Reload wraps that differs in more than flows.
var ErrRestart = errors.New("penstock: only flows can change while it runs; this takes a restart")

// Difference is a value that a Reload cannot change.
type Difference struct {
	Path string     `json:"path"` // such as interfaces[0].mtu
	File string     `json:"file,omitempty"`
	At   config.Pos `json:"at"` // in the new file; of the section around it where the value is not written
	Was  string     `json:"was"`
	Is   string     `json:"is"`
}

func (d *Difference) String() string {
	where := d.File
	if !d.At.IsZero() {
		where = fmt.Sprintf("%s:%d:%d", d.File, d.At.Line, d.At.Column)
	}
	if where != "" {
		where += ": "
	}
	return fmt.Sprintf("%s%s: was %s, is %s", where, d.Path, d.Was, d.Is)
}

// RestartError is all values that a Reload cannot change. It wraps ErrRestart.
type RestartError struct{ Differences []Difference }

func (e *RestartError) Error() string {
	var b strings.Builder
	b.WriteString(ErrRestart.Error())
	for i := range e.Differences {
		b.WriteString("\n\t" + e.Differences[i].String())
	}
	return b.String()
}

// Unwrap makes it match ErrRestart.
func (e *RestartError) Unwrap() error { return ErrRestart }

// Reload puts the flows of another configuration in force while packets go on: those of all
// interfaces, or none. Everything else must be as it was; otherwise the error is a *RestartError
// that lists what differs. A wrong configuration, one that asks for what is not here, and flows
// that a port refuses are errors as of Open, and change nothing. Each port changes from one packet
// to the next; ports change one after the other. Reload finds a flow again by what it says, then by
// name, then by id: one that is the same keeps its counts.
//
// Rules that a program has put into a port's table besides stay as they are, and where a new flow
// comes behind all others also behind them.
func (s *System) Reload(cfg *config.Config) (*Changes, error) {
	s.reload.Lock()
	defer s.reload.Unlock()
	c, err := s.change(cfg)
	if err != nil {
		s.log.Warn("reload: nothing was changed", "error", err)
		return nil, err
	}
	s.cfg = cfg
	s.log.Info("reload", "changes", c.String())
	s.tellPortNotes(slog.LevelWarn) // they come of the new flows
	return c, nil
}

// edit is what is to be done to the rules of one interface.
type edit struct {
	s    *System
	at   int // of the interface
	f    *Interface
	path string
	*ruleEdit
}

func (s *System) change(cfg *config.Config) (*Changes, error) {
	if s.closed {
		return nil, fmt.Errorf("penstock: reload: %w", engine.ErrClosed)
	}
	plan, err := makePlan(cfg, s.plan.o) // what the System has in use must not count as missing
	if err != nil {
		return nil, err
	}
	if d := differences(s.cfg, cfg); len(d) > 0 {
		return nil, &RestartError{d}
	}
	if err := plan.Err(); err != nil {
		return nil, err
	}
	var edits []edit
	out := &Changes{}
	for i := range s.ifaces {
		c, f := &cfg.Interfaces[i], &s.ifaces[i]
		rules, err := portRules(c)
		if err != nil {
			return nil, err
		}
		if len(rules)+len(s.rules[i]) == 0 {
			continue
		}
		list := f.Port.Rules().List()
		e := editRules(present(s.rules[i], list), wanted(rules, cfg, fmt.Sprintf("interfaces[%d].rx.flows", i)))
		e.report.Name = f.Name
		out.Interfaces = append(out.Interfaces, e.report)
		edits = append(edits, edit{s, i, f, fmt.Sprintf("interfaces[%d].rx.flows", i), e})
	}
	// Every port is asked before the first is changed.
	for _, e := range edits {
		if check, ok := e.f.Port.Rules().(engine.RuleChecker); ok && len(e.changes) > 0 {
			if err := check.Check(e.changes...); err != nil {
				return nil, refused(cfg, &e, err)
			}
		}
	}
	for k := range edits {
		e := &edits[k]
		before := s.rules[e.at]
		if err := e.apply(); err != nil {
			return nil, errors.Join(refused(cfg, e, err), s.undo(edits[:k]))
		}
		e.before = before
	}
	return out, nil
}

// refused is the error of a port that does not take the flows.
func refused(cfg *config.Config, e *edit, err error) error {
	d := cfg.Diagnose(config.Error, config.CodeConflict, e.path, "", "", "")
	where := d.Path
	if !d.At.IsZero() {
		where = fmt.Sprintf("%s:%d:%d", d.File, d.At.Line, d.At.Column)
	}
	return fmt.Errorf("penstock: %s: interface %q: flows: %w", where, e.f.Name, err)
}

// apply changes the rules of the port, as one version.
func (e *edit) apply() error {
	if len(e.changes) == 0 {
		e.s.rules[e.at] = e.placed(nil)
		return nil
	}
	r, err := e.f.Port.Rules().Apply(e.changes...)
	if err == nil {
		e.s.rules[e.at] = e.placed(r.IDs)
	}
	return err
}

// undo changes back what was changed, the last first. Rules that had gone come back without their
// counts.
func (s *System) undo(edits []edit) (err error) {
	for k := len(edits) - 1; k >= 0; k-- {
		e := &edits[k]
		list := e.f.Port.Rules().List()
		var want []rule
		for _, r := range e.before {
			r.id = 0
			want = append(want, r)
		}
		back := edit{s: s, at: e.at, f: e.f, path: e.path, ruleEdit: editRules(present(s.rules[e.at], list), want)}
		if e := back.apply(); e != nil {
			err = errors.Join(err, fmt.Errorf("penstock: interface %q: its flows could not be changed back: %w",
				back.f.Name, e))
		}
	}
	return err
}

// rule is a flow in the table of a port.
type rule struct {
	id      uint32    // in the table; 0: not there
	flow    flow.Rule // without it
	derived bool      // its name says only which place it has in the list
}

// wanted are the flows of a configuration.
func wanted(rules []flow.Rule, cfg *config.Config, path string) (out []rule) {
	for k, r := range rules {
		out = append(out, rule{flow: r, derived: cfg.Source(fmt.Sprintf("%s[%d].name", path,
			k)).Origin == config.FromRule})
	}
	return out
}

// present are those of the rules that are in the table, in its order: the program may have changed
// it by itself.
func present(rules []rule, list []flow.Rule) (out []rule) {
	there := make(map[uint32]bool, len(list))
	for i := range list {
		there[list[i].ID] = true
	}
	for _, r := range rules {
		if there[r.id] {
			out = append(out, r)
		}
	}
	return out
}

// differences are the values in which configurations differ, but for flows.
func differences(was, is *config.Config) (out []Difference) {
	var walk func(path string, a, b reflect.Value)
	report := func(path string, a, b reflect.Value) {
		d := is.Diagnose(config.Error, config.CodeConflict, path, "", "", "")
		out = append(out, Difference{Path: path, File: d.File, At: d.At, Was: shown(a), Is: shown(b)})
	}
	walk = func(path string, a, b reflect.Value) {
		switch {
		case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
			walk(path, a.Elem(), b.Elem())
		case a.Kind() == reflect.Slice && a.Len() == b.Len():
			for i := range a.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		case a.Kind() == reflect.Map:
			keys := map[string]bool{}
			for _, k := range append(a.MapKeys(), b.MapKeys()...) {
				keys[k.String()] = true
			}
			for _, k := range slices.Sorted(maps.Keys(keys)) {
				x, y := a.MapIndex(reflect.ValueOf(k)), b.MapIndex(reflect.ValueOf(k))
				if x.IsValid() && y.IsValid() {
					walk(path+"."+k, x, y)
				} else {
					report(path+"."+k, x, y)
				}
			}
		case a.Kind() == reflect.Struct && keyed(a.Type()):
			for i := range a.NumField() {
				f := a.Type().Field(i)
				key := f.Tag.Get("cfg")
				if key == "" || a.Type() == reflect.TypeFor[config.Rx]() &&
					(key == "flows" || key == "flex_items" || key == "dynamic_flow_capacity") {
					continue
				}
				if key == "*" { // options of engines, by section and key
					walk(path, a.Field(i), b.Field(i))
					continue
				}
				at := key
				if path != "" {
					at = path + "." + key
				}
				walk(at, a.Field(i), b.Field(i))
			}
		case !reflect.DeepEqual(a.Interface(), b.Interface()):
			report(path, a, b)
		}
	}
	walk("", reflect.ValueOf(*was), reflect.ValueOf(*is))
	return out
}

// keyed reports whether a struct is a section of the configuration.
func keyed(t reflect.Type) bool {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("cfg") != "" {
			return true
		}
	}
	return false
}

// shown is a value for a message.
func shown(v reflect.Value) string {
	switch {
	case !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil():
		return "absent"
	case v.Kind() == reflect.Pointer || v.Kind() == reflect.Map:
		return "there"
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		return fmt.Sprintf("%d of them", v.Len())
	case v.Kind() == reflect.String:
		return fmt.Sprintf("%q", v.String())
	}
	return fmt.Sprint(v.Interface())
}
