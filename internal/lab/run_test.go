package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The tests run the tool as its users do: in a process of its own, which is this test binary.
func TestMain(m *testing.M) {
	penstockMain()
	if os.Getenv("PENSTOCK_LAB_TEST") != "" {
		if err := dispatch(context.Background(), os.Args[1:], os.Stdout); err != nil {
			fmt.Println("lab:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lab runs the tool and returns what it printed and whether it ended well.
func lab(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "PENSTOCK_LAB_TEST=1")
	out, err := cmd.CombinedOutput()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	return string(out), err == nil
}

func TestRunReportsWhatIsLeftBehind(t *testing.T) {
	mark := fmt.Sprintf("penstock-left-%d", os.Getpid())
	t.Cleanup(func() { os.Remove("/dev/shm/" + mark) }) // after the parallel ones, unlike defer
	for _, c := range []struct{ name, script, want string }{
		{"process", "setsid sleep 7531 </dev/null >/dev/null 2>&1 &", "sleep 7531"},
		{"process of a process", "(setsid unshare -n sleep 7532 || setsid sleep 7532) </dev/null >/dev/null 2>&1 &", "sleep 7532"},
		{"file", "echo x > $TMPDIR/forgotten", "file $TMPDIR/forgotten"},
		{"shared memory", "echo x > /dev/shm/" + mark, "file /dev/shm/" + mark},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, ok := lab(t, "run", "-patience", "1s", "--", "sh", "-c", c.script)
			if ok || !strings.Contains(out, "left behind: ") || !strings.Contains(out, c.want) {
				t.Errorf("ended well: %v; expected a report of %q:\n%s", ok, c.want, out)
			}
		})
	}
}

func TestRunReportsTheCommand(t *testing.T) {
	if out, ok := lab(t, "run", "-patience", "1s", "--", "sh", "-c", "exit 3"); ok ||
		!strings.Contains(out, "exit status 3") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	if out, ok := lab(t, "run"); ok || !strings.Contains(out, "expected a command") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	if out, ok := lab(t, "nonsense"); ok || !strings.Contains(out, `no command "nonsense"`) ||
		!strings.Contains(out, "usage:") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
}

// Temporary files of a run are where temporary files are expected to be: any user may make them.
func TestRunTemporaryFilesAreForAllUsers(t *testing.T) {
	out, _ := lab(t, "run", "-patience", "1s", "--", "sh", "-c", "stat -c 'mode %a' $TMPDIR $TMPDIR/..")
	if !strings.Contains(out, "mode 1777\nmode 755\n") {
		t.Errorf("%s", out)
	}
}

func TestRunRequiresUses(t *testing.T) {
	t.Setenv("CI", "true")
	const use = `echo '{"kind":"guest","what":"net","test":"TestX","detail":"2 s"}' >> $PENSTOCK_LAB_LEDGER`
	const failed = `echo '{"kind":"guest","what":"rdma","test":"TestY","failed":true}' >> $PENSTOCK_LAB_LEDGER`
	if out, _ := lab(t, "run", "-patience", "1s", "-require", "guest:net", "--", "sh", "-c", use); strings.Contains(out,
		"not used by") || !strings.Contains(out, "TestX") {
		// Whether it ended well is not asked: other tests of this machine make and remove what run
		// watches.
		t.Errorf("%s", out)
	}
	if out, ok := lab(t, "run", "-patience", "1s", "-require", "guest:net,guest:rdma", "--", "sh", "-c",
		use+";"+failed); ok || !strings.Contains(out, "passed: guest:rdma") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	if out, ok := lab(t, "run", "-patience", "1s", "-require", "guest:net", "--", "true"); ok ||
		!strings.Contains(out, "passed: guest:net") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
	t.Setenv("CI", "")
	if out, _ := lab(t, "run", "-patience", "1s", "-require", "guest:net", "--", "true"); !strings.Contains(out,
		"lab: not used by any test that passed: guest:net\n") {
		t.Errorf("outside CI: %s", out)
	}
	if out, ok := lab(t, "run", "-patience", "1s", "-require", "guest", "--", "true"); ok ||
		!strings.Contains(out, "expected KIND:WHAT") {
		t.Errorf("ended well: %v\n%s", ok, out)
	}
}

func TestSince(t *testing.T) {
	empty := state{}
	s := state{
		mounts: map[string]string{"7": "/mnt"}, devices: map[string]string{"v0": ""},
		files: map[string]string{"/tmp/penstock": "-"}, hugePages: map[string]int{"2 MiB: pages in use": 3},
	}
	if left := s.since(empty); len(left) != 4 {
		t.Errorf("%q", left)
	}
	if left := s.since(s); left != nil {
		t.Errorf("%q", left)
	}
	if left := empty.since(s); left != nil {
		t.Errorf("things that went away were reported: %q", left)
	}
}

func TestHugePagesAreCounted(t *testing.T) {
	dir := t.TempDir()
	size := filepath.Join(dir, "hugepages-2048kB")
	if err := os.Mkdir(size, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, v string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(size, name), []byte(v+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func() state {
		t.Helper()
		s := state{hugePages: map[string]int{}}
		if err := s.readHugePages(dir); err != nil {
			t.Fatal(err)
		}
		return s
	}
	write("nr_hugepages", "10")
	write("free_hugepages", "10")
	write("resv_hugepages", "0")
	before := read()
	write("free_hugepages", "8")
	if left := read().since(before); len(left) != 1 || !strings.Contains(left[0], "in use: 2, and before 0") {
		t.Errorf("%q", left)
	}
	write("resv_hugepages", "x")
	if err := before.readHugePages(dir); err == nil {
		t.Error("a count that is no number was taken")
	}
}

func TestParseStat(t *testing.T) {
	p, err := parseStat("42 (a ) (b) S 7 42 42")
	if err != nil || p != (process{42, 7, "S", "a ) (b"}) {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "42", "x (a) S 7", "42 (a) S", "42 (a) S y", ") 42 ("} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
