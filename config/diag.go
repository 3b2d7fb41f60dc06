package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Severity says how bad a Diagnostic is.
type Severity uint8

// The severities, the worst first.
const (
	Error   Severity = iota // the file is wrong; there is no Config
	Needs                   // the file is right, and asks for what is not here; see Diagnostic
	Warning                 // probably a mistake
	Note                    // good to know
)

var severityNames = [...]string{"error", "needs", "warning", "note"}

func (s Severity) String() string {
	if int(s) < len(severityNames) {
		return severityNames[s]
	}
	return "severity(" + strconv.Itoa(int(s)) + ")"
}

// MarshalText writes the form of String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the form of String.
func (s *Severity) UnmarshalText(text []byte) error {
	i := slices.Index(severityNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("config: severity %q: expected one of %s", text, strings.Join(severityNames[:], ", "))
	}
	*s = Severity(i)
	return nil
}

// Pos is a place in a file. Lines and columns count from 1, columns in characters. The zero Pos is
// no place.
type Pos struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

// IsZero reports that it is no place.
func (p Pos) IsZero() bool { return p.Line == 0 }

func (p Pos) compare(o Pos) int {
	return cmp.Or(cmp.Compare(p.Line, o.Line), cmp.Compare(p.Column, o.Column))
}

// Code names a kind of Diagnostic, for programs. They do not change their meaning.
type Code string

// The codes.
const (
	CodeSyntax      Code = "syntax"        // not YAML, or more of it than is read
	CodeRoot        Code = "root"          // no configuration in the file
	CodeUnknownKey  Code = "unknown-key"   //
	CodeRemovedKey  Code = "removed-key"   // of older versions
	CodeRenamedKey  Code = "renamed-key"   // DAQIRI's name in a file of ours, or the other way round
	CodeDuplicate   Code = "duplicate"     // a key, a name or a number that must be there once
	CodeMissingKey  Code = "missing-key"   //
	CodeType        Code = "type"          // a map where a number belongs
	CodeValue       Code = "value"         // not readable, or out of range
	CodePlaceholder Code = "placeholder"   // <...>, to be filled in
	CodeNoEffect    Code = "no-effect"     // understood, and nothing follows from it
	CodeReference   Code = "reference"     // a name or number that is nowhere
	CodeConflict    Code = "conflict"      // two places of the file cannot both be right
	CodeNotBuilt    Code = "not-built"     // a part that this program does not have
	CodeHost        Code = "host"          // something that this machine does not have
	CodePlacement   Code = "placement"     // cores, NUMA nodes
	CodeApplication Code = "application"   // a section that belongs to a program of the user
	CodeMeaning     Code = "other-meaning" // the same words mean something else than in DAQIRI
)

// Related is another place that a Diagnostic speaks of.
type Related struct {
	At   Pos    `json:"at"`
	Text string `json:"text"`
}

// Diagnostic is one thing to say about a file.
type Diagnostic struct {
	Severity Severity  `json:"severity"`
	Code     Code      `json:"code"`
	File     string    `json:"file"`
	At       Pos       `json:"at"`
	Width    int       `json:"width,omitempty"` // characters that are meant, from At on
	Path     string    `json:"path,omitempty"`  // such as interfaces[0].rx.queues[1].id
	Message  string    `json:"message"`         // what is wrong
	Expected string    `json:"expected,omitempty"`
	Hint     string    `json:"hint,omitempty"` // how to fix it
	Related  []Related `json:"related,omitempty"`
}

func (d *Diagnostic) String() string {
	var b strings.Builder
	b.WriteString(where(d.File, d.At))
	fmt.Fprintf(&b, "%v: %s", d.Severity, d.Message)
	if d.Expected != "" {
		fmt.Fprintf(&b, "; expected %s", d.Expected)
	}
	if d.Hint != "" {
		fmt.Fprintf(&b, "; %s", d.Hint)
	}
	return b.String()
}

func (d *Diagnostic) Error() string { return d.String() }

func where(file string, at Pos) string {
	if at.IsZero() {
		return file + ": "
	}
	return fmt.Sprintf("%s:%d:%d: ", file, at.Line, at.Column)
}

// Diagnostics is all there is to say, by place.
type Diagnostics []Diagnostic

// ErrInvalid is what the error of a wrong file wraps.
var ErrInvalid = errors.New("invalid configuration")

