package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/share"
)

// below are the names of the files below a directory.
func below(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(p, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The names that files and directories get at the peer.
func TestPutNames(t *testing.T) {
	local := t.TempDir()
	for _, n := range []string{"run7/x", "run7/sub/y", "f", "g"} {
		write(t, filepath.Join(local, n), []byte(n))
	}
	for _, c := range []struct{ sources, name, want string }{
		{"run7", "", "run7/sub/y run7/x"},
		{"run7/", "", "sub/y x"},
		{"run7/.", "", "sub/y x"},
		{"run7", "/a", "a/sub/y a/x"},
		{"run7/", "/a", "a/sub/y a/x"},
		{"run7", "/a/", "a/run7/sub/y a/run7/x"},
		{"run7/", "/a/", "a/sub/y a/x"},
		{"f", "", "f"},
		{"f", "/a", "a"},
		{"f", "/a/", "a/f"},
		{"f g", "", "f g"},
		{"f g", "/a/", "a/f a/g"},
		{"f run7", "/a/", "a/f a/run7/sub/y a/run7/x"},
		{"run7/ g", "", "g sub/y x"},
		{"f g", " a/", "a/f a/g"}, // ADDR NAME
		{"f", " a:7", "a:7"},      // which may look like an address
	} {
		root := t.TempDir()
		_, addr := serve(t, root, "--writable")
		args := []string{"put"}
		for s := range strings.FieldsSeq(c.sources) {
			args = append(args, local+"/"+s)
		}
		run(t, 0, "", append(args, strings.Fields(addr+c.name)...)...)
		if err := os.RemoveAll(filepath.Join(root, ".penstock-uploads")); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(below(t, root), "%3A", ":"); got != c.want {
			t.Errorf("put %s ADDR%s: %s, expected %s", c.sources, c.name, got, c.want)
		}
	}
}

func TestPutTree(t *testing.T) {
	root, local := t.TempDir(), filepath.Join(t.TempDir(), "run7")
	a, b := content(1000, 1), content(2000, 2)
	write(t, filepath.Join(local, "a"), a)
	write(t, filepath.Join(local, "sub/b"), b)
	write(t, filepath.Join(local, "sub/.dot"), nil)
	write(t, filepath.Join(local, "x.tmp"), nil)
	if err := os.Symlink("a", filepath.Join(local, "link")); err != nil {
		t.Fatal(err)
	}
	_, addr := serve(t, root, "--writable", "--hidden")
	out, errOut := run(t, exitFailure, "tcp://"+addr+": 3 files sent (3.0 kB), 0 kept, 1 left out\n", "put", local,
		addr, "--exclude", "*.tmp", "--parallel", "1")
	if out != fmt.Sprintf("put %[1]s/a, 1.0 kB\nput %[1]s/sub/.dot, 0 B\nput %[1]s/sub/b, 2.0 kB\n", local) {
		t.Errorf("put prints %q", out)
	}
	for _, want := range []string{"skip " + local + "/link: ", "it is a symbolic link",
		"1 file was left out: links, pipes and devices are not put"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("put does not say %q: %s", want, errOut)
		}
	}
	same(t, filepath.Join(root, "run7/a"), a)
	same(t, filepath.Join(root, "run7/sub/b"), b)
	same(t, filepath.Join(root, "run7/sub/.dot"), nil)

	// Once more: what is there is kept, but for what has another content.
	out, _ = run(t, 0, "0 files sent (0 B), 3 kept\n", "put", local, addr, "--exclude", "*.tmp", "--exclude", "link")
	if out != "" {
		t.Errorf("nothing to do, and put prints %q", out)
	}
	write(t, filepath.Join(local, "a"), content(1000, 3))
	out, errOut = run(t, exitExists, "", "put", local, addr, "--exclude", "link", "--json")
	all, last := events(t, out)
	if last.Event != "result" || *last.OK || *last.Sent != 1 || *last.Kept != 2 || *last.Failed != 1 ||
		*last.LeftOut != 0 || last.File != local || *last.Bytes != 0 {
		t.Errorf("%s%s", out, errOut)
	}
	actions := map[string]string{}
	for _, e := range all {
		if e.Event == "file" {
			actions[e.Name] = e.Action
			if e.Action == "fail" && e.Error != "the peer has run7/a already: --force replaces it" {
				t.Errorf("%+v", e)
			}
		}
	}
	if got := fmt.Sprint(actions); got != "map[run7/a:fail run7/sub/.dot:keep run7/sub/b:keep run7/x.tmp:put]" {
		t.Errorf("actions %s", got)
	}
	same(t, filepath.Join(root, "run7/a"), a)
	run(t, 0, "1 file sent (1.0 kB), 0 kept", "put", local, addr, "--include", "/a", "--exclude", "*", "--force",
		"--digest")
	same(t, filepath.Join(root, "run7/a"), content(1000, 3))

	run(t, exitUsage, "expected a name that ends with a slash, x/", "put", local, local+"/a", addr+"/x")
	run(t, exitExists, "would both be \"a\"", "put", local+"/", local+"/a", addr)
	run(t, exitNotFound, "no such file", "put", local, "/nonexistent", addr)
	run(t, exitUsage, "is for one file", "put", local, addr, "--digest="+strings.Repeat("0", 64))
	_, addr = serve(t, t.TempDir())
	run(t, exitNotPermitted, "takes no files: that needs penstock serve DIR --writable", "put", local, addr)
}

// On a terminal put of a directory has one line. When the peer is lost, it ends with one error, not
// one for each file. A dry run says what put does then, and puts nothing.
func TestPutDryRun(t *testing.T) {
	root, local := t.TempDir(), filepath.Join(t.TempDir(), "run7")
	for i, n := range []string{"a", "b", "sub/c", "sub/empty", "large"} {
		write(t, filepath.Join(local, n), content(1000*i*i*i*i*i, uint64(i)))
	}
	write(t, filepath.Join(root, "run7/b"), content(1000, 1))        // the same
	write(t, filepath.Join(root, "run7/sub/c"), content(32_000, 9))  // as large
	write(t, filepath.Join(root, "run7/sub/empty"), content(500, 9)) // not
	before := below(t, root)
	_, addr := serve(t, root, "--writable")
	for _, c := range []struct {
		status      int
		want, after string
		args        []string
	}{
		{exitExists, "would fail run7/sub/c: the peer has run7/sub/c already: --force replaces it\nwould fail " +
			"run7/sub/empty: the peer has run7/sub/empty already: --force replaces it\n" +
			"would put run7/a, 0 B\nwould put run7/large, 1.0 MB\n", "2 files would be sent (1.0 MB), 1 kept, 2 FAILED",
			[]string{"run7", addr, "-n"}},
		{0, "would put run7/a, 0 B\nwould put run7/b, 1.0 kB\nwould put run7/large, 1.0 MB\nwould put run7/sub/c, " +
			"32.0 kB\nwould put run7/sub/empty, 243.0 kB\n", "5 files would be sent (1.3 MB), 0 kept",
			[]string{"run7", addr, "--dry-run", "--force"}},
		{0, "would put run7/large, 1.0 MB\n", "1 file would be sent (1.0 MB), 0 kept", []string{"run7/large", addr + "/new", "-n"}},
		{0, "", "0 files would be sent (0 B), 1 kept", []string{"run7/b", addr + "/run7/", "-n"}},
	} {
		c.args[0] = filepath.Join(filepath.Dir(local), c.args[0])
		out, _ := run(t, c.status, c.after, append([]string{"put"}, c.args...)...)
		lines := strings.SplitAfter(strings.ReplaceAll(out, filepath.Dir(local)+"/", ""), "\n")
		slices.Sort(lines)
		if got := strings.Join(lines, ""); got != c.want {
			t.Errorf("put %q prints %q, expected %q", c.args, got, c.want)
		}
	}
	if after := below(t, root); after != before {
		t.Errorf("the peer has %s, had %s", after, before)
	}
	_, addr = serve(t, root)
	run(t, exitNotPermitted, "takes no files: that needs penstock serve DIR --writable", "put", local, addr, "-n")
	run(t, exitUsage, "no --dry-run beside it", "put", "-", addr+"/x", "-n")
	run(t, exitUsage, "has no SHA-256", "put", local, addr, "-n", "--digest")
}

func TestPutTreeLost(t *testing.T) {
	local := t.TempDir()
	for i := range 40 {
		write(t, filepath.Join(local, fmt.Sprint("f", i)), content(300_000, uint64(i))) // none goes by a batch
	}
	server, addr := serve(t, t.TempDir(), "--writable")
	spec := program("put", local+"/", addr, "--retry", "0", "--limit", "600kB") // it takes 20 s
	spec.Columns, spec.Rows = 200, 24
	p := proc.Start(t, spec)
	if _, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`% +([1-9]|[1-3]\d)/40 files +`)); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	e, err := p.Wait(limit(t))
	if text := p.Output(); err != nil || e.Code != exitUnreachable || !strings.Contains(text, " FAILED") ||
		strings.Contains(text, "fail "+local) || strings.Contains(text, "put "+local) {
		t.Errorf("%v, %v: %s", e, err, text)
	}
}

