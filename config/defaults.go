package config

import (
	"fmt"
	"reflect"
	"strings"
)

// absent gives keys that are not there their defaults, and reports those that should be.
func (d *decoder) absent(c *cursor) {
	var missing []string
	for i := range c.sec.keys {
		k := &c.sec.keys[i]
		if c.got[k.name] != nil && !(c.got[k.name].unset && (k.def != "" || k.sub != nil)) {
			continue
		}
		if k.needed && c.got[k.name] == nil {
			d.breaks(join(c.path, k.name))
			if !c.typo[k.name] {
				missing = append(missing, k.written(d.cfg.dialect))
			}
		}
		d.byDefault(c, k)
	}
	if missing == nil || c.node == nil {
		return
	}
	what := "it"
	if len(missing) > 1 {
		what = "them"
	}
	d.add(Error, CodeMissingKey, posOf(c.node), 1, c.path,
		fmt.Sprintf("%s has no %s", c.sec.title, strings.Join(missing, ", no ")), "", "add "+what)
}

// byDefault sets a key that is not there.
func (d *decoder) byDefault(c *cursor, k *key) {
	path := join(c.path, k.name)
	if k.opt != nil && k.def != "" && c.node != nil {
		d.cfg.note(path, Source{Origin: FromDefault})
	}
	if k.index == nil {
		return
	}
	f := c.v.FieldByIndex(k.index)
	if k.sub != nil {
		if f.Kind() == reflect.Struct {
			d.absent(&cursor{sec: k.sub, path: path, v: f, got: map[string]*given{}})
		}
		return
	}
	if k.def == "" {
		return
	}
	setDefault(k, f)
	if _, placeholder := d.cfg.sources[path]; !placeholder {
		d.cfg.note(path, Source{Origin: FromDefault})
	}
}

// setDefault puts the default of the table into a field.
func setDefault(k *key, f reflect.Value) {
	if !k.list {
		v, wrong := k.kind.parse(scalar{text: k.def})
		if wrong != "" {
			panic(fmt.Sprintf("config: the default of %s %s", k.name, wrong))
		}
		assign(f, v)
		return
	}
	f.Set(reflect.MakeSlice(f.Type(), 0, 2))
	for _, w := range strings.Split(k.def, ", ") {
		v, wrong := k.kind.parse(scalar{text: w})
		if wrong != "" {
			panic(fmt.Sprintf("config: the default of %s %s", k.name, wrong))
		}
		e := reflect.New(f.Type().Elem()).Elem()
		assign(e, v)
		f.Set(reflect.Append(f, e))
	}
}
