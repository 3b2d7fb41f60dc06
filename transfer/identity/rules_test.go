package identity

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const exampleRules = `# who may do what
allow trainer  all
allow gpu-0    read,write
allow gpu-*    read,list	# all others
allow *-spare  none
default        status

deny name old-*
deny name gpu-13
deny serial 00a1f
`

func TestRules(t *testing.T) {
	r, err := ParseRules([]byte(exampleRules))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Rights{"trainer": All, "gpu-0": Read | Write, "gpu-": Read | List,
		"gpu-7-spare": Read | List,
		"x-spare":     0, "gpu": Status, "other": Status, "": 0, strings.Repeat("x", 64): 0} {
		if got := r.Rights(name); got != want {
			t.Errorf("%q: %v, expected %v", name, got, want)
		}
	}
	for _, c := range []struct {
		name, serial string
		want         bool
	}{{"old-1", "1", true}, {"gpu-13", "1", true}, {"gpu-14", "1", false}, {"x", "a1f", true}, {"x", "a1", false},
		{"", "", false}} {
		if got := r.Denied(c.name, c.serial); got != c.want {
			t.Errorf("denied %q %q: %v", c.name, c.serial, got)
		}
	}
	var none *Rules
	if none.Rights("x") != 0 || none.Denied("x", "1") || none.String() != "default none\n" {
		t.Error("nil rules give rights")
	}
	if r, err := ParseRules(nil); err != nil || r.Rights("x") != 0 {
		t.Errorf("an empty file: %v, %v; expected no rights for anyone", r, err)
	}
}

func TestRulesMistakes(t *testing.T) {
	for _, c := range []struct {
		text, want string
		line       int
	}{
		{"allow a", "expected: allow PATTERN RIGHTS", 1},
		{"allow a read write", "4 words", 1},
		{"\n\nallow a reed", `rights "reed"`, 3},
		{"allow A read", `pattern "A" can match no name`, 1},
		{"allow a*b* read", "more than one *", 1},
		{"allow a/* read", "character 2", 1},
		{"allow gpu-* read\n#\nallow gpu-7 all", `"gpu-7" can never hold: "gpu-*" stands above it and matches first (line 1)`, 3},
		{"allow a read\nallow a read", "(line 1)", 2},
		{"default read\ndefault read", "already on line 1", 2},
		{"default all\nallow a read", "expected default after the last allow", 2},
		{"default", "1 words", 1},
		{"default some", `rights "some"`, 1},
		{"deny a", "deny serial HEXADECIMAL", 1},
		{"deny names a", `"names"`, 1},
		{"deny name a\ndeny name a", "already denied", 2},
		{"deny serial 0A", "lower case hexadecimal", 1},
		{"deny serial " + strings.Repeat("1", 41), "1 to 40", 1},
		{"deny serial 1\ndeny serial 01", "already denied", 2},
		{"permit a all", "expected allow, default or deny", 1},
		{"allow a\x00b all", "column 8", 1},
		{"allow ä all", "printable ASCII", 1},
		{strings.Repeat("x", 4000), "expected allow", 1},
	} {
		_, err := ParseRules([]byte(c.text))
		var at *SyntaxError
		if !errors.As(err, &at) || !errors.Is(err, ErrPolicy) || at.Line != c.line ||
			!strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
			t.Errorf("%.60q: %v; expected line %d and %q", c.text, err, c.line, c.want)
		}
	}
	var many strings.Builder
	for i := range maxRules + 1 {
		fmt.Fprintf(&many, "deny serial %x\n", i+1)
	}
	if _, err := ParseRules([]byte(many.String())); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("too many rules: %v", err)
	}
	if _, err := ParseRules(make([]byte, maxFile+1)); err == nil {
		t.Error("a file that is too large was read")
	}
}

var pattern = rapid.Custom(func(t *rapid.T) string {
	return rapid.StringOfN(rapid.SampledFrom([]rune("ab-*")), 1, 5, -1).Filter(func(p string) bool {
		return checkPattern(p) == ""
	}).Draw(t, "pattern")
})

// A pattern is the regular expression that one thinks it is, and one that covers another matches
// whatever that does.
func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		p, name string
		want    bool
	}{{"*", "a", true}, {"a*a", "a", false}, {"a*a", "aa", true}, {"ab*ba", "aba", false}, {"ab*ba", "abba", true},
		{"*a", "ba", true}, {"a*", "ba", false}} {
		if got := match(c.p, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.p, c.name, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p, q := pattern.Draw(t, "p"), pattern.Draw(t, "q")
		re := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*") + "$")
		n := rapid.StringOfN(rapid.SampledFrom([]rune("ab-")), 0, 7, -1).Draw(t, "name")
		if got, want := match(p, n), re.MatchString(n); got != want {
			t.Fatalf("%q matches %q: %v", p, n, got)
		}
		if covers(p, q) && match(q, n) && !match(p, n) {
			t.Fatalf("%q covers %q but does not match %q", p, q, n)
		}
		// What matches both ends of q, with anything in the middle, decides whether p covers it.
		if probe := strings.ReplaceAll(q, "*", "zzzzzzzz"); covers(p, q) != match(p, probe) {
			t.Fatalf("%q covers %q: %v", p, q, covers(p, q))
		}
	})
}

func sameRules(a, b *Rules) bool { return a.String() == b.String() }

func FuzzRules(f *testing.F) {
	f.Add([]byte(exampleRules))
	f.Add([]byte("allow *a* all"))
	f.Add([]byte("default none\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := ParseRules(text)
		if err != nil {
			var at *SyntaxError
			if !errors.As(err, &at) || at.Line < 1 || at.Line > 1+strings.Count(string(text), "\n") {
				t.Fatalf("error without a line of the file: %v", err)
			}
			return
		}
		again, err := ParseRules([]byte(r.String()))
		if err != nil || !sameRules(r, again) {
			t.Fatalf("%q is not read as what was written: %v", r.String(), err)
		}
		for _, name := range []string{"", "a", "gpu-1", "old-1"} {
			if r.Rights(name) != again.Rights(name) || r.Denied(name, "1") != again.Denied(name, "1") ||
				r.Rights(name)&^All != 0 {
				t.Fatalf("%q differs", name)
			}
		}
	})
}

func TestQuestionsDoNotAllocate(t *testing.T) {
	r, err := ParseRules([]byte(exampleRules))
	if err != nil {
		t.Fatal(err)
	}
	ca := authority(t)
	for what, i := range map[string]*Identity{
		"in memory":  issue(t, ca, "a", IssueOptions{Options: Options{Rules: r}}),
		"from files": open(t, node(t, ca, "a"), Options{Rules: r, Interval: time.Hour}),
	} {
		if n := testing.AllocsPerRun(100, func() { i.Rights("gpu-7"); i.Denied("gpu-7", "ff") }); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkQuestions(b *testing.B) {
	r, err := ParseRules([]byte(exampleRules))
	if err != nil {
		b.Fatal(err)
	}
	i := open(b, node(b, authority(b), "a"), Options{Rules: r})
	b.ReportAllocs()
	for b.Loop() {
		i.Rights("gpu-7")
	}
}
