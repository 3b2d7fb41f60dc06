package cli

import (
	"fmt"
	"io"
	"strings"
)

// listWidth is the number of columns of lists where the output is no terminal.
const listWidth = 80

// widthOf is how wide lists on w may be.
func widthOf(w io.Writer) int {
	if n := terminalWidth(w); n > 0 {
		return n
	}
	return listWidth
}

// list is a table that keeps to a number of columns of the terminal: fields that do not fit go on a
// further line of each row, below their titles. The first row are the titles.
type list struct {
	indent string
	width  int
	single bool // fields that do not fit are left out instead
	rows   [][]string
}

func (l *list) add(cells ...string) { l.rows = append(l.rows, cells) }

// print writes the table. A field that is wider than a line is broken at its blanks.
func (l *list) print(w io.Writer) error {
	const gap, deeper = 2, 4
	var widths []int
	for _, r := range l.rows {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], columns(cell))
		}
	}
	var lines [][2]int // from which field to which
	from, at := 0, len(l.indent)
	for i, n := range widths {
		if i > from && at+n > l.width {
			lines = append(lines, [2]int{from, i})
			from, at = i, len(l.indent)+deeper
		}
		at += n + gap
	}
	lines = append(lines, [2]int{from, len(widths)})
	if l.single {
		lines = lines[:1]
	}
	for _, r := range l.rows {
		for k, part := range lines {
			indent := l.indent
			if k > 0 {
				indent += strings.Repeat(" ", deeper)
			}
			var b strings.Builder
			b.WriteString(indent)
			for i := part[0]; i < min(part[1], len(r)); i++ {
				b.WriteString(r[i] + strings.Repeat(" ", widths[i]-columns(r[i])+gap))
			}
			line := strings.TrimRight(b.String(), " ")
			switch {
			case l.single:
				line = cut(line, l.width)
			case columns(line) > l.width:
				line = wrapped(line, len(indent), l.width)
			}
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
	}
	return nil
}
