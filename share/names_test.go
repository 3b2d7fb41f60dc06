package share

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// harmlessNames are the paths of their files.
var harmlessNames = []string{"weights.bin", "a/b/c d.npy", "-rf", "~root", " a ", " ", ".hidden", "trailing.", "CON",
	"con.txt", "a\\b", `C:\x`, "100%", "%2E%2E", "caf\u00e9", "cafe\u0301",
	"\u202egnp.exe", "\U0001f469\u200d\U0001f52c", "model.safetensors/layer.0.wq", "...", "a.penstock-b",
	strings.Repeat("a", maxStem+1), strings.Repeat("a", MaxName)}

// hostileNames are dangerous in one way each.
var hostileNames = []string{"", strings.Repeat("a/", 128), strings.Repeat("a", MaxName+1), "d/" + strings.Repeat("a",
	MaxName-1), "..", ".", "../../etc/passwd", "/etc/passwd", "a//b", "a/", "/", "a/../b", "a/./b", "nul\x00byte",
	"line\nbreak",
	"\x1b[2J\x1b]0;title\x07", "c1\u009b", "\xff", "x.partial", "x.PARTIAL", "x.partial.state", ".partial", recordName,
	"a/" + stagingDir + "/b", batchDir, ".Penstock-x"}

// checkPath says what is unsafe about a path that PathOf made.
func checkPath(p string) string {
	if !filepath.IsLocal(p) || !fs.ValidPath(p) {
		return "not a local path"
	}
	for _, c := range strings.Split(p, "/") {
		folded := strings.ToLower(c)
		switch {
		case c == ".", c == "..":
			return "not a name"
		case len(c) == 0 || len(c) > 255 || len(partialOf(c)) > 255 || len(stateOf(c)) > 255 ||
			!utf8.ValidString(partialOf(c)) && utf8.ValidString(c):
			return "length of a component"
		case strings.HasSuffix(folded, PartialSuffix), strings.HasSuffix(folded, StateSuffix):
			return "suffix"
		case folded == recordName, folded == stagingDir, folded == batchDir:
			return "this package's"
		}
		for _, r := range c {
			if unicode.IsControl(r) {
				return "control character"
			}
		}
	}
	return ""
}

func TestHostileNames(t *testing.T) {
	for _, name := range harmlessNames {
		if got, err := PathOf(name); err != nil || got != name {
			t.Errorf("PathOf(%q) = %q, %v", name, got, err)
		}
	}
	for _, name := range hostileNames {
		if p, err := PathOf(name); !errors.Is(err, ErrName) || p != "" {
			t.Errorf("PathOf(%q) = %q, %v; expected %v", name, p, err, ErrName)
		}
	}
}

// anyName draws names with a liking for what is dangerous.
func anyName() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"/", "..", ".", "%", "%2E", "%_", "%+", "-", " ", "CON", "nul", "com1", ".partial",
			".state", ".partial.state", "\x00", "\n", "\x1b[", "\\", ":", "~", "\u00e9", "e\u0301"}),
		rapid.StringMatching(`[a-z]{1,8}`), rapid.StringN(1, 4, 8),
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.SampledFrom([]string{"a", ".", " ", "\xff", "%"}).Draw(t, "unit"),
				rapid.IntRange(1, 255).Draw(t, "times"))
		}),
	)
	return rapid.Custom(func(t *rapid.T) string {
		s := strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(t, "pieces"), "")
		return s[:min(len(s), MaxName)]
	})
}

// A name that is not refused is its path, which stays below any directory. What is refused is
// dangerous.
func checkName(t interface{ Fatalf(string, ...any) }, name string) {
	p, err := PathOf(name)
	bad := checkPath(name)
	switch {
	case err == nil && (p != name || bad != ""):
		t.Fatalf("%q -> %q: %s", name, p, bad)
	case err != nil && bad == "" && len(name) <= MaxName && !strings.Contains(strings.ToLower(name), ownPrefix):
		t.Fatalf("%q is harmless: %v", name, err)
	}
}

func TestNamesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkName(t, anyName().Draw(t, "name")) })
}

func FuzzNames(f *testing.F) {
	for _, n := range append(harmlessNames, hostileNames...) {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, s string) {
		checkName(t, s)
		out := Printable(s)
		if !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool {
			return !unicode.IsPrint(r)
		}) || len(out) > 2048 {
			t.Fatalf("Printable(%q) = %q", s, out)
		}
	})
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain \u00e9":        "plain \u00e9",
		"\x1b[31mred\x1b[0m":  `\x1b[31mred\x1b[0m`,
		"a\nb\r\t\x00\x7f":    `a\x0ab\x0d\x09\x00\x7f`,
		"\u202etxt.exe\u200b": `\u202etxt.exe\u200b`,
		"\xff\u009b":          `\xff\u009b`,
		`\x1b`:                `\\x1b`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, expected %q", in, got, want)
		}
	}
	if got := Printable(strings.Repeat("a", 5000)); len(got) > 1030 || !strings.HasSuffix(got, "...") {
		t.Errorf("%d bytes", len(got))
	}
}
