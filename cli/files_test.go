package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv/fault"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

// program is the specification of the program penstock: this test binary, see TestMain.
func program(args ...string) proc.Spec {
	return proc.Spec{Path: os.Args[0], Args: args, Env: []string{mainEnv + "=1", "TERM=xterm"}}
}

// limit bounds a test that would otherwise hang. It asserts no speed.
func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, fmt.Errorf("the test's patience is over"))
	t.Cleanup(cancel)
	return ctx
}

// serve starts penstock serve on a free port and returns its address, without tcp://.
func serve(t *testing.T, args ...string) (*proc.Process, string) {
	t.Helper()
	p := proc.Start(t, program(append([]string{"serve", "--listen", "tcp://127.0.0.1:0"}, args...)...))
	return p, serving(t, p)
}

var servedAt = regexp.MustCompile(`tcp://(127\.0\.0\.1:\d+)`)

var servedNamed = regexp.MustCompile(`tcp://server@(127\.0\.0\.1:\d+)`)

func serving(t *testing.T, p *proc.Process) string {
	t.Helper()
	m, err := p.WaitLine(limit(t), servedAt)
	if err != nil {
		t.Fatal(err)
	}
	return m[1]
}

// content is n bytes that look like nothing else.
func content(n int, seed uint64) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func same(t *testing.T, name string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v; expected other %d", name, len(got), err, len(want))
	}
}

// run is penstock, and an error unless it ends with that status and says want.
func run(t *testing.T, status int, want string, args ...string) (stdout, stderr string) {
	t.Helper()
	out, errOut, got := penstock(t, args...)
	if got != status || !strings.Contains(out+errOut, want) {
		t.Errorf("penstock %q: status %d, printed %q and %q; expected %d and %q", args, got, out, errOut, status, want)
	}
	return out, errOut
}

// events are the lines of --json.
func events(t *testing.T, out string) (all []event, last event) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	for d.More() {
		var e event
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		all, last = append(all, e), e
	}
	return all, last
}

