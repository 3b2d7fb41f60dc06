package guest

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOutput(t *testing.T) {
	const text = "noise before\n" +
		"\x16=== RUN   TestA\n    a_test.go:1: hello\nno newline\x16=== RUN   TestA/x_y\n        a_test.go:2: from x\n" +
		"--- FAIL: TestFake (0.00s)\n" + // printed by the test, without the mark
		"\x16=== PAUSE TestA/x_y\n\x16=== CONT  TestA/x_y\n\x16=== NAME  TestA\n    a_test.go:3: again\n" +
		"\x16=== RUN   TestA/p/q\n\x16--- SKIP: TestA/p/q (0.00s)\n    a_test.go:4: why\n" +
		"\x16--- FAIL: TestA/x_y (1.25s)\n\x16--- FAIL: TestA (2.00s)\n\x16FAIL\nexit\n"
	tree := newTree()
	var got []string
	for line := range strings.Lines(text) {
		for _, e := range tree.line(strings.TrimSuffix(line, "\n")) {
			got = append(got, fmt.Sprintf("%d %s|%s", e.action, e.test, e.text))
		}
	}
	want := []string{
		"0 |noise before", "1 TestA|", "0 TestA|    a_test.go:1: hello", "0 TestA|no newline", "1 TestA/x_y|",
		"0 TestA/x_y|        a_test.go:2: from x",
		"0 TestA/x_y|--- FAIL: TestFake (0.00s)", "0 TestA|    a_test.go:3: again", "1 TestA/p/q|", "4 TestA/p/q|0.00s",
		"0 TestA/p/q|    a_test.go:4: why",
		"3 TestA/x_y|1.25s", "3 TestA|2.00s", "0 |exit",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	top := tree.nodes["TestA"]
	if top == nil || top.verdict != actFail || len(top.children) != 2 || top.children[1].verdict != actSkip {
		t.Errorf("tree %+v", top)
	}
}

func TestReport(t *testing.T) {
	t.Setenv("CI", "")
	run := func(text string, v ...Verdict) *fake {
		f := newFake("TestA")
		f.do(func(f *fake) {
			r := newReport(f, len(v))
			for line := range strings.Lines(text) {
				for i := range v {
					r.line(i+1, strings.TrimSuffix(line, "\n"))
				}
			}
			for i := range v {
				v[i].ID = i + 1
			}
			r.finish(Result{Guests: v})
		})
		return f
	}
	const pass = "\x16=== RUN   TestA\n    x\n\x16--- PASS: TestA (0.00s)\n\x16PASS\n"
	for _, c := range []struct {
		name, text string
		v          []Verdict
		fail, skip bool
		says       string
	}{
		{"pass", pass, []Verdict{{}}, false, false, "x"},
		{"pair", pass, []Verdict{{}, {}}, false, false, "guest 2: x"},
		{"exit status", pass, []Verdict{{Exit: 2, Console: "oops"}}, true, false, "oops"},
		{"guest died", pass, []Verdict{{}, {Err: errNoVerdict, Exit: -1}}, true, false, errNoVerdict.Error()},
		{"nothing", "\x16PASS\n", []Verdict{{}}, true, false, "did not run inside"},
		{"no end", "\x16=== RUN   TestA\n", []Verdict{{}}, true, false, "did not end"},
		{"skip", "\x16=== RUN   TestA\n\x16--- SKIP: TestA (0.00s)\n    why\n", []Verdict{{}}, false, true, "why"},
		{"fail", "\x16=== RUN   TestA\n    bad\n\x16--- FAIL: TestA (0.00s)\n", []Verdict{{Exit: 1}}, true, false, "bad"},
	} {
		f := run(c.text, c.v...)
		if f.fail != c.fail || f.skip != c.skip || !strings.Contains(f.text(), c.says) {
			t.Errorf("%s: failed %v, skipped %v; log:\n%s", c.name, f.fail, f.skip, f.text())
		}
	}
	f := run("\x16=== RUN   TestA\n\x16=== RUN   TestA/sub\n        deep\n", Verdict{Exit: 2})
	if sub := f.sub(t, "sub"); !sub.fail || !strings.Contains(sub.text(), "deep") ||
		!strings.Contains(sub.text(), "did not end") {
		t.Errorf("a subtest without an end: failed %v, %s", sub.fail, sub.text())
	}
	t.Setenv("CI", "true")
	if f := run("\x16=== RUN   TestA\n\x16--- SKIP: TestA (0.00s)\n", Verdict{}); !f.fail || f.skip {
		t.Errorf("in CI a skip inside failed: %v, skipped: %v", f.fail, f.skip)
	}
}

func TestPattern(t *testing.T) {
	if got := pattern("TestA/b.c"); got != `^TestA$/^b\.c$` {
		t.Error(got)
	}
}

func TestTail(t *testing.T) {
	var c tail
	for i := range 3000 {
		fmt.Fprintf(&c, "line %d of the console, and some more to fill it\r\n", i)
	}
	s := c.String()
	if len(s) > consoleKept+100 || !strings.Contains(s, "are lost") || !strings.Contains(s, "line 2999 ") ||
		strings.Contains(s, "\r") {
		t.Errorf("kept %d bytes, from %q", len(s), s[:80])
	}
}

// TestMeeting is a meeting over an ordinary connection.
func TestMeeting(t *testing.T) {
	if _, err := Meet(t.Context()); ID() == 0 && err == nil {
		t.Error("Meet outside of a guest")
	}
	a, b := pipe(t)
	errs := make(chan error)
	go func() { errs <- b.Barrier("one") }()
	if err := a.Barrier("one"); err != nil {
		t.Error(err)
	}
	if err := <-errs; err != nil {
		t.Error(err)
	}
	go func() { errs <- b.Barrier("three") }()
	if err := a.Barrier("two"); err == nil || !strings.Contains(err.Error(), "three") {
		t.Errorf("different places: %v", err)
	}
	<-errs
	a.SetDeadline(time.Now().Add(time.Millisecond))
	var v int
	if err := a.Recv(&v); !os.IsTimeout(err) {
		t.Errorf("a deadline: %v", err)
	}
}

func pipe(t *testing.T) (a, b *Meeting) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b = newMeeting(c), newMeeting(d)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestLines(t *testing.T) {
	var got []string
	ups := 0
	m := &machine{tag: "tag", up: func() { ups++ }, lines: func(s string) { got = append(got, s) }}
	for _, s := range []string{"tag up 1.5", "", "a", "", "", "b", ""} {
		if m.line(s) {
			t.Errorf("%q is taken for the last line", s)
		}
	}
	if !m.line("tag exit 3") || m.last != "exit 3" || m.boot == 0 || ups != 1 {
		t.Errorf("last line %q, boot %v, up %d times", m.last, m.boot, ups)
	}
	if want := []string{"", "a", "", "", "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, expected %q", got, want)
	}
}
