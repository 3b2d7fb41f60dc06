package peers

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// packages reads scripts/packages.txt: how each package is looked for.
func packages(t *testing.T) map[string]string {
	t.Helper()
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "scripts", "packages.txt"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0][0] == '#' {
			continue
		}
		if len(f) < 3 {
			t.Fatalf("packages.txt: %q: expected a package, how it is looked for, and what for", line)
		}
		if found[f[0]] != "" {
			t.Errorf("packages.txt names %s twice", f[0])
		}
		found[f[0]] = f[1]
	}
	return found
}

// What a peer needs is installed by scripts/deps.sh, which looks for things that the peer has.
func TestTableAndPackages(t *testing.T) {
	list := packages(t)
	seen := map[string]bool{}
	for _, p := range All {
		if seen[p.Name] || p.Name == "" || p.For == "" || len(p.Packages) == 0 || len(p.Programs)+len(p.Modules) == 0 {
			t.Errorf("%+v: a name of its own, packages, programs or modules, and a reason are needed", p)
		}
		seen[p.Name] = true
		looked := false
		for _, name := range p.Packages {
			probe, ok := list[name]
			if !ok {
				t.Errorf("%s needs package %s, which is not in scripts/packages.txt", p.Name, name)
			}
			module, isModule := strings.CutPrefix(probe, "python:")
			looked = looked || isModule && slices.Contains(p.Modules, module) || slices.Contains(p.Programs, probe)
		}
		if !looked {
			t.Errorf("%s: none of its packages is looked for by a program or module of the peer: %v in "+
				"scripts/packages.txt", p.Name, p.Packages)
		}
	}
}

// Without its programs a peer is absent, and the error says how to get it.
func TestAbsence(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, p := range All {
		// Programs for root are found without PATH, and so is the system's Python.
		if p.Find() == nil {
			continue
		}
		_, err := p.Version(t.Context())
		if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "apt-get install "+p.Packages[0]) ||
			!strings.Contains(err.Error(), "scripts/deps.sh") {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	p, err := Get("iperf3")
	if err != nil || p.Find() == nil {
		t.Errorf("iperf3 is found in an empty directory: %v", err)
	}
	if _, err := Get("carrier-pigeon"); err == nil || !strings.Contains(err.Error(), "iperf3") {
		t.Errorf("%v; want the names that exist", err)
	}
	if _, err := Iperf3(t.Context(), Iperf3Test{Size: 1, Bytes: 1}); !errors.Is(err, ErrAbsent) {
		t.Errorf("a run without the tool: %v", err)
	}
	if _, err := FindPython(t.Context(), "no_such_module_of_python"); !errors.Is(err, ErrAbsent) {
		t.Errorf("a module that does not exist: %v", err)
	}
}

// A peer that is here and does not work is not absent.
func TestBrokenIsNotAbsent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "iperf3"), []byte("#!/bin/sh\necho no library >&2\nexit 127\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	p, err := Get("iperf3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Version(t.Context()); err == nil || errors.Is(err, ErrAbsent) ||
		!strings.Contains(err.Error(), "no library") {
		t.Errorf("%v", err)
	}
}

// So is a module of Python.
func TestBrokenModule(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "broken_module.py"), []byte("raise OSError('no library')\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		testenv.Missing(t, "python3", err)
	}
	t.Setenv("PYTHONPATH", dir)
	_, err := FindPython(t.Context(), "broken_module")
	if err == nil || errors.Is(err, ErrAbsent) && strings.Contains(err.Error(), "Traceback") ||
		!strings.Contains(err.Error(), "no library") {
		t.Errorf("%v", err)
	}
}

func TestReport(t *testing.T) {
	testenv.Once(t)
	t.Setenv("PATH", t.TempDir())
	var out bytes.Buffer
	if err := Report(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	for _, p := range All {
		if !strings.Contains(out.String(), "\n"+p.Name+" ") {
			t.Errorf("%s is not in\n%s", p.Name, &out)
		}
	}
	if !strings.Contains(out.String(), "absent: apt-get install iperf3") {
		t.Errorf("it does not say how to get iperf3:\n%s", &out)
	}
}
