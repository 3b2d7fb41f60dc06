package config

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Equal reports whether two configurations say the same, wherever their values came from.
func (c *Config) Equal(o *Config) bool {
	a, b := *c, *o
	a.name, a.dialect, a.sources, a.needs, a.ignored = "", 0, nil, nil, nil
	b.name, b.dialect, b.sources, b.needs, b.ignored = "", 0, nil, nil, nil
	return reflect.DeepEqual(&a, &b)
}

// Migrate writes a file of DAQIRI's in Penstock's format. Comments and the order of keys stay,
// blank lines go. What has no effect here is left out, and so is what follows from the rest. It
// reads its own work again: the result says the same, or there is an error. Diagnostics are those
// of the file as it was; with errors among them nothing is written.
func Migrate(name string, text []byte) ([]byte, Diagnostics, error) {
	cfg, diags := Load(name, text, Options{})
	if cfg == nil {
		return nil, diags, diags.Err()
	}
	d := &decoder{cfg: &Config{name: name}, broken: map[string]bool{}, around: map[string]bool{}}
	root := d.parse(text)
	if root == nil {
		return nil, diags, d.diags.Err()
	}
	m := &mover{d: d, cfg: cfg, done: map[*yaml.Node]bool{}}
	d.cfg.dialect = cfg.dialect
	doc := m.file(root)
	// Two passes: what engine an interface has may follow from keys that are gone.
	for pass := 0; ; pass++ {
		var b bytes.Buffer
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		if err := e.Encode(doc); err != nil {
			return nil, diags, fmt.Errorf("config: %s: %w", name, err)
		}
		again, problems := Load(name, b.Bytes(), Options{})
		if again == nil {
			return nil, diags, fmt.Errorf("config: %s cannot be rewritten: %w", name, problems.Err())
		}
		if again.Equal(cfg) {
			return b.Bytes(), diags, nil
		}
		if pass > 0 {
			return nil, diags, fmt.Errorf("config: %s cannot be rewritten so that it says the same: please report it "+
				"with the file", name)
		}
		m.engines(again)
	}
}

// mover rewrites the nodes of a file.
type mover struct {
	d          *decoder
	cfg        *Config
	done       map[*yaml.Node]bool
	interfaces []*yaml.Node
}

func node(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if q := quoted(text); q != text {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func mapping(pairs ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: pairs}
}

// file makes the map of a file of ours.
func (m *mover) file(root *yaml.Node) *yaml.Node {
	out := &yaml.Node{Kind: yaml.MappingNode, HeadComment: root.HeadComment, FootComment: root.FootComment}
	inner := mapping()
	sec := schema()
	var beside []*yaml.Node
	at := -1
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		switch known := sec.byName[k.Value]; {
		case k.Value == "penstock":
			inner, at = v, len(beside)
			inner.HeadComment = joinComments(k.HeadComment, inner.HeadComment)
		case k.Value == "daqiri":
			for j := 0; j+1 < len(v.Content); j += 2 {
				if v.Content[j].Value == "cfg" {
					inner, at = v.Content[j+1], len(beside)
					inner.HeadComment = joinComments(k.HeadComment, v.Content[j].HeadComment, inner.HeadComment)
				}
			}
		case known != nil && known.beside:
			m.section(v, known)
			beside = append(beside, k, v)
		case known != nil:
			if at < 0 {
				at = len(beside)
			}
			inner.Content = append(inner.Content, k, v)
		default:
			if !strings.HasPrefix(k.Value, "x-") {
				k.Value = "x-" + k.Value
			}
			beside = append(beside, k, v)
		}
	}
	m.keys(inner, sec)
	key := node("penstock")
	key.HeadComment, inner.HeadComment = inner.HeadComment, ""
	out.Content = append(out.Content, beside[:max(at, 0)]...)
	out.Content = append(out.Content, key, inner)
	out.Content = append(out.Content, beside[max(at, 0):]...)
	return out
}

func joinComments(l ...string) string {
	var out []string
	for _, s := range l {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, "\n")
}

// section rewrites a map, or a list of maps.
func (m *mover) section(n *yaml.Node, k *key) {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for _, x := range n.Content {
			for x.Kind == yaml.AliasNode && x.Alias != nil {
				x = x.Alias
			}
			if x.Kind == yaml.MappingNode {
				m.keys(x, k.sub)
			}
			if k.name == "interfaces" {
				m.interfaces = append(m.interfaces, x)
			}
		}
	case yaml.MappingNode:
		m.keys(n, k.sub)
	}
}

