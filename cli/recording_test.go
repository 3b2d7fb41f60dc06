package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/transfer"
)

// A recording is what a user's terminal shows of a session: commands of the real program on a real
// pseudo-terminal, and what was on the screen at their end, or at the moment that the text names.
// Those in docs/recordings are written with -update; without it the test compares what does not
// change from run to run.
type recording struct {
	t    *testing.T
	dir  string // working directory of all commands
	bin  string
	text strings.Builder
}

const recordingColumns = 200

func recordMachine(t *testing.T) *recording {
	t.Helper()
	testenv.Once(t)
	bin, err := proc.Penstock()
	if err != nil {
		t.Fatal(err)
	}
	// Under its own name, which is in what it says of itself.
	link := filepath.Join(t.TempDir(), "penstock")
	if err := os.Symlink(bin, link); err != nil {
		t.Fatal(err)
	}
	return &recording{t: t, dir: t.TempDir(), bin: link}
}

// start begins a command on a terminal of its own.
func (r *recording) start(args ...string) *proc.Process {
	r.t.Helper()
	return r.startSpec(proc.Spec{Path: r.bin, Args: args})
}

func (r *recording) startSpec(spec proc.Spec) *proc.Process {
	r.t.Helper()
	spec.Env, spec.Dir = append(spec.Env, "TERM=xterm", "NO_COLOR=1"), r.dir
	spec.Columns, spec.Rows = recordingColumns, 30
	return proc.Start(r.t, spec)
}

// say adds a line about what happens.
func (r *recording) say(format string, args ...any) { fmt.Fprintf(&r.text, "# "+format+"\n", args...) }

// show adds what a terminal shows, under the command.
func (r *recording) show(command string, screen string) {
	if command != "" { // else it goes on
		fmt.Fprintf(&r.text, "$ %s\n", command)
	}
	r.text.WriteString(screen)
}

// end waits for the end of a command, checks its status and adds its screen.
func (r *recording) end(p *proc.Process, command string, status int) string {
	r.t.Helper()
	e, err := p.Wait(limit(r.t))
	if err != nil || e.Code != status {
		r.t.Fatalf("%s: %v, %v; expected status %d:\n%s", command, e, err, status, p.Output())
	}
	for _, m := range p.Terminal().Misuse() {
		if !strings.Contains(m, "more than") { // a long line for people wraps: only what is drawn again must fit
			r.t.Errorf("%s: %s", command, m)
		}
	}
	r.show(command, p.Output())
	if status != 0 {
		r.say("exit status %d", status)
	}
	return p.Output()
}

// run is start and end.
func (r *recording) run(status int, args ...string) string {
	r.t.Helper()
	return r.end(r.start(args...), "penstock "+strings.Join(args, " "), status)
}

// serve starts a server on a socket or port and returns when it can be reached.
func (r *recording) serve(args ...string) (p *proc.Process, addr string) {
	r.t.Helper()
	p = r.start(append([]string{"serve"}, args...)...)
	text, err := p.Terminal().Wait(limit(r.t), regexp.MustCompile(`tcp://127\.0\.0\.1:\d+: `))
	if err != nil {
		r.t.Fatal(err)
	}
	return p, servedAt.FindStringSubmatch(text)[1]
}

