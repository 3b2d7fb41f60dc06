package config

import (
	"bytes"
	"encoding/json"
	"maps"
)

// SchemaID names the JSON Schema.
const SchemaID = "https://github.com/penstock-io/penstock/docs/penstock.schema.json"

// Schema is the JSON Schema (draft 2020-12) of files in every spelling, for editors to complete and
// check from. It is made from the table. It knows no names across sections and no machine: Load
// knows those.
func Schema() []byte {
	defs := map[string]any{}
	for _, s := range allSections() {
		defs[s.name] = s.jsonSchema(Ours)
		defs["daqiri_"+s.name] = s.jsonSchema(DAQIRI)
	}
	props := map[string]any{
		"penstock": ref("root", Ours),
		"daqiri": map[string]any{"type": "object", "required": []string{"cfg"}, "additionalProperties": false,
			"properties": map[string]any{"cfg": ref("root", DAQIRI)}},
	}
	roots := []any{map[string]any{"required": []string{"penstock"}}, map[string]any{"required": []string{"daqiri"}}}
	root := schema()
	for i := range root.keys {
		k := &root.keys[i]
		if k.gone != "" {
			continue
		}
		props[k.written(DAQIRI)] = k.jsonSchema(DAQIRI)
		if !k.beside {
			roots = append(roots, map[string]any{"required": []string{k.written(DAQIRI)}})
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	// The values are maps, lists, texts and numbers: they can be written.
	_ = e.Encode(map[string]any{"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SchemaID,
		"title": "Penstock configuration",
		"description": "Streams and transfers of Penstock: our keys below penstock, DAQIRI's below daqiri and cfg or " +
			"at the top.",
		"type": "object", "properties": props, "anyOf": roots, "$defs": defs})
	return b.Bytes()
}

func ref(name string, d Dialect) map[string]any {
	if d != Ours {
		name = "daqiri_" + name
	}
	return map[string]any{"$ref": "#/$defs/" + name}
}

// jsonSchema is the definition of a section. Files of DAQIRI may use our names too.
func (s *section) jsonSchema(d Dialect) map[string]any {
	props := map[string]any{}
	var needed []string
	for i := range s.keys {
		k := &s.keys[i]
		if k.gone != "" || k.beside && s == schema() || d == Ours && k.old != "" {
			continue
		}
		props[k.written(d)] = k.jsonSchema(d)
		if d != Ours {
			for _, n := range append([]string{k.name}, k.also...) {
				props[n] = k.jsonSchema(d)
			}
		} else if len(k.also) > 0 {
			for _, n := range k.also {
				props[n] = k.jsonSchema(d)
			}
		}
		if k.needed && len(k.also) == 0 && (d == Ours || k.daqiri == "") {
			needed = append(needed, k.name)
		}
	}
	if s.formKeys != nil && d != Ours {
		maps.Copy(props, s.formKeys())
	}
	out := map[string]any{"type": "object", "description": s.doc, "properties": props}
	if !s.open {
		out["additionalProperties"] = false
		if d == Ours {
			out["patternProperties"] = map[string]any{"^x-": true, "^<<$": true}
		}
	}
	if needed != nil {
		out["required"] = needed
	}
	return out
}

// placeholder is a value that is still to be filled in.
var placeholder = map[string]any{"type": "string", "pattern": "^<.*>$"}

func (k *key) jsonSchema(d Dialect) map[string]any {
	var v map[string]any
	switch {
	case k.sub != nil:
		v = ref(k.sub.name, d)
	case k.kind == nil:
		v = map[string]any{"type": "object"}
	case d != Ours && k.kind.old != nil:
		v = map[string]any{"anyOf": []any{k.kind.old, placeholder}}
	default:
		v = map[string]any{"anyOf": []any{k.kind.schema, placeholder}}
	}
	if k.list {
		item := v
		v = map[string]any{"type": "array", "items": item}
		if k.uniq {
			v["uniqueItems"] = true
		}
		if k.one {
			v = map[string]any{"anyOf": []any{item, v}}
		}
	} else if k.sub != nil {
		v = map[string]any{"allOf": []any{v}}
		if !k.needed {
			v = map[string]any{"anyOf": []any{ref(k.sub.name, d), map[string]any{"type": "null"}}}
		}
	}
	v["description"] = k.doc
	if k.def != "" && !k.list && k.kind != nil {
		v["default"] = k.def
	}
	if k.idle != "" || k.old != "" && d == Ours {
		v["deprecated"] = true
	}
	return v
}