func TestServeLsGet(t *testing.T) {
	dir, dst := t.TempDir(), t.TempDir()
	model, hidden := content(3_000_000, 1), content(10, 2)
	write(t, filepath.Join(dir, "model.bin"), model)
	write(t, filepath.Join(dir, "sub/empty"), nil)
	write(t, filepath.Join(dir, ".hidden"), hidden)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(t.TempDir(), "s.sock")
	server, addr := serve(t, dir, "--listen", "unix://"+sock)

	if out, _ := run(t, 0, "", "ls", addr); out != "model.bin\nsub/empty\n" {
		t.Errorf("ls: %q", out)
	}
	if out, _ := run(t, 0, "", "ls", "tcp://"+addr+"/sub", "-l"); out != "      0 B  -  sub/empty\n" {
		t.Errorf("ls -l: %q", out)
	}
	var listed []listedEntry
	if out, _ := run(t, 0, "", "ls", "unix://"+sock, "--json"); json.Unmarshal([]byte(out), &listed) != nil ||
		len(listed) != 2 ||
		listed[0].Name != "model.bin" || listed[0].Bytes != 3_000_000 || len(listed[0].Tag) != 32 {
		t.Errorf("ls --json: %+v", listed)
	}

	file := filepath.Join(dst, "m")
	out, _ := run(t, 0, "m: 3.0 MB, in ", "get", addr+"/model.bin", "-o", file)
	same(t, file, model)
	if out != "" {
		t.Errorf("get printed %q on the standard output", out)
	}
	run(t, exitExists, "exists", "get", addr+"/model.bin", "-o", file)
	run(t, 0, "", "get", addr, "model.bin", "-o", file, "--force", "--quiet")
	run(t, 0, "", "get", "unix://"+sock+"/sub/empty", "-o", dst)
	same(t, filepath.Join(dst, "empty"), nil)
	if out, _ := run(t, 0, "", "get", addr+"/model.bin", "-o", "-"); out != string(model) {
		t.Errorf("-o - gave %d bytes, or others", len(out))
	}
	run(t, exitNotFound, `no "modle.bin"; near it: model.bin`, "get", addr+"/modle.bin")
	for _, name := range []string{"sub", "sub/"} {
		run(t, exitNotFound, " DIR --prefix sub/ fetches what is in it", "get", addr+"/"+name)
	}
	run(t, exitUsage, "serves 2 things", "get", addr)
	run(t, exitNotPermitted, "refused", "put", file, addr+"/new")

	// The digest.
	sum := sha256.Sum256(model)
	hexSum := hex.EncodeToString(sum[:])
	out, _ = run(t, 0, "", "get", addr+"/model.bin", "-o", filepath.Join(dst, "d"), "--json", "--digest="+hexSum)
	all, last := events(t, out)
	if all[0].Event != "start" || last.Event != "result" || !*last.OK || last.SHA256 != hexSum ||
		*last.Bytes != 3_000_000 || last.Path == "" {
		t.Errorf("events %s", out)
	}
	run(t, exitChanged, hexSum, "get", addr+"/model.bin", "-o", filepath.Join(dst, "w"),
		"--digest="+strings.Repeat("0", 64))
	if _, err := os.Stat(filepath.Join(dst, "w")); err == nil {
		t.Error("a file that is not the expected one has its name")
	}
	same(t, filepath.Join(dst, "w.mismatch"), model)
	write(t, filepath.Join(dst, "w"), []byte("before"))
	run(t, exitChanged, "is as it was", "get", addr+"/model.bin", "-o", filepath.Join(dst, "w"), "--force",
		"--digest="+strings.Repeat("0", 64))
	same(t, filepath.Join(dst, "w"), []byte("before"))
	run(t, 0, hexSum, "get", addr+"/model.bin", "-o", filepath.Join(dst, "w"), "--force", "--digest="+hexSum)
	same(t, filepath.Join(dst, "w"), model)
	run(t, exitChanged, "nothing was sent", "put", file, addr+"/new", "--digest="+strings.Repeat("0", 64))
	run(t, exitChanged, hexSum, "get", addr+"/model.bin", "-o", "-", "--digest="+strings.Repeat("0", 64))

	run(t, 0, "link: it is a symbolic link", "ls", addr, "--left-out")
	run(t, 0, `"path": "link"`, "ls", addr, "--left-out", "--json")
	run(t, 0, "the peer leaves out: link: it is a symbolic link", "mirror", addr, filepath.Join(dst, "mirrored"))
	run(t, 0, "WARNING: the peer leaves out 1 name, the first: link: it is a symbolic link", "mirror", "-q", addr,
		filepath.Join(dst, "mirrored"))
	if out, errOut := run(t, 0, "", "mirror", "-q", addr, filepath.Join(dst, "mirrored"), "--exclude", "link"); out+
		errOut != "" {
		t.Errorf("mirror -q --exclude link printed %q and %q", out, errOut)
	}
	out, _ = run(t, 0, "", "mirror", "--json", addr, filepath.Join(dst, "mirrored"))
	if _, last := events(t, out); last.LeftOut == nil || *last.LeftOut != 1 {
		t.Errorf("events %s", out)
	}
	write(t, filepath.Join(dst, "mirrored/model.bin"), content(len(model), 99))
	run(t, exitExists, "was not made by an earlier mirror", "mirror", addr, filepath.Join(dst, "mirrored"),
		"--checksum")
	run(t, 0, "1 file fetched", "mirror", addr, filepath.Join(dst, "mirrored"), "--checksum", "--force")
	same(t, filepath.Join(dst, "mirrored/model.bin"), model)
	os.Remove(filepath.Join(dst, "mirrored", ".penstock-mirror"))
	run(t, 0, "0 files fetched (0 B), 2 kept", "mirror", addr, filepath.Join(dst, "mirrored"), "--checksum")

	if err := server.Signal(sys.Interrupts()[0]); err != nil {
		t.Fatal(err)
	}
	e, err := server.Wait(limit(t))
	if err != nil || !e.OK() {
		t.Errorf("serve ended: %v, %v", e, err)
	}
	for _, want := range []string{"serving " + dir + ": 2 files, 3.0 MB", "left out: link: it is a symbolic link",
		addr + ": processes of this user may list and read",
		"unix://" + sock + ": processes of this user may list and read", ": fetched model.bin, 3.0 MB in ",
		": connected", ": gone", "ending"} {
		if !strings.Contains(server.Output(), want) {
			t.Errorf("serve does not say %q:\n%s", want, server.Output())
		}
	}
	run(t, exitUnreachable, "refused", "ls", addr)
}

