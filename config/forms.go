package config

import (
	"slices"

	"go.yaml.in/yaml/v3"
)

// spliceAction puts the keys of DAQIRI's other forms of an action where ours are: `vlan: {vlan_id:
// ...}`, keys of the tunnel beside its type, and `tunnel_type`. It changes the map, and finds
// nothing to do the second time.
func spliceAction(n *yaml.Node) {
	find := func(name string) int {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return i
			}
		}
		return -1
	}
	at := func(name string) *yaml.Node {
		if i := find(name); i >= 0 {
			return n.Content[i+1]
		}
		return &yaml.Node{}
	}
	if i := find("vlan"); i >= 0 && n.Content[i+1].Kind == yaml.MappingNode {
		k, inner := n.Content[i], slices.Clone(n.Content[i+1].Content)
		if at("type").Value == "vlan_pop" {
			inner = nil // DAQIRI does not look at it
		}
		if len(inner) > 0 {
			first := *inner[0]
			first.HeadComment = joinComments(k.HeadComment, k.LineComment, n.Content[i+1].HeadComment,
				first.HeadComment)
			inner[0] = &first
		}
		n.Content = slices.Concat(n.Content[:i], inner, n.Content[i+2:])
	}
	tunnel := at("tunnel")
	flat := tunnel.Kind == 0
	var own, rest []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Value == "tunnel_type":
			name := *k
			name.Value = "type"
			own = append(own, &name, v)
		case flat && k.Value != "type" && slices.Contains(tunnelKeys(), k.Value):
			own = append(own, k, v)
		default:
			rest = append(rest, k, v)
		}
	}
	switch {
	case own == nil || !flat && tunnel.Kind != yaml.MappingNode:
	case flat:
		name := *own[0]
		name.Value, name.HeadComment, name.LineComment, name.FootComment = "tunnel", "", "", ""
		n.Content = append(rest, &name, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: name.Line,
			Column: name.Column, Content: own})
	default:
		if !slices.ContainsFunc(tunnel.Content, func(x *yaml.Node) bool { return x.Value == "type" }) {
			tunnel.Content = append(tunnel.Content, own...)
		}
		n.Content = rest
	}
}

// tunnelKeys are the names of the keys of a tunnel, in both spellings.
func tunnelKeys() (out []string) {
	for _, k := range tunnelSection().keys {
		out = append(out, k.name)
		if k.daqiri != "" {
			out = append(out, k.daqiri)
		}
	}
	return out
}

func actionForms() map[string]any {
	props := map[string]any{"vlan": map[string]any{"type": "object"}, "tunnel_type": map[string]any{"type": "string"}}
	for _, name := range tunnelKeys() {
		if name != "type" {
			props[name] = map[string]any{"type": []any{"string", "integer"}}
		}
	}
	return props
}
