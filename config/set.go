package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"go.yaml.in/yaml/v3"
)

// Setting replaces a value of a file before it is read: what the file says there is not looked at,
// a placeholder for instance.
type Setting struct {
	// Path names the place: keys with dots between them, in DAQIRI's spelling or ours, and in
	// brackets which element of a list: its number from 0, its name (of bench sections the
	// interface's), or * for all of them, such as interfaces[tx_port].address or
	// memory_regions[*].kind.
	Path string
	// Value is YAML: a word, a number, or a list of them in brackets. Lists and maps of maps are
	// not taken.
	Value string
}

// String is the form that ParseSetting reads.
func (s Setting) String() string { return s.Path + "=" + s.Value }

// ParseSetting reads PATH=VALUE. What it does not look at, whether there is such a place and
// whether the value belongs there, Load says.
func ParseSetting(text string) (Setting, error) {
	path, value, ok := strings.Cut(text, "=")
	if !ok {
		return Setting{}, fmt.Errorf("config: setting %q: expected PATH=VALUE, such as interfaces[tx_port].address=eth0", text)
	}
	if _, err := settingPath(path); err != nil {
		return Setting{}, err
	}
	return Setting{path, value}, nil
}

// step is one key of the path of a setting.
type step struct {
	key  string
	pick string // "", or what is in brackets
}

func settingPath(path string) ([]step, error) {
	bad := func(why string) error {
		return fmt.Errorf("config: setting %q: %s: expected keys with dots between them, such as "+
			"interfaces[tx_port].address", path, why)
	}
	var out []step
	for rest := path; ; {
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		s := step{key: rest[:end]}
		if s.key == "" || strings.ContainsAny(s.key, "] ") {
			return nil, bad("there is no key")
		}
		rest = rest[end:]
		if strings.HasPrefix(rest, "[") {
			in, after, ok := strings.Cut(rest[1:], "]")
			if !ok || in == "" {
				return nil, bad("a bracket is empty or not closed")
			}
			s.pick, rest = in, after
		}
		out = append(out, s)
		if len(out) > maxNesting {
			return nil, bad("it is too long")
		}
		if rest == "" {
			return out, nil
		}
		if !strings.HasPrefix(rest, ".") {
			return nil, bad("a dot is missing")
		}
		rest = rest[1:]
	}
}

// setter changes the tree of a file.
type setter struct {
	left int // nodes that may still be copied
}

// settings changes the tree of a file. root is the file, node the configuration in it.
func (d *decoder) settings(root, node *yaml.Node, all []Setting) {
	x := &setter{left: d.most}
	for _, s := range all {
		bad := func(format string, args ...any) {
			d.add(Error, CodeValue, Pos{}, 0, s.Path,
				fmt.Sprintf("setting %s: %s", shown(s.String()), fmt.Sprintf(format, args...)), "", "")
		}
		steps, err := settingPath(s.Path)
		if err != nil {
			bad("the path is not one: expected keys with dots between them, such as interfaces[tx_port].address")
			continue
		}
		value, wrong := settingValue(s.Value)
		if wrong != "" {
			bad("%s", wrong)
			continue
		}
		at := node
		if k := schema().byName[steps[0].key]; k != nil && k.beside {
			at = root
		}
		if at.Kind != yaml.MappingNode {
			return // Load reports it
		}
		if wrong := x.set(at, schema(), steps, value); wrong != "" {
			bad("%s", wrong)
		}
	}
}

// again are the entries of a map after its settings: with the values that they have now, and with
// keys that were added.
func again(root *yaml.Node, all []entry) []entry {
	out := slices.Clone(all)
	for j := 0; j+1 < len(root.Content); j += 2 {
		k := root.Content[j]
		if i := slices.IndexFunc(all, func(e entry) bool { return e.key == k }); i >= 0 {
			out[i].value = root.Content[j+1]
		} else if k.Tag == addedTag {
			out = append(out, entry{k, root.Content[j+1]})
		}
	}
	return out
}

// addedTag marks a key that a setting has added.
const addedTag = "!added"

// settingValue is a scalar or a list of scalars.
func settingValue(text string) (*yaml.Node, string) {
	const expected = "expected a word, a number, or a list of them in brackets"
	if len(text) > 4096 || strings.ContainsAny(text, "\n\r") {
		return nil, "the value is not one line: " + expected
	}
	var doc yaml.Node
	if strings.HasPrefix(text, "[") {
		err := guarded(func() error { return yaml.Unmarshal([]byte(text), &doc) })
		if err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.SequenceNode ||
			slices.ContainsFunc(doc.Content[0].Content, func(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode }) {
			return nil, "the value is not readable: " + expected
		}
		return doc.Content[0], ""
	}
	// A scalar is taken as it stands, so that addresses with colons need no quotes.
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: strings.Trim(text, `"'`), Tag: "!!str"}
	if n.Value == text && text != "" {
		n.Tag = ""
		var v yaml.Node
		if guarded(func() error {
			return yaml.Unmarshal([]byte(text), &v)
		}) == nil && len(v.Content) == 1 && v.Content[0].Kind == yaml.ScalarNode && v.Content[0].Value == text {
			n.Tag = v.Content[0].Tag
		}
		if n.Tag == "" {
			n.Tag = "!!str"
		}
	} else {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n, ""
}