func TestPutStandardInput(t *testing.T) {
	root := t.TempDir()
	_, addr := serve(t, root, "--writable")
	b := content(2_000_000, 1)
	put := func(in []byte, args ...string) (string, error) {
		cmd := exec.CommandContext(limit(t), os.Args[0], append([]string{"put", "-"}, args...)...)
		cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+filepath.Join(root, "tmp"))
		cmd.Stdin = strings.NewReader(string(in))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := put(b, addr+"/x"); err == nil || !strings.Contains(out, "no such file") { // the spool has no place
		t.Errorf("%s, %v", out, err)
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, in := range [][]byte{b, nil} {
		out, err := put(in, addr+"/sub/x", "--force", "--json", "--digest")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, last := events(t, out); last.Name != "sub/x" || last.File != "-" || *last.Bytes != uint64(len(in)) ||
			len(last.SHA256) != 64 {
			t.Errorf("%s", out)
		}
		same(t, filepath.Join(root, "sub/x"), in)
	}
	if left := below(t, filepath.Join(root, "tmp")); left != "" {
		t.Errorf("put left %s", left)
	}
	if out, err := put(b, addr+"/sub/x"); err == nil || !strings.Contains(out, "--force replaces it") {
		t.Errorf("%s, %v", out, err)
	}
	run(t, exitUsage, "the standard input has no name", "put", "-", addr)
	run(t, exitUsage, "the standard input has no name", "put", "-", addr+"/a/")
	run(t, exitUsage, "no other source", "put", "-", "x", addr+"/a/")
	// A command that waits for its input can be interrupted.
	spec := program("put", "-", addr+"/y")
	spec.Columns, spec.Rows = 200, 24
	p := proc.Start(t, spec)
	if _, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`reading from the terminal`)); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	if e, err := p.Wait(limit(t)); err != nil || e.Code != exitInterrupted {
		t.Errorf("%v, %v: %s", e, err, p.Output())
	}
}