// Figures and whatever else differs from run to run.
var masks = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
	{regexp.MustCompile(`penstock-\d+`), "penstock-PID"},
	{regexp.MustCompile(`\^C`), ""},
	{regexp.MustCompile(`in [\d.]+ (s|ms|us), [\d.]+ [kMG]?B/s`), "in TIME, RATE"},
	{regexp.MustCompile(`in [\d.]+ (s|ms|us)`), "in TIME"},
	{regexp.MustCompile(` +[\d.]+ [kMG]?B/s`), " RATE"},
	{regexp.MustCompile(`ETA [-\d:]+`), "ETA TIME"},
	{regexp.MustCompile(` +\d+ %`), " N %"},
	{regexp.MustCompile(`\d+ %`), "N %"},
	{regexp.MustCompile(`[\d.]+ [kMG]?B( /| of)`), "SIZE$1"},
	{regexp.MustCompile(`resumed at [\d.]+ [kMG]?B`), "resumed at SIZE"},
	{regexp.MustCompile(`attempt \d+`), "attempt N"},
	{regexp.MustCompile(`trying again: .*`), "trying again: CAUSE"},
	{regexp.MustCompile(`over (tcp|shm)`), "over PATH"},
	{regexp.MustCompile(`  (tcp|shm)\b`), ""},
	// as wide as what this kernel's drivers declare
	{regexp.MustCompile(`AF_XDP +XDP of the driver +metadata`), "AF_XDP  XDP of the driver  metadata"},
	{regexp.MustCompile(`native +basic redirect.*`), "native  basic redirect"},
	{regexp.MustCompile(`\b[0-9a-f]{8}( [0-9a-f]{8}){7}\b`), "FINGERPRINT"},
	{regexp.MustCompile(`(?m)^  [-\w]{68}$`), "  CODE"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "SHA256"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "SERIAL"},
	{regexp.MustCompile(`instance [0-9a-f]{16}`), "instance INSTANCE"},
	{regexp.MustCompile(`authority [0-9a-f]{8}\b`), "authority AUTHORITY"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \(\d+ days\)`), "DATE"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d`), "DATE"},
	{regexp.MustCompile(`up \d+:\d\d`), "up AGE"},
	{regexp.MustCompile(`host +\d+ +\d+ +0  #+\.*`), "host FREE"},
	{regexp.MustCompile(`up [\d.msh]+`), "up AGE"},
	{regexp.MustCompile(`same host +(-|[\d.]+ \ws)  `), "same host  ROUNDTRIP  "},
	{regexp.MustCompile(`[\d.]+ [kMG]?B/s`), "RATE"},
	{regexp.MustCompile(`[\d.]+ (s|ms|us|ns)\b`), "TIME"},
	{regexp.MustCompile(`\b\d+(ms|s)\b`), "AGE"},
	{regexp.MustCompile(` {2,}`), "  "}, // columns
}

func masked(s string) string {
	for _, m := range masks {
		s = m.re.ReplaceAllString(s, m.as)
	}
	return s
}

// inOrder sorts lines: what different processes say at the same time comes in any order.
func inOrder(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// finish compares with docs/recordings, or writes it.
func (r *recording) finish(name string) {
	r.t.Helper()
	file := filepath.Join("..", "docs", "recordings", name+".txt")
	text := strings.ReplaceAll(r.text.String(), r.bin, "penstock")
	if *update {
		// What a session leaves on the screen has its pid and port: fixed ones keep the file the
		// same.
		text = replaceAligned(text, `127\.0\.0\.1:\d+`, "127.0.0.1:7070")
		text = replaceAligned(text, `penstock-\d+`, "penstock-4711")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			r.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatalf("%v; go test ./cli -run Recording -update writes it", err)
	}
	if got, want := masked(text), masked(string(want)); inOrder(got) != inOrder(want) {
		r.t.Errorf("the session differs from %s:\n%s\nrecorded:\n%s", file, got, want)
	}
}

// replaceAligned replaces what matches, and keeps the columns of a table in their place.
func replaceAligned(text, expr, by string) string {
	return regexp.MustCompile(expr+`( {2,})?`).ReplaceAllStringFunc(text, func(old string) string {
		bare := strings.TrimRight(old, " ")
		if bare == old {
			return by
		}
		return by + strings.Repeat(" ", max(len(old)-len(by), 2))
	})
}

// A run of a file: its plan, its screen when it is quiet again, and its end.
func TestRecordingRun(t *testing.T) {
	t.Parallel()
	r := recordMachine(t)
	file, echo, _ := pairFile(t)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(r.dir, "pair.yaml"),
		[]byte(regexp.MustCompile(`, share: \{path: .*?\}`).ReplaceAllString(string(text), "")))
	p := proc.Start(t, proc.Spec{Path: r.bin, Args: []string{"run", "pair.yaml"},
		Env: []string{"TERM=xterm", "NO_COLOR=1"}, Dir: r.dir, Columns: 80, Rows: 24})
	if _, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`^penstock run`)); err != nil {
		t.Fatal(err)
	}
	ask(t, echo, 160)
	screen, err := p.Terminal().Wait(limit(t),
		regexp.MustCompile(`(?s)^penstock run .*  server +in +0 +0 b/s +160 .*  answer +echo server/0 +0 +160 .*\n  no peer is connected; at tcp://\S+\n$`))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("q"); err != nil {
		t.Fatal(err)
	}
	r.say("the screen, after 160 datagrams:")
	r.show("", screen)
	r.say("q ends it")
	r.end(p, "penstock run pair.yaml", 0)
	// which belong to this process
	all := regexp.MustCompile(`127\.\d+\.\d+\.\d+:53`).ReplaceAllString(r.text.String(), "127.0.0.1:53")
	r.text.Reset()
	r.text.WriteString(all)
	r.finish("run")
}

