package dl

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// What a program without cgo that has this package needs on a machine: the C library and its
// loader, and nothing else; with -tags static nothing at all, and then it says so instead of
// finding libraries. With either one a library that is not there is an error.
func TestProgram(t *testing.T) {
	testenv.Once(t)
	for _, c := range []struct {
		name, tags    string
		needs         []string
		system, other string // what it says of the C library, and of one that does not exist
	}{
		{"dynamic", "", []string{"libc.so.6", "libdl.so.2", "libpthread.so.0"}, "the library says true", "cannot open shared object file"},
		{"static", "static", nil, "built with -tags static", "built with -tags static"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := filepath.Join(t.TempDir(), "opens")
			cmd := exec.Command("go", "build", "-trimpath", "-tags", c.tags, "-o", prog, "./testdata/opens")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
			}
			f, err := elf.Open(prog)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			loader := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
			if loader != (c.needs != nil) {
				t.Errorf("the program asks for a loader: %v", loader)
			}
			needs, err := f.DynString(elf.DT_NEEDED)
			if c.needs != nil && err != nil {
				t.Fatal(err)
			}
			for _, n := range needs {
				if !slices.Contains(c.needs, n) {
					t.Errorf("the program needs %s, want none but %v", n, c.needs)
				}
			}
			for lib, want := range map[string]string{"libc.so.6": c.system, "libnobody-has-this.so.7": c.other} {
				out, err := exec.Command(prog, lib).CombinedOutput()
				if err != nil || !strings.Contains(string(out), want) {
					t.Errorf("%s: %v: %s, want %q", lib, err, out, want)
				}
			}
		})
	}
}
