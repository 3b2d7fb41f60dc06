package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
	"github.com/penstock-io/penstock/transfer/path/verbs"
)

// Bounds are two values between which the best one is looked for. Where they are the same, that is
// the value.
type Bounds struct{ Min, Max uint64 }

func verbsSection() *section {
	return &section{name: "verbs_paths", title: "verbs",
		doc: "Paths over RDMA; see docs/verbs.md. On the command line `--verbs KEY=VALUE,...` takes the same keys " +
			"and values. RDMA is not encrypted: between machines it needs `security: {insecure: true}`.", keys: []key{
			{name: "device", kind: text("a device such as mlx5_0"),
				doc: "RDMA device; without it the first that has an active port (`penstock doctor rdma` lists them)."},
			{name: "port", kind: integer(0, 255), def: "0", doc: "Its port, counted from 1; 0 is the first that is active."},
			{name: "gid", kind: integer(0, 65535), doc: "Index of the port's address (GID) in its table; without it the path chooses, and says why."},
			{name: "for", kind: ipAddress(), doc: "IP address of a peer, for which the GID is chosen: one of the same network."},
			{name: "queue_pairs", kind: integer(1, 8), def: strconv.Itoa(verbs.DefaultQueuePairs),
				doc: "Queue pairs for data of each path, unless `streams` says otherwise. Both sides have the same."},
			{name: "depth", kind: integer(128, 8192), def: strconv.Itoa(verbs.DefaultDepth), doc: "Requests in the queue of each."},
			{name: "timeout", kind: integer(1, 31), def: strconv.Itoa(verbs.DefaultTimeout),
				doc: "How long the adapter waits for an acknowledgement before it sends again, 6 times: 4.096 us x " +
					"2^`timeout`, so 14 is 67 ms."},
			{name: "piece", kind: between(size(4<<10, 1<<30), "64KiB-8MiB"), derived: "found out",
				doc: "Bytes that one request moves at most: one size, or bounds between which the path looks for the " +
					"best one."},
			{name: "signal", kind: between(integer(1, 64), "4-64"), derived: "found out", doc: "One request of so many is signalled: a number, or bounds."},
			{name: "ahead", kind: between(size(64<<10, 1<<30), "1MiB-32MiB"), derived: "found out",
				doc: "Bytes of large operations at the adapter: one size, or bounds."},
			{name: "inline", kind: between(size(0, 64<<10), "0-220"), derived: "found out",
				doc: "Bytes that travel in the request itself at most: one size, or bounds; 0 for none."},
			{name: "windows", kind: boolean(), def: "true",
				doc: "Lets peers in by memory windows. `false`, as where the device has none: each peer has a " +
					"protection domain of its own."},
			{name: "library", kind: text("a file of libibverbs"), doc: "libibverbs; without it the system's."},
			{name: "rails", gone: "it was renamed: queue_pairs is the number of queue pairs for data"},
			{name: "transport", gone: "it was removed: all paths have reliable connections (RC)"},
			{name: "initiators", gone: "it was removed with the transport dc: queue_pairs is the number of queue pairs for data"},
			{name: "meet", gone: "it was removed: nodes exchange descriptions of their endpoints over their session, and listen for no peers at the adapter"},
		}}
}

// between is a value of a kind, or two with a dash between them.
func between(of *kind, such string) *kind {
	k := &kind{name: of.name + ", or bounds", expect: fmt.Sprintf("%s, or bounds such as %s", of.expect, such)}
	k.parse = func(s scalar) (any, string) {
		low, high, two := strings.Cut(s.text, "-")
		if !two {
			high = low
		}
		var b Bounds
		for _, x := range []struct {
			text string
			to   *uint64
		}{{low, &b.Min}, {high, &b.Max}} {
			part := s
			part.text = strings.TrimSpace(x.text)
			part.quoted = s.quoted && !two
			v, wrong := of.parse(part)
			if wrong != "" {
				return nil, wrong
			}
			*x.to = uint64(reflect.ValueOf(v).Int())
		}
		if b.Min > b.Max {
			return nil, "begins above its end"
		}
		return b, ""
	}
	k.format = func(v reflect.Value) string {
		b := v.Interface().(Bounds)
		one := func(n uint64) string { return of.formatOf(reflect.ValueOf(Size(n))) }
		if b.Min == b.Max {
			return one(b.Min)
		}
		return one(b.Min) + "-" + one(b.Max)
	}
	two := map[string]any{"type": "string", "pattern": "^[0-9][0-9A-Za-z. ]*-[0-9A-Za-z. ]+$"}
	k.schema = map[string]any{"anyOf": []any{of.schema, two}}
	return k
}

