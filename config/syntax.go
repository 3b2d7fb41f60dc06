package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// characters finds what no YAML file may have: bytes that are not UTF-8, and control characters.
func (d *decoder) characters(text []byte) bool {
	if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
		d.add(Error, CodeSyntax, Pos{1, 1}, 1, "", "the file is UTF-16", "UTF-8", "save it as UTF-8")
		return false
	}
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			d.add(Error, CodeSyntax, posAt(text, i), 1, "", fmt.Sprintf("the byte 0x%02x is not UTF-8", text[i]),
				"a file in UTF-8", "save it as UTF-8, or remove the byte")
			return false
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe,
			r == 0xffff:
			d.add(Error, CodeSyntax, posAt(text, i), 1, "", fmt.Sprintf("the control character U+%04X", r),
				"printable characters", `remove it; "\x..", in double quotes, writes one`)
			return false
		}
		i += n
	}
	return true
}

// posAt is the place of a byte.
func posAt(text []byte, at int) Pos {
	line := bytes.LastIndexByte(text[:at], '\n') + 1
	return Pos{1 + bytes.Count(text[:line], []byte("\n")), 1 + utf8.RuneCount(text[line:at])}
}

var (
	yamlLine   = regexp.MustCompile(`^yaml: (line \d+: )?`)
	yamlAnchor = regexp.MustCompile(`^yaml: unknown anchor '(.*)' referenced$`)
	tabbed     = regexp.MustCompile(`(?m)^ *(\t)[ \t]*[^# \t\r\n]`)
	noSpace    = regexp.MustCompile(`^ *(?:- +)?[A-Za-z0-9_]+(:)[^ :/]`)
	noColon    = regexp.MustCompile(`^ *(?:- +)?([A-Za-z0-9_]+)[^:]*$`)
	noDash     = regexp.MustCompile(`^ *(-)[A-Za-z0-9_]+: `)
)

// syntax reports an error of the YAML library. The library's own line is that of what surrounds the
// mistake, so the place is looked for here.
func (d *decoder) syntax(err error, text []byte, read int) {
	// Tabs are the usual reason, and the library's words for them say nothing.
	if m := tabbed.FindSubmatchIndex(text); m != nil {
		d.add(Error, CodeSyntax, posAt(text, m[2]), 1, "", "this line is indented with a tab",
			"spaces: YAML has no tabs in front of a line", "")
		return
	}
	if m := yamlAnchor.FindStringSubmatch(err.Error()); m != nil {
		at := posAt(text, max(0, bytes.Index(text, []byte("*"+m[1]))))
		d.add(Error, CodeSyntax, at, 1+utf8.RuneCountInString(m[1]), "",
			fmt.Sprintf("*%s refers to an anchor that is nowhere before it", m[1]), "",
			fmt.Sprintf("write &%s in front of the value that is meant", m[1]))
		return
	}
	fault, ends := brackets(text)
	// The text up to a line where no bracket is open is a document itself, unless the mistake is in
	// it. The library has read a line or two beyond it.
	k := len(ends)
	for k > 0 && (ends[k-1] > read || refused(text[:ends[k-1]])) {
		k--
	}
	if k == len(ends) {
		d.add(Error, CodeSyntax, posAt(text, fault.at), 1, "", fault.what, "", fault.hint)
		return
	}
	from := 0
	if k > 0 {
		from = ends[k-1]
	}
	line, _, _ := bytes.Cut(text[from:], []byte("\n"))
	for len(bytes.TrimSpace(line)) == 0 && from+len(line)+1 < len(text) {
		from += len(line) + 1
		line, _, _ = bytes.Cut(text[from:], []byte("\n"))
	}
	at := posAt(text, from+len(line)-len(bytes.TrimLeft(line, " ")))
	what := yamlLine.ReplaceAllString(err.Error(), "")
	hint := ""
	switch {
	case strings.Contains(what, "mapping values are not allowed"):
		hint = "a colon too many, or another indentation than the keys beside it: put a text with a colon into quotes"
		before := bytes.TrimRight(text[:from], "\r\n")
		begin := bytes.LastIndexByte(before, '\n') + 1
		for _, x := range []struct {
			find       *regexp.Regexp
			what, hint string
		}{{noSpace, "a space is missing behind the colon", "key: value has one"}, {noColon, "this line has no colon",
			"a key has a colon and a space behind it"},
			{noDash, "a space is missing behind the dash", "write \"- \" in front of an element of a list"}} {
			if m := x.find.FindSubmatchIndex(before[begin:]); m != nil {
				d.add(Error, CodeSyntax, posAt(text, begin+m[2]), 1, "", x.what, "", x.hint)
				return
			}
		}
	case strings.Contains(what, "could not find expected ':'"):
		hint = "a key has a colon and a space behind it"
	case strings.Contains(what, "cannot start any token"):
		hint = "put a text that begins with @, ` or % into quotes"
	case strings.Contains(what, "unknown escape"):
		hint = `in double quotes \ begins an escape: write \\, or use single quotes`
	case strings.Contains(what, "did not find expected"):
		hint = "the indentation is not that of the lines before it, or a dash, a quote or a bracket is missing"
	}
	d.add(Error, CodeSyntax, at, 1, "", "this is not YAML: "+what, "", hint)
}

