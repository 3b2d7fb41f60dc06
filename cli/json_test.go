package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/host/cards"
	"github.com/penstock-io/penstock/share"
)

// Names and texts of peers keep their meaning in what commands print as JSON, and a terminal does
// not act on them.
func TestJSONIsSafe(t *testing.T) {
	const hostile = "a\u009b2J\u202e\u2066\u200b\U000e0041\u0000\u001b]0;x\a\u007fz\t"
	safe := func(kind, out, text string) {
		t.Helper()
		found := false
		for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
			token, err := d.Token()
			if err != nil {
				t.Fatalf("%s: %v in %q", kind, err, out)
			}
			s, ok := token.(string)
			found = found || ok && strings.Contains(s, text)
		}
		if !found || !harmless(out) {
			t.Errorf("%s: %q; expected %q, with escapes only", kind, out, text)
		}
	}
	for kind, print := range map[string]func(out *bytes.Buffer) error{
		"ls": func(out *bytes.Buffer) error { return listJSON(out, []share.Entry{{Name: hostile}}) },
		"ls --left-out": func(out *bytes.Buffer) error {
			return listLeftOut(out, true, []share.Skipped{{Path: hostile}}, 1)
		},
		"an event": func(out *bytes.Buffer) error {
			newDisplay(streams{out: out, err: out}, displayFlags{json: true}).event(event{Name: hostile})
			return nil
		},
		"pair": func(out *bytes.Buffer) error {
			return (&pairing{json: true}).print(streams{out: out}, pairEvent{Host: hostile}, "")
		},
		"a document": func(out *bytes.Buffer) error { return printJSON(out, cards.Report{NoNVML: hostile}) },
	} {
		var out bytes.Buffer
		if err := print(&out); err != nil {
			t.Fatal(err)
		}
		safe(kind, out.String(), hostile)
	}

	served, dst := t.TempDir(), t.TempDir()
	const name = "a\u202e\u2066\u200b\U000e0041z" // a share serves no control characters
	write(t, filepath.Join(served, name), []byte("x"))
	_, addr := serve(t, served)
	for _, args := range [][]string{{"ls", addr}, {"mirror", addr, dst},
		{"get", addr + "/" + name, "-o", filepath.Join(dst, "b")}} {
		out, _ := run(t, 0, "", append(args, "--json")...)
		safe(args[0], out, name)
	}
}

// Only json.go makes JSON: what is made elsewhere reaches a terminal as it is.
func TestOnePrinterOfJSON(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	makes, seen := regexp.MustCompile(`json\.(Marshal|NewEncoder|Indent)`), false
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		switch m := makes.Find(b); {
		case m == nil || strings.HasSuffix(f, "_test.go"):
		case f == "json.go":
			seen = true
		default:
			t.Errorf("%s has %s: expected printJSON or printJSONLine", f, m)
		}
	}
	if !seen {
		t.Error("json.go makes no JSON")
	}
}