func TestMirrorPatterns(t *testing.T) {
	dir, dst := t.TempDir(), t.TempDir()
	for _, n := range []string{"a.bin", "a.txt", "logs/x.bin"} {
		write(t, filepath.Join(dir, n), []byte(n))
	}
	_, addr := serve(t, dir)
	run(t, 0, "1 file fetched", "mirror", addr, dst, "--exclude", "logs/", "--include", "*.bin", "--exclude", "*")
	run(t, 0, "1 file fetched (10 B), 1 kept", "mirror", addr, dst, "--include", "*.bin", "--exclude", "*", "--exclude",
		"logs")
	if got := below(t, dst); got != ".penstock-mirror a.bin logs/x.bin" {
		t.Error(got)
	}
	if err := os.RemoveAll(filepath.Join(dir, "logs")); err != nil {
		t.Fatal(err)
	}
	_, addr = serve(t, dir)
	run(t, 0, "0 removed", "mirror", addr, dst, "--delete", "--exclude", "logs/")
	run(t, 0, "1 removed", "mirror", addr, dst, "--delete")
	run(t, exitUsage, `--exclude a[: share: bad pattern: "a["`, "mirror", addr, dst, "--exclude", "a[")
}

// A limit holds: what is more than may go at once takes its time, and no scheduling makes that
// shorter.
func TestLimit(t *testing.T) {
	root, dst := t.TempDir(), t.TempDir()
	const size, rate, burst = 1 << 20, 4 << 20, 4 << 20 / 50 // sched.Limits.Burst
	write(t, filepath.Join(root, "in/one"), content(size, 1))
	for i := range 32 {
		write(t, filepath.Join(root, "many", fmt.Sprint(i)), content(size/32, uint64(i)))
	}
	_, addr := serve(t, root, "--writable")
	for _, args := range [][]string{
		{"put", filepath.Join(root, "in/one"), addr},
		{"put", filepath.Join(root, "many"), addr + "/up"},
		{"get", addr + "/in/one", "-o", filepath.Join(dst, "one")},
		{"get", addr + "/in/one", "-o", "-"},
		{"mirror", addr, dst, "--prefix", "in/"},
		{"mirror", addr, dst, "--prefix", "many/"},
	} {
		begin := time.Now()
		run(t, 0, "", append(args, "--limit", "4MiB/s")...)
		if took, least := time.Since(begin), time.Duration(size-burst)*time.Second/rate; took < least {
			t.Errorf("%q took %v, expected %v or more", args, took, least)
		}
	}
}

