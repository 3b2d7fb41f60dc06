package proc

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/penstock-io/penstock/internal/sys"
)

// Terminal is the terminal of a process that was started with Spec.Columns, seen by its user. Its
// methods may be called from any goroutine.
type Terminal struct {
	user *os.File

	mu     sync.Mutex
	screen *Screen
	more   chan struct{} // closed and replaced with each output, closed for good at the end
	ended  bool
}

// Terminal is the process's terminal; nil without Spec.Columns.
func (p *Process) Terminal() *Terminal { return p.term }

// read shows what the process writes until no process has the terminal open.
func (t *Terminal) read() {
	defer t.user.Close()
	b := make([]byte, 4096)
	for {
		n, err := t.user.Read(b)
		t.mu.Lock()
		t.screen.Write(b[:n])
		close(t.more)
		if err != nil { // EIO, and whatever else it is, there is no more
			t.ended = true
			t.mu.Unlock()
			return
		}
		t.more = make(chan struct{})
		t.mu.Unlock()
	}
}

// Type presses keys: "\x03" is Ctrl-C.
func (t *Terminal) Type(keys string) error {
	if _, err := t.user.WriteString(keys); err != nil {
		return fmt.Errorf("proc: typing %q: %w", keys, err)
	}
	return nil
}

// Text is what the terminal shows, with the lines that went out at its top, without trailing
// spaces.
func (t *Terminal) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.Text()
}

// Drawn reports whether the program shows a screen of its own now: the alternate one, or one
// without a cursor.
func (t *Terminal) Drawn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.main != nil || t.screen.hidden
}

// Resize changes the size of the terminal; its program gets a signal.
func (t *Terminal) Resize(columns, rows int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := sys.ResizeTerminal(t.user, columns, rows); err != nil {
		return fmt.Errorf("proc: %w", err)
	}
	t.screen.Columns, t.screen.Rows = columns, rows
	return nil
}

// Misuse lists what was written that a plain terminal would not do: sequences that Screen does not
// know, and lines that ran over the right edge.
func (t *Terminal) Misuse() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.screen.Misuse)
}

// Wait waits until what the terminal shows matches, also for a moment only, and returns all of what
// it showed then.
func (t *Terminal) Wait(ctx context.Context, re *regexp.Regexp) (string, error) {
	return t.WaitFor(ctx, fmt.Sprintf("%q", re), re.MatchString)
}

// WaitFor is Wait for what a function says of the text. It is also called for screens that are
// drawn in part: a program's output comes in pieces.
func (t *Terminal) WaitFor(ctx context.Context, what string, shows func(text string) bool) (string, error) {
	for {
		t.mu.Lock()
		text, more, ended := t.screen.Text(), t.more, t.ended
		t.mu.Unlock()
		if shows(text) {
			return text, nil
		}
		if ended {
			return "", fmt.Errorf("proc: the process ended before its terminal showed %s; it shows:\n%s", what, text)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return "", fmt.Errorf("proc: the terminal did not show %s: %w; it shows:\n%s", what, context.Cause(ctx),
				text)
		}
	}
}

// Screen interprets what a program writes to a terminal, as far as line-oriented programs go:
// carriage return, line feed, backspace, erasing within the line, and attributes of text, which it
// ignores; and of programs that draw the whole screen the alternate screen, the way home, and
// erasing what is below. It is a pure state machine over bytes. Lines that a real terminal would
// have scrolled out stay.
type Screen struct {
	Columns int
	Rows    int      // of the alternate screen, which must not scroll; 0: any number
	Misuse  []string // in words, without repetition

	lines   [][]rune
	row     int
	col     int
	pending []byte  // an escape sequence or a rune that is not complete
	main    *Screen // the lines that come back with the end of the alternate screen; nil: this is it
	hidden  bool    // the cursor
}

// NewScreen is an empty screen of that width.
func NewScreen(columns int) *Screen { return &Screen{Columns: columns, lines: [][]rune{nil}} }

