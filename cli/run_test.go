package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
	"github.com/penstock-io/penstock/internal/sys"
	root "github.com/penstock-io/penstock/system"
)

// loopAt is an address of this process's own.
func loopAt(port int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d:%d", pid>>16&127+1, pid>>8&255, pid&255, port)
}

// runDoc is any event of run --json.
type runDoc struct {
	runSample
	Text         string
	Diagnostics  []map[string]any
	Addresses    []string
	OK           *bool
	Status       *int
	Error        string
	Changes      *root.Changes
	Applications []struct {
		Name, Kind     string
		Packets, Taken uint64
		Sent           uint64
		Dropped        map[string]uint64
		Tensor         json.RawMessage
	} `json:"applications"`
}

// runJSON runs a file with --json; next waits for the next event of a kind, all others are skipped.
type runJSON struct {
	t      *testing.T
	p      *proc.Process
	events chan runDoc
	over   context.Context // the test's patience, for all of it
}

func startRun(t *testing.T, file string, args ...string) *runJSON {
	t.Helper()
	r := &runJSON{t: t, events: make(chan runDoc, 10000), over: limit(t)}
	spec := program(append([]string{"run", file, "--json"}, args...)...)
	spec.OnLine = func(line string) {
		var e runDoc
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			e.Event = "no JSON: " + line
		}
		r.events <- e
	}
	r.p = proc.Start(t, spec)
	return r
}

func (r *runJSON) next(event string) runDoc {
	r.t.Helper()
	for {
		if r.over.Err() != nil {
			r.t.Fatalf("no event %s that was waited for\n%s", event, r.p.Output())
		}
		select {
		case e := <-r.events:
			if e.Event == event {
				return e
			}
			if strings.HasPrefix(e.Event, "no JSON") || e.Event == "ended" {
				r.t.Fatalf("waiting for %s: %+v\n%s", event, e, r.p.Output())
			}
		case <-r.over.Done():
			r.t.Fatalf("no event %s\n%s", event, r.p.Output())
		}
	}
}

// end waits for the end.
func (r *runJSON) end(status int) runDoc {
	r.t.Helper()
	e := r.next("ended")
	x, err := r.p.Wait(limit(r.t))
	if err != nil || x.Code != status || *e.Status != status || *e.OK != (status == 0) {
		r.t.Errorf("%v, %v: %+v; expected status %d\n%s", x, err, e, status, r.p.Output())
	}
	return e
}

const runPair = `penstock:
  memory_regions:
    - {name: a, kind: host, num_bufs: 1024, buf_size: 2KiB}
  interfaces:
    - name: server
      socket: {mode: server, local: "udp://ECHO"}
      rx: {queues: [{memory_regions: [a], depth: 256}]}
      tx: {queues: [{memory_regions: [a], depth: 256}]}
    - name: other
      socket: {mode: server, local: "udp://SINK"}
      rx: {queues: [{memory_regions: [a], depth: 256, poll_mode: direct}]}
  transfers: {listen: ["tcp://127.0.0.1:0"], share: {path: SHARED}}
  applications:
    - {name: answer, kind: echo, interface: server}
    - {name: keep, kind: sink, interface: other, tensor: {name: t, dtype: u8, shape: [4, 4], sequence: {offset: 0, width: 4}, strip: 4}}
`

func pairFile(t *testing.T) (file, echo, sink string) {
	t.Helper()
	shared := t.TempDir()
	write(t, filepath.Join(shared, "model.bin"), content(100_000, 1))
	echo, sink = loopAt(5301), loopAt(5302)
	return confFile(t, "pair.yaml", strings.NewReplacer("ECHO", echo, "SINK", sink, "SHARED", shared).Replace(runPair)),
		echo, sink
}

// ask sends n datagrams and waits for each answer.
func ask(t *testing.T, at string, n int) {
	t.Helper()
	c, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deadline, _ := limit(t).Deadline()
	c.SetDeadline(deadline)
	for i := range n {
		text := fmt.Sprintf("question %4d", i)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		var b [100]byte
		if k, err := c.Read(b[:]); err != nil || string(b[:k]) != text {
			t.Fatalf("%q, %v", b[:k], err)
		}
	}
}

