package cli

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv/netns"
	"github.com/penstock-io/penstock/internal/lab/testenv/proc"
)

// The tutorials do what they show: each command is typed as it is written, on the machine and at
// the terminal that the line above its block names, and shows the output below it, but for figures.
func TestTutorials(t *testing.T) {
	for _, page := range []string{"tutorial-checkpoint", "tutorial-gpu", "tutorial-team"} {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile("../docs/" + page + ".md")
			if err != nil {
				t.Fatal(err)
			}
			programs := programsOf(string(text))
			if n := strings.Count(string(text), "```python"); n != len(programs) {
				t.Errorf("%d programs in Python, and %d of them with the name of a file", n, len(programs))
			}
			for name, program := range programs {
				b, err := os.ReadFile("../examples/python/" + name)
				if err != nil || string(b) != program {
					t.Errorf("%s is not the program of the page: %v", name, err)
				}
			}
			newMachines(t).follow(string(text))
		})
	}
}

// programsOf are the programs in Python of a page, by the names of their files in the line above.
func programsOf(page string) map[string]string {
	all := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)`examples/python/(\\w+\\.py)`:\n\n```python\n(.*?)```").FindAllStringSubmatch(page, -1) {
		all[m[1]] = m[2]
	}
	return all
}

// machines are two network namespaces, at the addresses that the pages name. Each has a home and
// terminals.
type machines struct {
	t         *testing.T
	dir       string
	spaces    map[string]string // by the name of the machine, the file of its network namespace
	terminals map[string]*terminal
}

