package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/input"
	"go.yaml.in/yaml/v3"
)

// Options are what Load looks at besides the text.
type Options struct {
	// Host is the machine that the configuration is for. nil: only the file is looked at, and the
	// result is the same everywhere.
	Host *Host
	// Set replaces values of the file, in this order. A place that is not there is an Error without
	// a place.
	Set []Setting
	// Kinds are words for the kind of an application besides ours: those that the program adds to
	// app.Kinds.
	Kinds []string
}

// Load reads a configuration and checks all of it. name is the file's, for messages. It returns
// everything there is to say, sorted by place; the Config is nil if any of it is an Error.
//
// Time and memory are bounded: text beyond 1 MiB is refused, aliases add 50,000 values at most, and
// after 1,000 diagnostics no more are kept.
func Load(name string, text []byte, o Options) (*Config, Diagnostics) {
	d := &decoder{cfg: &Config{name: name, sources: map[string]Source{}}, broken: map[string]bool{},
		around: map[string]bool{}, kinds: o.Kinds}
	if root := d.parse(text); root != nil {
		if d.file(root, o.Set) {
			d.cfg.derive(d)
			d.check(o.Host)
		}
	}
	d.diags.Sort()
	if d.more > 0 {
		d.diags = append(d.diags, Diagnostic{Severity: Error, Code: CodeSyntax, File: name,
			Message: fmt.Sprintf("%d more: correct some of these first", d.more)})
	}
	if d.diags.Count(Error) > 0 {
		return nil, d.diags
	}
	d.cfg.needs = d.diags.Only(Needs)
	return d.cfg, d.diags
}

// decoder is one Load.
type decoder struct {
	cfg    *Config
	diags  Diagnostics
	more   int // that were not kept
	visits int
	most   int // visits that are allowed
	lines  int // of the text
	// broken are the paths, with and without indexes, of what could not be read: what seems to be
	// missing may be there. A list whose element is no map is broken itself.
	broken  map[string]bool
	around  map[string]bool // the sections and lists around them
	legacy  legacy
	regions map[string]int // places of regions and interfaces by name, the first of each; made by check
	ifaces  map[string]int
	pairs   int // of flows that were compared
	kinds   []string
}

// full reports whether the decoder keeps no more diagnostics: then a check need not work out their
// words.
func (d *decoder) full() bool { return len(d.diags) >= maxDiagnostics }

// given is a key that is there.
type given struct {
	key       *key
	at, value *yaml.Node
	parsed    any  // of old keys
	unset     bool // a placeholder, or wrong: it counts as there
	old       bool
}

// cursor is a section that is being read.
type cursor struct {
	sec  *section
	node *yaml.Node // nil where the section is not in the file
	path string
	v    reflect.Value          // of the struct
	put  func(key, text string) // keeps an option of an engine
	own  bool                   // there are keys that are no options
	got  map[string]*given
	typo map[string]bool // needed keys that an unknown key was probably meant to be
}

// is returns the key if it is there with a value.
func (c *cursor) is(name string) *given {
	if g := c.got[name]; g != nil && !g.unset {
		return g
	}
	return nil
}

// lacks reports whether the key is not there, nor one that was probably meant to be it.
func (c *cursor) lacks(name string) bool { return c.got[name] == nil && !c.typo[name] }

func (d *decoder) add(s Severity, code Code, at Pos, width int, path, message, expected, hint string) int {
	if len(d.diags) >= maxDiagnostics {
		if s == Error {
			d.more++
		}
		return -1
	}
	if at.Line > d.lines && d.lines > 0 { // YAML knows ends of lines that editors do not count
		at = Pos{d.lines, 1}
	}
	d.diags = append(d.diags, Diagnostic{Severity: s, Code: code, File: d.cfg.name, At: at, Width: width, Path: path,
		Message: message, Expected: expected, Hint: hint})
	return len(d.diags) - 1
}

// related adds another place to a diagnostic.
func (d *decoder) related(i int, at Pos, text string) {
	if i >= 0 && !at.IsZero() {
		d.diags[i].Related = append(d.diags[i].Related, Related{at, text})
	}
}

// breaks notes that what is at path could not be read.
func (d *decoder) breaks(path string) {
	d.broken[path], d.broken[plainPath(path)] = true, true
	for i, r := range path {
		if r == '.' || r == '[' {
			d.around[path[:i]] = true
		}
	}
}

// unread reports whether anything at one of the paths could not be read.
func (d *decoder) unread(paths ...string) bool {
	for _, p := range paths {
		if d.broken[p] {
			return true
		}
	}
	return false
}