// refused reports whether a text is no YAML.
func refused(text []byte) bool {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var err error
	for range 2 { // the second document, too
		if err == nil {
			err = guarded(func() error { return dec.Decode(new(yaml.Node)) })
		}
	}
	return err != nil && !errors.Is(err, io.EOF)
}

// lineReader gives a line at a time, so that it tells how far the library has come.
type lineReader struct {
	text []byte
	read int
}

func (r *lineReader) Read(p []byte) (int, error) {
	rest := r.text[r.read:]
	if len(rest) == 0 {
		return 0, io.EOF
	}
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i+1]
	}
	n := copy(p, rest)
	r.read += n
	return n, nil
}

// bracketFault is a bracket or quote without its other half.
type bracketFault struct {
	at         int
	what, hint string
}

// brackets looks for brackets and quotes that do not match, and returns where lines end outside of
// them. It is asked about text that is not YAML, and reads only as much of its grammar as that
// takes.
func brackets(text []byte) (fault bracketFault, ends []int) {
	var open []int         // brackets
	outer := 0             // indentation of the line where the first of them opened
	fresh := true          // a value or a key may begin here
	done := false          // a value has ended, inside of brackets
	block := -1            // indentation of the line that began a text with | or >
	lineAt, indent := 0, 0 // of this line
	for i := 0; i < len(text); i++ {
		c := text[i]
		if i == lineAt {
			rest := text[i:]
			indent = len(rest) - len(bytes.TrimLeft(rest, " "))
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			blank := len(bytes.TrimSpace(line)) == 0
			if block >= 0 && (blank || indent > block) { // in the text
				i += len(line)
				lineAt = i + 1
				ends = append(ends, min(lineAt, len(text)))
				continue
			}
			if len(open) > 0 && !blank && indent <= outer && !bytes.ContainsRune([]byte("]}#"), rune(rest[indent])) {
				return unclosed(text, open), ends
			}
			block = -1
			fresh = true
		}
		next := byte('\n')
		if i+1 < len(text) {
			next = text[i+1]
		}
		spaced := next == ' ' || next == '\t' || next == '\n' || next == '\r'
		switch {
		case c == '\n':
			lineAt = i + 1
			if len(open) == 0 {
				ends = append(ends, lineAt)
			}
		case c == ' ' || c == '\t' || c == '\r':
		case c == '#' && (i == lineAt || text[i-1] == ' ' || text[i-1] == '\t'):
			line, _, _ := bytes.Cut(text[i:], []byte("\n"))
			i += len(line) - 1
		case len(open) > 0 && (c == ',' || c == ']' || c == '}'):
			fresh, done = true, false
			if c == ',' {
				break
			}
			opener := text[open[len(open)-1]]
			if want := opener + 2; c != want { // ] and } are two behind [ and {
				return bracketFault{i, fmt.Sprintf("%c closes %c, which is in line %d", c, opener,
					posAt(text, open[len(open)-1]).Line), fmt.Sprintf("%c closes it", want)}, ends
			}
			open = open[:len(open)-1]
			fresh, done = false, true
		case done && c != ':':
			if len(open) == 0 {
				return bracketFault{i, fmt.Sprintf("%c behind what was closed", c),
					"a bracket or a quote too many, or a line end is missing"}, ends
			}
			return bracketFault{i, "a comma is missing in front of this",
				"elements of [] and {} have commas between them"}, ends
		case fresh && (c == '[' || c == '{'):
			if open = append(open, i); len(open) == 1 {
				outer = indent
			}
		case fresh && (c == '"' || c == '\''):
			end := i + 1
			for end < len(text) && text[end] != c {
				if c == '"' && text[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(text) {
				return bracketFault{i, fmt.Sprintf("the quote %c is not closed", c),
					"it ends nowhere in the file: close it; inside of '...' a ' is written ''"}, ends
			}
			i, fresh, done = end, false, true
		case c == ':' && (spaced || done || len(open) > 0 && (next == ',' || next == ']' || next == '}')),
			(c == '-' || c == '?') && fresh && spaced:
			fresh, done = true, false
		case fresh && len(open) == 0 && (c == '|' || c == '>'):
			block = indent
			fresh = false
		case fresh && (c == '&' || c == '!' || c == '*'):
			for i+1 < len(text) && !bytes.ContainsRune([]byte(" \t\r\n,]}"), rune(text[i+1])) {
				i++
			}
		default:
			fresh = false
		}
		if i == lineAt-1 { // a new line ends what a plain text or a closed value began
			done = done && len(open) > 0
		}
	}
	if len(open) > 0 {
		return unclosed(text, open), ends
	}
	return bracketFault{}, append(ends, len(text))
}

func unclosed(text []byte, open []int) bracketFault {
	at := open[len(open)-1]
	return bracketFault{at, fmt.Sprintf("%c is not closed", text[at]),
		fmt.Sprintf("%c is missing behind the last of its elements", text[at]+2)}
}
