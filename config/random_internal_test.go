package config

import (
	"maps"
	"reflect"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/flow"
	"pgregory.net/rapid"
)

// candidates are texts of values of every kind, and texts that look like other things.
var candidates = []string{"0", "1", "3", "64", "4096", "2MiB", "1GiB", "1000B", "10.0.0.1", "10.0.0.0/8", "fd00::1",
	"fd00::/16", "02:00:00:00:00:01", "true", "false", "udp://10.0.0.1:5000",
	"tcp://[fd00::1]:7", "roce://10.0.0.1", "5us", "2ms", "1s", "10Gbps", "1bps", "1000-2000", "untagged", "eth0",
	"0x8100", "0xffffffff", "-1", "icmp"}

var odd = []string{"yes", "no", "null", "~", "1:2", "- x", "#c", "a #b", "é ü", "a: b", "{a}", "[b]", "<x", "x>", "'",
	`"`, `\`, "1e3", "010", "*a", "&b", "!c", "|", ">", "%d", "@", "`", "a\tb", "a\nb",
	" a ", "?", "-", "...", "---", "y", "0000:01:00.0", "sim://a?loop", "/dev/ptp0", "C:\\x", "=", "<<"}

// randomValue sets a value that the kind takes.
func randomValue(t *rapid.T, k *kind, f reflect.Value) {
	from := append(append([]string(nil), candidates...), k.words...)
	if v, wrong := k.parse(scalar{text: "odd: text"}); wrong == "" && v == "odd: text" {
		from = append(from, odd...)
	}
	var fit []any
	for _, c := range from {
		if v, wrong := k.parse(scalar{text: c}); wrong == "" {
			fit = append(fit, v)
		}
	}
	if len(fit) == 0 {
		t.Fatalf("no candidate is %s", k.expect)
	}
	assign(f, rapid.SampledFrom(fit).Draw(t, k.name))
}

// randomOptions sets options of an engine.
func randomOptions(t *rapid.T, k *key, v reflect.Value) {
	all := sectionsOf(v)
	if k.index == nil {
		*all = maps.Clone(*all)
		if *all == nil {
			*all = map[string]engine.Settings{}
		}
		(*all)[k.name] = engine.Settings{}
	}
	for i := range k.sub.keys {
		o := &k.sub.keys[i]
		if o.opt == nil || !o.needed && rapid.IntRange(0, 2).Draw(t, o.name+"?") != 0 {
			continue
		}
		for _, text := range append(append([]string(nil), o.kind.words...), candidates...) {
			if x, wrong := o.kind.parse(scalar{text: text}); wrong == "" {
				put(all, k.name, o.name, o.kind.formatOf(reflect.ValueOf(x)))
				break
			}
		}
	}
}

// random fills a section along the table: every key may have any value that it takes by itself.
func random(t *rapid.T, s *section, v reflect.Value, depth int) {
	for i := range s.keys {
		k := &s.keys[i]
		if k.sub != nil && k.sub.engines && rapid.IntRange(0, 2).Draw(t, k.name+"?") == 0 {
			randomOptions(t, k, v)
		}
		if k.index == nil {
			continue
		}
		f := v.FieldByIndex(k.index)
		there := k.needed || rapid.IntRange(0, 2).Draw(t, k.name+"?") == 0
		switch {
		case k.sub != nil && k.list:
			if !there {
				continue
			}
			n := rapid.IntRange(1, 2).Draw(t, "n")
			for range n {
				e := reflect.New(f.Type().Elem()).Elem()
				random(t, k.sub, e, depth+1)
				f.Set(reflect.Append(f, e))
			}
		case k.sub != nil && f.Kind() == reflect.Pointer:
			if there {
				f.Set(reflect.New(f.Type().Elem()))
				random(t, k.sub, f.Elem(), depth+1)
			}
		case k.sub != nil:
			random(t, k.sub, f, depth+1)
		case k.list && there:
			seen := map[any]bool{}
			for range rapid.IntRange(1, 3).Draw(t, "n") {
				e := reflect.New(f.Type().Elem()).Elem()
				randomValue(t, k.kind, e)
				if !seen[e.Interface()] {
					f.Set(reflect.Append(f, e))
				}
				seen[e.Interface()] = true
			}
		case there && !k.list:
			randomValue(t, k.kind, f)
		case k.def != "":
			setDefault(k, f)
		}
	}
}

// Whatever a Config says, the text that it is printed as says the same, also where it contradicts
// itself.
func TestPrintedConfigIsReadAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &Config{}
		random(t, schema(), reflect.ValueOf(c).Elem(), 0)
		for i := range c.Interfaces {
			// keys that are not printed where the application polls, and those of other actions,
			// mean nothing
			if s := c.Interfaces[i].Socket; s != nil && *s == (Socket{}) { // as if it were not there
				c.Interfaces[i].Socket = nil
			}
			if rx := c.Interfaces[i].Rx; rx != nil {
				for k := range rx.Queues {
					if q := &rx.Queues[k]; q.PollMode == "direct" {
						q.CPUCore = -1
					}
				}
				tidy(rx.Flows)
			}
			if tx := c.Interfaces[i].Tx; tx != nil {
				tidy(tx.Flows)
			}
		}
		c.derive(nil)
		text := c.YAML()
		d := &decoder{cfg: &Config{name: "printed"}, broken: map[string]bool{}, around: map[string]bool{}}
		root := d.parse(text)
		if root == nil || !d.file(root, nil) {
			t.Fatalf("%s\n%s", text, d.diags.Text(text))
		}
		for _, x := range d.diags {
			if x.Code == CodeType || x.Code == CodeUnknownKey || x.Code == CodeSyntax || x.Code == CodePlaceholder {
				t.Fatalf("%v\n%s", &x, text)
			}
		}
		d.cfg.derive(d)
		if !d.cfg.Equal(c) {
			t.Fatalf("printed as\n%s\nread as\n%s", text, d.cfg.YAML())
		}
	})
}

func tidy(flows []Flow) {
	for i := range flows {
		flows[i].Match.ECPRI.rename()
		for k := range flows[i].Actions {
			a := &flows[i].Actions[k]
			fresh := Action{Type: a.Type, PCP: 0, DEI: 0, TPID: 0x8100}
			for _, u := range uses[a.Type] {
				for j := range reflect.TypeFor[Action]().NumField() {
					if reflect.TypeFor[Action]().Field(j).Tag.Get("cfg") == u {
						reflect.ValueOf(&fresh).Elem().Field(j).Set(reflect.ValueOf(a).Elem().Field(j))
					}
				}
			}
			if len(fresh.IDs) == 1 && !fresh.ID.Set { // it is read as id
				fresh.ID, fresh.IDs = flow.Some(fresh.IDs[0]), nil
			}
			*a = fresh
		}
	}
}
