package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/option"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/drivers"
	"github.com/penstock-io/penstock/transfer/path/setup"
)

// pathsKey is the key of a node's paths.
func pathsKey() key {
	names := drivers.Names()
	k := word(names...)
	one := k.parse
	k.parse = func(s scalar) (any, string) {
		text := s.text
		s.text, _, _ = strings.Cut(text, "?") // of its options, checkPaths says what is wrong
		_, wrong := one(s)
		return text, wrong
	}
	k.schema = map[string]any{"anyOf": []any{k.schema,
		map[string]any{"type": "string", "pattern": "^(" + strings.Join(names, "|") + `)\?.*$`}}}
	k.old = nil
	return key{name: "paths", kind: k, list: true, uniq: true, def: strings.Join(names, ", "),
		doc: "Paths in order of preference, as far as this machine has them, each with its options if need be: " +
			"`verbs?device=mlx5_0&queue_pairs=2`. A path with options is one that the machine must have."}
}

// pathSections are the sections of a node with options of paths, in the order of the table.
func pathSections() (out []key) {
	for _, s := range drivers.Table {
		var keys []key
		for i := range s.Options {
			keys = append(keys, optionKey(&s.Options[i]))
		}
		for _, g := range s.Gone {
			keys = append(keys, key{name: g.Key, gone: g.Why})
		}
		if keys != nil {
			out = append(out, key{name: s.Name, doc: "Options of the path " + s.Name + ".",
				sub: &section{name: s.Name + "_paths", title: s.Name, doc: s.Doc, keys: keys, engines: true}})
		}
	}
	return out
}

// PathUse is a path of a node with the options that the file has for it.
type PathUse struct {
	*setup.Spec
	Settings option.Settings
	At       string // where they are; "" where the file has none, and the node goes on without the path
}

// Text is the path as package transfer/path/drivers reads it.
func (u *PathUse) Text() string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(u.Settings)) {
		all = append(all, k+"="+option.Escape(u.Settings[k]))
	}
	if all == nil {
		return u.Name
	}
	return u.Name + "?" + strings.Join(all, "&")
}

// PathUses are the paths of the node, the preferred one first. Those that are not known are left
// out.
func (t *Transfers) PathUses() (out []PathUse) {
	texts := t.Paths
	if len(texts) == 0 {
		texts = drivers.Names()
	}
	for i, text := range texts {
		s, settings, err := drivers.Find(text)
		if err != nil {
			continue
		}
		u := PathUse{Spec: s, Settings: settings}
		if settings != nil {
			u.At = item("transfers.paths", i)
		}
		if section, there := t.Sections[s.Name]; there {
			u.At, u.Settings = "transfers."+s.Name, maps.Clone(section)
			maps.Copy(u.Settings, settings)
		}
		out = append(out, u)
	}
	return out
}

// checkPaths looks at the options of paths.
func (d *decoder) checkPaths(t *Transfers) {
	seen := map[string]string{}
	for i, text := range t.Paths {
		if text == "" { // it could not be read
			continue
		}
		s, _, err := drivers.Find(text)
		var e *option.Error
		switch at := item("transfers.paths", i); {
		case errors.As(err, &e):
			d.report(Error, CodeValue, at, fmt.Sprintf("the path %s: %s", shown(text), e.Problem()), e.Expected, e.Hint)
		case err != nil:
			d.report(Error, CodeValue, at, fmt.Sprintf("there is no path %s: %v", shown(text), err), "", "")
		case seen[s.Name] != "" && seen[s.Name] != text: // of the same twice, the list says it
			d.report(Error, CodeDuplicate, at, fmt.Sprintf("paths names %s twice", s.Name), "", "remove one of them")
		default:
			seen[s.Name] = text
		}
	}
	uses := t.PathUses()
	for _, name := range slices.Sorted(maps.Keys(t.Sections)) {
		used := slices.ContainsFunc(uses, func(u PathUse) bool { return u.Name == name })
		if !used && !d.unread("transfers.paths") {
			message := fmt.Sprintf("the section %s shapes a path that paths leaves out", name)
			d.also(d.report(Error, CodeConflict, "transfers."+name, message, name+" in paths too",
				"or remove the section"),
				"transfers.paths", "paths is here")
		}
	}
	for _, u := range uses {
		section := "transfers." + u.Name
		if u.At == "" || d.around[section] { // what could not be read was reported
			continue
		}
		_, err := u.Driver(u.Settings, false)
		if e := (*option.Error)(nil); errors.As(err, &e) { // of a program: a file has no such section
			d.report(Error, CodeValue, join(section, e.Key), e.Problem(), e.Expected, e.Hint)
		} else if err != nil {
			message := strings.TrimSuffix(err.Error(), ": "+path.ErrUnavailable.Error())
			message, at := d.ofFields(message, u.Options, u.At, func(o *option.Option) string {
				return join(section, o.Key)
			})
			d.report(Error, CodeConflict, at, message, "", "")
		}
	}
}
