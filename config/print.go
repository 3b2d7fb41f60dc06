package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/engine"
)

// YAML writes the configuration in Penstock's format, without what is the default anyway. Load of
// it gives an equal Config.
func (c *Config) YAML() []byte {
	p := &printer{cfg: c}
	p.file()
	return []byte(p.b.String())
}

// printer writes a Config along the table.
type printer struct {
	cfg   *Config
	b     strings.Builder
	all   bool // also defaults, each value with where it came from
	lines []string
}

func (p *printer) file() {
	root, v := schema(), reflect.ValueOf(p.cfg).Elem()
	p.lines = nil
	p.section(root, v, nil, "", 1, func(k *key) bool { return !k.beside })
	p.b.WriteString("penstock:\n")
	if len(p.lines) == 0 {
		p.lines = append(p.lines, "  version: 1")
	}
	p.flush()
	p.section(root, v, nil, "", 0, func(k *key) bool { return k.beside })
	p.flush()
}

func (p *printer) flush() {
	for _, l := range p.lines {
		p.b.WriteString(l)
		p.b.WriteByte('\n')
	}
	p.lines = nil
}

// line adds a line; path is that of its value, "" for none.
func (p *printer) line(indent int, text, path string) {
	l := strings.Repeat("  ", indent) + text
	if p.all && path != "" {
		if from := p.origin(path); from != "" {
			l = fmt.Sprintf("%-50s # %s", l, from)
		}
	}
	p.lines = append(p.lines, l)
}

func (p *printer) origin(path string) string {
	s, ok := p.cfg.sources[path]
	switch {
	case !ok:
		return ""
	case s.Origin == FromFile && strings.HasPrefix(s.Text, "<") && strings.HasSuffix(s.Text, ">"):
		return fmt.Sprintf("line %d, still to be filled in", s.At.Line)
	case s.Origin == FromFile:
		return fmt.Sprintf("line %d", s.At.Line)
	case s.Origin == FromRule:
		return "derived: " + s.Why
	}
	return s.Origin.String()
}

// ownOptions are options of engines as a section has them.
type ownOptions struct {
	engine.Settings
	of *Interface // nil: of a queue
}

func (p *printer) section(s *section, v reflect.Value, own *ownOptions, path string, indent int, want func(*key) bool) {
	for i := range s.keys {
		if f := v.FieldByName("PollMode"); f.IsValid() && f.String() == "direct" && s.keys[i].name == "cpu_core" {
			continue // the application's
		}
		if s.name == "action" && s.keys[i].name != "type" &&
			!slices.Contains(uses[v.FieldByName("Type").String()], s.keys[i].name) {
			continue // of other types
		}
		if s.name == "stage" && p.all && s.keys[i].name != "type" && v.FieldByName("Type").String() != "record" {
			continue // of the stage record
		}
		switch k := &s.keys[i]; {
		case want != nil && !want(k):
		case k.opt != nil:
			p.option(k, own, join(path, k.name), indent)
		case k.sub != nil && k.sub.engines:
			p.engines(k, v, join(path, k.name), indent)
		case k.index != nil:
			p.key(k, v.FieldByIndex(k.index), join(path, k.name), indent)
		}
	}
}

// engines prints a section with options of engines.
func (p *printer) engines(k *key, v reflect.Value, path string, indent int) {
	settings, there := (*sectionsOf(v))[k.name]
	own := &ownOptions{Settings: settings}
	if v.Type() == reflect.TypeFor[Interface]() {
		own.of = v.Addr().Interface().(*Interface)
	}
	fields := reflect.New(k.sub.typ).Elem()
	if k.index != nil && !v.FieldByIndex(k.index).IsNil() {
		fields, there = v.FieldByIndex(k.index).Elem(), true
	}
	if !there {
		return
	}
	before := len(p.lines)
	p.line(indent, k.name+":", "")
	p.section(k.sub, fields, own, path, indent+1, nil)
	if len(p.lines) == before+1 { // to be there says something
		p.lines = p.lines[:before]
		p.line(indent, k.name+": {}", "")
	}
}

