package cli

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock/share"
	"github.com/spf13/cobra"
)

// printableLines makes the text of an error, which may quote what a peer said, fit for a terminal.
// Its own lines stay.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = escapeControls(l)
	}
	return strings.Join(lines, "\n  ")
}

// escapeControls is share.Printable except that a backslash stays: sentences of ours may have
// escaped already. A tab is a blank, for errors quote lines of files.
func escapeControls(s string) string {
	parts := strings.Split(strings.ReplaceAll(s, "\t", "    "), `\`)
	for i, p := range parts {
		parts[i] = share.Printable(p)
	}
	return strings.Join(parts, `\`)
}

// columns is how many columns of a terminal s takes at most. Terminals disagree about the width of
// runes beyond the simple scripts, so those count two.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if r < 0x1100 {
		return 1
	}
	return 2
}

// shorten cuts the middle out of s so that it takes at most n columns: the ends of names tell them
// apart.
func shorten(s string, n int) string {
	if columns(s) <= n {
		return s
	}
	const dots = ".."
	if n < len(dots)+2 {
		return cut(s, n)
	}
	head := cut(s, (n-len(dots))/3)
	room := n - len(dots) - columns(head)
	tail := ""
	for rest := s[len(head):]; rest != ""; {
		r, size := utf8.DecodeLastRuneInString(rest)
		if room -= runeColumns(r); room < 0 {
			break
		}
		rest = rest[:len(rest)-size]
		tail = s[len(head)+len(rest):]
	}
	return head + dots + tail
}

// cut is the beginning of s that takes at most n columns.
func cut(s string, n int) string {
	for i, r := range s {
		if n -= runeColumns(r); n < 0 {
			return s[:i]
		}
	}
	return s
}

// helpWidth is the number of columns of help.
const helpWidth = 80

// fillHelp breaks the texts of a command and of those below it into lines.
func fillHelp(c *cobra.Command) {
	c.Long = filled(c.Long)
	for _, s := range c.Commands() {
		fillHelp(s)
	}
}

// filled breaks paragraphs into lines that fit; lines that begin with blanks stay as they are.
func filled(text string) string {
	var out, words []string
	flush := func() {
		if words != nil {
			out = append(out, wrapped(strings.Join(words, " "), 0, helpWidth))
			words = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			flush()
			out = append(out, line)
			continue
		}
		words = append(words, line)
	}
	flush()
	return strings.Join(out, "\n")
}

func formatRate(bytesPerSecond float64) string { return formatBytes(uint64(bytesPerSecond)) + "/s" }

// formatETA is a time as a clock shows it: 0:07, 12:34, 3:04:05.
func formatETA(d time.Duration) string {
	s := int64((d + time.Second - 1) / time.Second)
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// count is a number with a noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