// A file runs: packets are answered, a stream becomes a tensor that peers get, files are served,
// and the counts of the end are exact.
func TestRunFile(t *testing.T) {
	file, echo, sink := pairFile(t)
	r := startRun(t, file, "--interval", "100ms")
	if p := r.next("plan"); !*p.OK || len(p.Interfaces) != 2 || len(p.Applications) != 2 {
		t.Errorf("%+v", p)
	}
	s := r.next("started")
	if len(s.Addresses) != 1 {
		t.Fatalf("%+v", s)
	}
	ask(t, echo, 200)

	// Two tensors of four rows, of which one does not come.
	c, err := net.Dial("udp", sink)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, seq := range []byte{0, 1, 2, 3, 7, 4, 5, 8} {
		if _, err := c.Write([]byte{0, 0, 0, seq, 'r', 'o', 'w', '0' + seq}); err != nil {
			t.Fatal(err)
		}
	}
	for r.next("sample").Applications[1].Packets < 8 { // all are placed then, or soon
	}
	dst := t.TempDir()
	addr := strings.TrimPrefix(s.Addresses[0], "tcp://")
	got := ""
	for i := 0; ; i++ { // until the second tensor is there
		got = filepath.Join(dst, fmt.Sprint("t", i))
		run(t, 0, "t: 16 B", "get", addr+"/t", "-o", got)
		b, err := os.ReadFile(got)
		if err != nil {
			t.Fatal(err)
		}
		if b[3] == '4' {
			break
		}
	}
	same(t, got, []byte("row4row5\x00\x00\x00\x00row7"))
	run(t, 0, "model.bin: 100.0 kB", "get", addr+"/model.bin", "-o", filepath.Join(dst, "m"))
	same(t, filepath.Join(dst, "m"), content(100_000, 1))

	if err := r.p.Signal(sys.Interrupts()[1]); err != nil { // SIGTERM
		t.Fatal(err)
	}
	e := r.end(0)
	server, other := e.Interfaces[0], e.Interfaces[1]
	if server.In.Packets != 200 || server.In.Bytes != 200*13 || server.Out.Packets != 200 ||
		server.Out.Bytes != 200*13 || other.In.Packets != 8 || other.In.Bytes != 64 || len(e.Drops) != 0 {
		t.Errorf("%+v\n%+v\n%+v", server, other, e.Drops)
	}
	answer, keep := e.Applications[0], e.Applications[1]
	if answer.Packets != 200 || answer.Sent != 200 || keep.Packets != 8 || keep.Taken != 8 {
		t.Errorf("%+v\n%+v", answer, keep)
	}
	if want := `"generations":2,"rows":8,"missing":1,"short":0,"bytes":32,"filled":1,"of":4`; !strings.Contains(string(keep.Tensor), want) {
		t.Errorf("%s, expected %s", keep.Tensor, want)
	}
	for _, p := range e.Pools {
		if p.Used != 0 || p.Slots != 1024 {
			t.Errorf("slots are out at the end: %+v", p)
		}
	}
	if e.Node == nil || e.Node.PeersEver < 2 {
		t.Errorf("%+v", e.Node)
	}
}

// Lines and the summary, and the end by --duration; run reports and counts packets that no
// application takes.
func TestRunLines(t *testing.T) {
	file := confFile(t, "one.yaml", `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 2048, buf_size: 2KiB}]
  interfaces: [{name: in, address: "udp://127.0.0.1:0", rx: {queues: [{memory_regions: [a]}]}}]
`)
	p := proc.Start(t, program("run", file, "--interval", "100ms"))
	for _, want := range []string{`^plan of `, `^applications$`, `^  unclaimed in/0: count in/0$`, `^running$`,
		`^\d+:\d\d  in in 0/s 0 b/s out 0/s 0 b/s$`} {
		if _, err := p.NextLine(limit(t), regexp.MustCompile(want)); err != nil {
			t.Fatal(err)
		}
	}
	p.Signal(sys.Interrupts()[0])
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Fatal(x, err)
	}
	for _, want := range []string{"\nin: received 0 packets, 0 B; sent 0 packets, 0 B; nothing dropped\n",
		"unclaimed in/0: took 0 packets; nothing dropped\n",
		"WARNING: no application takes the packets of receive queue in/0: they are counted and dropped\n"} {
		if !strings.Contains(p.Output(), want) {
			t.Errorf("%q is not in\n%s", want, p.Output())
		}
	}
	if out, errOut := run(t, 0, "", "run", file, "--duration", "10ms", "-q"); out != "" ||
		!strings.HasPrefix(errOut, "WARNING") {
		t.Errorf("quiet: %q, %q", out, errOut)
	}
}