func TestRecordingFiles(t *testing.T) {
	r := recordMachine(t)
	write(t, filepath.Join(r.dir, "models/llama/config.json"), []byte(`{"layers": 2}`+"\n"))
	write(t, filepath.Join(r.dir, "models/llama/weights.bin"), content(5_000_000, 1))
	server, addr := r.serve("models", "--listen", "tcp://127.0.0.1:0", "--rescan", "0")
	r.run(0, "ls", addr)
	r.run(0, "get", addr+"/llama/weights.bin")
	same(t, filepath.Join(r.dir, "weights.bin"), content(5_000_000, 1))
	r.run(exitExists, "get", addr+"/llama/weights.bin")
	r.run(exitNotFound, "get", addr+"/llama/wieghts.bin")
	r.run(0, "mirror", addr, "copy")
	r.run(0, "mirror", addr, "copy")
	r.run(exitNotPermitted, "put", "weights.bin", addr)
	r.say("Ctrl-C in the server's terminal:")
	server.Terminal().Type("\x03")
	text := r.end(server, "penstock serve models", 0)
	for _, want := range []string{"fetched llama/weights.bin, 5.0 MB in", "processes of this user", "ending"} {
		if !strings.Contains(text, want) {
			t.Errorf("the server's terminal does not show %q", want)
		}
	}
	r.finish("files")
}

// inTheMiddle starts a get of a large file and returns when a part of it is there. A get that was
// too fast is begun again.
func (r *recording) inTheMiddle(addr, name string) (p *proc.Process, file string) {
	r.t.Helper()
	file = filepath.Join(r.dir, name)
	for range 20 {
		if err := os.RemoveAll(file); err != nil {
			r.t.Fatal(err)
		}
		p = r.start("get", addr+"/"+name)
		if someOf(r.t, file, p) {
			return p, file
		}
	}
	r.t.Fatal("a get was never seen in the middle")
	return nil, ""
}

func TestRecordingInterrupted(t *testing.T) {
	t.Parallel()
	r := recordMachine(t)
	b := content(192<<20, 2)
	write(t, filepath.Join(r.dir, "served/model.bin"), b)
	server, addr := r.serve("served", "--listen", "tcp://127.0.0.1:0")
	for attempt := 0; ; attempt++ {
		p, file := r.inTheMiddle(addr, "model.bin")
		if err := server.Stop(); err != nil { // so that the key comes in time
			t.Fatal(err)
		}
		screen, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`(?m)^model\.bin +[1-9]\d* %`))
		p.Terminal().Type("\x03")
		e, werr := p.Wait(limit(t))
		if cerr := server.Continue(); cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil || werr != nil || e.Code != exitInterrupted {
			if e.Code == exitOK && attempt < 20 { // it was too fast
				continue
			}
			t.Fatalf("%v, %v, %v: %s", e, err, werr, p.Output())
		}
		r.show("penstock get "+addr+"/model.bin", screen)
		r.say("Ctrl-C:")
		r.show("", p.Output())
		r.say("exit status %d; the same command again:", e.Code)
		if _, err := os.Stat(file + ".partial"); err != nil {
			t.Error(err)
		}
		if out := r.run(0, "get", addr+"/model.bin"); !strings.Contains(out, "resumed at") {
			t.Errorf("not resumed:\n%s", out)
		}
		same(t, file, b)
		break
	}
	r.finish("interrupted")
}

