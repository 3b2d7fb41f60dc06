package cli

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// readmeSection is the text of a section of the README.
func readmeSection(t *testing.T, section string) string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(readme), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("the README has no section %q", section)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	return part
}

// readmeCommands are the commands of a section, without the program's name.
func readmeCommands(t *testing.T, section string) (all []string) {
	t.Helper()
	for line := range strings.Lines(readmeSection(t, section)) {
		if words, ok := strings.CutPrefix(line, "    penstock "); ok {
			all = append(all, comment.ReplaceAllString(strings.TrimSpace(words), ""))
		}
	}
	return all
}

// readmeBlocks are the fenced blocks of a section.
func readmeBlocks(t *testing.T, section string) (all []string) {
	t.Helper()
	for i, part := range strings.Split(readmeSection(t, section), "```") {
		if i%2 == 1 {
			_, text, _ := strings.Cut(part, "\n")
			all = append(all, text)
		}
	}
	return all
}

// The commands that move a model do what the README says, as they are, but for the port.
func TestReadmeMovesAModel(t *testing.T) {
	dir := t.TempDir()
	model := content(1_000_000, 9)
	write(t, filepath.Join(dir, "models/llama/model.safetensors"), model)
	addr := ""
	commands := readmeCommands(t, "Move a model")
	if len(commands) != 15 {
		t.Fatalf("%d commands", len(commands))
	}
	for _, words := range commands[:7] {
		spec := program(strings.Fields(strings.ReplaceAll(words, "127.0.0.1:7070", addr))...)
		spec.Dir = dir
		if addr == "" {
			spec.Args = append(spec.Args, "--listen", "tcp://127.0.0.1:0")
			addr = serving(t, proc.Start(t, spec))
			continue
		}
		runSpec(t, spec)
	}
	for _, name := range []string{"model.safetensors", "models/copies/model.safetensors",
		"models/copies/llama/model.safetensors", "copy/llama/model.safetensors", "copy/copies/model.safetensors"} {
		same(t, filepath.Join(dir, name), model)
	}
}