// keys rewrites the keys of a map in place.
func (m *mover) keys(n *yaml.Node, s *section) {
	if m.done[n] {
		return
	}
	m.done[n] = true
	if s.forms != nil && m.cfg.dialect != Ours {
		s.forms(n)
	}
	var out []*yaml.Node
	pending := "" // comments of what was left out
	put := func(k, v *yaml.Node) {
		k.HeadComment = joinComments(pending, k.HeadComment)
		pending = ""
		out = append(out, k, v)
	}
	drop := func(k, v *yaml.Node) {
		pending = joinComments(pending, k.HeadComment, v.HeadComment, k.LineComment, v.LineComment, v.FootComment,
			k.FootComment)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		def := s.byName[k.Value]
		switch {
		case slices.Contains(m.cfg.ignored, posOf(k)) || slices.Contains(m.cfg.ignored, posOf(v)):
			drop(k, v)
		case def == nil || k.Tag == "!!merge":
			put(k, v)
		case def.old != "":
			if nk, nv := m.old(s, def, n, v); nk != nil {
				nk.HeadComment, nk.FootComment, nk.LineComment = k.HeadComment, k.FootComment, k.LineComment
				if nv.Kind == yaml.ScalarNode && v.Kind == yaml.ScalarNode {
					nv.LineComment, nv.HeadComment, nv.FootComment = v.LineComment, v.HeadComment, v.FootComment
				} else {
					nk.HeadComment = joinComments(nk.HeadComment, v.LineComment)
				}
				put(nk, nv)
				if def.name == "ethernet" {
					for j := 2; j+1 < len(v.Content); j += 2 {
						put(node("eth_"+v.Content[j].Value), v.Content[j+1])
					}
				}
				continue
			}
			drop(k, v)
		case m.means0(def, v) || def.name == "engine" && v.Value == "default":
			drop(k, v)
		default:
			written := k.Value
			k.Value = def.name
			if def.sub != nil {
				if def.name == "actions" && v.Kind == yaml.MappingNode {
					v = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{v}}
				}
				m.section(v, def)
			} else {
				m.values(def, v, def.isOld(written))
			}
			put(k, v)
		}
	}
	n.Content = out
	if pending != "" {
		if len(out) > 0 {
			last := out[len(out)-2]
			last.FootComment = joinComments(last.FootComment, pending)
		} else {
			n.HeadComment = joinComments(n.HeadComment, pending)
		}
	}
}

// means0 reports a 0 that means "any" in DAQIRI's files and 0 in ours.
func (m *mover) means0(k *key, v *yaml.Node) bool {
	return m.cfg.dialect != Ours && (k.name == "udp_src" || k.name == "udp_dst" || k.name == "ip_len") &&
		k.kind != nil && v.Value == "0"
}

// values rewrites values that mean something else, or nothing, in Penstock's format.
func (m *mover) values(k *key, v *yaml.Node, old bool) {
	if v.Kind == yaml.SequenceNode {
		for _, x := range v.Content {
			m.values(k, x, old)
		}
		return
	}
	if v.Kind != yaml.ScalarNode || m.done[v] || k.kind == nil {
		return
	}
	m.done[v] = true
	quotes := v.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	was, wrong := k.kind.parse(scalar{text: v.Value, quoted: quotes, loose: m.cfg.dialect != Ours, old: old})
	if wrong != "" {
		return // a placeholder
	}
	now, wrong := k.kind.parse(scalar{text: v.Value, quoted: quotes})
	isAlias := false
	for _, w := range k.kind.words {
		isAlias = isAlias || w == v.Value && was != any(w)
	}
	if wrong == "" && now == was && !isAlias {
		return
	}
	fresh := node(k.kind.formatOf(reflect.ValueOf(was)))
	v.Value, v.Style, v.Tag = fresh.Value, fresh.Style, ""
}

// old makes our key of one that only DAQIRI has; nil to leave it out.
func (m *mover) old(s *section, k *key, n, v *yaml.Node) (*yaml.Node, *yaml.Node) {
	sibling := func(name string) *yaml.Node {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return n.Content[i+1]
			}
		}
		return nil
	}
	switch s.name + "." + k.name {
	case "root.log_level":
		return node("logging"), mapping(node("level"), node(v.Value))
	case "region.affinity":
		name := "numa"
		if kind := sibling("kind"); kind != nil && (kind.Value == "device" || kind.Value == "host_pinned") {
			name = "gpu"
		}
		return node(name), node(v.Value)
	case "socket.local_ip", "socket.remote_ip":
		side := strings.TrimSuffix(k.name, "_ip")
		text := "udp://" + v.Value
		if port := sibling(side + "_port"); port != nil {
			text = "udp://" + v.Value + ":" + port.Value
			if strings.Contains(v.Value, ":") {
				text = "udp://[" + v.Value + "]:" + port.Value
			}
		}
		return node(side), node(text)
	case "socket.local_port", "socket.remote_port":
		side := strings.TrimSuffix(k.name, "_port")
		if sibling(side+"_ip") == nil {
			return node(side), node("udp://:" + v.Value)
		}
	case "match.ethernet":
		if v.Kind == yaml.MappingNode && len(v.Content) >= 2 {
			return node("eth_" + v.Content[0].Value), v.Content[1]
		}
	}
	return nil, nil
}

// engines names the engine of each interface where ours would choose another.
func (m *mover) engines(again *Config) {
	for i := range again.Interfaces {
		if i >= len(m.interfaces) || i >= len(m.cfg.Interfaces) ||
			again.Interfaces[i].Engine == m.cfg.Interfaces[i].Engine {
			continue
		}
		n := m.interfaces[i]
		at := 0
		for k := 0; k+1 < len(n.Content); k += 2 {
			if n.Content[k].Value == "name" {
				at = k + 2
			}
		}
		pair := []*yaml.Node{node("engine"), node(string(m.cfg.Interfaces[i].Engine))}
		n.Content = append(n.Content[:at:at], append(pair, n.Content[at:]...)...)
	}
}
