package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// compiled skips where there is no C compiler, and fails for every other error.
func compiled(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if _, missing := testenv.Tool("gcc", "gcc libc6-dev"); missing != nil && os.Getenv("CC") == "" {
		testenv.Missing(t, "a C compiler", missing)
	}
	t.Fatal(err)
}

// command is a program with a limit that only a hang reaches.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PENSTOCK_FAKE_CUDA") })
	return cmd
}

// verdicts reads what the check program printed: NAME to ok, skip or FAIL with its reason.
func verdicts(out []byte) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(string(out)) {
		verdict, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if verdict == "ok" || verdict == "skip" || verdict == "FAIL" {
			name, why, _ := strings.Cut(rest, ":")
			m[name] = strings.TrimSpace(verdict + " " + why)
		}
	}
	return m
}

// names are the checks that the program has: public and fake ones.
func names(t *testing.T, program string) (public, fake []string) {
	t.Helper()
	out, err := command(t, program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		kind, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind == "fake" {
			fake = append(fake, name)
		} else {
			public = append(public, name)
		}
	}
	return public, fake
}

// run builds everything with flags, runs every check against the fake, and requires that each one
// passed.
func run(t *testing.T, env []string, flags ...string) (lib string, out []byte) {
	t.Helper()
	lib, err := Build(flags...)
	compiled(t, err)
	program, kernels, err := Check(flags...)
	compiled(t, err)
	public, fake := names(t, program)
	if len(public) < 8 || len(fake) < 15 {
		t.Fatalf("the program has only %d public and %d fake checks", len(public), len(fake))
	}
	cmd := command(t, program, lib)
	cmd.Env = append(append(cmd.Env, "PENSTOCK_FAKE_CUDA_KERNELS="+kernels), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	got := verdicts(out)
	for _, name := range append(public, fake...) {
		if got[name] != "ok" {
			t.Errorf("%s: %q, want ok", name, got[name])
		}
	}
	if err != nil || t.Failed() {
		t.Fatalf("%s %s: %v\n%s\n%s", program, lib, err, out, stderr.Bytes())
	}
	if stderr.Len() > 0 {
		t.Errorf("the program wrote to standard error:\n%s", stderr.Bytes())
	}
	return lib, out
}

func TestChecks(t *testing.T) {
	testenv.Once(t)
	lib, out := run(t, nil)
	testenv.Record(t, "fake", "cuda", fmt.Sprintf("%d checks", len(verdicts(out))))
	program, kernels, err := Check()
	compiled(t, err)
	t.Logf("on a machine with a GPU: %s libcuda.so.1; here: PENSTOCK_FAKE_CUDA_KERNELS=%s %s %s", program, kernels,
		program, lib)
}

// sanitizer skips, with the compiler's error, where the runtime of a sanitizer is not installed or
// does not start here.
func sanitizer(t *testing.T, flag string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "main.c")
	if err := os.WriteFile(src, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	prog, err := testenv.Compile("sanitizer-probe", []string{src}, flag)
	if err == nil {
		var out []byte
		if out, err = command(t, prog).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		testenv.Missing(t, "the runtime of gcc "+flag, err)
	}
}

func TestChecksWithAddressSanitizer(t *testing.T) {
	testenv.Once(t)
	sanitizer(t, "-fsanitize=address,undefined")
	// The stand-in for a crash is a crash: no core, no report for the children that are meant to
	// fault.
	run(t, []string{"ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:disable_coredump=1", "UBSAN_OPTIONS=halt_on_error=1"},
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all")
}

func TestChecksWithThreadSanitizer(t *testing.T) {
	testenv.Once(t)
	sanitizer(t, "-fsanitize=thread")
	run(t, []string{"TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:atexit_sleep_ms=0"}, "-fsanitize=thread")
}

// The program that judges can itself fail: against a driver that breaks one thing, exactly the
// checks of that thing fail.
func TestChecksCanFail(t *testing.T) {
	testenv.Once(t)
	program, kernels, err := Check()
	compiled(t, err)
	for _, c := range []struct {
		broken string // a line of a source file, and what it becomes
		with   string
		fails  []string
	}{
		{"if (x == NULL)\n        return bad(c, CUDA_ERROR_INVALID_CONTEXT,",
			"if (x == NULL) x = G.contexts;\n    if (x == NULL)\n        return bad(c, CUDA_ERROR_INVALID_CONTEXT,",
			[]string{"contexts_belong_to_threads"}},
		{"MAP_NORESERVE, -1, 0);\n    return p == MAP_FAILED",
			"MAP_NORESERVE, -1, 0);\n    mprotect(p, n, PROT_READ | PROT_WRITE);\n    return p == MAP_FAILED",
			[]string{"the_cpu_cannot_touch_device_memory"}},
		{"submit_dep(o, x->legacy, x->legacy->submitted);", "(void)x;", []string{"the_default_stream_waits_for_blocking_ones"}},
		{"alloc_remove(a, c);\n    if (--s->users > 0) return;", "if (--s->users > 0) return;", []string{"frees_that_are_wrong"}},
		{"if (n == 0) return CUDA_SUCCESS;\n    if (G.resident_allowed) {",
			"return CUDA_SUCCESS;\n    if (G.resident_allowed) {",
			[]string{"resident_kernels_and_implicit_synchronisation"}},
		{"if (x->pending != CUDA_SUCCESS && x->dev->sticky == CUDA_SUCCESS) x->dev->sticky = x->pending;", "",
			[]string{"script_errors_that_stay", "kernels_that_are_wrong"}},
	} {
		lib := mutant(t, c.broken, c.with)
		cmd := command(t, program, append([]string{lib}, c.fails...)...)
		cmd.Env = append(cmd.Env, "PENSTOCK_FAKE_CUDA_KERNELS="+kernels)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%q: %v\n%s", c.with, err, out)
			continue
		}
		got := verdicts(out)
		for _, name := range c.fails {
			if !strings.HasPrefix(got[name], "FAIL ") {
				t.Errorf("%q: %s is %q, want FAIL\n%s", c.with, name, got[name], out)
			}
		}
		if len(got) != len(c.fails) {
			t.Errorf("ran %v, want %v", slices.Sorted(maps.Keys(got)), c.fails)
		}
	}
}

// mutant builds the fake with one place of its sources changed.
func mutant(t *testing.T, old, with string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := files.ReadDir("src")
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	changed := 0
	for _, e := range entries {
		b, err := files.ReadFile("src/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		changed += strings.Count(string(b), old)
		p := filepath.Join(dir, e.Name())
		if err := os.WriteFile(p, []byte(strings.Replace(string(b), old, with, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(p, ".c") {
			sources = append(sources, p)
		}
	}
	if changed != 1 {
		t.Fatalf("%q is %d times in the sources, want once", old, changed)
	}
	lib, err := testenv.Compile("fake-cuda-mutant", sources, "-std=gnu11", "-w", "-O0", "-pthread", "-shared",
		"-fvisibility=hidden", "-Wl,-z,nodelete", "-ldl")
	compiled(t, err)
	return lib
}

// The types and values are those of the real driver: another project's header says the same.
func TestAgreesWithAnotherHeader(t *testing.T) {
	dir, err := Sources()
	compiled(t, err)
	if _, err := os.Stat("/usr/include/ffnvcodec/dynlink_cuda.h"); err != nil {
		testenv.Missing(t, "ffnvcodec/dynlink_cuda.h (Debian: apt-get install libffmpeg-nvenc-dev)", err)
	}
	check := filepath.Join(dir, "check")
	prog, err := testenv.Compile("fake-cuda-abi", []string{filepath.Join(check, "abi_fake.c"),
		filepath.Join(check, "abi_video.c")},
		slices.Concat(warnings, []string{"-I" + filepath.Join(dir, "src")})...)
	compiled(t, err)
	out, err := command(t, prog).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "agree") {
		t.Errorf("%v: %s", err, out)
	}
}

// A process that ends writes what it did wrong and left into $PENSTOCK_FAKE_CUDA_REPORT.
func TestReportAtExit(t *testing.T) {
	lib, err := Build()
	compiled(t, err)
	dir := t.TempDir()
	src := filepath.Join(dir, "leak.c")
	code := `#include <dlfcn.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    void *lib = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW), *ctx, *p;
    if (lib == NULL) return 1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(lib, "cuInit");
    int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))dlsym(lib, "cuCtxCreate_v2");
    int (*alloc)(void **, size_t) = (int (*)(void **, size_t))dlsym(lib, "cuMemAlloc_v2");
    int (*del)(void *) = (int (*)(void *))dlsym(lib, "cuMemFree_v2");
    if (init(0) || create(&ctx, 0, 0) || alloc(&p, 54321)) return 2;
    return del(&ctx) == 0;
}
`
	if err := os.WriteFile(src, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	prog, err := testenv.Compile("leak", []string{src}, "-ldl")
	compiled(t, err)
	report := filepath.Join(dir, "report")
	cmd := command(t, prog, lib)
	cmd.Env = append(cmd.Env, "PENSTOCK_FAKE_CUDA_REPORT="+report)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		": 4 calls, 1 violations, 2 live\n", "violation: call 4, cuMemFree_v2", "live: device memory 0x",
		" of 54321 bytes (call 3",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the report has no %q:\n%s", want, b)
		}
	}
}
