package flow_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/packet/flow"
	"github.com/penstock-io/penstock/packet/flow/flowtest"
	"pgregory.net/rapid"
)

func TestTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range drawRules(t, 4) {
			text := r.String()
			back, err := flow.ParseRule(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if !back.Equal(&r) {
				t.Fatalf("%s\nreads as %s\n%+v\n%+v", text, back.String(), r, back)
			}
			m, err := flow.ParseMatch(r.Match.String())
			if err != nil || !m.Equal(&r.Match) {
				t.Fatalf("%s reads as %s, %v", r.Match.String(), m.String(), err)
			}
			c := r.Clone()
			if !c.Equal(&r) || c.String() != text {
				t.Fatal("a clone differs")
			}
		}
	})
}

// Also matches that Validate refuses have a text.
func TestTextOfContradictions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMatch(t)
		if sometimes(t, 30, "ports of no protocol") {
			m.DstPort = drawRange(t, "port")
		}
		back, err := flow.ParseMatch(m.String())
		if err != nil || !back.Equal(&m) {
			t.Fatalf("%s reads as %s, %v", m.String(), back.String(), err)
		}
	})
}

func TestJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range drawRules(t, 4) {
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			var back flow.Rule
			if err := json.Unmarshal(b, &back); err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			if !back.Equal(&r) {
				t.Fatalf("%s\n%s\n%s", b, r.String(), back.String())
			}
		}
	})
}

func TestJSONForms(t *testing.T) {
	for _, c := range []struct{ in, text string }{
		{`{"match":{"ip_proto":17,"port_dst":5000},"actions":[{"type":"queue","queue":3}]}`, "udp dst 5000 -> queue 3"},
		{`{"match":{"ip_proto":17,"port_dst":"5000-5010","vlan":"untagged"},"actions":[{"type":"drop"}]}`, "vlan untagged udp dst 5000-5010 -> drop"},
		{`{"match":{"ip_proto":17,"port_dst":0},"actions":[{"type":"kernel"}]}`, "udp dst 0 -> kernel"},
		{`{"match":{"port_dst":null},"actions":[{"type":"kernel"}]}`, "any -> kernel"},
		{`{"match":{"vlan":7,"ip_src":"10.0.0.0/8"},"actions":[{"type":"rss","queues":[0,1,2,5]}]}`, "vlan 7 ip src 10.0.0.0/8 -> rss 0-2 5"},
	} {
		var r flow.Rule
		if err := json.Unmarshal([]byte(c.in), &r); err != nil {
			t.Errorf("%s: %v", c.in, err)
		} else if r.String() != c.text {
			t.Errorf("%s\nis  %s\nnot %s", c.in, r.String(), c.text)
		}
	}
	for _, bad := range []string{
		`{"match":{"port_dst":"5000-"}}`, `{"match":{"port_dst":70000}}`, `{"match":{"port_dst":-1}}`,
		`{"match":{"port_dst":1.5}}`,
		`{"match":{"vlan":4096}}`, `{"match":{"vlan":"none"}}`, `{"match":{"ip_src":"10.0.0.0/33"}}`,
		`{"actions":[{"type":"que"}]}`,
		`{"actions":[{"type":"encap","tunnel":{"type":"ipip"}}]}`, `{"match":{"port_dst":[1]}}`,
	} {
		var r flow.Rule
		if err := json.Unmarshal([]byte(bad), &r); err == nil {
			t.Errorf("%s reads as %v", bad, r.String())
		}
	}
}

