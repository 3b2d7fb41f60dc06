package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
)

// spelling says that a key has another name in files of this dialect.
func (d *decoder) spelling(c *cursor, g *given) {
	k, path := g.key, join(c.path, g.key.name)
	switch ours := d.cfg.dialect == Ours; {
	case ours && k.old != "" && k.old != "nothing":
		d.add(Warning, CodeRenamedKey, posOf(g.at), widthOf(g.at), path, fmt.Sprintf("%s is a key of DAQIRI's files",
			g.at.Value), "", "here it is "+k.old+"; penstock config migrate rewrites a file")
	case ours && g.old && k.old == "":
		d.add(Warning, CodeRenamedKey, posOf(g.at), widthOf(g.at), path, fmt.Sprintf("%s is DAQIRI's name of %s",
			g.at.Value, k.name), "", fmt.Sprintf("write %s; penstock config migrate rewrites a file", k.name))
	case !ours && (k.ours || k.daqiri != "" && g.at.Value == k.name):
		d.add(Note, CodeRenamedKey, posOf(g.at), widthOf(g.at), path,
			fmt.Sprintf("DAQIRI does not know the key %s", g.at.Value), "", "its own programs would refuse this file")
	}
	if k.idle != "" && g.value.Value != "false" {
		d.add(Note, CodeNoEffect, posOf(g.at), widthOf(g.at), path,
			fmt.Sprintf("%s has no effect here: %s", g.at.Value, k.idle), "", "")
	}
}

func (d *decoder) unknown(c *cursor, e entry, outside bool) {
	if d.full() && !strings.HasPrefix(e.key.Value, "x-") && !c.sec.open {
		d.more++
		return
	}
	name, at, width := e.key.Value, posOf(e.key), widthOf(e.key)
	path := join(c.path, name)
	if strings.HasPrefix(name, "x-") && (c.path == "" || d.cfg.dialect == Ours) {
		return
	}
	names := c.sec.names(d.cfg.dialect)
	if c.path == "" && d.cfg.dialect != Bare {
		names = slices.DeleteFunc(names, func(n string) bool { return c.sec.byName[n].beside != outside })
	}
	near := input.Nearest(name, names)
	for i := range c.sec.keys {
		if k := &c.sec.keys[i]; near == "" && slices.Contains(names, k.written(d.cfg.dialect)) {
			near = input.Nearest(name, k.also)
		}
	}
	if k := c.sec.byName[name]; k != nil {
		where := "inside " + d.cfg.dialect.String() + ":"
		if !outside {
			where = "beside " + strings.TrimSuffix(d.cfg.dialect.String(), ".cfg") + ": at the top of the file"
		}
		d.add(Error, CodeUnknownKey, at, width, path, fmt.Sprintf("%s is in the wrong place", name), "it "+where, "")
		return
	}
	if (outside || c.path == "" && d.cfg.dialect == Bare) && d.cfg.dialect != Ours && near == "" || c.sec.open {
		d.add(Note, CodeApplication, at, width, path,
			fmt.Sprintf("%s belongs to an application and is not looked at", shown(name)), "", "")
		return
	}
	hint := ""
	switch elsewhere := places(name); {
	case near != "":
		hint = fmt.Sprintf("did you mean %s?", near)
	case len(elsewhere) > 0:
		hint = fmt.Sprintf("%s is a key of %s", name, d.likely(c.path, elsewhere))
	case outside:
		hint = "keys of your own begin with x-"
	}
	where := "in " + c.sec.title
	if outside {
		where = "beside penstock"
	}
	expected := listed(names)
	if near != "" {
		expected = ""
		if c.typo == nil {
			c.typo = map[string]bool{}
		}
		c.typo[c.sec.byName[near].name] = true
		d.breaks(join(c.path, c.sec.byName[near].name)) // what it says is not known
	}
	d.add(Error, CodeUnknownKey, at, width, path, fmt.Sprintf("unknown key %s %s", shown(name), where), expected, hint)
}

// likely are those of the places that lie below path, or else all, at most three.
func (d *decoder) likely(path string, all []string) string {
	var below []string
	for _, p := range all {
		if plain := plainPath(path); plain != "" && strings.HasPrefix(plainPath(p), plain) {
			below = append(below, p)
		}
	}
	if below == nil {
		below = all
	}
	below = slices.Clone(below[:min(3, len(below))])
	for i, p := range below {
		if p == "" {
			below[i] = d.cfg.dialect.String()
		}
	}
	return oneOf(below)
}