func TestRecordingServerKilled(t *testing.T) {
	t.Parallel()
	r := recordMachine(t)
	b := content(192<<20, 3)
	write(t, filepath.Join(r.dir, "served/model.bin"), b)
	server, addr := r.serve("served", "--listen", "tcp://127.0.0.1:0")
	for attempt := 0; ; attempt++ {
		p, file := r.inTheMiddle(addr, "model.bin")
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		screen, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`connection lost, attempt \d+`))
		server, _ = r.serve("served", "--listen", "tcp://"+addr)
		if err != nil {
			if e, werr := p.Wait(limit(t)); werr == nil && e.OK() && attempt < 20 { // it was too fast
				continue
			}
			t.Fatal(err)
		}
		r.say("kill -9 of the server while this runs:")
		r.show("penstock get "+addr+"/model.bin", screen)
		r.say("and the server started again:")
		r.end(p, "", 0)
		same(t, file, b)
		break
	}
	r.finish("server-killed")
}

func TestRecordingPut(t *testing.T) {
	r := recordMachine(t)
	b := content(3_000_000, 4)
	write(t, filepath.Join(r.dir, "step1000.bin"), b)
	write(t, filepath.Join(r.dir, "inbox/old"), nil)
	_, addr := r.serve("inbox", "--writable", "--listen", "tcp://127.0.0.1:0", "--rescan", "0")
	r.run(0, "put", "step1000.bin", addr+"/run7/")
	same(t, filepath.Join(r.dir, "inbox/run7/step1000.bin"), b)
	r.run(exitExists, "put", "step1000.bin", addr+"/run7/")
	r.run(0, "put", "step1000.bin", addr+"/run7/", "--force")
	r.run(0, "ls", addr)
	r.finish("put")
}

