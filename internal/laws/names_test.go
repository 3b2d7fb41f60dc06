package laws

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"testing"
)

// What a package offers fits on two screens: the groups of constants and variables, functions and
// types that "go doc -short" lists are not more.
func TestNamesOfAPackage(t *testing.T) {
	for name, most := range map[string]int{"transfer": 60, "transfer/path": 45, "mem": 50} {
		fset := token.NewFileSet()
		var files []*ast.File
		for _, s := range load(t) {
			if s.pkg == name && !s.test {
				f, err := parser.ParseFile(fset, s.rel, s.text, parser.ParseComments) // again: go/doc changes it
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
		}
		p, err := doc.NewFromFiles(fset, files, name)
		if err != nil {
			t.Fatal(err)
		}
		n := len(p.Consts) + len(p.Vars) + len(p.Funcs) + len(p.Types)
		for _, x := range p.Types {
			n += len(x.Consts) + len(x.Vars) + len(x.Funcs)
		}
		if n == 0 || n > most {
			t.Errorf("package %s has %d exported top-level names: expected 1 to %d", name, n, most)
		}
	}
}