// The command refuses what it cannot run before it opens anything, each with a status of its own.
func TestRunRefuses(t *testing.T) {
	file, _, _ := pairFile(t)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wrong := confFile(t, "wrong.yaml", strings.Replace(string(good), "kind: echo", "kind: ecko", 1))
	absent := confFile(t, "absent.yaml", strings.Replace(string(good), "{name: answer, kind: echo, interface: server}",
		"{name: answer, kind: echo, interface: server, cpu_core: 4000}", 1))
	record := confFile(t, "record.yaml", strings.Replace(string(good), "interface: other, tensor: {name: t,",
		"interface: other, record: "+file+", tensor: {name: t,", 1))
	bench := confFile(t, "bench.yaml", goodConfig+"bench_rx: {interface_name: p}\n")
	run(t, 0, "applications\n  answer: echo server/0\n  keep: sink other/0, into the tensor t, u8[4 4]\n", "run", file,
		"--dry-run")
	run(t, exitFailure, " 14 |     - {name: answer, kind: ecko,", "run", wrong)
	run(t, exitFailure, "did you mean echo?", "run", wrong, "--dry-run")
	run(t, exitUnfit, "this process cannot run on core 4000", "run", absent)
	out, errOut := run(t, exitUnfit, "this process cannot run on core 4000", "run", absent, "--dry-run")
	if !strings.Contains(out, "this cannot be opened here") ||
		!strings.Contains(errOut, "1 thing is not here that "+absent+" needs") {
		t.Errorf("%s\n%s", out, errOut)
	}
	run(t, exitExists, "file already exists: remove it, overwrite it", "run", record)
	run(t, exitFailure, "penstock bench stream drives", "run", bench)
	run(t, exitNotFound, "no such file", "run", filepath.Join(t.TempDir(), "none.yaml"))
	run(t, exitUsage, "--interval 1ms", "run", file, "--interval", "1ms")
	run(t, exitUsage, "--duration -1s", "run", file, "--duration", "-1s")
	run(t, exitUsage, "expected one file", "run")
	// A port that another socket has is a failure, with everything closed again and the place in
	// the file.
	l, err := net.ListenPacket("udp", loopAt(5302))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	run(t, exitFailure, "address already in use", "run", file)
	var docs []string
	out, _ = run(t, exitFailure, "", "run", wrong, "--json")
	for line := range strings.Lines(out) {
		var d runDoc
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		docs = append(docs, d.Event)
		if len(d.Diagnostics) != 1 || d.Diagnostics[0]["code"] != "value" {
			t.Errorf("%s", line)
		}
	}
	if fmt.Sprint(docs) != "[problem]" {
		t.Errorf("%v", docs)
	}
}

// Datagrams go into device memory and come back from there, with the runtime that the command line
// asks for by name; without one the file asks for a GPU. The plan says what is copied, and pools
// are whole at the end.
func TestRunDeviceMemory(t *testing.T) {
	at := loopAt(5303)
	file := confFile(t, "device.yaml", strings.ReplaceAll(`penstock:
  memory_regions:
    - {name: card, kind: device, num_bufs: 2048, buf_size: 2KiB}
    - {name: pinned, kind: host_pinned, num_bufs: 512, buf_size: 2KiB}
  interfaces:
    - name: server
      socket: {mode: server, local: "udp://AT"}
      rx: {queues: [{memory_regions: [card], depth: 256}]}
      tx: {queues: [{memory_regions: [pinned], depth: 256}]}
  applications: [{kind: echo, interface: server}]
`, "AT", at))
	run(t, exitUsage, "expected auto, cuda, opencl, host", "run", file, "--gpu-runtime", "vulkan")
	run(t, 0, "all of queue server-rx0 is copied once, from pinned memory to host 0", "run", file, "--gpu-runtime",
		"host", "--dry-run")
	r := startRun(t, file, "--gpu-runtime", "host")
	r.next("started")
	ask(t, at, 100)
	if err := r.p.Signal(sys.Interrupts()[1]); err != nil {
		t.Fatal(err)
	}
	e := r.end(0)
	if s := e.Interfaces[0]; s.In.Packets != 100 || s.Out.Packets != 100 || e.Applications[0].Sent != 100 ||
		len(e.Drops) != 0 {
		t.Errorf("%+v\n%+v\n%+v", s, e.Applications, e.Drops)
	}
	for _, p := range e.Pools {
		if p.Used != 0 {
			t.Errorf("slots are out at the end: %+v", p)
		}
	}
}