func TestRecordingFullDisk(t *testing.T) {
	r := recordMachine(t)
	write(t, filepath.Join(r.dir, "served/model.bin"), content(8<<20, 5))
	if err := os.Mkdir(filepath.Join(r.dir, "small"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, addr := r.serve("served", "--listen", "tcp://127.0.0.1:0")
	// A file system of 4 MiB, which goes away with the process.
	p := r.startSpec(proc.Spec{Path: "unshare", Args: []string{"-m", "sh", "-c",
		`mount -t tmpfs -o size=4m tmpfs small || exit 77; "$@"; s=$?; ls small; exit $s`,
		"sh", r.bin, "get", addr + "/model.bin", "-o", "small/model.bin"}})
	if e, err := p.Wait(limit(t)); err != nil || e.Code == 77 || e.Code == 1 {
		testenv.Missing(t, "mounting a tmpfs", fmt.Errorf("%v, %v: %s", e, err, p.Output()))
	}
	r.say("small is a file system of 4 MiB")
	out := r.end(p, "penstock get "+addr+"/model.bin -o small/model.bin; ls small", exitDisk)
	if strings.Contains(out, "\nmodel.bin\n") {
		t.Error("a file that is not complete has its name")
	}
	r.finish("full-disk")
}

func TestRecordingHostileNames(t *testing.T) {
	r := recordMachine(t)
	_, addr := hostile(t, transfer.Options{}, map[string][]byte{"../../.bashrc": []byte("1"), "a\x1b[2Jb": []byte("22"),
		"/etc/passwd": []byte("333")})
	r.run(0, "ls", addr)
	r.run(0, "get", addr+"/../../.bashrc")
	r.run(0, "get", addr, "/etc/passwd")
	r.run(exitFailure, "mirror", addr, "copy", "--dry-run")
	r.run(exitFailure, "mirror", addr, "copy")
	for name, b := range map[string]string{".bashrc": "1", "passwd": "333"} {
		same(t, filepath.Join(r.dir, name), []byte(b))
	}
	r.finish("hostile-names")
}

// Two machines are paired, and then a third one without a connection.
func TestRecordingPair(t *testing.T) {
	r := recordMachine(t)
	write(t, filepath.Join(r.dir, "models/config.json"), []byte(`{"layers": 2}`+"\n"))
	first := r.start("pair", "--listen", "127.0.0.1:0", "--dir", "id-first", "--name", "first")
	shown := regexp.MustCompile(`penstock pair (127\.0\.0\.1:\d+)\s+and give[^\n]*\s+([-\w]{68})\s(?s:.*)Waiting on`)
	text, err := first.Terminal().Wait(limit(t), shown)
	if err != nil {
		t.Fatal(err)
	}
	m := shown.FindStringSubmatch(text)
	address, code := m[1], m[2]
	r.say("on the first machine (here all of them are one machine with several identities: else --dir and --identity " +
		"can be left out):")
	r.show("penstock pair --listen 127.0.0.1:0 --dir id-first --name first", text)
	second := r.start("pair", address, "--dir", "id-second", "--name", "second")
	if _, err := second.Terminal().Wait(limit(t), regexp.MustCompile(`not shown`)); err != nil {
		t.Fatal(err)
	}
	second.Terminal().Type(code + "\n")
	if _, err := second.Terminal().Wait(limit(t), regexp.MustCompile(`fingerprint`)); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Terminal().Wait(limit(t), regexp.MustCompile(`\[y/N\]`)); err != nil {
		t.Fatal(err)
	}
	first.Terminal().Type("y\n")
	r.say("on the second machine, where somebody pastes the code:")
	r.end(second, "penstock pair "+address+" --dir id-second --name second", 0)
	r.say("and on the first one:")
	e, err := first.Wait(limit(t))
	if err != nil || !e.OK() {
		t.Fatalf("%v, %v: %s", e, err, first.Output())
	}
	_, after, ok := strings.Cut(first.Output(), "\nA machine knows the code:")
	if !ok {
		t.Fatalf("not paired:\n%s", first.Output())
	}
	r.show("", "A machine knows the code:"+after)
	r.say("a third machine, which no network connects, gets a file by other ways:")
	r.run(0, "pair", "export", "third", "-o", "third.pair", "--dir", "id-first")
	r.run(0, "pair", "import", "third.pair", "--dir", "id-third")
	r.run(0, "pair", "allow", "third", "read,list", "--dir", "id-first")
	r.say("the first one serves:")
	server := r.start("serve", "models", "--identity", "id-first", "--listen", "tcp://127.0.0.1:0")
	screen, err := server.Terminal().Wait(limit(t), regexp.MustCompile(`tcp://first@127\.0\.0\.1:\d+: `))
	if err != nil {
		t.Fatal(err)
	}
	addr := regexp.MustCompile(`tcp://first@127\.0\.0\.1:\d+`).FindString(screen)
	r.run(0, "ls", addr, "--identity", "id-second")
	r.say("who is not paired:")
	r.run(exitNotPermitted, "ls", strings.Replace(addr, "first@", "", 1), "--identity", "none")
	r.run(0, "ls", addr, "--identity", "id-third")
	r.run(0, "pair", "list", "--dir", "id-first")
	r.say("Ctrl-C in the server's terminal:")
	server.Terminal().Type("\x03")
	r.end(server, "penstock serve models --identity id-first", 0)
	r.finish("pair")
}

func TestRecordingStatus(t *testing.T) {
	r := recordMachine(t)
	b := content(3_000_000, 6)
	write(t, filepath.Join(r.dir, "models/weights.bin"), b)
	server, addr := r.serve("models", "--listen", "tcp://127.0.0.1:0", "--rescan", "0")
	r.run(0, "get", addr+"/weights.bin")
	if _, err := server.Terminal().Wait(limit(t), regexp.MustCompile(`: gone`)); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(r.dir, "weights.bin"), b)
	text := r.run(0, "status", addr)
	for _, want := range []string{"listens on tcp://" + addr, "weights.bin", "exports"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, text)
		}
	}
	r.run(exitUsage, "status", addr+"/weights.bin")
	r.finish("status")
}