// option prints an option of an engine: as it is set, and where all is printed its default if the
// engine of the interface has it.
func (p *printer) option(k *key, own *ownOptions, path string, indent int) {
	text, given := own.Settings[k.name]
	if !given {
		if !p.all || k.def == "" || own.of != nil &&
			(own.of.Engine.Spec() == nil || own.of.Engine.Spec().Option(k.name, own.of.scheme()) == nil) {
			return
		}
		p.line(indent, k.name+": "+quoted(k.def), path)
		return
	}
	if k.list {
		var l []string
		for part := range strings.SplitSeq(text, ",") {
			l = append(l, quoted(part))
		}
		p.line(indent, k.name+": ["+strings.Join(l, ", ")+"]", path)
		return
	}
	p.line(indent, k.name+": "+quoted(text), path)
}

func (p *printer) key(k *key, f reflect.Value, path string, indent int) {
	switch {
	case k.sub != nil && k.list:
		if f.Len() == 0 {
			return
		}
		p.line(indent, k.name+":", "")
		for i := range f.Len() {
			p.item(k.sub, f.Index(i), item(path, i), indent+1)
		}
	case k.sub != nil:
		optional := f.Kind() == reflect.Pointer
		if optional {
			if f.IsNil() {
				return
			}
			f = f.Elem()
		}
		before := len(p.lines)
		p.line(indent, k.name+":", "")
		p.section(k.sub, f, nil, path, indent+1, nil)
		if len(p.lines) == before+1 {
			p.lines = p.lines[:before]
			if optional { // to be there says something
				p.line(indent, k.name+": {}", "")
			}
		}
	default:
		if text, ok := p.value(k, f, path); ok {
			p.line(indent, k.name+": "+text, path)
		}
	}
}

// item is a map in a list: its first key follows the dash.
func (p *printer) item(s *section, v reflect.Value, path string, indent int) {
	before := len(p.lines)
	p.section(s, v, nil, path, indent+1, nil)
	if len(p.lines) == before {
		p.line(indent, "- {}", "")
		return
	}
	at := 2 * indent
	p.lines[before] = p.lines[before][:at] + "- " + p.lines[before][at+2:]
}

// value is a value as text; false if it is to be left out.
func (p *printer) value(k *key, f reflect.Value, path string) (string, bool) {
	if k.list {
		if f.Len() == 0 {
			return "", false
		}
		var l []string
		for i := range f.Len() {
			l = append(l, quoted(k.kind.formatOf(f.Index(i))))
		}
		return "[" + strings.Join(l, ", ") + "]", p.all || strings.Join(l, ", ") != k.def
	}
	if f.Kind() == reflect.Struct && f.FieldByName("Set").IsValid() {
		if !f.FieldByName("Set").Bool() {
			return "", false
		}
		return quoted(k.kind.formatOf(f.FieldByName("Value"))), true
	}
	if k.def != "" {
		d := reflect.New(f.Type()).Elem()
		setDefault(k, d)
		if !p.all && d.Equal(f) {
			return "", false
		}
		return quoted(k.kind.formatOf(f)), true
	}
	if f.IsZero() && !k.needed && k.name != "id" {
		return "", false
	}
	return quoted(k.kind.formatOf(f)), true
}

// plainText needs no quotes, in lists neither: there a question mark would begin a key.
var plainText = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./:@%+=-]*$`)
var plainNumber = regexp.MustCompile(`^-?[0-9][A-Za-z0-9./:-]*$`)

// quoted writes a text so that YAML reads it as it is.
func quoted(s string) string {
	switch strings.ToLower(s) {
	case "", "null", "yes", "no", "on", "off", "y", "n", ".nan", ".inf", ".":
		return strconv.Quote(s)
	}
	if s == "true" || s == "false" || plainText.MatchString(s) && !strings.HasSuffix(s, ":") && !ambiguous(s) ||
		plainNumber.MatchString(s) && !strings.HasSuffix(s, ":") {
		return s
	}
	return strconv.Quote(s)
}

func ambiguous(s string) bool {
	switch strings.ToLower(s) {
	case "true", "false":
		return true
	}
	return strings.HasPrefix(s, ".")
}