// plainPath is a path without indexes.
func plainPath(p string) string {
	var b strings.Builder
	in := false
	for _, r := range p {
		switch {
		case r == '[':
			in = true
		case r == ']':
			in = false
		case !in:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// file finds the configuration in a file and reads it. It reports false if there is none.
func (d *decoder) file(root *yaml.Node, set []Setting) bool {
	root = d.resolve(root)
	if root == nil {
		return false
	}
	if root.Kind != yaml.MappingNode {
		what := called(root)
		if root.Tag == "!!null" {
			what = "empty"
		}
		d.add(Error, CodeRoot, posOf(root), widthOf(root), "", "the file is "+what,
			"a map with the key penstock: or daqiri:", "penstock config generate writes one")
		return false
	}
	all := d.entries(root, "", 0)
	var cfg *entry
	var beside []entry
	sec := schema()
	known := 0
	for i, e := range all {
		switch k := sec.byName[e.key.Value]; {
		case e.key.Value == "penstock" || e.key.Value == "daqiri":
			if cfg != nil {
				d.related(d.add(Error, CodeDuplicate, posOf(e.key), widthOf(e.key), "",
					fmt.Sprintf("the file has %s and %s", cfg.key.Value, e.key.Value), "one configuration",
					"put this one into a file of its own"),
					posOf(cfg.key), "the first")
				continue
			}
			cfg = &all[i]
		default:
			if k != nil && !k.beside {
				known++
			}
			beside = append(beside, e)
		}
	}
	node := root
	switch {
	case cfg == nil:
		d.cfg.dialect = Bare
		if known == 0 {
			d.noRoot(root, all)
			return false
		}
	case cfg.key.Value == "penstock":
		d.cfg.dialect, node = Ours, cfg.value
	default:
		d.cfg.dialect = DAQIRI
		if node = d.within(cfg); node == nil {
			return false
		}
	}
	c := &cursor{sec: sec, path: "", v: reflect.ValueOf(d.cfg).Elem(), got: map[string]*given{}}
	if node = d.resolve(node); node == nil {
		return false
	}
	if len(set) > 0 {
		d.settings(root, node, set)
		all, beside = again(root, all), again(root, beside)
	}
	if d.cfg.dialect == Bare {
		c.node = node
		d.keys(c, all)
	} else {
		if node.Kind != yaml.MappingNode {
			d.add(Error, CodeType, posOf(node), widthOf(node), "",
				fmt.Sprintf("%s: has %s", d.cfg.dialect, called(node)), "a map of keys", "")
			return false
		}
		c.node = node
		d.keys(c, d.entries(node, "", 0))
		d.keys(c, beside, true)
	}
	d.absent(c)
	sec.finish(d, c)
	return true
}

// within finds cfg below daqiri.
func (d *decoder) within(e *entry) *yaml.Node {
	n := d.resolve(e.value)
	if n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.add(Error, CodeType, posOf(n), widthOf(n), "", "daqiri: has "+called(n), "a map with the key cfg", "")
		return nil
	}
	var out *yaml.Node
	for _, x := range d.entries(n, "", 0) {
		if x.key.Value == "cfg" {
			out = x.value
			continue
		}
		d.add(Error, CodeUnknownKey, posOf(x.key), widthOf(x.key), "",
			fmt.Sprintf("unknown key %s below daqiri", shown(x.key.Value)), "cfg", "")
	}
	if out == nil {
		d.add(Error, CodeMissingKey, posOf(e.key), widthOf(e.key), "", "daqiri: has no cfg",
			"the configuration below daqiri: and cfg:", "")
	}
	return out
}

func (d *decoder) noRoot(root *yaml.Node, all []entry) {
	at, hint := Pos{root.Line, root.Column}, "penstock config generate writes one"
	width := 1
	for _, e := range all[:min(len(all), 50)] {
		if e.key.Value == "advanced_network" {
			d.add(Error, CodeRoot, posOf(e.key), widthOf(e.key), "",
				"advanced_network is the format of Holoscan's Advanced Network Operator, which DAQIRI has replaced",
				"the key daqiri: in its place, with the same cfg: below it",
				"below cfg write stream_type: raw and engine: dpdk for manager: dpdk; penstock config check says "+
					"what else differs, and penstock config migrate rewrites the file")
			return
		}
		if n := input.Nearest(e.key.Value, []string{"penstock", "daqiri"}); n != "" {
			at, width, hint = posOf(e.key), widthOf(e.key), fmt.Sprintf("did you mean %s?", n)
			break
		}
		if n := input.Nearest(e.key.Value, schema().names(Bare)); n != "" {
			at, width, hint = posOf(e.key), widthOf(e.key), fmt.Sprintf("did you mean %s?", n)
			break
		}
	}
	d.add(Error, CodeRoot, at, width, "", "there is no configuration in the file",
		"the key penstock: or daqiri:, or keys such as interfaces: at the top", hint)
}

// keys reads the entries of a section. Those beside the configuration belong to applications.
func (d *decoder) keys(c *cursor, all []entry, beside ...bool) {
	outside := len(beside) > 0
	for _, e := range all {
		name := e.key.Value
		k := c.sec.byName[name]
		if k == nil || c.path == "" && d.cfg.dialect != Bare && k.beside != outside {
			d.unknown(c, e, outside)
			continue
		}
		if k.gone != "" {
			d.add(Error, CodeRemovedKey, posOf(e.key), widthOf(e.key), join(c.path, name),
				fmt.Sprintf("the key %s is not read any more", name), "", k.gone)
			continue
		}
		if first := c.got[k.name]; first != nil {
			d.related(d.add(Error, CodeDuplicate, posOf(e.key), widthOf(e.key), join(c.path, k.name),
				fmt.Sprintf("%s says the same as %s, which is there already", name, first.at.Value), "",
				"remove one of them"),
				posOf(first.at), "it is here first")
			continue
		}
		g := &given{key: k, at: e.key, value: e.value, old: k.isOld(name)}
		c.got[k.name] = g
		c.own = c.own || k.opt == nil
		d.spelling(c, g)
		d.value(c, g)
	}
}

// value reads the value of a key into its field.
func (d *decoder) value(c *cursor, g *given) {
	k, path := g.key, join(c.path, g.key.name)
	n := d.resolve(g.value)
	if n == nil {
		g.unset = true
		return
	}
	if k.kind == nil && k.sub == nil { // finish looks at it
		return
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" || n.Kind == yaml.ScalarNode &&
		n.Tag == "!!null" {
		if k.sub != nil && !k.needed {
			d.add(Warning, CodeValue, posOf(g.at), widthOf(g.at), path,
				fmt.Sprintf("%s: has nothing below it", g.at.Value), "",
				"remove the key, or indent what belongs below it")
			g.unset = true
			delete(c.got, k.name) // as if it were not there
			return
		}
		d.add(Error, CodeValue, posOf(g.at), widthOf(g.at), path, fmt.Sprintf("%s has no value", g.at.Value),
			k.expects(), "")
		g.unset = true
		d.breaks(path)
		return
	}
	switch {
	case k.list:
		d.list(c, g, n, path)
	case k.sub != nil:
		if n.Kind != yaml.MappingNode {
			d.typed(n, path, g.at.Value, "a map", "")
			g.unset = true
			return
		}
		d.source(path, n, 1)
		if !k.sub.engines {
			d.section(n, k.sub, d.field(c, k), path, nil)
			return
		}
		all := sectionsOf(c.v)
		v := reflect.New(k.sub.typ).Elem()
		if k.index != nil {
			v = d.field(c, k)
		} else if *all == nil { // a section without keys counts as well
			*all = map[string]engine.Settings{k.name: {}}
		} else {
			(*all)[k.name] = engine.Settings{}
		}
		in := d.section(n, k.sub, v, path, func(key, text string) { put(all, k.name, key, text) })
		if k.index != nil && !in.own {
			c.v.FieldByIndex(k.index).SetZero()
		}
	default:
		v, ok := d.scalar(n, k, path, g.at.Value, g.old)
		if !ok {
			g.unset = true
			return
		}
		if k.opt == nil && k.index == nil {
			g.parsed = v
			return
		}
		d.source(path, n, widthOf(n))
		if k.opt != nil {
			c.put(k.name, k.kind.formatOf(reflect.ValueOf(v)))
			return
		}
		assign(c.v.FieldByIndex(k.index), v)
	}
}

// expects says what the value of a key should be.
func (k *key) expects() string {
	switch {
	case k.list && k.sub != nil:
		return "a list, each of it " + k.sub.title
	case k.sub != nil:
		return "a map"
	case k.list:
		return "a list, each of it " + k.kind.expect
	case k.kind == nil:
		return ""
	}
	return k.kind.expect
}

func (d *decoder) typed(n *yaml.Node, path, name, expected, hint string) {
	d.add(Error, CodeType, posOf(n), widthOf(n), path, fmt.Sprintf("%s is %s", name, called(n)), expected, hint)
	d.breaks(path)
}

func (d *decoder) source(path string, n *yaml.Node, width int) {
	text := ""
	if n.Kind == yaml.ScalarNode {
		text = n.Value
	}
	d.cfg.note(path, Source{Origin: FromFile, At: posOf(n), Width: width, Text: text})
}

// field is the struct of a sub-section, made if need be.
func (d *decoder) field(c *cursor, k *key) reflect.Value {
	f := c.v.FieldByIndex(k.index)
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	return f
}

func (d *decoder) list(c *cursor, g *given, n *yaml.Node, path string) {
	k := g.key
	items := n.Content
	if n.Kind != yaml.SequenceNode {
		if n.Kind == yaml.MappingNode && k.one {
			items = []*yaml.Node{n}
		} else {
			hint := ""
			if n.Kind == yaml.MappingNode && k.sub != nil {
				hint = "put a dash in front of its first key"
			} else if n.Kind == yaml.ScalarNode && k.kind != nil {
				hint = fmt.Sprintf("write [%s]", n.Value)
			}
			d.typed(n, path, g.at.Value, k.expects(), hint)
			g.unset = true
			return
		}
	}
	d.source(path, n, 1)
	f := reflect.ValueOf(new([]string)).Elem() // of an option
	if k.opt == nil {
		f = c.v.FieldByIndex(k.index)
	}
	if len(items) > 0 { // an empty list is nil, as one that is not there
		f.Set(reflect.MakeSlice(f.Type(), 0, min(len(items), 4096)))
	}
	seen := map[string]Pos{}
	for i, x := range items {
		x = d.resolve(x)
		if x == nil {
			return
		}
		e := reflect.New(f.Type().Elem()).Elem()
		at := item(path, i)
		if k.sub != nil {
			if x.Kind != yaml.MappingNode {
				d.typed(x, at, "an element of "+g.at.Value, "a map, "+k.sub.title+k.sub.suchAs(), "")
				d.breaks(path)
			} else {
				d.source(at, x, 1)
				d.section(x, k.sub, e, at, nil)
			}
		} else if v, ok := d.scalar(x, k, at, g.at.Value, g.old); ok {
			text := fmt.Sprint(v)
			if first, twice := seen[text]; twice && k.uniq {
				d.related(d.add(Error, CodeDuplicate, posOf(x), widthOf(x), at,
					fmt.Sprintf("%s names %s twice", g.at.Value, shown(x.Value)), "", "remove one of them"), first,
					"it is here first")
			}
			seen[text] = posOf(x)
			d.source(at, x, widthOf(x))
			if k.opt != nil {
				v = k.kind.formatOf(reflect.ValueOf(v))
			}
			assign(e, v)
		} else {
			d.breaks(path)
		}
		f.Set(reflect.Append(f, e))
	}
	if k.opt != nil && len(items) > 0 {
		c.put(k.name, strings.Join(f.Interface().([]string), ","))
	}
	if len(items) == 0 && k.needed {
		d.add(Error, CodeValue, posOf(n), 1, path, fmt.Sprintf("%s is an empty list", g.at.Value), k.expects(), "")
	}
}

// scalar reads one value.
func (d *decoder) scalar(n *yaml.Node, k *key, path, name string, old bool) (any, bool) {
	if n.Kind != yaml.ScalarNode {
		d.typed(n, path, name, k.kind.expect, "")
		return nil, false
	}
	if s := n.Value; len(s) >= 2 && s[0] == '<' && s[len(s)-1] == '>' {
		d.add(Needs, CodePlaceholder, posOf(n), widthOf(n), path,
			fmt.Sprintf("%s is the placeholder %s", name, shown(s)), k.kind.expect, "write the value in its place")
		d.cfg.note(path, Source{Origin: FromFile, At: posOf(n), Width: widthOf(n), Text: s})
		return nil, false
	}
	s := scalar{text: n.Value, quoted: n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0,
		loose: d.cfg.dialect != Ours, old: old}
	v, wrong := k.kind.parse(s)
	if k.added && slices.Contains(d.kinds, s.text) {
		v, wrong = s.text, ""
	}
	if wrong == "" {
		return v, true
	}
	hint := ""
	if near := input.Nearest(n.Value, k.kind.words); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	if n.Value == "rdma_config" || n.Value == "rdma" && k.name == "engine" {
		hint = "addresses with roce:// choose it"
	}
	d.add(Error, CodeValue, posOf(n), widthOf(n), path, fmt.Sprintf("%s: %s %s", name, written(n), wrong),
		k.kind.expect, hint)
	d.breaks(path)
	return nil, false
}

// assign puts a value into a field, which may be a flow.Opt.
func assign(f reflect.Value, v any) {
	if f.Kind() == reflect.Struct {
		if inner := f.FieldByName("Value"); inner.IsValid() && f.FieldByName("Set").IsValid() {
			f.FieldByName("Set").SetBool(true)
			f = inner
		}
	}
	f.Set(reflect.ValueOf(v).Convert(f.Type()))
}

// section reads a map into the struct v.
func (d *decoder) section(n *yaml.Node, s *section, v reflect.Value, path string, put func(key, text string)) *cursor {
	if s.forms != nil && d.cfg.dialect != Ours {
		s.forms(n)
	}
	c := &cursor{sec: s, node: n, path: path, v: v, put: put, got: map[string]*given{}}
	d.keys(c, d.entries(n, path, 0))
	d.absent(c)
	if s.finish != nil {
		s.finish(d, c)
	}
	return c
}
