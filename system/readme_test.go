package system_test

import (
	"os"
	"strings"
	"testing"
)

// The README shows no line of Go that is not in the tested examples, and each of its blocks is in
// the order of its example.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(readme), "## From Go")
	if !ok {
		t.Fatal("the README has no section From Go")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	lines, rest := 0, ""
	for l := range strings.Lines(part) {
		code, ok := strings.CutPrefix(strings.TrimRight(l, "\n"), "    ")
		if !ok {
			if strings.TrimSpace(l) != "" { // words: the next block is another one
				rest = ""
			}
			continue
		}
		lines++
		if code == "fmt.Println(put.Explain())" { // the example prints less, so that its output can be compared
			continue
		}
		if rest == "" {
			rest = string(example)
		}
		if _, rest, ok = strings.Cut(rest, "\t"+strings.TrimSpace(code)+"\n"); !ok {
			t.Errorf("the example does not have the README's line %q there", code)
		}
	}
	if lines < 20 {
		t.Errorf("the README shows %d lines of Go", lines)
	}
}

// The targets of make that the README names are in the Makefile.
func TestReadmeCommandsExist(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, target := range []string{"build", "demo", "test"} {
		if strings.Contains(string(readme), "make "+target) {
			n++
			if !strings.Contains(string(makefile), "\n"+target+":") {
				t.Errorf("the README says make %s, the Makefile does not have it", target)
			}
		}
	}
	if n != 3 {
		t.Errorf("the README names %d of the three targets", n)
	}
}
