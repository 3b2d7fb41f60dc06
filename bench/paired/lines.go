package paired

import (
	"fmt"
	"io"
	"strings"
)

// Lines writes lines of text for people, and keeps the first error.
type Lines struct {
	W     io.Writer
	Label int // columns of the names of fields
	Width int // columns of a line, which only a word that is longer exceeds
	Err   error
}

// Line writes a line, without the blanks at its end.
func (l *Lines) Line(format string, a ...any) {
	if l.Err == nil {
		_, l.Err = fmt.Fprintln(l.W, strings.TrimRight(fmt.Sprintf(format, a...), " "))
	}
}

// Field writes a name and its text, broken between words.
func (l *Lines) Field(name, text string) {
	line := fmt.Sprintf("%-*s", l.Label, name)
	if len(name) >= l.Label {
		line = name + " "
	}
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && len(line)+1+len(word) > l.Width {
			l.Line("%s", line)
			line, empty = strings.Repeat(" ", l.Label), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	l.Line("%s", line)
}

// Head writes with what a report begins: what was run and when, some fields by name and text (on
// which machine, how), beside what, and what was missing or in the way.
func (r *Report) Head(l *Lines, fields ...[2]string) {
	l.Line("bench %s, %s, %.1f s", r.Bench, r.Began.UTC().Format(dateFormat), r.Took)
	l.Line("")
	for _, f := range fields {
		l.Field(f[0], f[1])
	}
	for _, p := range r.Method.Peers {
		l.Field("beside", p.Name+" "+p.Version)
	}
	for _, m := range r.Missing {
		l.Field("missing", m)
	}
	if s := r.Disturbance(); s != "" {
		l.Field("others", s)
	}
}

// Digits writes a figure with three digits that mean something.
func Digits(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Summary is the machine in a few words.
func (m *Machine) Summary() string {
	virtual := ""
	if m.Virtual {
		virtual = ", virtual"
	}
	return fmt.Sprintf("%s, %s%s, Linux %s, load %.2f", m.CPU, count(m.Cores, "core"), virtual, m.Kernel, m.Load[0])
}
