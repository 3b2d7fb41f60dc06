package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/testenv/proc"
)

// readmeCommands are the commands of a section of the README.
func readmeCommands(t *testing.T, section string) (all []string) {
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
	for line := range strings.Lines(part) {
		if words, ok := strings.CutPrefix(line, "    bin/penstock "); ok {
			all = append(all, strings.TrimSpace(words))
		}
	}
	return all
}

// The commands in the README's section about files do what it says, as they are, but for the port.
func TestReadmeCommandsRun(t *testing.T) {
	dir := t.TempDir()
	model := content(1_000_000, 9)
	write(t, filepath.Join(dir, "models/llama/model.safetensors"), model)
	addr := ""
	commands := readmeCommands(t, "Move files and tensors")
	if len(commands) != 6 {
		t.Errorf("%d commands", len(commands))
	}
	for _, words := range commands {
		spec := program(strings.Fields(strings.ReplaceAll(words, "127.0.0.1:7070", addr))...)
		spec.Dir = dir
		if addr == "" {
			spec.Args = append(spec.Args, "--listen", "tcp://127.0.0.1:0")
			addr = serving(t, proc.Start(t, spec))
			continue
		}
		runSpec(t, spec)
	}
	for _, name := range []string{"model.safetensors", "models/copies/model.safetensors", "copy/llama/model.safetensors", "copy/copies/model.safetensors"} {
		same(t, filepath.Join(dir, name), model)
	}
}

// Those about two machines do so for two users of this one.
func TestReadmePairs(t *testing.T) {
	commands := readmeCommands(t, "Between machines")
	if len(commands) != 4 {
		t.Fatalf("%d commands", len(commands))
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "models/w"), content(1000, 9))
	on := func(machine, words, old, now string) proc.Spec {
		spec := program(strings.Fields(strings.ReplaceAll(words, old, now))...)
		spec.Dir, spec.Env = dir, append(spec.Env, "XDG_CONFIG_HOME="+filepath.Join(dir, machine))
		return spec
	}
	terminal := func(spec proc.Spec) *proc.Process {
		spec.Columns, spec.Rows = 160, 60
		return proc.Start(t, spec)
	}
	host := terminal(on("first", commands[0], ":7071", "127.0.0.1:0 --name first"))
	shown := regexp.MustCompile(`penstock pair (127\.0\.0\.1:\d+)\s+and give[^\n]*\s+([-\w]{68})\s(?s:.*)Waiting on`)
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
	server := proc.Start(t, on("first", commands[2], "HOST:7070", "127.0.0.1:0"))
	m, err := server.WaitLine(limit(t), regexp.MustCompile(`at tcp://first@(127\.0\.0\.1:\d+): TLS`))
	if err != nil {
		t.Fatal(err)
	}
	if out := runSpec(t, on("second", commands[3], "HOST:7070", m[1])); !strings.Contains(out, "w\n") {
		t.Errorf("listed %q", out)
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
