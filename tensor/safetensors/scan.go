package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// Error is a file that does not follow the format: where and why.
type Error struct {
	Offset  int64  // of the offending byte, counted from the beginning of the file
	Problem string // what was found and what was expected
}

func (e *Error) Error() string { return fmt.Sprintf("safetensors: byte %d: %s", e.Offset, e.Problem) }

// quote prints a name from a file, shortened: a name can be as long as the header.
func quote(name string) string {
	const most = 80
	if len(name) <= most {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:most], len(name))
}

// scanner reads the tokens of JSON that a header may contain. Every position that it reports is an
// offset in the file. It is written for this one grammar, since encoding/json accepts duplicate
// keys and broken UTF-8 silently.
type scanner struct {
	b    []byte // a private copy of the header, valid UTF-8
	pos  int
	base int64 // offset of b in the file
}

func (s *scanner) at() int64 { return s.base + int64(s.pos) }

func (s *scanner) fail(offset int64, format string, args ...any) error {
	return &Error{Offset: offset, Problem: fmt.Sprintf(format, args...)}
}

// found describes the next byte, for messages.
func (s *scanner) found() string {
	if s.pos >= len(s.b) {
		return "the end of the header"
	}
	r, _ := utf8.DecodeRune(s.b[s.pos:])
	return fmt.Sprintf("%q", r)
}

// peek skips white space and returns the next byte without taking it; 0 at the end of the header.
func (s *scanner) peek() byte {
	for s.pos < len(s.b) {
		switch c := s.b[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// take takes the byte c, after white space, or fails and says what it is for.
func (s *scanner) take(c byte, what string) error {
	if s.peek() != c || s.pos >= len(s.b) {
		return s.fail(s.at(), "found %s; expected %q %s", s.found(), c, what)
	}
	s.pos++
	return nil
}

// more is called in front of an element or the end of a list that closes with end: it takes the
// comma between elements or the end, and reports whether an element follows.
func (s *scanner) more(first bool, end byte, what string) (bool, error) {
	if s.peek() == end {
		s.pos++
		return false, nil
	}
	if first {
		return true, nil
	}
	if s.peek() != ',' {
		return false, s.fail(s.at(), "found %s; expected ',' or %q in %s", s.found(), end, what)
	}
	s.pos++
	return true, nil
}

// str takes a string and returns its value and where it began.
func (s *scanner) str(what string) (string, int64, error) {
	s.peek()
	begin := s.at()
	if err := s.take('"', "to begin "+what); err != nil {
		return "", begin, err
	}
	from := s.pos
	var out []byte // used once an escape makes the value differ from the text
	for s.pos < len(s.b) {
		switch c := s.b[s.pos]; {
		case c == '"':
			text := s.b[from:s.pos]
			s.pos++
			if out != nil {
				text = append(out, text...)
			}
			return string(text), begin, nil
		case c == '\\':
			out = append(out, s.b[from:s.pos]...)
			r, err := s.escape()
			if err != nil {
				return "", begin, err
			}
			out = utf8.AppendRune(out, r)
			from = s.pos
		case c < 0x20:
			return "", begin, s.fail(s.at(), "control character %q inside %s; expected an escape such as \\u%04x", c,
				what, c)
		default:
			s.pos++
		}
	}
	return "", begin, s.fail(begin, "%s has no closing quote in the header", what)
}

// escape takes one escape sequence, or the two of a surrogate pair.
func (s *scanner) escape() (rune, error) {
	begin := s.at()
	if s.pos+1 >= len(s.b) {
		return 0, s.fail(begin, `the header ends inside an escape`)
	}
	c := s.b[s.pos+1]
	s.pos += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		r, ok := s.hex4()
		if !ok {
			return 0, s.fail(begin, `found \u without four hexadecimal digits`)
		}
		if !utf16.IsSurrogate(r) {
			return r, nil
		}
		if s.pos+1 < len(s.b) && s.b[s.pos] == '\\' && s.b[s.pos+1] == 'u' {
			s.pos += 2
			if low, ok := s.hex4(); ok {
				if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
					return pair, nil
				}
			}
		}
		return 0, s.fail(begin, `\u%04x is half of a surrogate pair; expected both halves`, r)
	}
	return 0, s.fail(begin, `found the escape \%c; expected one of \" \\ \/ \b \f \n \r \t \u`, c)
}

// maxDepth bounds the nesting of a value that is skipped.
const maxDepth = 32

// skip takes a value of any kind, nested to this depth at most.
func (s *scanner) skip(what string, depth int) error {
	c := s.peek()
	switch {
	case c == '"':
		_, _, err := s.str(what)
		return err
	case (c == '{' || c == '[') && depth == 0:
		return s.fail(s.at(), "%s is nested deeper than %d", what, maxDepth)
	case c == '{' || c == '[':
		s.pos++
		for first := true; ; first = false {
			more, err := s.more(first, c+2, what) // '}' or ']'
			if err != nil || !more {
				return err
			}
			if c == '{' {
				if _, _, err := s.str("a key in " + what); err != nil {
					return err
				}
				if err := s.take(':', "in "+what); err != nil {
					return err
				}
			}
			if err := s.skip(what, depth-1); err != nil {
				return err
			}
		}
	}
	from, begin := s.pos, s.at()
	for s.pos < len(s.b) && bytes.IndexByte([]byte("+-.0123456789Eaeflnrstu"), s.b[s.pos]) >= 0 {
		s.pos++
	}
	if !json.Valid(s.b[from:s.pos]) {
		s.pos = from
		return s.fail(begin, "found %s; expected a value of JSON for %s", s.found(), what)
	}
	return nil
}

func (s *scanner) hex4() (rune, bool) {
	if len(s.b)-s.pos < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.pos : s.pos+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.pos += 4
	return r, true
}

// integer takes a number that must be a plain integer from 0 to 2^63-1.
func (s *scanner) integer(what string) (int64, error) {
	c := s.peek()
	begin, from := s.at(), s.pos
	if c == '-' {
		return 0, s.fail(begin, "%s is negative; expected an integer of at least 0", what)
	}
	var v int64
	for s.pos < len(s.b) && '0' <= s.b[s.pos] && s.b[s.pos] <= '9' {
		digit := int64(s.b[s.pos] - '0')
		if v > (math.MaxInt64-digit)/10 {
			return 0, s.fail(begin, "%s is above 2^63-1", what)
		}
		v = 10*v + digit
		s.pos++
	}
	if s.pos == from {
		return 0, s.fail(begin, "found %s; expected an integer of at least 0 for %s", s.found(), what)
	}
	if s.b[from] == '0' && s.pos > from+1 {
		return 0, s.fail(begin, "%s has a leading zero", what)
	}
	if s.pos < len(s.b) && (s.b[s.pos] == '.' || s.b[s.pos] == 'e' || s.b[s.pos] == 'E') {
		return 0, s.fail(begin, "%s has a fraction or an exponent; expected plain digits", what)
	}
	return v, nil
}