// What an application cannot do is known before the run: two kinds of packets cannot be forwarded
// into each other.
func TestRunForwardKinds(t *testing.T) {
	file := confFile(t, "kinds.yaml", `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 2048, buf_size: 2KiB}]
  interfaces:
    - {name: frames, address: "sim://x?loop", rx: {queues: [{memory_regions: [a]}]}}
    - {name: datagrams, address: "udp://127.0.0.1:0", tx: {queues: [{memory_regions: [a]}]}}
  applications: [{kind: forward, interface: frames, to: datagrams}]
`)
	run(t, exitUnfit, "packets of frames are frames, and those of datagrams are datagrams", "run", file, "--duration",
		"1m")
}

const runRules = `penstock:
  memory_regions: [{name: a, kind: host, num_bufs: 256, buf_size: 2KiB}]
  interfaces:
    - name: loop
      address: "sim://run?loop"
      rx:
        queues: [{memory_regions: [a]}]
        flows:
          - {name: one, match: {udp_dst: 1}, actions: [{type: queue, id: 0}]}
          - {name: two, match: {udp_dst: 2}, actions: [{type: queue, id: 0}]}
  applications: [{kind: count, interface: loop}]
`

// The file and SIGHUP put flows in force, all or none, and the command prints the result.
func TestRunReload(t *testing.T) {
	file := confFile(t, "rules.yaml", runRules)
	replace := func(text string) { // as editors do
		t.Helper()
		next := file + ".new"
		write(t, next, []byte(text))
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	r := startRun(t, file, "--interval", "100ms")
	r.next("started")
	rules := func(first, second string) { // in a sample from now on: one may have been read before and printed after
		t.Helper()
		for s := r.next("sample"); len(s.Rules) != 2 || s.Rules[0].Rule != first ||
			s.Rules[1].Rule != second; s = r.next("sample") {
		}
	}
	rules("udp dst 1 -> queue 0", "udp dst 2 -> queue 0")
	replace(strings.Replace(runRules, "udp_dst: 2", "udp_dst: 3", 1))
	e := r.next("reload")
	if !*e.OK || len(e.Changes.Interfaces) != 1 || e.Changes.Interfaces[0].Unchanged != 1 {
		t.Errorf("%+v %+v", e, e.Changes)
	}
	rules("udp dst 1 -> queue 0", "udp dst 3 -> queue 0")
	replace(strings.Replace(runRules, "udp_dst: 2", "udp_dts: 3", 1)) // wrong
	if e := r.next("reload"); *e.OK || e.Changes != nil || len(e.Diagnostics) != 1 || e.Error == "" {
		t.Errorf("%+v", e)
	}
	replace(strings.Replace(runRules, "num_bufs: 256", "num_bufs: 512", 1)) // more than flows
	if e := r.next("reload"); *e.OK || !strings.Contains(e.Error, "restart") || !strings.Contains(e.Error, "num_bufs") {
		t.Errorf("%+v", e)
	}
	for range 2 {
		if s := r.next("sample"); len(s.Rules) != 2 || s.Rules[1].Rule != "udp dst 3 -> queue 0" {
			t.Errorf("nothing was to change: %+v", s.Rules)
		}
	}
	replace(runRules)
	if e := r.next("reload"); !*e.OK {
		t.Errorf("%+v", e)
	}
	if err := r.p.Signal(sys.Hangup); err != nil { // asks again, although nothing has changed
		t.Fatal(err)
	}
	if e := r.next("reload"); !*e.OK || e.Changes.Any() {
		t.Errorf("%+v %+v", e, e.Changes)
	}
	r.p.Signal(sys.Interrupts()[0])
	r.end(0)

	// Without the watch only the signal counts. Lines say it for people.
	p := proc.Start(t, program("run", file, "--no-reload"))
	if _, err := p.WaitLine(limit(t), regexp.MustCompile(`^running`)); err != nil {
		t.Fatal(err)
	}
	replace(strings.Replace(runRules, "udp_dst: 2", "udp_dts: 3", 1))
	if err := p.Signal(sys.Hangup); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`^reload: the file is wrong, nothing was changed`, `error: .*udp_dts`,
		`did you mean udp_dst`} {
		if _, err := p.NextLine(limit(t), regexp.MustCompile(want)); err != nil {
			t.Fatal(err)
		}
	}
	p.Signal(sys.Interrupts()[1])
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Error(x, err)
	}
}

