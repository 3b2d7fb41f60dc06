package paired

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A field has all its words in their order, behind its name, in lines that no two words make too
// long.
func TestField(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,30}`), 0, 20).Draw(t, "words")
		name := rapid.StringMatching(`[A-Z]{0,12}`).Draw(t, "name")
		var b strings.Builder
		l := &Lines{W: &b, Label: 9, Width: 40}
		l.Field(name, strings.Join(words, "  "))
		if got := strings.Fields(b.String()); strings.Join(got,
			" ") != strings.TrimSpace(name+" "+strings.Join(words, " ")) {
			t.Fatalf("%q", b.String())
		}
		first := true
		for line := range strings.Lines(b.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.TrimRight(line, " ") != line || len(line) > l.Width &&
				strings.Contains(strings.TrimSpace(line[min(len(line), max(l.Label, len(name))):]), " ") {
				t.Fatalf("%q", line)
			}
			if !first && !strings.HasPrefix(line, "         ") {
				t.Fatalf("%q", line)
			}
			first = false
		}
	})
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestLinesKeepTheFirstError(t *testing.T) {
	l := &Lines{W: full{}, Label: 9, Width: 40}
	l.Line("a")
	first := l.Err
	l.Field("b", "c")
	if first == nil || l.Err != first {
		t.Errorf("%v, %v", first, l.Err)
	}
}