// A server of one file needs no name; the tensors in it are not other things.
func TestGetTheOnlyOne(t *testing.T) {
	dir, dst := t.TempDir(), t.TempDir()
	npy := fmt.Appendf(nil, "\x93NUMPY\x01\x00v\x00%-117s\n",
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }")
	npy = append(npy, content(24, 3)...)
	file := write(t, filepath.Join(dir, "a.npy"), npy)
	_, addr := serve(t, file)
	if out, _ := run(t, 0, "", "ls", addr, "-l"); !strings.Contains(out, "f32[2 3]  a.npy/array") {
		t.Errorf("ls: %q", out)
	}
	run(t, 0, "a.npy", "get", addr, "-o", dst)
	same(t, filepath.Join(dst, "a.npy"), npy)
	run(t, 0, "", "get", addr+"/a.npy/array", "-o", filepath.Join(dst, "t"))
	same(t, filepath.Join(dst, "t"), npy[len(npy)-24:])
}

// hostile is a node of this process with names that no server of ours would have.
func hostile(t *testing.T, o transfer.Options, names map[string][]byte) (*transfer.Node, string) {
	t.Helper()
	o.Listen, o.Anonymous = []string{"tcp://127.0.0.1:0"}, identity.All
	n, err := transfer.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	for name, b := range names {
		r, err := mem.Alloc(mem.Options{Name: "test", Size: max(len(b), 1)})
		if err != nil {
			t.Fatal(err)
		}
		copy(r.All().Bytes(), b)
		if _, err := n.Export(mem.Span{Region: r, Len: uint64(len(b))},
			transfer.ExportOptions{Name: name, Rights: path.Read, Tag: [16]byte{1, byte(len(b))}}); err != nil {
			t.Fatal(err)
		}
	}
	return n, strings.TrimPrefix(n.Addrs()[0], "tcp://")
}

func TestNamesArePaths(t *testing.T) {
	names := map[string][]byte{
		"../../escaped":       []byte("1"),
		"/etc/absolute":       []byte("22"),
		"red\x1b[31m\rhidden": []byte("333"),
		"~root":               []byte("4444"),
		"-rf":                 []byte("55555"),
	}
	_, addr := hostile(t, transfer.Options{}, names)
	out, _ := run(t, 0, "", "ls", addr)
	if strings.ContainsAny(out, "\x1b\r") || !strings.Contains(out, `red\x1b[31m\x0dhidden`) {
		t.Errorf("ls: %q", out)
	}
	top := t.TempDir()
	cwd := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(cwd, 0o755); err != nil {
		t.Fatal(err)
	}
	for name := range names {
		spec := program("get", addr, "--", name)
		spec.Args = []string{"get", "--quiet", "--", addr, name}
		spec.Dir = cwd
		p := proc.Start(t, spec)
		e, err := p.Wait(limit(t))
		if dangerous := strings.Contains(name, "\r"); err != nil || e.OK() == dangerous || dangerous &&
			!strings.Contains(p.Output(), "has a control character; -o FILE") {
			t.Errorf("get %q: %v, %v, %s", name, e, err, p.Output())
		}
	}
	run(t, exitFailure, "2 files fetched", "mirror", addr, filepath.Join(cwd, "mirror"))
	var files []string
	err := filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(p, "mirror") {
			files = append(files, strings.TrimPrefix(p, cwd+"/"))
		}
		return err
	})
	want := "-rf absolute escaped ~root"
	if got := strings.Join(files, " "); err != nil || got != want {
		t.Errorf("the files are %s; expected %s (%v)", got, want, err)
	}
	same(t, filepath.Join(cwd, "mirror/~root"), []byte("4444"))
}

