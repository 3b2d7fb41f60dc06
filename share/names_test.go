package share

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var hostileNames = map[string]string{
	"weights.bin":                  "weights.bin",
	"a/b/c d.npy":                  "a/b/c d.npy",
	"..":                           "%2E%2E",
	".":                            "%2E",
	"../../etc/passwd":             "%2E%2E/%2E%2E/etc/passwd",
	"/etc/passwd":                  "%_/etc/passwd",
	"a//b":                         "a/%_/b",
	"a/":                           "a/%_",
	"/":                            "%_/%_",
	"a/../b":                       "a/%2E%2E/b",
	"a/./b":                        "a/%2E/b",
	"nul\x00byte":                  "nul%00byte",
	"line\nbreak":                  "line%0Abreak",
	"\x1b[2J\x1b]0;title\x07":      "%1B[2J%1B]0;title%07",
	"-rf":                          "%2Drf",
	"~root":                        "%7Eroot",
	" a ":                          "%20a%20",
	" ":                            "%20",
	".hidden":                      "%2Ehidden",
	"trailing.":                    "trailing%2E",
	"CON":                          "%43ON",
	"con.txt":                      "%63on.txt",
	"CON .txt":                     "%43ON .txt",
	"lpt9":                         "%6Cpt9",
	"lpt10":                        "lpt10",
	"a\\b":                         "a%5Cb",
	`C:\x`:                         "C%3A%5Cx",
	"100%":                         "100%25",
	"%2E%2E":                       "%252E%252E",
	"%_":                           "%25_",
	"%+":                           "%25+",
	"caf\u00e9":                    "caf%C3%A9",  // composed
	"cafe\u0301":                   "cafe%CC%81", // decomposed
	"\xff":                         "%FF",
	"\u202egnp.exe":                "%E2%80%AEgnp.exe",
	"x.partial":                    "x%2Epartial",
	"x.PARTIAL":                    "x%2EPARTIAL",
	"x.partial.state":              "x.partial%2Estate",
	".partial":                     "%2Epartial",
	"con.partial":                  "%63on%2Epartial",
	"model.safetensors/layer.0.wq": "model.safetensors/layer.0.wq",
}

// checkPath says what is unsafe about a path that PathOf made.
func checkPath(p string) string {
	if !filepath.IsLocal(p) || !fs.ValidPath(p) {
		return "not a local path"
	}
	for _, c := range strings.Split(p, "/") {
		switch {
		case len(c) == 0 || len(c) > maxComponent:
			return "length of a component"
		case strings.ContainsAny(c[:1], "-.~ "), strings.ContainsAny(c[len(c)-1:], ". "):
			return "begin or end of a component"
		case strings.HasSuffix(strings.ToLower(c), PartialSuffix), strings.HasSuffix(strings.ToLower(c), StateSuffix):
			return "suffix"
		case reserved(c):
			return "reserved"
		case strings.ContainsAny(c, "\\:\x00\x7f"):
			return "byte"
		}
		for i := range len(c) {
			if c[i] < ' ' || c[i] > '~' {
				return "byte"
			}
		}
	}
	return ""
}

func TestHostileNames(t *testing.T) {
	for name, want := range hostileNames {
		got, err := PathOf(name)
		if err != nil || got != want {
			t.Errorf("PathOf(%q) = %q, %v; expected %q", name, got, err, want)
		}
	}
	for name := range hostileNames {
		p, err := PathOf(name)
		if err != nil {
			t.Errorf("PathOf(%q): %v", name, err)
		}
		if bad := checkPath(p); bad != "" {
			t.Errorf("PathOf(%q) = %q: %s", name, p, bad)
		}
		if back, err := NameOf(p); err != nil || back != name {
			t.Errorf("NameOf(%q) = %q, %v; expected %q", p, back, err, name)
		}
	}
	for _, name := range []string{"", strings.Repeat("a", 256)} {
		if p, err := PathOf(name); err == nil {
			t.Errorf("PathOf of %d bytes = %q", len(name), p)
		}
	}
	for _, p := range []string{"", ".", "..", "a//b", "/a", "a/", "%", "%4", "%4g", "%41", "%2e", "a%+", "%_%+/b", "%+/a", "a\x00", ".hidden", "caf\u00e9", "%_a"} {
		if name, err := NameOf(p); err == nil {
			t.Errorf("NameOf(%q) = %q, expected an error", p, name)
		}
	}
}

// anyName draws names with a liking for what is dangerous.
func anyName() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"/", "..", ".", "%", "%2E", "%_", "%+", "-", " ", "CON", "nul", "com1", ".partial", ".state", ".partial.state", "\x00", "\n", "\x1b[", "\\", ":", "~", "\u00e9", "e\u0301"}),
		rapid.StringMatching(`[a-z]{1,8}`), rapid.StringN(1, 4, 8),
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 1, 8).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat(rapid.SampledFrom([]string{"a", ".", " ", "\xff", "%"}).Draw(t, "unit"), rapid.IntRange(1, 250).Draw(t, "times"))
		}),
	)
	return rapid.Custom(func(t *rapid.T) string {
		s := strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(t, "pieces"), "")
		return s[:min(len(s), MaxName)]
	})
}

func TestNamesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyName().Draw(t, "a"), anyName().Draw(t, "b")
		pa, err := PathOf(a)
		if err != nil {
			t.Fatal(err)
		}
		pb, _ := PathOf(b)
		if bad := checkPath(pa); bad != "" {
			t.Fatalf("%q -> %q: %s", a, pa, bad)
		}
		if (pa == pb) != (a == b) {
			t.Fatalf("%q and %q have the path %q", a, b, pa)
		}
		if back, err := NameOf(pa); err != nil || back != a {
			t.Fatalf("%q -> %q -> %q, %v", a, pa, back, err)
		}
	})
}

func FuzzNames(f *testing.F) {
	for n, p := range hostileNames {
		f.Add(n)
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := PathOf(s); err == nil {
			if bad := checkPath(p); bad != "" {
				t.Fatalf("%q -> %q: %s", s, p, bad)
			}
			if back, err := NameOf(p); err != nil || back != s {
				t.Fatalf("%q -> %q -> %q, %v", s, p, back, err)
			}
		}
		if name, err := NameOf(s); err == nil {
			if p, err := PathOf(name); err != nil || p != s {
				t.Fatalf("path %q -> %q -> %q, %v", s, name, p, err)
			}
		}
		out := Printable(s)
		if !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool { return !unicode.IsPrint(r) }) || len(out) > 2048 {
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