// Write interprets b. It never fails; what is wrong is in Misuse.
func (s *Screen) Write(b []byte) (int, error) {
	n := len(b)
	b = append(s.pending, b...)
	s.pending = nil
	for len(b) > 0 {
		if b[0] == 0x1b {
			used := s.escape(b)
			if used == 0 {
				s.pending = slices.Clone(b)
				break
			}
			b = b[used:]
			continue
		}
		switch c := b[0]; {
		case c == '\r':
			s.col = 0
		case c == '\n':
			s.down()
		case c == '\b':
			s.col = max(s.col-1, 0)
		case c < 0x20 || c == 0x7f:
			s.misuse(fmt.Sprintf("control character %#02x", c))
		case c < 0x80:
			s.put(rune(c))
		default:
			r, size := decodeRune(b)
			if size == 0 {
				s.pending = slices.Clone(b)
				return n, nil
			}
			s.put(r)
			b = b[size-1:]
		}
		b = b[1:]
	}
	return n, nil
}

// escape interprets the sequence at the beginning of b (ECMA-48, 5.4) and returns its length, 0
// when more has to come.
func (s *Screen) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	if b[1] != '[' {
		s.misuse(fmt.Sprintf("escape sequence %q", b[:2]))
		return 2
	}
	for i := 2; i < len(b); i++ {
		if b[i] < 0x40 {
			continue
		}
		switch q := string(b[2 : i+1]); {
		case b[i] == 'm':
		case q == "K" || q == "0K":
			if line := &s.lines[s.row]; s.col < len(*line) {
				*line = (*line)[:s.col]
			}
		case q == "2K":
			s.lines[s.row] = nil
		case q == "H" && s.main != nil:
			s.row, s.col = 0, 0
		case (q == "J" || q == "0J") && s.main != nil:
			if line := &s.lines[s.row]; s.col < len(*line) {
				*line = (*line)[:s.col]
			}
			s.lines = s.lines[:s.row+1]
		case q == "?1049h" || q == "?1049l":
			s.alternate(b[i] == 'h')
		case q == "?25h" || q == "?25l":
			s.hidden = b[i] == 'l'
		default:
			s.misuse(fmt.Sprintf("escape sequence %q", b[:i+1]))
		}
		return i + 1
	}
	return 0
}

// down goes to the next line.
func (s *Screen) down() {
	s.row++
	if s.row == len(s.lines) {
		s.lines = append(s.lines, nil)
	}
	if s.main != nil && s.Rows > 0 && s.row >= s.Rows {
		s.misuse(fmt.Sprintf("a screen of more than %d lines", s.Rows))
	}
}

// alternate begins or ends the alternate screen.
func (s *Screen) alternate(on bool) {
	switch {
	case on == (s.main != nil):
		s.misuse("the alternate screen begins or ends twice")
	case on:
		s.main = &Screen{lines: s.lines, row: s.row, col: s.col}
		s.lines, s.row, s.col = [][]rune{nil}, 0, 0
	default:
		s.lines, s.row, s.col, s.main = s.main.lines, s.main.row, s.main.col, nil
	}
}

func (s *Screen) put(r rune) {
	if s.col >= s.Columns {
		s.misuse(fmt.Sprintf("a line of more than %d columns: %q", s.Columns, string(s.lines[s.row])))
		s.col = 0
		s.down()
	}
	line := &s.lines[s.row]
	for len(*line) <= s.col {
		*line = append(*line, ' ')
	}
	(*line)[s.col] = r
	s.col++
}

func (s *Screen) misuse(what string) {
	if !slices.Contains(s.Misuse, what) && len(s.Misuse) < 100 {
		s.Misuse = append(s.Misuse, what)
	}
}

// Text is all lines without trailing spaces, up to the last one that is not empty.
func (s *Screen) Text() string {
	var b strings.Builder
	for _, l := range s.lines {
		b.WriteString(strings.TrimRight(string(l), " "))
		b.WriteByte('\n')
	}
	if text := strings.TrimRight(b.String(), "\n"); text != "" {
		return text + "\n"
	}
	return ""
}

// decodeRune is utf8.DecodeRune, but 0 bytes long where b may be the beginning of a rune.
func decodeRune(b []byte) (rune, int) {
	if !utf8.FullRune(b) {
		return 0, 0
	}
	return utf8.DecodeRune(b)
}
