package kernels

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

var update = flag.Bool("update", false, "compile the PTX again")

// clang is the compiler that makes the PTX, as a program.
const clang = "clang-22"

var version = regexp.MustCompile(`version (\d+\.\d+\.\d+)`)

// clangVersion is the compiler's version, or the proof that there is none.
func clangVersion() (string, error) {
	path, err := testenv.Tool(clang, clang)
	if err != nil {
		return "", err
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", clang, err)
	}
	m := version.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s --version says %q", clang, out)
	}
	return string(m[1]), nil
}

// compile makes the PTX of a source for a target, as it is committed.
func compile(name, source, compiler string, t target) (string, error) {
	dir, err := os.MkdirTemp("", "penstock-ptx")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	in := filepath.Join(dir, name+".cl")
	if err := os.WriteFile(in, []byte(source), 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command(clang, "-x", "cl", "-cl-std=CL3.0", "--target=nvptx64-nvidia-cuda",
		fmt.Sprintf("-march=sm_%d", t.sm),
		"-Xclang", "-target-feature", "-Xclang", fmt.Sprintf("+ptx%d", t.version), "-Wall", "-Wextra", "-Werror", "-O2",
		"-S", "-o", "-", in).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w:\n%s", err, exit.Stderr)
		}
		return "", fmt.Errorf("%s for sm_%d: %w", clang, t.sm, err)
	}
	return fmt.Sprintf("// Made of %s.cl (SHA-256 with penstock.h: %s)\n// by %s %s; do not edit: make generate.\n%s",
		name, digest(source), clang, compiler, out), nil
}

// TestPTXIsCurrent shows that each PTX was made of the source beside it, by the digest that it
// names. With -update it compiles again what was not, or what another version of the compiler made.
func TestPTXIsCurrent(t *testing.T) {
	have, missing := "", error(nil)
	if *update {
		have, missing = clangVersion()
	}
	for _, p := range All() {
		for _, to := range targets {
			file := to.file(p.Name)
			old, err := os.ReadFile(file)
			stale := !strings.Contains(string(old), digest(p.Source))
			switch {
			case err != nil && !*update:
				t.Errorf("%v; make generate makes it", err)
			case stale && !*update:
				t.Errorf("%s was made of another source: run make generate (with %s) and commit it", file, clang)
			case stale && missing != nil:
				t.Errorf("%s must be compiled again: %v", file, missing)
			case *update && missing == nil && (stale || !strings.Contains(string(old), clang+" "+have+";")):
				now, err := compile(p.Name, p.Source, have, to)
				if err == nil {
					err = os.WriteFile(file, []byte(now), 0o644)
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestPTXIsWhatTheCompilerMakes compiles each source again and compares, where the compiler that
// made the PTX is installed.
func TestPTXIsWhatTheCompilerMakes(t *testing.T) {
	testenv.Once(t)
	have, err := clangVersion()
	if err != nil {
		testenv.Missing(t, clang, err)
	}
	compared := 0
	for _, p := range All() {
		for i, x := range p.PTX {
			if !strings.Contains(x.Text, clang+" "+have+";") {
				line, _, _ := strings.Cut(x.Text[strings.Index(x.Text, "// by "):], ";")
				t.Logf("%s: %s, and here is %s %s: another version may write it otherwise", targets[i].file(p.Name),
					line, clang, have)
				continue
			}
			now, err := compile(p.Name, p.Source, have, targets[i])
			if err != nil {
				t.Error(err)
			} else if now != x.Text {
				t.Errorf("%s is not what %s %s makes of the source: run make generate and commit it",
					targets[i].file(p.Name), clang, have)
			}
			compared++
		}
	}
	if compared == 0 && !t.Failed() {
		testenv.Missing(t, "the "+clang+" that made the PTX, to compare with",
			fmt.Errorf("none of it is made by %s %s, which is here", clang, have))
	}
}

// TestPTXSaysWhatItIs holds the PTX to what its Program says, and its entries to the signatures.
func TestPTXSaysWhatItIs(t *testing.T) {
	for _, p := range All() {
		if len(p.PTX) != len(targets) {
			t.Errorf("%s: PTX for %d of %d architectures", p.Name, len(p.PTX), len(targets))
		}
		for _, x := range p.PTX {
			for _, want := range []string{fmt.Sprintf("\n.version %d.%d\n", x.Version/10, x.Version%10),
				fmt.Sprintf("\n.target sm_%d\n", x.SM)} {
				if !strings.Contains(x.Text, want) {
					t.Errorf("%s for sm_%d has no line %q", p.Name, x.SM, want[1:len(want)-1])
				}
			}
			for _, k := range p.Kernels {
				_, rest, ok := strings.Cut(x.Text, ".visible .entry "+k.Name+"(\n")
				params, _, _ := strings.Cut(rest, "\n)")
				lines := strings.Split(params, "\n")
				if !ok || len(lines) != len(k.Params) {
					t.Errorf("%s for sm_%d: entry %s has %d parameters (%v), expected %d", p.Name, x.SM, k.Name,
						len(lines), ok, len(k.Params))
					continue
				}
				for i, line := range lines {
					want := fmt.Sprintf(".param .u%d ", 8*k.Params[i].Type.Size())
					pointer := strings.Contains(line, ".ptr .global")
					if !strings.Contains(line, want) || pointer != (k.Params[i].Type.String() == "buffer") {
						t.Errorf("%s for sm_%d: %s: parameter %d is %q, expected a %s", p.Name, x.SM, k.Name, i,
							strings.TrimSpace(line), k.Params[i].Type)
					}
				}
			}
			if strings.Contains(x.Text, "__clang_ocl_kern_imp_") || strings.Contains(x.Text, ".extern") {
				t.Errorf("%s for sm_%d calls something that is not in it", p.Name, x.SM)
			}
		}
	}
}