// Options are the settings for package transfer/path/verbs. Whether peers on other machines are
// permitted, the section security says.
func (v *VerbsPaths) Options() verbs.Options {
	o := verbs.Options{Library: v.Library, Device: v.Device, Port: v.Port, For: v.For, QueuePairs: v.QueuePairs,
		Depth: v.Depth, Timeout: v.Timeout, NoWindows: !v.Windows}
	if v.GID.Set {
		o.GID = &v.GID.Value
	}
	o.Tune = verbs.Tuning{Piece: verbs.Bounds(v.Piece.Value), Signal: verbs.Bounds(v.Signal.Value),
		Ahead: verbs.Bounds(v.Ahead.Value), Inline: verbs.Bounds(v.Inline.Value)}
	o.NoInline = v.Inline.Set && v.Inline.Value == Bounds{} // zero bounds of verbs.Tuning are the path's own
	return o
}

// String is the settings that are not the default, as ParseVerbs reads them.
func (v *VerbsPaths) String() string {
	sec, f := verbsTable(), reflect.ValueOf(v).Elem()
	p := printer{}
	var out []string
	for i := range sec.keys {
		k := &sec.keys[i]
		if k.gone != "" {
			continue
		}
		if _, shown := p.value(k, f.Field(k.index), ""); shown {
			value := f.Field(k.index)
			if value.Kind() == reflect.Struct && value.FieldByName("Set").IsValid() {
				value = value.FieldByName("Value")
			}
			out = append(out, k.name+"="+k.kind.formatOf(value))
		}
	}
	return strings.Join(out, ",")
}

// verbsTable is the section verbs of the table.
func verbsTable() *section { return schema().byName["transfers"].sub.byName["verbs"].sub }

// ParseVerbs reads the section verbs as a command line has it: KEY=VALUE each, with the keys and
// values of the section. The error says what was expected; it does not name the flag.
func ParseVerbs(settings []string) (*VerbsPaths, error) {
	sec, v := verbsTable(), &VerbsPaths{}
	f := reflect.ValueOf(v).Elem()
	for i := range sec.keys {
		if k := &sec.keys[i]; k.def != "" {
			setDefault(k, f.Field(k.index))
		}
	}
	var seen []string
	for _, s := range settings {
		name, value, ok := strings.Cut(s, "=")
		k := sec.byName[name]
		switch {
		case !ok:
			return nil, fmt.Errorf("%s: expected KEY=VALUE, such as device=mlx5_0; the keys are %s", shown(s),
				strings.Join(VerbsKeys(), ", "))
		case k == nil:
			hint := "expected " + oneOf(VerbsKeys())
			if near := input.Nearest(name, VerbsKeys()); near != "" {
				hint = fmt.Sprintf("did you mean %s?", near)
			}
			return nil, fmt.Errorf("unknown key %s: %s", shown(name), hint)
		case k.gone != "":
			return nil, fmt.Errorf("the key %s is not read any more: %s", name, k.gone)
		case slices.Contains(seen, name):
			return nil, fmt.Errorf("%s is there twice: say it once", name)
		}
		seen = append(seen, name)
		x, wrong := k.kind.parse(scalar{text: value})
		if wrong != "" {
			return nil, fmt.Errorf("%s: %s %s: expected %s", name, shown(value), wrong, k.kind.expect)
		}
		assign(f.Field(k.index), x)
	}
	if c := v.conflict(); c != nil {
		return nil, fmt.Errorf("%s: expected %s", c.message, c.expected)
	}
	return v, nil
}

// VerbsKeys are the keys that ParseVerbs knows.
func VerbsKeys() []string { return verbsTable().names(Ours) }

// VerbsWords are the words that the value of a key may be; nil where it is something else than one
// of a few words.
func VerbsWords(key string) []string {
	if k := verbsTable().byName[key]; k != nil && (k.def == "true" || k.def == "false") {
		return []string{"true", "false"}
	}
	return nil
}

// conflict is two keys that cannot both be right.
type conflict struct{ key, other, message, expected string }

func (v *VerbsPaths) conflict() *conflict {
	if v.GID.Set && v.For.IsValid() {
		return &conflict{"for", "gid", "gid and for are both there: gid names the address that for would choose",
			"one of them"}
	}
	err := v.Options().Check() // a program may have written the section
	if err != nil {
		return &conflict{"", "", err.Error(), "values as docs/config.md has them"}
	}
	return nil
}

// checkVerbs looks at the section verbs.
func (d *decoder) checkVerbs(t *Transfers) {
	if t.Verbs == nil {
		return
	}
	const at = "transfers.verbs"
	if len(t.Paths) > 0 && !slices.Contains(t.Paths, verbs.Name) && !d.unread("transfers.paths") {
		d.also(d.report(Error, CodeConflict, at, "the section verbs shapes a path that paths leaves out",
			"verbs in paths too", "or remove the section"), "transfers.paths", "paths is here")
	}
	if d.around[at] { // what could not be read was reported
		return
	}
	if c := t.Verbs.conflict(); c != nil {
		i := d.report(Error, CodeConflict, strings.TrimSuffix(join(at, c.key), "."), c.message, c.expected, "")
		if c.other != "" {
			d.also(i, join(at, c.other), c.other+" is here")
		}
	}
}