// terminal has a shell in it, and is where a user types.
type terminal struct {
	*proc.Terminal
	begins int  // of the output that the page has not shown yet
	loose  bool // the page leaves out what comes next
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{t: t, dir: t.TempDir(), spaces: twoSpaces(t, "A", "B"), terminals: map[string]*terminal{}}
	for name := range m.spaces {
		// What a clone of the repository and its installation give a user.
		// There is no ssh between the machines: a copy of files takes the place of scp.
		for file, text := range map[string]string{"penstock": mainEnv + "=1 exec -a penstock " + os.Args[0] + ` "$@"`,
			"scp": `cp "${@:1:$#-1}" ` + m.home("B")} {
			file = write(t, filepath.Join(m.home(name), "bin", file), []byte("#!/bin/bash\n"+text+"\n"))
			if err := os.Chmod(file, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		root, err := filepath.Abs("..")
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"examples", "deploy"} {
			if err := os.Symlink(filepath.Join(root, part), filepath.Join(m.home(name), part)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}

func (m *machines) home(machine string) string { return filepath.Join(m.dir, machine) }

// twoSpaces makes two network namespaces with the addresses 10.0.0.1 and 10.0.0.2, and returns
// their files.
func twoSpaces(t *testing.T, names ...string) map[string]string {
	t.Helper()
	n := netns.New(t, netns.Topology{Each: func(_, host int, s *netns.LinkSpec) {
		s.IPv4 = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(host + 1)}), 24)
	}})
	spaces := map[string]string{}
	for i, name := range names {
		if err := n.Hosts[i].Do(func() error {
			thread, err := os.Readlink("/proc/thread-self")
			spaces[name] = filepath.Join("/proc", thread, "ns/net")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return spaces
}

// at is a terminal of a machine, which is opened when the page first names it.
func (m *machines) at(machine, number string) *terminal {
	m.t.Helper()
	key := machine + number
	if m.terminals[key] == nil {
		home := m.home(machine)
		p := proc.Start(m.t, proc.Spec{Path: "nsenter",
			Args: []string{"--net=" + m.spaces[machine], "bash", "--norc",
				"--noprofile", "--noediting", "-i"}, Dir: home, Columns: 500, Rows: 50,
			Env: []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home + "/.config", "PS1=$ ", "TERM=xterm", "NO_COLOR=1",
				"PATH=" + home + "/bin:" + os.Getenv("PATH")}})
		m.terminals[key] = &terminal{Terminal: p.Terminal()}
		if _, err := p.Terminal().WaitFor(limit(m.t), "a prompt", prompted); err != nil {
			m.t.Fatal(err)
		}
	}
	return m.terminals[key]
}

// prompted says whether a terminal waits for a command.
func prompted(s string) bool { return strings.HasSuffix("\n"+strings.TrimRight(s, " \n"), "\n$") }

var tutorialTerminal = regexp.MustCompile(`^\*\*Machine ([AB])\*\*, terminal (\d)$`)

// follow plays a page: blocks of the kind console.
func (m *machines) follow(page string) {
	m.t.Helper()
	var where []string
	blocks, steps := 0, 0
	var step []string
	inBlock := false
	flush := func() {
		if len(step) > 0 {
			m.step(m.at(where[1], where[2]), step)
			steps++
		}
		step = nil
	}
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		switch {
		case inBlock && line == "```":
			flush()
			inBlock = false
		case inBlock:
			if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "^C") {
				flush()
			}
			step = append(step, line)
		case line == "```console":
			if where == nil {
				m.t.Fatalf("no line names the terminal of block %d", blocks+1)
			}
			inBlock = true
			blocks++
		default:
			if w := tutorialTerminal.FindStringSubmatch(line); w != nil {
				where = w
			}
		}
	}
	if blocks < 3 || steps < 5 {
		m.t.Errorf("the page has %d blocks and %d commands", blocks, steps)
	}
}

var (
	pairingCode = regexp.MustCompile(`(?m)^  ([-\w]{68})$`)
	anyPort     = regexp.MustCompile(`(10\.0\.0\.\d):\d{5}`) // of a connection
	// what a server says when peers come and go, which the pages do not show everywhere
	ofPeers = regexp.MustCompile(`(?m)^peer .*\n`)
)

// step types the first line, if it is a command or Ctrl-C, and waits for the others. Where the
// program asks, it answers as the page does.
func (m *machines) step(at *terminal, lines []string) {
	m.t.Helper()
	typed, isCommand := strings.CutPrefix(lines[0], "$ ")
	switch {
	case isCommand:
		text, err := at.WaitFor(limit(m.t), "a prompt", prompted)
		if err != nil {
			m.t.Fatal(err)
		}
		end := len(strings.TrimSuffix(strings.TrimRight(text, " \n"), "$"))
		if more := m.normal(text[min(at.begins, end):end], true); more != "\n" && !at.loose {
			m.t.Fatalf("before %q the terminal shows, and the page does not:\n%s", typed, more)
		}
		at.begins = end
		if strings.HasPrefix(typed, "penstock run ") {
			if err := at.Resize(80, 24); err != nil {
				m.t.Fatal(err)
			}
		}
		m.typed(at, typed+"\n")
	case strings.HasPrefix(lines[0], "^C"):
		m.typed(at, "\x03")
	}
	shows := strings.Join(lines, "\n")
	if lines[0] == "^C" { // what a screen shows after it is what it showed before
		shows = "..." + strings.TrimPrefix(shows, "^C")
	}
	want := m.normal(shows, false)
	quoted := strings.ReplaceAll("\n"+regexp.QuoteMeta(want), `\.\.\.`, `.*`)
	pattern := regexp.MustCompile(`^` + strings.ReplaceAll(quoted, "\n.*\n", "\n(?:.*\n)*")[1:] + `$`)
	asked := regexp.MustCompile(`(\(it is not shown\):|\[y/N\])\n?$`)
	for answered := 0; ; {
		question, shown, got := false, false, ""
		text, err := at.WaitFor(limit(m.t), "what the page shows", func(s string) bool {
			if at.Drawn() { // a screen, which the page shows under the command
				if s = "\n" + s; isCommand {
					s = lines[0] + s
				}
			} else {
				s = s[min(at.begins, len(s)):]
			}
			question = asked.MatchString(s) && strings.Count(s, "not shown)")+strings.Count(s, "[y/N]") > answered
			got = m.normal(s, !ofPeers.MatchString(want))
			shown = pattern.MatchString(got)
			return question || shown || prompted(s) && strings.Contains(strings.TrimSpace(s), "\n")
		})
		if err != nil || !question && !shown {
			m.t.Fatalf("%v\nthe page shows\n%s\nand the terminal\n%s", err, strings.Join(lines, "\n"), got)
		}
		if !question {
			if at.loose = strings.HasSuffix(want, "...\n"); !at.Drawn() {
				at.begins = len(strings.TrimSuffix(strings.TrimRight(text, " \n"), "\n$"))
			}
			return
		}
		answered++
		answer := "y"
		if strings.HasSuffix(strings.TrimSpace(text), "not shown):") {
			answer = ""
			for _, other := range m.terminals {
				if code := pairingCode.FindAllStringSubmatch(other.Text(), -1); code != nil {
					answer = code[len(code)-1][1]
				}
			}
		}
		m.typed(at, answer+"\n")
	}
}

func (m *machines) typed(at *terminal, keys string) {
	m.t.Helper()
	if err := at.Type(keys); err != nil {
		m.t.Fatal(err)
	}
}

// normal is a text without what differs from run to run.
func (m *machines) normal(s string, quiet bool) string {
	for _, machine := range []string{"A", "B"} {
		s = strings.ReplaceAll(s, m.home(machine), "/home/you")
	}
	if quiet {
		s = ofPeers.ReplaceAllString(s, "")
	}
	var b strings.Builder
	for line := range strings.Lines(masked(anyPort.ReplaceAllString(s, "$1:PORT"))) {
		fmt.Fprintln(&b, strings.TrimRight(line, " \n"))
	}
	return strings.Trim(strings.TrimSuffix(b.String(), "\n$\n"), "\n") + "\n"
}
