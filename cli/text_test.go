package cli

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestPrintableLines(t *testing.T) {
	if got := printableLines("a \x1b[31m\n\"C:\\x\x07\""); got != `a \x1b[31m`+"\n"+`  "C:\x\x07"` {
		t.Errorf("%q", got)
	}
	if got := printableLines("missing:\n\ta\x1b[2J"); got != "missing:\n      a\\x1b[2J" { // tabs are blanks, not \x09
		t.Errorf("%q", got)
	}
}

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"model.safetensors", 17, "model.safetensors"},
		{"model.safetensors", 12, "mod..tensors"},
		{"model.safetensors", 4, "..rs"},
		{"model.safetensors", 3, "mod"},
		{"model.safetensors", 0, ""},
		{"大大大大大大", 12, "大大大大大大"},
		{"大大大大大大", 9, "大..大大"},
		{"大大", 1, ""},
	} {
		if got := shorten(c.in, c.n); got != c.want {
			t.Errorf("%q in %d: %q, expected %q", c.in, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in, n := rapid.String().Draw(t, "s"), rapid.IntRange(0, 40).Draw(t, "n")
		if got := shorten(in, n); columns(got) > n || utf8.ValidString(in) && !utf8.ValidString(got) {
			t.Fatalf("%q in %d columns: %q has %d", in, n, got, columns(got))
		}
	})
}

func TestFormatETA(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0:00", time.Millisecond: "0:01", 59 * time.Second: "0:59",
		60 * time.Second:                    "1:00",
		59*time.Minute + 59*time.Second + 1: "1:00:00", 100*time.Hour + time.Minute: "100:01:00"} {
		if got := formatETA(d); got != want {
			t.Errorf("%v: %s, expected %s", d, got, want)
		}
	}
}

// Paragraphs are filled, and what is indented stays.
func TestFilled(t *testing.T) {
	long := strings.Repeat("word ", 20)
	got := filled(long + "\nmore\n\n  code  as it is\nend")
	want := strings.TrimSpace(strings.Repeat("word ", 16)) + "\nword word word word more\n\n  code  as it is\nend"
	if got != want {
		t.Errorf("%q\nexpected\n%q", got, want)
	}
}
