package laws

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/host/doctor"
)

// pages are the texts of the repository that people read.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/measurements/*.md", "config/reference.md"} {
		names, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names...)
	}
	if len(all) < 35 {
		t.Fatalf("%d pages", len(all))
	}
	return all
}

var (
	spanOf = regexp.MustCompile("`([^`\n]+)`")
	placed = regexp.MustCompile(`^((?:bench|bindings|cli|cmd|config|docs|engine|examples|gpu|host|internal|mem|metrics|packet|scripts|share|stage|system|tensor|transfer)/[\w./-]*[\w-])`)
	// patterns, tests (TestPagesNameTests), versions of a protocol
	noPlace = regexp.MustCompile(`\*|\.(Test|Fuzz)|/\d+$`)
	linked  = regexp.MustCompile(`\]\(([^)#\s]*)(?:#([^)]*))?\)`)
	headed  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	paged   = regexp.MustCompile(`\bdocs/[\w/-]+\.(?:md|svg|txt|json)\b`)
)

// Folders and files that a page names in code, and pages that it links to, are there. The changelog
// also has names that are gone.
func TestPagesNamePlaces(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(page, "../../")
		for _, m := range spanOf.FindAllStringSubmatch(string(b), -1) {
			if place := placed.FindString(m[1]); place != "" && !noPlace.MatchString(m[1]) && name != "CHANGELOG.md" {
				n++
				if !isPlace(place) {
					t.Errorf("%s names %s, which is not there", name, m[0])
				}
			}
		}
		for _, m := range linked.FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			target := filepath.Join(filepath.Dir(page), m[1])
			if m[1] == "" {
				target = page
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if m[2] != "" && !hasHeading(t, target, m[2]) {
				t.Errorf("%s links to %s#%s, and there is no such heading", name, m[1], m[2])
			}
		}
	}
	if n < 300 {
		t.Errorf("the pages name %d places", n)
	}
}

// hasHeading says whether a page has a heading with this anchor, as GitHub makes it.
func hasHeading(t *testing.T, page, anchor string) bool {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range headed.FindAllStringSubmatch(string(b), -1) {
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])
		if slug == anchor {
			return true
		}
	}
	return false
}

// isPlace says whether a path is there; behind its last slash it may be a name of the package.
func isPlace(place string) bool {
	for _, p := range []string{place, place + ".go",
		filepath.Join(filepath.Dir(place), strings.SplitN(filepath.Base(place), ".", 2)[0])} {
		if _, err := os.Stat(filepath.Join("../..", p)); err == nil {
			return true
		}
	}
	return false
}

// Pages that code, scripts and pages cite are in the repository.
func TestCitedPagesAreThere(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.Contains(name, "testdata/") || !strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, ".md") &&
			!strings.HasSuffix(name, ".sh") && filepath.Base(name) != "Makefile" {
			continue
		}
		b, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			continue // removed, and not committed yet
		}
		for _, page := range paged.FindAllString(string(b), -1) {
			n++
			if !isPlace(page) {
				t.Errorf("%s cites %s, which is not there", name, page)
			}
		}
	}
	if n < 150 {
		t.Errorf("%d pages are cited", n)
	}
}

