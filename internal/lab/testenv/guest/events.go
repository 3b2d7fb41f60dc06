package guest

import (
	"regexp"
	"strings"
)

// An action is what a line of a test binary's output says.
type action int

const (
	actLog  action = iota // a line that a test printed
	actRun                // a test began
	actPass               // ... and ended
	actFail
	actSkip
)

// An event is something that happened to a test.
type event struct {
	action action
	test   string // full name; "" for lines that belong to none
	text   string // the line; of an end, how long the test took
}

// A testOutput reads the output of a test binary that was started with -test.v=test2json. There the
// lines of the framework are marked by a control character, so that what a test prints cannot be
// taken for them. It is the format that "go tool test2json" reads.
type testOutput struct {
	current string // the test that prints
}

const mark = "\x16"

var resultLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(([^)]*)\)`)

// line takes the next line and returns what it says, at most two events.
func (o *testOutput) line(s string) []event {
	before, framed, ok := strings.Cut(s, mark)
	var out []event
	if !ok || before != "" {
		out = append(out, event{actLog, o.current, before})
	}
	if !ok {
		return out
	}
	if m := resultLine.FindStringSubmatch(framed); m != nil {
		o.current = m[2]
		return append(out, event{map[string]action{"PASS": actPass, "FAIL": actFail, "SKIP": actSkip}[m[1]], m[2],
			m[3]})
	}
	verb, name, ok := strings.Cut(strings.TrimPrefix(framed, "=== "), " ")
	if !ok || !strings.HasPrefix(framed, "=== ") {
		o.current = "" // PASS or FAIL: the end of all tests
		return out
	}
	name = strings.TrimSpace(name)
	switch verb {
	case "RUN":
		o.current = name
		out = append(out, event{actRun, name, ""})
	case "NAME", "CONT", "PAUSE":
		o.current = name
	}
	return out
}

// A testTree collects the events of one run of a test, by test.
type testTree struct {
	output testOutput
	nodes  map[string]*node
	order  []*node
}

// A node is one test or subtest.
type node struct {
	name     string
	lines    []string
	took     string
	verdict  action // actPass, actFail, actSkip; actRun while it runs
	children []*node
	reported bool
}

func newTree() *testTree { return &testTree{nodes: map[string]*node{}} }

// node finds a test, or adds it to its parent.
func (t *testTree) node(name string) *node {
	if n := t.nodes[name]; n != nil {
		return n
	}
	n := &node{name: name, verdict: actRun}
	t.nodes[name] = n
	t.order = append(t.order, n)
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		// A subtest's own name may contain slashes; its parent is the longest known prefix.
		for p := name[:i]; ; {
			if parent := t.nodes[p]; parent != nil {
				parent.children = append(parent.children, n)
				break
			}
			i := strings.LastIndexByte(p, '/')
			if i < 0 {
				break
			}
			p = p[:i]
		}
	}
	return n
}

// line takes a line of output, files it, and returns its events.
func (t *testTree) line(s string) []event {
	events := t.output.line(s)
	for _, e := range events {
		if e.test == "" {
			continue
		}
		n := t.node(e.test)
		switch e.action {
		case actLog:
			n.lines = append(n.lines, e.text)
		default:
			n.verdict, n.took = e.action, e.text
		}
	}
	return events
}