// listError is the errors of a file.
type listError struct{ all Diagnostics }

func (e *listError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s", ErrInvalid, plural(len(e.all), "error"))
	for i := range e.all {
		b.WriteString("\n\t")
		b.WriteString(e.all[i].String())
	}
	return b.String()
}

func (e *listError) Unwrap() error { return ErrInvalid }

// Err returns the errors as one error that wraps ErrInvalid, or nil.
func (d Diagnostics) Err() error {
	if e := d.Only(Error); len(e) > 0 {
		return &listError{e}
	}
	return nil
}

// Only returns those of one severity.
func (d Diagnostics) Only(s Severity) Diagnostics {
	var out Diagnostics
	for _, x := range d {
		if x.Severity == s {
			out = append(out, x)
		}
	}
	return out
}

// Count returns how many there are of a severity.
func (d Diagnostics) Count(s Severity) (n int) {
	for i := range d {
		if d[i].Severity == s {
			n++
		}
	}
	return n
}

// Summary says how many there are of each severity: "2 errors, 1 warning".
func (d Diagnostics) Summary() string {
	var parts []string
	for s, name := range []string{"error", "need", "warning", "note"} {
		if n := d.Count(Severity(s)); n > 0 {
			parts = append(parts, plural(n, name))
		}
	}
	if parts == nil {
		return "no problems found"
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Sort puts them in the order of the file, the worst first at one place.
func (d Diagnostics) Sort() {
	slices.SortStableFunc(d, func(a, b Diagnostic) int {
		return cmp.Or(a.At.compare(b.At), cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message),
			cmp.Compare(a.Path, b.Path))
	})
}

// Text writes them for people, with an excerpt of the file and a caret below what is meant. source
// is the file's text; without it there are no excerpts.
func (d Diagnostics) Text(source []byte) string {
	lines := strings.Split(string(source), "\n")
	var b strings.Builder
	for i := range d {
		if i > 0 {
			b.WriteByte('\n')
		}
		d[i].write(&b, lines, len(source) > 0)
	}
	return b.String()
}

// maxExcerpt is how many characters of a line are shown; a longer one is cut around the place.
const maxExcerpt = 120

func (d *Diagnostic) write(b *strings.Builder, lines []string, excerpt bool) {
	fmt.Fprintf(b, "%s%v: %s\n", where(d.File, d.At), d.Severity, d.Message)
	gutter := strings.Repeat(" ", max(3, len(strconv.Itoa(d.At.Line)))+1)
	if excerpt && d.At.Line >= 1 && d.At.Line <= len(lines) {
		text, caret := excerptOf(strings.TrimRight(lines[d.At.Line-1], "\r"), d.At.Column, max(1, d.Width))
		fmt.Fprintf(b, "%*d | %s\n%s | %s\n", len(gutter)-1, d.At.Line, text, gutter[1:], caret)
	}
	if d.Expected != "" {
		fmt.Fprintf(b, "%s= expected %s\n", gutter, d.Expected)
	}
	if d.Hint != "" {
		fmt.Fprintf(b, "%s= %s\n", gutter, d.Hint)
	}
	for _, r := range d.Related {
		fmt.Fprintf(b, "%s= line %d: %s\n", gutter, r.At.Line, r.Text)
	}
}

// excerptOf returns a line and the line below it with the caret. Control characters become dots,
// and tabs arrows, of one column.
func excerptOf(line string, column, width int) (text, caret string) {
	runes := []rune(line)
	for i, r := range runes {
		switch {
		case r == '\t':
			runes[i] = '→'
		case !unicode.IsPrint(r):
			runes[i] = '·'
		}
	}
	at := min(max(column-1, 0), len(runes))
	from, to := 0, len(runes)
	if to > maxExcerpt {
		from = max(0, at-maxExcerpt/3)
		to = min(len(runes), from+maxExcerpt)
	}
	var c strings.Builder
	if from > 0 {
		text = "..."
		c.WriteString("   ")
	}
	text += string(runes[from:to])
	if to < len(runes) {
		text += "..."
	}
	c.WriteString(strings.Repeat(" ", at-from) + "^")
	if n := min(width, to-at) - 1; n > 0 {
		c.WriteString(strings.Repeat("~", n))
	}
	return text, c.String()
}
