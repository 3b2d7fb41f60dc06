package cli

import (
	"fmt"
	"strings"
	"time"
)

// status is what a display shows of a command that moves bytes, at one moment.
type status struct {
	what    string // the name, printable
	name    string // as the peer calls it
	done    uint64
	total   uint64
	rate    float64 // bytes per second
	eta     time.Duration
	hasETA  bool
	path    string // that the bytes take; "" while there is none
	resumed uint64 // bytes that were there before; 0: none
	files   int    // that are done, when fileTotal is not 0
	filesOf int
	failed  int    // files; not in files
	problem string // what holds it up now: "connection lost, attempt 3 in 2 s"
}

// The least room that a name gets before others have to go.
const leastName = 12

// render is one line of at most width columns for a terminal. With less room it says less: first
// the path and the account of bytes go, at last the name; the percentage stays.
func (s status) render(width int) string {
	if width <= 0 {
		return ""
	}
	percent := fmt.Sprintf("%3d %%", percent(s.done, s.total))
	// The parts in their order on the line, and in the order in which they are left out.
	type part struct {
		text string
		drop int // 0: never
	}
	parts := []part{{"", 0}, {percent, 0}}
	add := func(drop int, text string) {
		if text != "" {
			parts = append(parts, part{text, drop})
		}
	}
	if s.filesOf > 0 {
		text := fmt.Sprintf("%d/%d files", s.files, s.filesOf)
		if s.failed > 0 {
			text += fmt.Sprintf(", %d FAILED", s.failed)
		}
		add(5, text)
	}
	add(3, fmt.Sprintf("%s / %s", formatBytes(s.done), formatBytes(s.total)))
	if s.problem != "" {
		add(7, s.problem)
	} else {
		add(6, formatRate(s.rate))
		eta := "ETA -:--"
		if s.hasETA {
			eta = "ETA " + formatETA(s.eta)
		}
		add(4, eta)
		add(2, s.path)
	}
	if s.resumed > 0 {
		add(1, "resumed at "+formatBytes(s.resumed))
	}
	join := func(name string) string {
		var b strings.Builder
		for i, p := range parts {
			text := p.text
			if i == 0 {
				text = name
			}
			if text == "" {
				continue
			}
			if b.Len() > 0 {
				b.WriteString("  ")
			}
			b.WriteString(text)
		}
		return b.String()
	}
	for {
		rest := columns(join(""))
		room := width - rest - 2
		if room >= min(columns(s.what), leastName) {
			return join(shorten(s.what, room))
		}
		lowest := -1
		for i, p := range parts {
			if p.drop > 0 && (lowest < 0 || p.drop < parts[lowest].drop) {
				lowest = i
			}
		}
		if lowest < 0 {
			if room >= 4 {
				return join(shorten(s.what, room))
			}
			return cut(percent, width)
		}
		parts = append(parts[:lowest], parts[lowest+1:]...)
	}
}

// line is the same for a log: everything, on one line.
func (s status) line() string {
	s.what = strings.TrimSpace(s.what)
	return s.render(1 << 20)
}