// Each line of docs/troubleshooting.md quotes a text of the package that it names, or the title of
// a check of doctor; no reason of a lost packet is left out.
func TestTroubleshootingQuotesTheProgram(t *testing.T) {
	b, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string][]string{}
	for _, s := range load(t) {
		if !s.test {
			texts[s.pkg] = append(texts[s.pkg], stringsOf(s.file)...)
		}
	}
	titles := map[string]string{}
	for _, c := range doctor.Checks() {
		titles[c.ID] = c.Title
	}
	row := regexp.MustCompile("(?m)^\\| (`.*?) \\| .* \\| .* \\| (.*) \\|$")
	quotes := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(b), -1) {
		from := strings.Trim(m[2], "`")
		for _, q := range spanOf.FindAllStringSubmatch(m[1], -1) {
			quotes[q[1]] = true
			if id, ok := strings.CutPrefix(from, "doctor `"); ok {
				if titles[id] != q[1] {
					t.Errorf("doctor has no check %q with the title %q", id, q[1])
				}
				continue
			}
			if !says(texts[from], q[1]) {
				t.Errorf("package %q does not say %q", from, q[1])
			}
		}
	}
	for d := range engine.NumDrops {
		if !quotes[d.String()] {
			t.Errorf("docs/troubleshooting.md has no line for the reason %v", d)
		}
	}
	if rows := strings.Count(string(b), "\n| `"); len(quotes) < rows {
		t.Errorf("%d texts of %d lines", len(quotes), rows)
	}
	if says(texts["cli"], "serves nothing that you may hear") || says(texts["engine"], "queue") ||
		!says([]string{"a %s of the bytes"}, "a … of the bytes") {
		t.Error("this test cannot fail")
	}
}

// says reports whether one of the texts has the pieces of a quotation in their order; a single word
// has to be all of a text.
func says(texts []string, quotation string) bool {
	for _, text := range texts {
		if !strings.ContainsAny(quotation, " …") {
			if text == quotation {
				return true
			}
			continue
		}
		found := true
		for piece := range strings.SplitSeq(quotation, "…") {
			if _, text, found = strings.Cut(text, strings.TrimSpace(piece)); !found {
				break
			}
		}
		if found {
			return true
		}
	}
	return false
}

// stringsOf are the string literals of a file, those that are added up as one.
func stringsOf(file *ast.File) (all []string) {
	var fold func(ast.Expr) (string, bool)
	fold = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, err := strconv.Unquote(e.Value)
			return s, err == nil && e.Kind == token.STRING
		case *ast.BinaryExpr:
			a, aOK := fold(e.X)
			b, bOK := fold(e.Y)
			return a + b, aOK && bOK && e.Op == token.ADD
		}
		return "", false
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		s, ok := fold(e)
		if ok {
			all = append(all, s)
		}
		return !ok
	})
	return all
}

// The index has every page of docs/.
func TestIndexHasEveryPage(t *testing.T) {
	index, err := os.ReadFile("../../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); name != "README.md" && filepath.Ext(name) != ".svg" &&
			!strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md does not have %s", name)
		}
	}
}

// Go names that pages write as code (`Options.Streams`, `TestGone`) occur in the sources. The
// changelog also has those that are gone.
func TestPagesNameWhatIsThere(t *testing.T) {
	have := map[string]bool{}
	word := regexp.MustCompile(`[A-Za-z_]\w+`)
	for _, s := range load(t) {
		for _, w := range word.FindAllString(s.text, -1) {
			have[w] = true
		}
	}
	exported := regexp.MustCompile(`\b[A-Z][a-z]\w*[A-Z]\w*`)
	n := 0
	for _, page := range pages(t) {
		if strings.HasSuffix(page, "CHANGELOG.md") || strings.Contains(page, "measurements/") {
			continue
		}
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range spanOf.FindAllStringSubmatch(string(b), -1) {
			for _, w := range exported.FindAllString(m[1], -1) {
				n++
				if !have[w] {
					t.Errorf("%s names %s in %s, which is in no source", strings.TrimPrefix(page, "../../"), w, m[0])
				}
			}
		}
	}
	if n < 300 {
		t.Errorf("the pages name %d things", n)
	}
}

// Sentences of pages have an actor.
func TestPagesHaveActors(t *testing.T) {
	vague := regexp.MustCompile(`(?i)\b(nobody|whoever|somebody|(is|are|was|were) told|mended)\b`)
	for _, page := range pages(t) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(page, "cli.md") || strings.HasSuffix(page, "config.md") {
			continue // generated from texts of the program
		}
		for i, line := range strings.Split(string(b), "\n") {
			if m := vague.FindString(line); m != "" {
				t.Errorf("%s:%d says %q: say which function, peer, user or program", strings.TrimPrefix(page, "../../"),
					i+1, m)
			}
		}
	}
}