func TestParseForms(t *testing.T) {
	for in, want := range map[string]string{
		"udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 3": "ip src 10.0.0.0/8 udp dst 5000-5010 -> queue 3",
		"  any   ->drop ":     "any -> drop",
		"any->rss 0 1 2 3,\n": "",
		"ip src 10.0.0.1 dst 2001:db8::1 -> queue 0": "ip src 10.0.0.1/32 dst 2001:db8::1/128 " +
			"-> queue 0",
		"eth type 0x88F7 -> kernel": "eth type 0x88f7 -> kernel",
		"eth dst 02-00-00-00-00-01 src 02:00:00:00:00:02 -> drop": "eth src 02:00:00:00:00:02 dst " +
			"02:00:00:00:00:01 -> drop",
		"vlan 5 inner-vlan untagged -> vlan-pop,queue 1": "vlan 5 inner-vlan untagged -> vlan-pop, " +
			"queue 1",
		"udp flex 4 1 flex 8 0x10/0xf0 -> queue 1": "udp flex 4 0x1 flex 8 0x10/0xf0 -> queue 1",
		"udp ecpri type 2 rtc_id 7 -> queue 1":     "udp ecpri type 2 rtc_id 7 -> queue 1",
		"ip proto 0 -> drop":                       "ip proto 0 -> drop",
		"tcp -> rss 0-3 3 9":                       "tcp -> rss 0-3 3 9",
		"ip proto 17 -> drop":                      "udp -> drop",
		"prio -3 name \"a b\" id 7 any -> drop":    "id 7 name \"a b\" prio -3 any -> drop",
		"any -> vlan-push 7 pcp 3 dei 1 tpid 0x88a8, queue 1": "any -> vlan-push 7 pcp 3 dei 1 tpid " +
			"0x88a8, queue 1",
		"udp dst 4789 -> vxlan-decap, queue 1": "udp dst 4789 -> vxlan-decap, queue 1",
		"any -> gre-encap ip-src 10.0.0.1 ip-dst 10.0.0.2 ttl 9, queue 0": "any -> gre-encap ip-src 10.0.0.1 ip-dst " +
			"10.0.0.2 ttl 9, queue 0",
	} {
		r, err := flow.ParseRule(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q reads as %v", in, r.String())
		case want != "" && err != nil:
			t.Errorf("%q: %v", in, err)
		case want != "" && r.String() != want:
			t.Errorf("%q\nis  %s\nnot %s", in, r.String(), want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		in     string
		column int
		has    string
	}{
		{"", 1, "the text ends"},
		{"udp dst 5000", 13, "expected ->"},
		{"udp dts 5000 -> drop", 5, `"dts": expected src, dst, eth, vlan, inner-vlan, ip, udp, tcp, port, flex, ecpri (did you mean dst?)`},
		{"upd dst 5000 -> drop", 1, "did you mean udp?"},
		{"udp dst 5000-x -> drop", 9, `"x" is not a number`},
		{"udp dst 10-5 -> drop", 9, "write 5-10"},
		{"udp dst 1 dst 2 -> drop", 11, "given twice"},
		{"udp tcp -> drop", 5, "two protocols"},
		{"ip -> drop", 4, "expected src, dst, len, proto"},
		{"ip src 10.0.0.0/40 -> drop", 8, "is not a prefix"},
		{"ip src 10.0.0 -> drop", 8, "is not an address"},
		{"any -> quue 3", 8, "did you mean queue?"},
		{"any -> queue", 13, "the text ends: expected queue"},
		{"any -> queue 3 4", 16, "expected the end"},
		{"any -> rss 0-9999", 12, "more than 128 queues"},
		{"vlan 4096 -> drop", 6, "out of range"},
		{"flex 0 1/x -> drop", 8, `"x" is not a number`},
		{"flex 253 1 -> drop", 6, "out of range"},
		{"ecpri -> drop", 7, "expected type, pc_id, rtc_id"},
		{"name \"x any -> drop", 6, "does not end"},
		{"prio 1e9 any -> drop", 6, "is not a priority"},
		{"any -> drop,", 13, "the text ends"},
		{"port -> drop", 6, "expected src, dst"},
	} {
		_, err := flow.ParseRule(c.in)
		var s *flow.SyntaxError
		if !errors.As(err, &s) {
			t.Errorf("%q: %v", c.in, err)
		} else if s.Column != c.column || !strings.Contains(s.Error(), c.has) {
			t.Errorf("%q: %v; expected column %d and %q", c.in, s, c.column, c.has)
		}
	}
}

func TestParseRules(t *testing.T) {
	rules, err := flow.ParseRules("# comment\n\nany -> drop\n  udp dst x -> drop\nany -> queue 1\r\nfoo\n")
	if len(rules) != 2 {
		t.Errorf("%d rules, expected 2", len(rules))
	}
	if err == nil || !strings.Contains(err.Error(), "line 4, column 11") ||
		!strings.Contains(err.Error(), "line 6, column 1") {
		t.Errorf("error %v", err)
	}
	var text strings.Builder
	set := flowtest.Rules(1, 200)
	for i := range set {
		text.WriteString(set[i].String() + "\n")
	}
	back, err := flow.ParseRules(text.String())
	if err != nil || len(back) != len(set) {
		t.Fatal(len(back), err)
	}
	for i := range set {
		if !back[i].Equal(&set[i]) {
			t.Errorf("%v reads as %v", set[i].String(), back[i].String())
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"udp dst 5000-5010 ip src 10.0.0.0/8 -> queue 3",
		`name "a\"b" prio -1 vlan untagged flex 3 1/3 -> vlan-push 5, rss 0-3`,
		"ecpri type 0 pc_id 5 -> vxlan-encap vni 5 ip-src ::1 eth-dst 02:00:00:00:00:01, drop", "any->,", "->",
		"ip src ::ffff:1.2.3.4/120 -> kernel"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 300 {
			return
		}
		r, err := flow.ParseRule(text)
		if err != nil {
			var s *flow.SyntaxError
			if !errors.As(err, &s) || s.Column < 1 || s.Column > len(text)+1 {
				t.Fatalf("%v", err)
			}
			return
		}
		once := r.String()
		back, err := flow.ParseRule(once)
		if err != nil || !back.Equal(&r) {
			t.Fatalf("%q -> %q -> %q, %v", text, once, back.String(), err)
		}
		flow.Validate([]flow.Rule{r}) // must not panic, whatever it is
	})
}