// stalling is a node whose data connections go through a proxy with that plan.
func stalling(t *testing.T, plan string, names map[string][]byte) (*transfer.Node, string) {
	t.Helper()
	p, err := fault.Parse(plan)
	if err != nil {
		t.Fatal(err)
	}
	d, err := fault.NewProxyDriver(tcp.New(tcp.Options{}), p)
	if err != nil {
		t.Fatal(err)
	}
	return hostile(t, transfer.Options{Paths: []setup.Driver{d}, Streams: 1}, names)
}

// An interrupted get says what it left and how to go on, and the next one goes on from there.
func TestGetInterrupted(t *testing.T) {
	t.Parallel()
	b := content(48<<20, 4)
	_, addr := stalling(t, "seed=1; stall down at=40000000", map[string][]byte{"big": b})
	file := filepath.Join(t.TempDir(), "big")
	spec := program("get", addr+"/big", "-o", file)
	spec.Columns, spec.Rows = 80, 24
	p := proc.Start(t, spec)
	// Two of three windows of 16 MiB are under way at once, and 40 MB came: one or two of them are
	// there.
	if _, err := p.Terminal().Wait(limit(t),
		regexp.MustCompile(`(?m)^big   (16|17|33|50|66|67) %  (8\.4|16\.8|25\.2|33\.6) MB / 50\.3 MB  `)); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	e, err := p.Wait(limit(t))
	if err != nil || e.Code != exitInterrupted {
		t.Errorf("%v, %v", e, err)
	}
	text := strings.ReplaceAll(p.Output(), "\n", "")
	// A space at the end of a line of the terminal is not to be seen.
	if want := regexp.MustCompile(strings.ReplaceAll(`penstock: interrupted: `+regexp.QuoteMeta(file)+
		`\.partial has (8\.4|16\.8|25\.2|33\.6) MB of 50\.3 MB \((16|17|33|50|66|67) %\), checked: the same command goes on from there`, " ", " ?")); !want.MatchString(text) {
		t.Errorf("the terminal does not show %v:\n%s", want, p.Output())
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there")
	}
	if m := p.Terminal().Misuse(); strings.Contains(strings.Join(m, " "), "escape") {
		t.Errorf("%q", m)
	}
	_, addr = hostile(t, transfer.Options{}, map[string][]byte{"big": b}) // the same content
	out, _ := run(t, 0, "", "get", addr+"/big", "-o", file, "--json")
	all, last := events(t, out)
	if all[0].Event != "start" || all[0].From < 8<<20 || last.From != all[0].From || !*last.OK {
		t.Errorf("events %s", out)
	}
	same(t, file, b)
}

// On a terminal a mirror says how far it is in one line. One that is interrupted says so in one
// sentence: the files under way have not failed.
func TestMirrorInterrupted(t *testing.T) {
	_, addr := stalling(t, "seed=1; stall down at=40000000",
		map[string][]byte{"big": content(48<<20, 4), "mine": nil, "small": content(9, 4)})
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mine"), nil)
	spec := program("mirror", addr, dir)
	spec.Columns, spec.Rows = 200, 24
	p := proc.Start(t, spec)
	if _, err := p.Terminal().Wait(limit(t),
		regexp.MustCompile(`(16|17|33|50|66|67) %  1/3 files, 1 FAILED  (8\.4|16\.8|25\.2|33\.6) MB / 50\.3 MB  `)); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	if e, err := p.Wait(limit(t)); err != nil || e.Code != exitInterrupted {
		t.Errorf("%v, %v", e, err)
	}
	text := p.Output()
	left := regexp.MustCompile(`, 1 FAILED\npenstock: interrupted: (8\.4|16\.8|25\.2|33\.6) MB of 50\.3 MB are here, ` +
		`checked: the same command goes on from there\s*$`)
	if !strings.HasPrefix(text, "fail mine: ") || !left.MatchString(text) ||
		strings.Contains(text, "get small") || strings.Contains(text, "canceled") {
		t.Errorf("the terminal shows:\n%s", text)
	}
}

