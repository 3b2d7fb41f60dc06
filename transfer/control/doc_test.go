package control

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocument keeps docs/protocol.md in step with the code where a test can: the example, and the
// numbers and names of types, methods and codes.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	_, after, _ := strings.Cut(doc, "## An example")
	_, block, _ := strings.Cut(after, "```\n")
	block, _, _ = strings.Cut(block, "```")
	var hex strings.Builder
	for line := range strings.Lines(block) {
		for field := range strings.FieldsSeq(line) {
			if len(field) != 2 || strings.Trim(field, "0123456789abcdef") != "" {
				break
			}
			hex.WriteString(field)
		}
	}
	want := frameOf(t, &Request{ID: 3, Method: MethodLookup, Body: []byte{1, 'w'}})
	if got := unhex(t, hex.String()); !bytes.Equal(got, want) {
		t.Errorf("the example is %x, the code makes %x", got, want)
	}
	var missing []string
	need := func(format string, args ...any) {
		if s := fmt.Sprintf(format, args...); !strings.Contains(doc, s) {
			missing = append(missing, s)
		}
	}
	for typ := TypeHello; typ.known(); typ++ {
		need("%s, type %d", strings.ToUpper(typ.String()[:1])+typ.String()[1:], typ)
	}
	for m, name := range methodNames {
		if name == "" { // a number that is not in use
			continue
		}
		need("| %s | %d |", name, m)
	}
	for c := range codeNames {
		need("| %d | %v |", c, Code(c))
	}
	if len(missing) > 0 {
		t.Errorf("docs/protocol.md does not hold %q", missing)
	}
}