// set puts value at the place that the steps lead to from n, a map of section s, and says what is
// wrong otherwise. A key that is not there is added at the end of the way, not on it.
func (x *setter) set(n *yaml.Node, s *section, steps []step, value *yaml.Node) string {
	first := steps[0]
	i := slices.IndexFunc(s.keys, func(k key) bool {
		return k.name == first.key || k.daqiri == first.key || slices.Contains(k.also, first.key)
	})
	if i < 0 {
		names := s.names(DAQIRI)
		if near := input.Nearest(first.key, names); near != "" {
			return fmt.Sprintf("%s has no key %s: did you mean %s?", s.title, shown(first.key), near)
		}
		return fmt.Sprintf("%s has no key %s", s.title, shown(first.key))
	}
	k := &s.keys[i]
	at := -1
	for j := 0; j+1 < len(n.Content); j += 2 {
		if name := n.Content[j].Value; name == k.name || name == k.daqiri && name != "" ||
			slices.Contains(k.also, name) {
			at = j + 1
		}
	}
	last := len(steps) == 1
	if last && first.pick == "" {
		v := placed(value, n)
		if at >= 0 {
			v = placed(value, n.Content[at])
			n.Content[at] = v
			return ""
		}
		n.Content = append(n.Content, placed(&yaml.Node{Kind: yaml.ScalarNode, Tag: addedTag, Value: first.key}, n), v)
		return ""
	}
	if at < 0 {
		return fmt.Sprintf("the file has no %s there", shown(first.key))
	}
	if n.Content[at] = x.own(n.Content[at], 0); x.left < 0 {
		return "the file unfolds to too many values"
	}
	return x.within(n.Content[at], k, steps, value)
}

// within goes on in the value of key k: in the elements of a list that the first step picks, or in
// the one map.
func (x *setter) within(n *yaml.Node, k *key, steps []step, value *yaml.Node) string {
	first, last := steps[0], len(steps) == 1
	if first.pick == "" {
		switch {
		case k.sub == nil:
			return fmt.Sprintf("%s has a value and no keys", shown(first.key))
		case n.Kind == yaml.SequenceNode:
			return fmt.Sprintf("%s is a list: write %s[0], %s[NAME] or %s[*]", first.key, first.key, first.key,
				first.key)
		case n.Kind != yaml.MappingNode:
			return fmt.Sprintf("%s has no keys in the file", shown(first.key))
		}
		return x.set(n, k.sub, steps[1:], value)
	}
	items := []*yaml.Node{n}
	switch {
	case !k.list:
		return fmt.Sprintf("%s is no list", shown(first.key))
	case n.Kind == yaml.SequenceNode:
		items = n.Content
	case n.Kind != yaml.MappingNode || !k.one:
		return fmt.Sprintf("%s is no list in the file", shown(first.key))
	}
	hit := false
	for i, e := range items {
		if first.pick != "*" && first.pick != strconv.Itoa(i) && (k.sub == nil || !named(e, first.pick)) {
			continue
		}
		hit = true
		if e.Kind == yaml.AliasNode {
			e = x.own(e, 0)
			n.Content[i] = e // an element that is an alias is one of a list
		}
		if x.left < 0 {
			return "the file unfolds to too many values"
		}
		switch {
		case last && k.sub != nil:
			return "an element is a map: name a key of it"
		case last:
			n.Content[i] = placed(value, e)
		case k.sub == nil || e.Kind != yaml.MappingNode:
			return fmt.Sprintf("an element of %s has no keys", shown(first.key))
		default:
			if wrong := x.setIn(e, k.sub, steps[1:], value, first.pick == "*"); wrong != "" {
				return wrong
			}
		}
	}
	if !hit && first.pick != "*" {
		return fmt.Sprintf("%s has no element %s", shown(first.key), shown(first.pick))
	}
	return ""
}

// setIn is set for one of several elements: with *, those that have nothing on the way are passed
// over.
func (x *setter) setIn(n *yaml.Node, s *section, steps []step, value *yaml.Node, all bool) string {
	wrong := x.set(n, s, steps, value)
	if all && strings.HasPrefix(wrong, "the file has no ") {
		return ""
	}
	return wrong
}

// named reports whether a map has that name.
func named(n *yaml.Node, name string) bool {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	for j := 0; n.Kind == yaml.MappingNode && j+1 < len(n.Content); j += 2 {
		if k := n.Content[j].Value; (k == "name" || k == "interface_name") && n.Content[j+1].Value == name {
			return true
		}
	}
	return false
}

// own is a node to which no other refers: a copy of what an alias stands for, but for the aliases
// in it.
func (x *setter) own(n *yaml.Node, depth int) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	if x.left--; x.left < 0 || depth > maxNesting {
		return n
	}
	out := *n
	out.Anchor = ""
	out.Content = nil
	for _, c := range n.Content {
		if c.Kind != yaml.AliasNode {
			c = x.own(c, depth+1)
		}
		out.Content = append(out.Content, c)
	}
	return &out
}

// placed is a copy of a value in the place of another node, so that messages about it point there.
func placed(value, there *yaml.Node) *yaml.Node {
	out := *value
	out.Line, out.Column = there.Line, there.Column
	out.Content = nil
	for _, c := range value.Content {
		out.Content = append(out.Content, placed(c, there))
	}
	return &out
}