func TestRateFlag(t *testing.T) {
	for s, want := range map[string]uint64{"10MB": 10e6, "512KiB/s": 512 << 10, "1Gbps": 125e6, " 100 ": 100, "1": 1} {
		var v rateFlag
		if err := v.Set(s); err != nil || uint64(v) != want {
			t.Errorf("%q: %d, %v", s, v, err)
		}
	}
	for _, s := range []string{"", "0", "-1", "fast", "7bps", "10MB/h", "1Gbps/s", "900000TiB"} {
		var v rateFlag
		if err := v.Set(s); err == nil {
			t.Errorf("%q is %d", s, v)
		}
	}
}

func TestAllFailed(t *testing.T) {
	exists, other := share.MirrorFile{Err: share.ErrExists}, share.MirrorFile{Err: errors.New("x")}
	for _, c := range []struct {
		failures []share.MirrorFile
		want     int
	}{{nil, exitExists}, {[]share.MirrorFile{exists, exists}, exitExists},
		{[]share.MirrorFile{exists, other}, exitFailure}} {
		if got := exitStatus(allFailed(share.ErrExists, c.failures)); got != c.want {
			t.Errorf("%v: %d", c.failures, got)
		}
	}
}

// Files that say that they have 0 bytes are read to their end; below a directory they fail.
func TestPutFileWithoutASize(t *testing.T) {
	root := t.TempDir()
	_, addr := serve(t, root, "--writable")
	want, err := os.ReadFile("/proc/version")
	if err != nil || len(want) == 0 {
		t.Fatalf("%q, %v", want, err)
	}
	run(t, 0, fmt.Sprintf("%d B", len(want)), "put", "/proc/version", addr+"/v")
	same(t, filepath.Join(root, "v"), want)
	run(t, exitDisk, "0 bytes and has more", "put", "/proc/sys/fs/inotify", addr+"/d")
	if got := below(t, root); got != "v" {
		t.Errorf("the peer has %s", got)
	}
}
