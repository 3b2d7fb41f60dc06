package cli

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/observe"
	"github.com/penstock-io/penstock/transfer/path"
	"pgregory.net/rapid"
)

// busyNode is a node with an export and a peer that has put something.
func busyNode(t *testing.T, name string) *transfer.Node {
	t.Helper()
	n, err := transfer.Open(t.Context(), transfer.Options{Anonymous: identity.All, Name: name,
		Listen: []string{"tcp://127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	r, err := mem.Alloc(mem.Options{Name: "test", Size: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if _, err := n.Export(r.All(), transfer.ExportOptions{Name: "weights/\x1b[31m0", Rights: path.Write}); err != nil {
		t.Fatal(err)
	}
	user, err := transfer.Open(t.Context(), transfer.Options{Name: "user\u009b2J\nroot"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	p, err := user.Dial(t.Context(), n.Addrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	rem, err := p.Lookup(t.Context(), "weights/\x1b[31m0")
	if err != nil {
		t.Fatal(err)
	}
	x, err := p.Put(t.Context(), []path.Copy{rem.At(0, r.All())}, transfer.PutOptions{Paths: []string{"tcp"}})
	if err == nil {
		err = x.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestStatus(t *testing.T) {
	n := busyNode(t, "worker 7")
	out, errOut, status := penstock(t, "status", n.Addrs()[0])
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	for _, want := range []string{`(?m)^node worker 7   instance [0-9a-f]{16}   up \d`,
		`listens on tcp://127\.0\.0\.1:\d+`, `peers 2 now, 2 total, 0 rejected; 0 of their`,
		`(?m)^  put +- +0 B +0 +0 .*\s+1$`,
		`(?m)^  1 +user\\u009b2J\\x0aroot +- +- +65\.5 kB [^#]*same host +- +tcp://127\S+$`,
		`(?m)^  #1 user\S+ +tcp .*0 of \d+`, `(?m)^  weights/\\x1b\[31m0 +65\.5 kB +write +-$`,
		`(?m)^  2 +cli\S* `} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
	if !harmless(out) {
		t.Errorf("the screen holds characters that a terminal could act on: %q", out)
	}
}

func TestStatusJSON(t *testing.T) {
	n := busyNode(t, "worker")
	out, errOut, status := penstock(t, "status", n.Addrs()[0], "--json")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	var s observe.Snapshot
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if s.Node.Name != "worker" || len(s.Peers) != 2 || s.Peers[0].Name != "user\u009b2J\nroot" ||
		s.Exports[0].Bytes != 1<<16 || !harmless(out) {
		t.Errorf("%+v\n%q", s, out)
	}
}

// With --watch the second screen has rates, and JSON is one document per line.
func TestStatusWatch(t *testing.T) {
	n := busyNode(t, "worker")
	out, errOut, status := penstock(t, "status", n.Addrs()[0], "--watch", "--every", "100ms", "--count", "2")
	if status != 0 {
		t.Fatalf("exit status %d: %s", status, errOut)
	}
	first, second, ok := strings.Cut(out, "\n\nnode worker")
	if !ok || strings.Contains(first, " 0 B/s") || !strings.Contains(second, " 0 B/s") ||
		strings.Contains(out, "\x1b") {
		t.Errorf("screens:\n%s", out)
	}
	out, errOut, status = penstock(t, "status", n.Addrs()[0], "--watch", "--every", "100ms", "--count", "3", "--json")
	if status != 0 || strings.Count(out, "\n") != 3 {
		t.Fatalf("exit status %d: %s\n%s", status, errOut, out)
	}
	for line := range strings.Lines(out) {
		if err := json.Unmarshal([]byte(line), new(observe.Snapshot)); err != nil {
			t.Error(err)
		}
	}
}

func TestStatusErrors(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{nil, 2, "expected one address"},
		{[]string{"a", "b"}, 2, "expected one address"},
		{[]string{"tcp://127.0.0.1:1", "--every", "1ms"}, 2, "--every 1ms: expected 100ms or more"},
		{[]string{"tcp://127.0.0.1:1", "--count", "3"}, 2, "--count needs --watch"},
		{[]string{"ftp://x"}, 2, "expected tcp://HOST[:PORT], HOST:PORT or unix://PATH"},
		{[]string{"tcp://127.0.0.1:1/name"}, 2, "without a name"},
		{[]string{"unix:///nonexistent/socket"}, exitUnreachable, "unix:///nonexistent/socket"},
	} {
		if _, errOut, status := penstock(t, append([]string{"status"}, c.args...)...); status != c.status ||
			!strings.Contains(errOut, c.want) {
			t.Errorf("%q: exit status %d, %q", c.args, status, errOut)
		}
	}
}

func TestRates(t *testing.T) {
	a := &observe.Snapshot{Node: observe.NodeStatus{Instance: "1", UptimeSeconds: 10},
		Peers:  []observe.PeerStatus{{ID: 3, BytesIn: 1000}},
		Totals: []observe.KindTotals{{Kind: "put", Bytes: 5}}}
	b := &observe.Snapshot{Node: observe.NodeStatus{Instance: "1", UptimeSeconds: 12}}
	r := rates(b, a)
	if p, ok := r.peer(3); !ok || r.of(5000, p.BytesIn, ok) != "2.0 kB/s" || r.of(999, p.BytesIn, ok) != "-" {
		t.Errorf("%+v", p)
	}
	if k, ok := r.kind("put"); !ok || r.of(k.Bytes, 5, ok) != "0 B/s" {
		t.Errorf("%+v", k)
	}
	if _, ok := r.peer(4); ok || r.of(1, 0, false) != "-" {
		t.Error("a peer that was not there")
	}
	b.Node.Instance = "2" // restarted
	if r := rates(b, a); r.known || r.of(5, 0, true) != "-" {
		t.Error("rates across a restart")
	}
	b.Node.Instance, b.Node.UptimeSeconds = "1", 10
	if rates(b, a).known || rates(b, nil).known {
		t.Error("rates without time")
	}
}

// Whatever a peer puts into its status, the screen and the JSON are harmless, and drawing them does
// not fail.
func TestScreenIsSafe(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\x1b]0;x\a", "a\tb", "\u202ertl", "\u009b31m",
		"\U000e0041", "x\xffy", strings.Repeat("long ", 100)}))
	rapid.Check(t, func(t *rapid.T) {
		s := observe.Snapshot{Time: time.Now(), Node: observe.NodeStatus{Name: text.Draw(t, "name"),
			Instance: text.Draw(t, "instance"), Addresses: []string{text.Draw(t, "address")},
			UptimeSeconds: rapid.Float64().Draw(t, "uptime")},
			Peers: []observe.PeerStatus{{Name: text.Draw(t, "peer"), Certificate: text.Draw(t, "certificate"),
				Security: text.Draw(t, "security"), Transfers: -1,
				Paths: []observe.PathStatus{{Path: text.Draw(t, "path"),
					Cost: observe.CostStatus{BytesPerSecond: rapid.Float64().Draw(t, "cost")}}}}},
			Transfers: []observe.TransferStatus{{Kind: text.Draw(t, "kind"),
				AgeSeconds: rapid.Float64().Draw(t, "age")}},
			Exports: make([]observe.ExportStatus, rapid.IntRange(0, 30).Draw(t, "exports")),
			Latency: []observe.Latency{{Kind: text.Draw(t, "kind"), Mean: rapid.Float64().Draw(t, "mean")}},
			Totals:  []observe.KindTotals{{Kind: text.Draw(t, "kind"), Bytes: ^uint64(0)}}}
		for i := range s.Exports {
			s.Exports[i].Name = text.Draw(t, "export")
		}
		s.Omitted.Exports = rapid.Int().Draw(t, "omitted")
		var b bytes.Buffer
		if err := printStatus(&b, &s, &s, statusOptions{}); err != nil {
			t.Fatal(err)
		}
		if out := b.String(); !harmless(out) {
			t.Fatalf("%q", out)
		}
		for line := range strings.Lines(b.String()) {
			if utf8.RuneCountInString(line) > 400 {
				t.Fatalf("a line of %d characters", utf8.RuneCountInString(line))
			}
		}
		b.Reset()
		if err := printStatus(&b, &s, nil, statusOptions{json: true}); err != nil {
			t.Fatal(err)
		}
		var back observe.Snapshot
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || !harmless(b.String()) {
			t.Fatalf("%v: %q", err, b.String())
		}
		if want := strings.ToValidUTF8(s.Node.Name, "\ufffd"); back.Node.Name != want && utf8.ValidString(s.Node.Name) {
			t.Fatalf("name %q becomes %q", s.Node.Name, back.Node.Name)
		}
	})
}

// harmless reports whether a text holds nothing that a terminal could act on but the ends of its
// lines.
func harmless(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && !unicode.IsPrint(r)
	})
}
