package peers

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// rig runs scripts/deps.sh with programs that stand in for apt-get and its kin, and a list of its
// own.
type rig struct {
	t              *testing.T
	dir, bin, list string
}

func newRig(t *testing.T, list string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	r.bin = filepath.Join(r.dir, "bin")
	r.list = filepath.Join(r.dir, "list")
	if err := os.Mkdir(r.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.list, []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	r.program("id", "echo 0")
	r.program("dpkg", `echo "dpkg $*" >>"$LOG"`)
	r.program("chown", "")
	r.program("apt-cache", `echo "Package: pkg-a"; echo "Version: 1"`)
	r.program("systemctl", "")
	r.program("deb-systemd-helper", "")
	return r
}

func (r *rig) program(name, script string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// run returns what the script printed, which calls it made, and its exit status.
func (r *rig) run(ci string) (out string, calls []string, status int) {
	r.t.Helper()
	root, err := testenv.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	log := filepath.Join(r.dir, "log")
	os.Remove(log)
	cmd := exec.Command(filepath.Join(root, "scripts", "deps.sh"), r.list)
	cmd.Env = append(os.Environ(), "PATH="+r.bin+":"+os.Getenv("PATH"), "CI="+ci, "LOG="+log, "BIN="+r.bin,
		"DEPS_PAUSE=0",
		"DEPS_CACHE="+filepath.Join(r.dir, "cache"), "POLICY_RC_D="+filepath.Join(r.dir, "policy"))
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	for _, left := range []string{"policy", "cache*"} {
		if found, _ := filepath.Glob(filepath.Join(r.dir, left)); len(found) != 0 {
			r.t.Errorf("left behind: %v", found)
		}
	}
	text, err := os.ReadFile(log)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	return string(b), strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), cmd.ProcessState.ExitCode()
}

const depsList = `# a comment

pkg-a  tool-a        for a
pkg-b  /no/such/*    for b
pkg-sh sh            always here
`

// aptThatWorks logs how it is called, and installing brings what the list looks for.
const aptThatWorks = `
case "$*" in *--assume-no*) echo "Need to get 5 MB of archives."; exit 1;; esac
echo "apt-get $*" >>"$LOG"
case "$*" in *" install "*) "$POLICY_RC_D" etcd start; echo "policy $?" >>"$LOG"; printf '#!/bin/sh\n' >"$BIN/tool-a"; chmod +x "$BIN/tool-a";; esac
`

func TestDepsInstallsOnce(t *testing.T) {
	r := newRig(t, "pkg-a tool-a for a\npkg-sh sh always here\n")
	r.program("apt-get", aptThatWorks)
	out, calls, status := r.run("true")
	if status != 0 || len(calls) != 3 || !strings.HasSuffix(calls[0], " update") ||
		!strings.HasSuffix(calls[1], " install pkg-a") ||
		!strings.Contains(calls[1], " --no-install-recommends ") || !strings.Contains(calls[1], " -y ") {
		t.Errorf("status %d, calls %q:\n%s", status, calls, out)
	}
	// While packages are installed no service may start.
	if calls[2] != "policy 101" {
		t.Errorf("the answer to starting a service is %q", calls[2])
	}
	if !strings.Contains(out, "installing pkg-a\n") || !strings.Contains(out, "Need to get 5 MB") {
		t.Errorf("it does not say what it does: %s", out)
	}
	// Everything is here now: the script asks no package manager.
	out, calls, status = r.run("true")
	if status != 0 || out != "" || calls[0] != "" {
		t.Errorf("status %d, calls %q, %s", status, calls, out)
	}
}

func TestDepsTriesAgain(t *testing.T) {
	testenv.Once(t)
	r := newRig(t, "pkg-a tool-a for a\n")
	r.program("apt-get", `case "$*" in *--assume-no*|*update*) exit 100;; esac; if [ ! -e "$BIN/failed" ]; then touch "$BIN/failed"; echo "network is down" >&2; exit 100; fi`+aptThatWorks)
	out, calls, status := r.run("true")
	// What was left half done is finished before the next try, and a source that cannot be updated
	// does not stop an install.
	if status != 0 || !strings.Contains(out, "try 1 failed") || !strings.Contains(out, "network is down") ||
		calls[0] != "dpkg --configure -a" || strings.Contains(out, "try 2 failed") {
		t.Errorf("status %d:\n%s", status, out)
	}
}

// A package that the system does not have does not keep the others away.
func TestDepsInstallsWhatThereIs(t *testing.T) {
	testenv.Once(t)
	r := newRig(t, "pkg-a tool-a for a\npkg-b /no/such/* for b\n")
	r.program("apt-get", aptThatWorks)
	out, calls, status := r.run("")
	if status != 0 || !strings.HasSuffix(calls[1], " install pkg-a") || strings.Contains(out, "no tool-a") ||
		!strings.Contains(out, "pkg-b: no /no/such/*; for b") {
		t.Errorf("status %d, calls %q\n%s", status, calls, out)
	}
}

// What cannot be had is an error in CI and a message elsewhere.
func TestDepsGivesUp(t *testing.T) {
	testenv.Once(t)
	r := newRig(t, depsList)
	r.program("apt-get", `echo "E: it does not work" >&2; exit 100`)
	for ci, want := range map[string]int{"true": 1, "": 0, "false": 0} {
		out, calls, status := r.run(ci)
		if status != want || strings.Count(out, "failed:") != 3 {
			t.Errorf("CI=%s: status %d, calls %q\n%s", ci, status, calls, out)
		}
		for _, say := range []string{"no package pkg-b in the sources of this system", "pkg-a: no tool-a; for a",
			"pkg-b: no /no/such/*; for b", "E: it does not work"} {
			if !strings.Contains(out, say) {
				t.Errorf("CI=%s: no %q in\n%s", ci, say, out)
			}
		}
		if strings.Contains(out, "pkg-sh") {
			t.Errorf("it misses sh:\n%s", out)
		}
	}
	// Without root the script asks no package manager.
	r = newRig(t, "pkg-py python:no_such_module_of_python for py\n")
	r.program("id", "echo 1000")
	out, calls, status := r.run("")
	if status != 0 || calls[0] != "" || !strings.Contains(out, "not root") ||
		!strings.Contains(out, "pkg-py: no python:no_such_module_of_python; for py") {
		t.Errorf("status %d, calls %q, %s", status, calls, out)
	}
}

// On a machine of CI nothing of the real list is missing: the script finds it all and asks no
// package manager.
func TestDepsFindsAll(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "scripts", "packages.txt"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, string(b))
	r.program("id", "echo 1000")
	if out, _, _ := r.run(""); out != "" {
		testenv.Missing(t, "the packages of scripts/packages.txt", errors.New(out))
	}
}
