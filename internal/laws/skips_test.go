package laws

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// skips lists where a test is skipped by package testing's own methods, or by those of rapid. A
// parser may have a method Skip: of that name only those in tests count, and in packages that
// import testing, which are suites.
func skips(all []source) []string {
	suite := map[string]bool{}
	for _, s := range all {
		suite[s.pkg] = suite[s.pkg] || !s.test && slices.Contains(imports(s), "testing")
	}
	var out []string
	for _, s := range all {
		if s.pkg == "internal/lab/testenv" && !s.test {
			continue // its doors
		}
		methods := map[string]bool{"Skipf": true, "SkipNow": true, "Skip": s.test || suite[s.pkg]}
		fields := map[ast.Expr]bool{} // that are written or handed on, not called
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, l := range n.Lhs {
					fields[l] = true
				}
			case *ast.SelectorExpr:
				if methods[n.Sel.Name] && !fields[n] {
					out = append(out, fmt.Sprint(s.fset.Position(n.Pos())))
				}
			}
			return true
		})
	}
	return out
}

// A test is skipped by testenv.Missing, with a proof, or by testenv.LeaveOut, which looks up the
// build itself.
func TestSkipsOnlyThroughTestenv(t *testing.T) {
	for _, at := range skips(load(t)) {
		t.Errorf("%s: skips by itself; use testenv.Missing or testenv.LeaveOut, or return where the subject of a "+
			"suite lacks what the test is about", at)
	}
}

// The law can fail, and leaves parsers alone.
func TestSkipsAreFound(t *testing.T) {
	for _, c := range []struct {
		file, pkg, text string
		found           int
	}{
		{"a_test.go", "a", `func TestA(t *testing.T) { t.Skip(); t.Skipf("x"); t.SkipNow() }`, 3},
		{"a_test.go", "a", `func FuzzA(f *testing.F) { f.Fuzz(func(q *testing.T, b []byte) { q.Skip("x") }) }`, 1},
		{"a_test.go", "a", `func TestA(t *testing.T) { skip := t.Skip; skip() }`, 1},
		{"a_test.go", "a", `func (r *rig) need() { r.T.Skip("x") }`, 1},
		{"suite.go", "a/atest", `import "testing"; func Run(t testing.TB) { r := rig{t}; r.Skip("x") }`, 1},
		{"parser.go", "a", `func f(d *Decoder) { d.Skip(4); _ = goals.Skip }`, 0},
		{"parser.go", "a", `func f(t helper) { t.Skipf("x") }`, 1},
		{"a_test.go", "a", `func TestA(t *testing.T) { g.Skip = []string{"irq"}; g.Ring, g.Skip = 0, nil }`, 0},
		{"testenv.go", "internal/lab/testenv", `func Missing(t TB) { t.Skipf("x") }`, 0},
		{"guest.go", "internal/lab/testenv/guest", `func Enter(t TB) { t.Skipf("x") }`, 1},
	} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, c.file, "package p\n"+c.text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := skips([]source{{rel: c.file, pkg: c.pkg, test: strings.HasSuffix(c.file, "_test.go"), file: f,
			fset: fset}}); len(got) != c.found {
			t.Errorf("%s: found %v, expected %d", c.text, got, c.found)
		}
	}
}