// The screen on a real terminal: its last frame before q is that of the counts, it follows the
// terminal's size, and the terminal is as it was afterwards.
func TestRunScreen(t *testing.T) {
	file, echo, _ := pairFile(t)
	spec := program("run", file, "--interval", "100ms")
	spec.Env = append(spec.Env, "NO_COLOR=1")
	spec.Columns, spec.Rows = 80, 24
	p := proc.Start(t, spec)
	term := p.Terminal()
	wait := func(re string) string {
		t.Helper()
		text, err := term.Wait(limit(t), regexp.MustCompile(re))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	wait(`^penstock run .*pair\.yaml +up \d`) // the first line is that of the screen: the plan is on the other one
	ask(t, echo, 160)
	// Each section is there, in its order, with its rows, on a screen that is whole.
	sections := []string{`^penstock run .*up \d+:\d\d  cpu \d+ %  q: quit$`,
		`^interfaces +packets/s +bits/s +packets +bytes$`, `^  server +in .* 160 +2\.1 kB$`, `^ +out .*$`,
		`^  other +in .* 0 +0 B$`,
		`^applications +what +pkt/s +packets`, `^  answer +echo server/0 +\S+ +160 `, `^  keep +sink other/0 .* 0$`,
		`^    tensor t u8\[4 4\]: 0 made, 0 of 4 rows, 0 missing$`,
		`^queues +held +stalls$`, `^  server/0 +in +\d+/\d+ +0  poller on any core$`, `^  server/0 +out +\d+/256 +0$`,
		`^  other/0 +in +- +0  polled by the application$`,
		`^pools +free +lowest +empty  used$`, `^  a +host +\d+ +\d+ +0  #+\.*$`, `^peers +in/s`,
		`^  no peer is connected; at tcp://127\.0\.0\.1:\d+$`}
	show := func(what string, rows int, shows ...string) {
		t.Helper()
		missing := ""
		_, err := term.WaitFor(limit(t), what, func(text string) bool {
			lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
			if missing = fmt.Sprintf("%d lines", len(lines)); len(lines) > rows {
				return false
			}
			at := 0
			for _, want := range shows {
				re := regexp.MustCompile(want)
				for missing = want; at < len(lines) && !re.MatchString(lines[at]); at++ {
				}
				if at == len(lines) {
					return false
				}
			}
			return true
		})
		if err != nil {
			t.Fatalf("%v\nmissing, or not in its place: %s", err, missing)
		}
	}
	show("all sections", 24, sections...)
	if !term.Drawn() {
		t.Error("it is not the alternate screen")
	}
	if err := term.Resize(60, 16); err != nil {
		t.Fatal(err)
	}
	show("a small screen", 16, `^penstock run`, `^interfaces +pkt/s +bits/s packets +\+\d more$`, `^applications`,
		`^queues`, `^pools`, `^peers`)
	if err := term.Resize(120, 40); err != nil {
		t.Fatal(err)
	}
	show("a large screen", 40, `^interfaces {30,}packets/s`, `^  no peer is connected`)
	if err := term.Type("q"); err != nil {
		t.Fatal(err)
	}
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Fatalf("%v, %v\n%s", x, err, p.Output())
	}
	after := p.Output()
	if term.Drawn() || !strings.HasPrefix(after, "plan of ") || !strings.Contains(after,
		"server: received 160 packets, 2.1 kB; sent 160 packets, 2.1 kB; nothing dropped\n") ||
		strings.Contains(after, "q: quit") {
		t.Errorf("the terminal afterwards:\n%s", after)
	}
	for _, m := range term.Misuse() {
		if !strings.Contains(m, "a line of more than 80 columns: \"plan of") && !strings.Contains(m, "WARNING") {
			t.Error(m)
		}
	}
}

// Ctrl-C ends the screen and the run in order.
func TestRunScreenInterrupt(t *testing.T) {
	file := confFile(t, "rules.yaml", runRules)
	spec := program("run", file)
	spec.Columns, spec.Rows = 80, 24
	p := proc.Start(t, spec)
	if _, err := p.Terminal().Wait(limit(t), regexp.MustCompile(`(?m)^\S*rules `)); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	if x, err := p.Wait(limit(t)); err != nil || x.Code != 0 {
		t.Fatalf("%v, %v\n%s", x, err, p.Output())
	}
	if p.Terminal().Drawn() || !strings.Contains(p.Output(), "loop: received 0 packets") {
		t.Errorf("the terminal afterwards:\n%s", p.Output())
	}
}