// The file and the commands that receive packets do so, but for the address; the counts at the end
// are those that the README shows.
func TestReadmeReceivesPackets(t *testing.T) {
	commands := readmeCommands(t, "Receive packets")
	blocks := readmeBlocks(t, "Receive packets")
	if len(commands) != 2 || len(blocks) != 2 {
		t.Fatalf("%d commands, %d blocks", len(commands), len(blocks))
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rx.yaml"), []byte(strings.ReplaceAll(blocks[0], "127.0.0.1:5000", loopAt(5000))))
	spec := program(strings.Fields(commands[0])...)
	spec.Dir = dir
	runSpec(t, spec)
	spec = program(append(strings.Fields(commands[1]), "--interval", "100ms")...)
	spec.Dir = dir
	p := proc.Start(t, spec)
	if _, err := p.WaitLine(limit(t), regexp.MustCompile(`^running`)); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("udp", loopAt(5000))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.WaitLine(limit(t), regexp.MustCompile(`port in [1-9]`)); err != nil {
		// the interval in which it came
		t.Fatal(err)
	}
	if err := p.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if e, err := p.Wait(limit(t)); err != nil || !e.OK() || !strings.Contains(p.Output(), blocks[1]) {
		t.Errorf("%v, %v\n%s\nexpected\n%s", e, err, p.Output(), blocks[1])
	}
}

// The commands for a DAQIRI file work on the example that the README names, but for its addresses.
func TestReadmeBringsDAQIRI(t *testing.T) {
	commands := readmeCommands(t, "Bring a DAQIRI file")
	if len(commands) != 4 {
		t.Fatalf("%d commands", len(commands))
	}
	words := strings.Fields(commands[0])
	name := words[len(words)-1]
	text, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ := strings.Cut(loopAt(0), ":")
	dir := t.TempDir()
	write(t, filepath.Join(dir, name), []byte(strings.ReplaceAll(string(text), "127.0.0.1", host)))
	out := make([]string, len(commands))
	for i, c := range commands {
		spec := program(strings.Fields(c)...)
		spec.Dir = dir
		out[i] = runSpec(t, spec)
	}
	for i, want := range []string{"no problems found", "socket_bench_server: udp_server",
		`1000 sent = \d+ received \+ \d+ lost`, "penstock:"} {
		if !regexp.MustCompile(want).MatchString(out[i]) {
			t.Errorf("penstock %s: %q is not in its output:\n%s", commands[i], want, out[i])
		}
	}
}

// Those about two machines do so between two network namespaces, as they are.
func TestReadmePairs(t *testing.T) {
	commands := readmeCommands(t, "Move a model")
	if len(commands) != 15 {
		t.Fatalf("%d commands", len(commands))
	}
	commands = commands[7:]
	dir, model := t.TempDir(), content(1000, 9)
	write(t, filepath.Join(dir, "first/models/llama/model.safetensors"), model)
	write(t, filepath.Join(dir, "second/other"), nil)
	spaces := twoSpaces(t, "first", "second")
	on := func(machine, words, old, now string) proc.Spec {
		spec := program(strings.Fields(strings.ReplaceAll(words, old, now))...)
		spec.Args = append([]string{"--net=" + spaces[machine], spec.Path}, spec.Args...)
		spec.Path = "nsenter"
		spec.Dir = filepath.Join(dir, machine)
		spec.Env = append(spec.Env, "XDG_CONFIG_HOME="+spec.Dir)
		return spec
	}
	terminal := func(spec proc.Spec) *proc.Process {
		spec.Columns, spec.Rows = 160, 60
		return proc.Start(t, spec)
	}
	host := terminal(on("first", commands[0], ":7071", ":7071 --name first"))
	shown := regexp.MustCompile(`penstock pair (10\.0\.0\.1:7071)\s+and give[^\n]*\s+([-\w]{68})\s(?s:.*)Waiting on`)
	text, err := host.Terminal().Wait(limit(t), shown)
	if err != nil {
		t.Fatal(err)
	}
	code := shown.FindStringSubmatch(text)
	joiner := terminal(on("second", commands[1], "ADDRESS", code[1]+" --name second"))
	if _, err := joiner.Terminal().Wait(limit(t), regexp.MustCompile(`not shown`)); err != nil {
		t.Fatal(err)
	}
	joiner.Terminal().Type(code[2] + "\n")
	if _, err := host.Terminal().Wait(limit(t), regexp.MustCompile(`\[y/N\]`)); err != nil {
		t.Fatal(err)
	}
	host.Terminal().Type("y\n")
	for _, p := range []*proc.Process{host, joiner} {
		if e, err := p.Wait(limit(t)); err != nil || !e.OK() {
			t.Fatalf("%v, %v\n%s", e, err, p.Output())
		}
	}
	server := proc.Start(t, on("first", commands[3], "HOST", "10.0.0.1"))
	_, err = server.WaitLine(limit(t), regexp.MustCompile(`at tcp://first@10\.0\.0\.1:7070: TLS`))
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) proc.Spec { return on("second", commands[i], "HOST", "10.0.0.1") }
	if out := runSpec(t, at(4)); !strings.Contains(out, "llama/model.safetensors\n") {
		t.Errorf("listed %q", out)
	}
	runSpec(t, at(5))
	// What pair does not permit names the command that the README has.
	for i, rights := range map[int]string{6: "read,write,list", 7: "read,list,status"} {
		p := proc.Start(t, at(i))
		if e, err := p.Wait(limit(t)); err != nil || e.Code != exitNotPermitted ||
			!strings.Contains(p.Output(), "run on first: penstock pair allow second "+rights) {
			t.Errorf("%s: %v, %v\n%s", commands[i], e, err, p.Output())
		}
	}
	runSpec(t, on("first", commands[2], "NAME", "second"))
	ctx := limit(t)
	for p := proc.Start(t, at(6)); ; p = p.Restart() { // a rule holds within a second
		if e, err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		} else if e.OK() {
			break
		}
	}
	same(t, filepath.Join(dir, "first/models/from-second/model.safetensors"), model)
	if out := runSpec(t, at(7)); !strings.Contains(out, "first") {
		t.Errorf("status %q", out)
	}
}

// runSpec runs a program to its end, which has to be a good one.
func runSpec(t *testing.T, spec proc.Spec) string {
	t.Helper()
	p := proc.Start(t, spec)
	if e, err := p.Wait(limit(t)); err != nil || !e.OK() {
		t.Fatalf("%s: %v, %v\n%s", strings.Join(spec.Args, " "), e, err, p.Output())
	}
	return p.Output()
}