// A get whose peer is lost ends at once with --retry 0, and keeps what is there.
func TestGetLost(t *testing.T) {
	b := content(48<<20, 5)
	n, addr := stalling(t, "seed=1; stall down at=40000000", map[string][]byte{"big": b})
	file := filepath.Join(t.TempDir(), "big")
	p := proc.Start(t, program("get", addr+"/big", "-o", file, "--json", "--retry", "0"))
	if _, err := p.WaitLine(limit(t),
		regexp.MustCompile(`"progress".*"done":(8388608|16777216|25165824|33554432)`)); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	e, err := p.Wait(limit(t))
	if err != nil || e.Code != exitUnreachable || !strings.Contains(p.Output(), "checked: the same command goes on") ||
		strings.Contains(p.Output(), `"lost"`) {
		t.Errorf("%v, %v: %s", e, err, p.Output())
	}
}

// One whose peer does not come back says while it waits that it does, and at the end for how long
// it did.
func TestGetGivesUp(t *testing.T) {
	b := content(48<<20, 5)
	n, addr := stalling(t, "seed=1; stall down at=40000000", map[string][]byte{"big": b})
	file := filepath.Join(t.TempDir(), "big")
	p := proc.Start(t, program("get", addr+"/big", "-o", file, "--retry", "500ms"))
	if !someOf(t, file, p) {
		t.Fatalf("it ended: %s", p.Output())
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	e, err := p.Wait(limit(t))
	if err != nil || e.Code != exitUnreachable {
		t.Errorf("%v, %v", e, err)
	}
	for _, want := range []string{"connection lost, trying again: ", "did not come back in 500ms (--retry): ",
		"connection refused; " + file + ".partial has ", "checked: the same command goes on from there"} {
		if strings.Count(p.Output(), want) != 1 {
			t.Errorf("not once %q:\n%s", want, p.Output())
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file is there")
	}
}

// Serve says of each of several files that come at once what it was, and of one that does not come
// to its end how far.
func TestServeTellsOfEach(t *testing.T) {
	dir := t.TempDir()
	for i := range 8 {
		write(t, filepath.Join(dir, fmt.Sprint("f", i)), content(100_000+i*1000, 9))
	}
	server, addr := serve(t, dir, "--json", "--writable")
	run(t, 0, "", "mirror", addr, t.TempDir(), "--parallel", "8")
	file := write(t, filepath.Join(t.TempDir(), "up"), content(5000, 10))
	run(t, 0, "", "put", file, addr)
	run(t, exitNotFound, "", "get", addr+"/nothing")
	write(t, filepath.Join(dir, "sub/there"), nil)
	run(t, exitExists, "/sub/ puts the file into it", "put", file, addr+"/sub")
	run(t, exitExists, "--force replaces it", "put", file, addr)
	// A client that gives up in the middle.
	write(t, filepath.Join(dir, "big"), content(48<<20, 11))
	n, err := transfer.Open(t.Context(), transfer.Options{Name: "fickle"})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	peer, err := n.Dial(t.Context(), "tcp://"+addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = share.Fetch(ctx, share.Over(peer), "big",
		share.FetchOptions{Output: filepath.Join(t.TempDir(), "big"), Progress: func(p share.Progress) {
			if p.Bytes > 0 {
				cancel()
			}
		}})
	left, ok := errors.AsType[*share.PartialError](err)
	if !ok {
		t.Fatal(err)
	}
	if err := server.Signal(sys.Interrupts()[0]); err != nil {
		t.Fatal(err)
	}
	if e, err := server.Wait(limit(t)); err != nil || !e.OK() {
		t.Fatalf("%v, %v", e, err)
	}
	got := map[string]uint64{}
	var json []string
	for line := range strings.Lines(server.Output()) {
		if strings.HasPrefix(line, "{") {
			json = append(json, line)
		}
	}
	all, _ := events(t, strings.Join(json, ""))
	for _, e := range all {
		switch {
		case e.Event != "served":
		case e.Name == "big":
			if !strings.Contains(e.Error, "gave up") || *e.Bytes != left.Good || e.Peer != "fickle" || got["big"] != 0 {
				t.Errorf("%+v", e)
			}
			got["big"] = *e.Bytes
		default:
			if e.Error != "" || e.Path == "" || got[e.Name] != 0 || (e.Action == "put") != (e.Name == "up") {
				t.Errorf("%+v", e)
			}
			got[e.Name] = *e.Bytes
		}
	}
	want := map[string]uint64{"up": 5000, "big": left.Good}
	for i := range 8 {
		want[fmt.Sprint("f", i)] = uint64(100_000 + i*1000)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
}

// A get goes on by itself when its server was killed and comes back, with what it has.
func TestGetSurvivesTheServer(t *testing.T) {
	dir := t.TempDir()
	b := content(64<<20, 6)
	write(t, filepath.Join(dir, "big"), b)
	for attempt := range 20 {
		file := filepath.Join(t.TempDir(), fmt.Sprint("big", attempt))
		server, addr := serve(t, dir)
		p := proc.Start(t, program("get", addr+"/big", "-o", file, "--json"))
		if !someOf(t, file, p) || server.Kill() != nil {
			continue // it was too fast
		}
		spec := program("serve", dir, "--listen", "tcp://"+addr)
		serving(t, proc.Start(t, spec))
		e, err := p.Wait(limit(t))
		if err != nil || !e.OK() {
			t.Fatalf("%v, %v: %s", e, err, p.Output())
		}
		same(t, file, b)
		if strings.Contains(p.Output(), `"event":"lost"`) {
			return
		}
	}
	t.Error("the server was never killed in the middle of it")
}

// someOf waits until a partial file has a part that is good; false when the process ended before.
func someOf(t *testing.T, file string, p *proc.Process) bool {
	t.Helper()
	for {
		b, _ := os.ReadFile(file + share.StateSuffix)
		if _, after, ok := strings.Cut(string(b), "\nhead "); ok && strings.Count(after, "\n") > 1 {
			return true
		}
		select {
		case <-p.Done():
			return false
		case <-limit(t).Done():
			t.Fatalf("nothing came: %s", p.Output())
		case <-time.After(time.Millisecond):
		}
	}
}

func TestMirrorCommand(t *testing.T) {
	dir, dst := t.TempDir(), filepath.Join(t.TempDir(), "new")
	a, b := content(1000, 7), content(2000, 8)
	write(t, filepath.Join(dir, "x/a"), a)
	write(t, filepath.Join(dir, "b"), b)
	_, addr := serve(t, dir)
	out, _ := run(t, 0, "2 files would be fetched", "mirror", addr, dst, "--dry-run")
	if out != "would get b, 2.0 kB\nwould get x/a, 1.0 kB\n" {
		t.Errorf("dry run: %q", out)
	}
	if _, err := os.Stat(dst); err == nil {
		t.Error("a dry run made the directory")
	}
	run(t, 0, "2 files fetched (3.0 kB), 0 kept, 0 removed", "mirror", addr, dst)
	same(t, filepath.Join(dst, "x/a"), a)
	same(t, filepath.Join(dst, "b"), b)
	out, _ = run(t, 0, "0 files fetched (0 B), 2 kept, 0 removed", "mirror", addr, dst)
	if out != "" {
		t.Errorf("nothing to do, and it says %q", out)
	}
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "c"), b)
	write(t, filepath.Join(dst, "c"), []byte("mine"))
	_, addr = serve(t, dir)
	out, _ = run(t, exitExists, "", "mirror", addr, dst, "--delete", "--json")
	_, last := events(t, out)
	if last.Event != "result" || *last.OK || *last.Failed != 1 || *last.Kept != 1 || *last.Removed != 1 {
		t.Errorf("with a file in the way: %s", out)
	}
	same(t, filepath.Join(dst, "c"), []byte("mine"))
}

// TestMirrorKeepLinks mirrors a cache of a model hub with its links, and leaves out one that leads
// out of it.
func TestMirrorKeepLinks(t *testing.T) {
	dir, dst := t.TempDir(), filepath.Join(t.TempDir(), "new")
	blob := content(1000, 7)
	write(t, filepath.Join(dir, "blobs/5f"), blob)
	write(t, filepath.Join(dir, "snapshots/1/refs"), nil)
	if err := errors.Join(os.Symlink("../../blobs/5f", filepath.Join(dir, "snapshots/1/model.bin")),
		os.Symlink("/etc/hostname", filepath.Join(dir, "out"))); err != nil {
		t.Fatal(err)
	}
	_, addr := serve(t, dir)
	const out, all = "the peer leaves out: out: it is a symbolic link: its path is absolute\n",
		"snapshots/1/model.bin -> ../../blobs/5f\n"
	if got, _ := run(t, 0, "3 files would be fetched", "mirror", addr, dst, "--keep-links",
		"--dry-run"); !strings.Contains(got, "would get "+all) {
		t.Errorf("dry run: %q", got)
	}
	got, errOut := run(t, 0, "3 files fetched (1.0 kB), 0 kept", "mirror", addr, dst, "--keep-links")
	if !strings.Contains(got, "get "+all) || !strings.Contains(got+errOut, out) {
		t.Errorf("%q, %q", got, errOut)
	}
	same(t, filepath.Join(dst, "snapshots/1/model.bin"), blob)
	got, _ = run(t, 0, "", "mirror", addr, dst, "--keep-links", "--json")
	if _, last := events(t, got); last.Event != "result" || !*last.OK || *last.Kept != 3 || *last.Fetched != 0 ||
		*last.Bytes != 0 || !strings.Contains(got, `"link":"../../blobs/5f"`) {
		t.Errorf("again: %s", got)
	}
}

// TestMirrorOfIncompleteListing mirrors a directory with more files than the server lists: mirror
// does not remove the others.
func TestMirrorOfIncompleteListing(t *testing.T) {
	dir, dst := t.TempDir(), filepath.Join(t.TempDir(), "new")
	for _, n := range []string{"a", "b", "c"} {
		write(t, filepath.Join(dir, n), []byte(n))
	}
	_, addr := serve(t, dir)
	run(t, 0, "3 files fetched", "mirror", addr, dst)
	_, addr = serve(t, dir, "--max-files", "1")
	run(t, exitFailure, "penstock serve --max-files", "mirror", addr, dst, "--delete")
	// what is missing is not passed over in silence
	run(t, exitFailure, "penstock serve --max-files", "mirror", addr, dst)
	for _, n := range []string{"a", "b", "c"} {
		same(t, filepath.Join(dst, n), []byte(n))
	}
}

func TestWrongUse(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{exitUsage, "expected one file or directory", []string{"serve"}},
		{exitNotFound, "no such file", []string{"serve", "/nonexistent"}},
		{exitUsage, "--path \"rdma\": expected shm or tcp or verbs", []string{"serve", file, "--path", "rdma"}},
		{exitUsage, "--path \"tcp\" is there twice", []string{"serve", file, "--path", "tcp,tcp"}},
		{exitUsage, "--path \"verbs?queue_pair=2\": queue_pair: there is no such key: did you mean queue_pairs?",
			[]string{"serve", file, "--verbs", "queue_pair=2"}},
		{exitUsage, "--path \"verbs?device=a&queue_pairs=9\": queue_pairs is \"9\": it is out of range: expected a " +
			"whole number from 1 to 8",
			[]string{"get", "127.0.0.1:1/x", "--verbs", "device=a,queue_pairs=9"}},
		{exitUsage, "--verbs shapes the path verbs, which --path leaves out", []string{"serve", file, "--path", "tcp", "--verbs", "queue_pairs=2"}},
		{exitUsage, "--verbs shapes the path verbs, which --path leaves out", []string{"bench", "transfer", "--path", "tcp", "--verbs", "queue_pairs=2"}},
		{exitUsage, "piece is \"2-1\": it is out of range", []string{"bench", "transfer", "--verbs", "piece=2-1"}},
		{exitUsage, "leave out either it or the options of paths", []string{"bench", "transfer", "--report", "--verbs", "queue_pairs=2"}},
		{exitUsage, "--log-level \"loud\"", []string{"serve", file, "--log-level", "loud"}},
		{exitUsage, "add --writable", []string{"serve", file, "--max-bytes", "1GiB"}},
		{exitUsage, "--max-bytes: size \"much\"", []string{"serve", filepath.Dir(file), "--writable", "--max-bytes", "much"}},
		{exitUsage, "--max-bytes 0: expected more", []string{"serve", filepath.Dir(file), "--writable", "--max-bytes", "0"}},
		{exitUsage, "--keep-free limits what peers upload", []string{"serve", file, "--keep-free", "1GiB"}},
		{exitUsage, "--keep-partial \"0s\"", []string{"serve", filepath.Dir(file), "--writable", "--keep-partial", "0s"}},
		{exitUsage, "--max-files", []string{"serve", file, "--max-files", "-1"}},
		{exitFailure, "uploads need a directory", []string{"serve", file, "--writable", "--listen", "tcp://127.0.0.1:0"}},
		{exitNotPermitted, "", []string{"serve", file, "--listen", "tcp://192.0.2.1:7070"}},
		{exitUsage, "expected an address", []string{"ls"}},
		{exitUsage, "expected tcp://HOST[:PORT]", []string{"ls", "nowhere"}},
		{exitUsage, "expected tcp://HOST[:PORT]", []string{"ls", "http://127.0.0.1:1"}},
		{exitUsage, "names \"a\" already", []string{"get", "127.0.0.1:1/a", "b"}},
		{exitUsage, "both want the standard output", []string{"get", "127.0.0.1:1/a", "-o", "-", "--json"}},
		{exitUsage, "64 hexadecimal digits", []string{"get", "127.0.0.1:1/a", "--digest=abc"}},
		{exitUsage, "64 hexadecimal digits", []string{"put", file, "127.0.0.1:1/a", "--digest=abc"}},
		{exitUsage, "--timeout 0s", []string{"get", "127.0.0.1:1/a", "--timeout", "0"}},
		{exitUsage, "--retry -1s", []string{"get", "127.0.0.1:1/a", "--retry", "-1s"}},
		{exitUnreachable, "refused", []string{"get", "127.0.0.1:1/a"}},
		{exitNotFound, "no such file", []string{"put", "/nonexistent", "127.0.0.1:1"}},
		{exitDisk, "put - reads what comes out of a pipe or a device", []string{"put", "/dev/null", "127.0.0.1:1"}},
		{exitUsage, "--parallel 61", []string{"put", filepath.Dir(file), "127.0.0.1:1", "--parallel", "61"}},
		{exitUsage, "--limit 0", []string{"put", file, "127.0.0.1:1", "--limit", "0"}},
		{exitUnreachable, "refused", []string{"put", filepath.Dir(file), "127.0.0.1:1"}},
		{exitUsage, "--parallel -1", []string{"mirror", "127.0.0.1:1", "d", "--parallel", "-1"}},
		{exitUsage, "--prefix", []string{"mirror", "127.0.0.1:1/a", "d"}},
		{exitUsage, "no command \"gte\"", []string{"man", "gte"}},
	} {
		out, _ := run(t, c.status, c.want, c.args...)
		if out != "" {
			t.Errorf("penstock %q printed %q on the standard output", c.args, out)
		}
	}
}
