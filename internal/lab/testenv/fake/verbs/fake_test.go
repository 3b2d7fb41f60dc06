package verbs

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// built skips, with the proof, where the fake cannot be compiled.
func built[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if errors.Is(err, ErrMissing) {
			testenv.Missing(t, "the headers of libibverbs", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// run runs a program on the fake and returns its two outputs. A hang ends it.
func run(t *testing.T, dir, script string, env []string, argv ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Env = append(Env(dir, script), env...)
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	err = c.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s hangs:\n%s\n%s", argv[0], out.String(), log.String())
	}
	return out.String(), log.String(), err
}

// violations are what the checks do wrong on purpose; anything else in a report is a fault of the
// checks or of the fake.
var violations = []string{
	"violation ibv_post_send: qp 0x11 is in state 0",
	"violation ibv_post_recv: qp 0x11 is in state 0",
	"violation ibv_post_send: qp 0x12 is in state 1",
}

// verdicts are the lines of the conformance program by check; the last line, a count, is left out.
func verdicts(t *testing.T, out string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for line := range strings.Lines(out) {
		verdict, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, detail, _ := strings.Cut(rest, " ")
		switch verdict {
		case "ok", "FAIL", "absent":
			m[name] = strings.TrimSpace(verdict + " " + detail)
		}
	}
	if len(m) < 30 {
		t.Fatalf("only %d checks in:\n%s", len(m), out)
	}
	return m
}

// conformance runs all checks on the fake: none fails, nothing leaks, no rule is broken that is not
// meant to be.
func conformance(t *testing.T, script string, env []string, flags ...string) map[string]string {
	t.Helper()
	dir := built[string](t)(Dir(flags...))
	check := built[string](t)(Check(flags...))
	out, log, err := run(t, dir, "report exit; "+script, env, check)
	if err != nil || strings.Contains(out, "FAIL") {
		t.Errorf("check: %v\n%s\n%s", err, out, log)
	}
	m := verdicts(t, out)
	reports := 0
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		switch {
		case line == "penstock fake verbs report:":
			reports++
		case line == "clean" || line == "":
		case slices.ContainsFunc(violations, func(v string) bool { return strings.Contains(line, v) }):
		default:
			t.Errorf("%s", line)
		}
	}
	if reports != len(m) {
		t.Errorf("%d reports of %d checks", reports, len(m))
	}
	return m
}

func TestConformance(t *testing.T) {
	testenv.Once(t)
	m := conformance(t, "", nil)
	testenv.Record(t, "fake", "verbs", "conformance program")
	for name, verdict := range m {
		if strings.HasPrefix(verdict, "absent") {
			t.Errorf("%s: %s", name, verdict)
		}
	}
}

// TestConformanceModes: where and when the fake executes changes no verdict.
func TestConformanceModes(t *testing.T) {
	testenv.Once(t)
	want := conformance(t, "", nil)
	for _, script := range []string{"mode wire", "mode wire; delay 200us; seed 7", "timers instant"} {
		for name, got := range conformance(t, script, nil) {
			if got != want[name] {
				t.Errorf("%s: %s: %s, in mode post: %s", script, name, got, want[name])
			}
		}
	}
}

// sanitizers are the further builds: what they find is a fault of the fake or of the checks. Leaks
// are the report's business.
var sanitizers = map[string]struct{ flags, env []string }{
	"address": {[]string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"},
		[]string{"ASAN_OPTIONS=detect_leaks=0"}},
	"thread": {[]string{"-fsanitize=thread"}, []string{"TSAN_OPTIONS=halt_on_error=1:exitcode=66"}},
}

func TestSanitized(t *testing.T) {
	testenv.Once(t)
	built[string](t)(Build())
	for name, s := range sanitizers {
		t.Run(name, func(t *testing.T) {
			// The sanitizer is there, it starts on this kernel, and it finds what it is for.
			probe := filepath.Join(t.TempDir(), "probe.c")
			if err := os.WriteFile(probe, []byte(faulty), 0o644); err != nil {
				t.Fatal(err)
			}
			p, err := testenv.Compile("sanitizer-probe", []string{probe},
				append([]string{"-O0", "-pthread"}, s.flags...)...)
			if err != nil {
				testenv.Missing(t, "gcc's "+name+" sanitizer", err)
			}
			if out, err := exec.Command(p).CombinedOutput(); err != nil {
				testenv.Missing(t, "a kernel on which gcc's "+name+" sanitizer starts", fmt.Errorf("%w: %s", err, out))
			}
			c := exec.Command(p, name)
			c.Env = append(os.Environ(), s.env...)
			if out, err := c.CombinedOutput(); err == nil {
				t.Fatalf("the sanitizer finds nothing in a faulty program:\n%s", out)
			}
			conformance(t, "", s.env, s.flags...)
			conformance(t, "mode wire; delay 100us; seed 3", s.env, s.flags...)
			scenarios(t, s.env, s.flags...)
		})
	}
}

// faulty overruns an array when it is called with the argument "address", and races with "thread".
const faulty = `#include <pthread.h>
int shared;
static void *racer(void *p) { for (int i = 0; i < 100000; i++) shared++; return p; }
int main(int argc, char **argv)
{
	static char array[8];
	volatile char *p = array + 7;
	if (argc == 2 && argv[1][0] == 'a')
		p[argc] = 1;
	if (argc == 2 && argv[1][0] == 't') {
		pthread_t a, b;
		pthread_create(&a, NULL, racer, NULL);
		pthread_create(&b, NULL, racer, NULL);
		pthread_join(a, NULL);
		pthread_join(b, NULL);
	}
	return 0;
}
`

// scenarios runs the checks of the script.
func scenarios(t *testing.T, env []string, flags ...string) {
	t.Helper()
	dir := built[string](t)(Dir(flags...))
	out, log, err := run(t, dir, "", env, built[string](t)(scripted(flags...)))
	if err != nil || strings.Count(out, "\nok ") < 10 || strings.Contains(out, "FAIL") {
		t.Errorf("scripted: %v\n%s\n%s", err, out, log)
	}
}

func TestScript(t *testing.T) {
	testenv.Once(t)
	scenarios(t, nil)
}

// TestSymbols: whatever a program may ask of libibverbs is there, under the same version, and
// nothing else.
func TestSymbols(t *testing.T) {
	lib := built[string](t)(Build())
	have := symbols(t, lib)
	for _, s := range []string{"penstock_fake_script", "penstock_fake_report", "penstock_fake_count",
		"penstock_fake_pump"} {
		if !slices.Contains(have[s], "PENSTOCK_FAKE_1") {
			t.Errorf("%s is not exported", s)
		}
	}
	cm, err := filepath.Glob("/usr/lib/*/librdmacm.so.1")
	if err != nil || len(cm) == 0 {
		testenv.Missing(t, "librdmacm itself",
			errors.New("no /usr/lib/*/librdmacm.so.1; on Debian: apt-get install librdmacm1"))
	}
	manager, calls := symbols(t, cm[0]), 0
	for s, versions := range have {
		if strings.HasPrefix(s, "rdma_") {
			if calls++; !slices.Equal(versions, manager[s]) {
				t.Errorf("%s is exported as %v, librdmacm has %v", s, versions, manager[s])
			}
			continue
		}
		if !strings.HasPrefix(s, "ibv_") && !strings.HasPrefix(s, "_ibv_") && !strings.HasPrefix(s, "mult_to") &&
			!strings.HasPrefix(s, "mbps_to") && versions[0] != "PENSTOCK_FAKE_1" {
			t.Errorf("%s is exported", s)
		}
	}
	if calls == 0 {
		testenv.Missing(t, "the headers of librdmacm",
			errors.New("no <rdma/rdma_cma.h>; on Debian: apt-get install librdmacm-dev"))
	}
	real, err := filepath.Glob("/usr/lib/*/libibverbs.so.1")
	if err != nil || len(real) == 0 {
		testenv.Missing(t, "libibverbs itself",
			errors.New("no /usr/lib/*/libibverbs.so.1; on Debian: apt-get install libibverbs1"))
	}
	n := 0
	for s, versions := range symbols(t, real[0]) {
		for _, v := range versions {
			// What was renewed in 1.1 has its first form in 1.0, for programs of 2006; the private
			// ones are for drivers.
			if v == "IBVERBS_1.0" && slices.Contains(versions, "IBVERBS_1.1") || strings.Contains(v, "PRIVATE") ||
				s == "ibv_register_driver" {
				continue
			}
			n++
			if !slices.Contains(have[s], v) {
				t.Errorf("%s@%s is missing", s, v)
			}
		}
	}
	if n < 70 {
		t.Errorf("compared only %d symbols with %s", n, real[0])
	}
}

// symbols are the functions that a library exports, with their versions.
func symbols(t *testing.T, file string) map[string][]string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if so, err := f.DynString(elf.DT_SONAME); err != nil || len(so) != 1 ||
		!slices.Contains([]string{"libibverbs.so.1", "librdmacm.so.1"}, so[0]) {
		t.Errorf("%s has the soname %v: %v", file, so, err)
	}
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string][]string{}
	for _, s := range all {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) == elf.STB_GLOBAL {
			m[s.Name] = append(m[s.Name], s.Version)
		}
	}
	return m
}

