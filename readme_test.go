package penstock_test

import (
	"os"
	"strings"
	"testing"
)

// The README shows no line of Go that is not in the tested example.
func TestReadmeShowsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
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
	lines := 0
	for l := range strings.Lines(part) {
		code, ok := strings.CutPrefix(strings.TrimRight(l, "\n"), "    ")
		if !ok {
			continue
		}
		lines++
		if code == "fmt.Println(put.Explain())" { // the example prints less, so that its output can be compared
			continue
		}
		if !strings.Contains(string(example), "\t"+strings.TrimSpace(code)+"\n") {
			t.Errorf("the example does not have the README's line %q", code)
		}
	}
	if lines < 10 {
		t.Errorf("the README shows %d lines of Go", lines)
	}
}

// The commands that the README promises exist in the Makefile.
func TestReadmeCommandsExist(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, target := range []string{"demo", "test", "bench"} {
		if strings.Contains(string(readme), "make "+target) {
			n++
			if !strings.Contains(string(makefile), "\n"+target+":") {
				t.Errorf("the README says make %s, the Makefile does not have it", target)
			}
		}
	}
	if n != 3 {
		t.Errorf("the README names %d of the three commands", n)
	}
}
