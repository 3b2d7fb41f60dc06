package proc

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

func TestScreen(t *testing.T) {
	for name, c := range map[string]struct {
		in, want string
		misuse   string
	}{
		"plain":          {"one\r\ntwo\r\n", "one\ntwo\n", ""},
		"redrawn":        {"10 % of it\r\x1b[K20 %\r\x1b[Kdone\r\n", "done\n", ""},
		"over":           {"abcdef\rxyz", "xyzdef\n", ""},
		"bold":           {"\x1b[1mloud\x1b[0m", "loud\n", ""},
		"backspace":      {"ab\bc", "ac\n", ""},
		"whole line":     {"abc\x1b[2Kd", "   d\n", ""},
		"runes":          {"gr\xc3\xb6\xc3\x9fe", "größe\n", ""},
		"line feed only": {"a\nb", "a\n b\n", ""},
		"full":           {strings.Repeat("x", 20) + "\r\n", strings.Repeat("x", 20) + "\n", ""},
		"too wide":       {strings.Repeat("x", 21), strings.Repeat("x", 20) + "\nx\n", "more than 20 columns"},
		"cursor up":      {"a\x1b[3Ab", "ab\n", "x1b[3A"},
		"bell":           {"a\ab", "ab\n", "control character 0x07"},
		"alternate":      {"a\x1b[?1049h\x1b[?25l\x1b[Hold\r\nolder\x1b[Hnew\x1b[K\x1b[J", "new\n", ""},
		"and back":       {"a\x1b[?1049h\x1b[Hold\x1b[?1049lb", "ab\n", ""},
		"too high":       {"\x1b[?1049h1\r\n2\r\n3\r\n4", "1\n2\n3\n4\n", "more than 3 lines"},
		"home":           {"a\x1b[Hb", "ab\n", "x1b[H"},
		"other escape":   {"\x1b]0;title", "0;title\n", "x1b]"},
	} {
		// In one piece and byte by byte.
		for _, step := range []int{len(c.in), 1} {
			s := NewScreen(20)
			s.Rows = 3
			for i := 0; i < len(c.in); i += step {
				s.Write([]byte(c.in[i:min(i+step, len(c.in))]))
			}
			if got, misuse := s.Text(), strings.Join(s.Misuse, "; "); got != c.want ||
				(c.misuse == "") != (misuse == "") || !strings.Contains(misuse, c.misuse) {
				t.Errorf("%s, %d at a time: %q, misuse %s; expected %q, %s", name, step, got, misuse, c.want, c.misuse)
			}
		}
	}
}

func TestTerminal(t *testing.T) {
	p := Start(t, Spec{Path: "sh", Args: []string{"-c",
		`trap 'echo bye; exit 4' INT; stty size; echo ready; while :; do sleep 0.1; done`}, Columns: 90, Rows: 7})
	if _, err := p.Terminal().Wait(soon(t), regexp.MustCompile("7 90\nready")); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminal().Type("\x03"); err != nil {
		t.Fatal(err)
	}
	e, err := p.Wait(soon(t))
	if err != nil || e.Code != 4 || p.Output() != "7 90\nready\n^Cbye\n" || len(p.Terminal().Misuse()) > 0 {
		t.Errorf("%v, %v: %q, %v", e, err, p.Output(), p.Terminal().Misuse())
	}
	if _, err := p.Terminal().Wait(context.Background(), regexp.MustCompile("never")); err == nil {
		t.Error("a terminal without a process was waited for")
	}
	// Killed, and started again on a terminal of its own.
	q := p.Restart()
	if _, err := q.Terminal().Wait(soon(t), regexp.MustCompile("ready")); err != nil {
		t.Fatal(err)
	}
	if err := q.Kill(); err != nil {
		t.Error(err)
	}
}

func FuzzScreen(f *testing.F) {
	f.Add("a\x1b[Kb\r\n\xc3", uint8(20))
	f.Fuzz(func(t *testing.T, in string, columns uint8) {
		s := NewScreen(int(columns) + 1)
		s.Write([]byte(in))
		for l := range strings.Lines(s.Text()) {
			if n := len([]rune(strings.TrimSuffix(l, "\n"))); n > int(columns)+1 {
				t.Fatalf("%d columns of %d: %q", n, columns+1, l)
			}
		}
	})
}