// TestTools: programs that know nothing of the fake see its devices.
func TestTools(t *testing.T) {
	testenv.Once(t)
	dir := built[string](t)(Dir())
	for _, c := range []struct {
		script string
		argv   []string
		want   []string
	}{
		{"", []string{"ibv_devices"}, []string{"fake0", "fake1", "020000fffe000001"}},
		{"devices 1; link infiniband", []string{"ibv_devinfo", "-v"}, []string{"fake0", "PORT_ACTIVE", "InfiniBand", "port_lid:\t\t1"}},
		{"port 1 down; limit max_sge 1", []string{"ibv_devinfo", "-v"},
			[]string{"fake1", "PORT_DOWN", "PORT_ACTIVE", "max_sge:\t\t\t1\n",
				"RoCE v2", "::ffff:192.0.2.1", "fe80:"}},
	} {
		tool, err := testenv.Tool(c.argv[0], "ibverbs-utils")
		if err != nil {
			testenv.Missing(t, c.argv[0], err)
		}
		out, log, err := run(t, dir, c.script, nil, append([]string{tool}, c.argv[1:]...)...)
		if err != nil {
			t.Errorf("%v: %v\n%s%s", c.argv, err, out, log)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("%v on %q has no %q:\n%s%s", c.argv, c.script, w, out, log)
			}
		}
		if c.script == "devices 1; link infiniband" && strings.Contains(out, "fake1") {
			t.Errorf("a second device of one:\n%s", out)
		}
	}
}

// TestBadScript: a wrong environment is an error with its place, and no device.
func TestBadScript(t *testing.T) {
	dir := built[string](t)(Dir())
	check := built[string](t)(Check())
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("devices 1\nmode post\nlimit max_sgee 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"devices 9":            `line 1, column 9: devices 9 is out of range: expected 0 to 8`,
		"@" + file:             `line 3, column 7: there is no limit "max_sgee"`,
		"@" + file + ".none":   `the file cannot be read`,
		"mode post; mode fast": `line 1, column 17: mode "fast" is unknown: expected one of post, wire, pump`,
	} {
		out, log, err := run(t, dir, script, nil, check, "-", "pd-busy")
		if err == nil || !strings.Contains(log, want) ||
			!strings.Contains(out, "FAIL pd-busy ibv_get_device_list: EINVAL") {
			t.Errorf("%q: %v\n%s%s", script, err, out, log)
		}
	}
}
