package laws

import (
	"fmt"
	"go/doc"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// docs/packages.md has each package of each layer with the first sentence of its documentation.
func TestPackagesPage(t *testing.T) {
	const file = "../../docs/packages.md"
	texts := map[string]string{} // by package
	for _, s := range load(t) {
		if !s.test && s.file.Doc != nil {
			texts[s.pkg] = s.file.Doc.Text()
		}
	}
	var page strings.Builder
	page.WriteString("# Packages\n\nGenerated from the packages' doc comments by `make generate`; do not edit. " +
		"[ARCHITECTURE.md](../ARCHITECTURE.md)\nhas the rule of layers: a package imports packages of lower layers, " +
		"and those before it in its own.\n")
	for i, l := range layers {
		fmt.Fprintf(&page, "\n## %d: %s\n\n| package | what it does |\n|---|---|\n", i, l.name)
		for _, pkg := range l.packages {
			sentence, err := summary(pkg, texts[pkg])
			if err != nil {
				t.Errorf("package %q: %v", pkg, err)
			}
			if pkg != "" { // the root is documentation alone
				fmt.Fprintf(&page, "| `%s` | %s |\n", pkg, strings.ReplaceAll(sentence, "|", `\|`))
			}
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil || string(b) != page.String() {
		t.Errorf("docs/packages.md is not what the packages say: run go test ./internal/laws -run ^TestPackagesPage$ " +
			"-update")
	}
}

var opening = regexp.MustCompile(`^(?:Package|Command) ([a-z0-9]+) (?:(?:is|are) )?|^[A-Z][a-z]+ `)

// summary is what the first sentence of a package's documentation says about it.
func summary(pkg, text string) (string, error) {
	s := new(doc.Package).Synopsis(text)
	m := opening.FindStringSubmatch(s)
	switch {
	case m == nil || m[1] != "" && pkg != "" && m[1] != path.Base(pkg):
		return "", fmt.Errorf("its documentation begins with %.40q: expected %q", s, "Package "+path.Base(pkg)+" …")
	case len(s) > 210 || !strings.HasSuffix(s, "."):
		return "", fmt.Errorf("expected a first sentence of at most 210 bytes that ends with a period, got %q", s)
	}
	return strings.TrimPrefix(s, m[0]), nil
}

func TestSummary(t *testing.T) {
	for _, x := range []struct{ pkg, text, want string }{
		{"a/b", "Package b is the engine b. More.", "the engine b."},
		{"a/b", "Package b opens c. More.", "opens c."},
		{"a/b", "Package c opens d.", ""},
		{"a/b", "", ""},
		{"a/b", "Package b opens", ""},
		{"cmd/b", "Command b opens c.", "opens c."},
		{"examples/bee", "Bee opens c.", "opens c."},
		{"a/b", "Package b opens " + strings.Repeat("c", 200) + ".", ""},
	} {
		if got, err := summary(x.pkg, x.text); got != x.want || (err == nil) != (x.want != "") {
			t.Errorf("summary(%q, %q) is %q, %v: expected %q", x.pkg, x.text, got, err, x.want)
		}
	}
}
