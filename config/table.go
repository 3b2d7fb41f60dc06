package config

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"go.yaml.in/yaml/v3"
)

// key is one key of a section. The table of them is all there is to know of the schema.
type key struct {
	name   string   // in our files
	daqiri string   // in DAQIRI's, where it is another; bare numbers have the unit that it names
	also   []string // other spellings that DAQIRI takes

	kind *kind    // of a value, or of each of a list
	sub  *section // of a map, or of each map of a list
	list bool
	one  bool // a list that may be written as its only element
	uniq bool // values of the list are all different

	added bool // a word that Options.Kinds adds to

	def     string // default, as it would be written; "" for none
	derived string // what the default follows from, in words
	needed  bool   // must be there

	ours bool   // DAQIRI has no such key
	old  string // only DAQIRI has it: what stands for it here, in words. Values go to section.finish
	idle string // why nothing follows from it
	gone string // refused: what stands for it

	beside bool // of an application: beside the configuration, not in it

	doc string

	opt *engine.Option // it is an option of an engine: its value is text, in the field Sections

	index []int // of the field in the section's struct, nil for old keys
}

// section is a map with known keys.
type section struct {
	name     string // unique; of the definitions of the schema and of the parts of the reference
	title    string // in messages: "a receive queue"
	such     string // in messages: "{type: queue, id: 0}"
	doc      string
	keys     []key
	engines  bool // has options of engines, and only those where there is no struct
	open     bool // keys that are not known belong to another reader
	finish   func(d *decoder, c *cursor)
	forms    func(n *yaml.Node)    // makes our form of others that DAQIRI takes; formKeys are their keys
	formKeys func() map[string]any // with what JSON Schema says of them

	typ     reflect.Type
	byName  map[string]*key
	missing []string // names of needed keys, in order
}

// schema is the root of the table with all sections resolved.
func schema() *section {
	tableOnce.Do(func() {
		root := rootSection()
		root.resolve(reflect.TypeFor[Config](), map[string]bool{})
		table = root
	})
	return table
}

// table is made at the first need, by schema.
var (
	table     *section
	tableOnce sync.Once
)

// allSections are the sections in the order in which the table names them.
func allSections() []*section {
	var out []*section
	seen := map[*section]bool{}
	var walk func(s *section)
	walk = func(s *section) {
		if seen[s] {
			return
		}
		seen[s] = true
		out = append(out, s)
		for i := range s.keys {
			if s.keys[i].sub != nil {
				walk(s.keys[i].sub)
			}
		}
	}
	walk(schema())
	return out
}

// resolve joins keys and fields. A mismatch is a fault of this package, which every test finds.
func (s *section) resolve(t reflect.Type, names map[string]bool) {
	if s.typ != nil {
		if s.typ != t {
			panic(fmt.Sprintf("config: section %s is of %v and %v", s.name, s.typ, t))
		}
		return
	}
	if names[s.name] {
		panic("config: two sections are called " + s.name)
	}
	names[s.name] = true
	s.typ, s.byName = t, map[string]*key{}
	field := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) { // those of embedded structs too
		if tag := f.Tag.Get("cfg"); tag != "" && tag != "*" {
			field[tag] = f.Index
		}
	}
	for i := range s.keys {
		k := &s.keys[i]
		for _, n := range append([]string{k.name, k.daqiri}, k.also...) {
			if n != "" {
				if s.byName[n] != nil {
					panic(fmt.Sprintf("config: section %s has two keys %s", s.name, n))
				}
				s.byName[n] = k
			}
		}
		k.index = nil
		if k.needed {
			s.missing = append(s.missing, k.name)
		}
		at, ok := field[k.name]
		if k.sub != nil && k.sub.engines && !ok {
			k.sub.resolve(reflect.TypeFor[struct{}](), names)
			continue
		}
		if ok == (k.old != "" || k.gone != "" || k.opt != nil) {
			panic(fmt.Sprintf("config: section %s: key %s and its field disagree", s.name, k.name))
		}
		delete(field, k.name)
		if ok {
			k.index = at
		}
		if k.sub != nil {
			if !ok {
				panic(fmt.Sprintf("config: section %s: key %s has no field", s.name, k.name))
			}
			ft := t.FieldByIndex(at).Type
			if ft.Kind() == reflect.Slice || ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			k.sub.resolve(ft, names)
		}
	}
	for tag := range field {
		panic(fmt.Sprintf("config: section %s has no key for the field %s", s.name, tag))
	}
}

// written is the name that a key has in files of a dialect.
func (k *key) written(d Dialect) string {
	if d != Ours && k.daqiri != "" {
		return k.daqiri
	}
	return k.name
}

// isOld reports whether name is DAQIRI's name of the key, where it is another than ours.
func (k *key) isOld(name string) bool { return k.old != "" || k.daqiri == name && k.daqiri != "" }

// names are the names of the keys in a dialect, in the order of the table.
func (s *section) names(d Dialect) []string {
	var out []string
	for i := range s.keys {
		if k := &s.keys[i]; k.gone == "" && (k.old == "" || d != Ours) {
			out = append(out, k.written(d))
		}
	}
	return out
}

// suchAs shows a map of the section: an example where the table has one, else the keys that it
// needs.
func (s *section) suchAs() string {
	switch {
	case s.such != "":
		return " such as " + s.such
	case s.missing != nil:
		return " with " + strings.Join(s.missing, ", ")
	}
	return ""
}

// places says where in a file the sections are that have a key of this name:
// "interfaces[].rx.queues[]".
func places(name string) []string {
	placesOnce.Do(findPlaces)
	return placesOf[name]
}

var (
	placesOf   map[string][]string
	placesOnce sync.Once
)

func findPlaces() {
	out, options := map[string][]string{}, map[string][]string{}
	var walk func(s *section, path string, depth int)
	walk = func(s *section, path string, depth int) {
		for i := range s.keys {
			k := &s.keys[i]
			for _, n := range append([]string{k.name, k.daqiri}, k.also...) {
				if n != "" && k.gone == "" {
					if k.opt != nil {
						options[n] = append(options[n], path)
						continue
					}
					out[n] = append(out[n], path)
				}
			}
			if k.sub != nil && depth < 8 {
				p := k.name
				if path != "" {
					p = path + "." + p
				}
				if k.list {
					p += "[]"
				}
				walk(k.sub, p, depth+1)
			}
		}
	}
	walk(schema(), "", 0)
	for n, l := range options { // last, because many share a name with something common
		out[n] = append(out[n], l...)
	}
	placesOf = out
}

// Dialect is the spelling of a file.
type Dialect uint8

// The dialects.
const (
	Ours   Dialect = iota // below penstock
	DAQIRI                // below daqiri.cfg
	Bare                  // DAQIRI's keys at the top of the file
)

func (d Dialect) String() string {
	return [...]string{"penstock", "daqiri.cfg", "DAQIRI's keys at the top"}[min(d, Bare)]
}

// list of a section's keys for the messages about unknown ones, cut where it would fill the screen.
func listed(names []string) string {
	const most = 14
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more (see docs/config.md)", len(names)-most)
	}
	return oneOf(names)
}
