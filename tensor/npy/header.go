package npy

import (
	"fmt"
	"math"

	"github.com/penstock-io/penstock/tensor"
)

// Error is a file that does not follow the format, or holds what package tensor cannot: where and
// why.
type Error struct {
	Offset  int64  // of the offending byte, counted from the beginning of the file
	Problem string // what was found and what was expected
}

func (e *Error) Error() string { return fmt.Sprintf("npy: byte %d: %s", e.Offset, e.Problem) }

// header is what the dict says.
type header struct {
	dtype     tensor.DType
	bigEndian bool
	descr     string
	descrAt   int64
	columns   bool // fortran_order
	shape     []int64
	shapeAt   int64
}

// scanner reads the dict. Every position that it reports is an offset in the file.
type scanner struct {
	b    []byte
	pos  int
	base int64
}

func (s *scanner) at() int64 { return s.base + int64(s.pos) }

func (s *scanner) fail(offset int64, format string, args ...any) error {
	return &Error{Offset: offset, Problem: fmt.Sprintf(format, args...)}
}

// peek skips white space and returns the next byte without taking it; 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.b) {
		switch c := s.b[s.pos]; c {
		case ' ', '\t', '\n', '\r', '\f':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) found() string {
	if s.pos >= len(s.b) {
		return "the end of the header"
	}
	return fmt.Sprintf("%q", s.b[s.pos:s.pos+1])
}

func (s *scanner) take(c byte, what string) error {
	if s.peek() != c || s.pos >= len(s.b) {
		return s.fail(s.at(), "found %s; expected %q %s", s.found(), c, what)
	}
	s.pos++
	return nil
}

// header reads the dict and what follows it, which may only be white space.
func (s *scanner) header() (h header, err error) {
	if err := s.take('{', "to begin the header"); err != nil {
		return h, err
	}
	const (
		hasDescr = 1 << iota
		hasOrder
		hasShape
	)
	seen := 0
	for s.peek() != '}' {
		key, at, err := s.str("a key")
		if err != nil {
			return h, err
		}
		bit := 0
		switch key {
		case "descr":
			bit = hasDescr
		case "fortran_order":
			bit = hasOrder
		case "shape":
			bit = hasShape
		default:
			return h, s.fail(at, "key %q; expected 'descr', 'fortran_order' or 'shape'", key)
		}
		if seen&bit != 0 {
			return h, s.fail(at, "key %q for the second time", key)
		}
		seen |= bit
		if err := s.take(':', "after the key "+key); err != nil {
			return h, err
		}
		s.peek()
		switch bit {
		case hasDescr:
			h.descrAt = s.at()
			err = s.descr(&h)
		case hasOrder:
			h.columns, err = s.boolean()
		case hasShape:
			h.shapeAt = s.at()
			h.shape, err = s.shape()
		}
		if err != nil {
			return h, err
		}
		if s.peek() == ',' {
			s.pos++
		} else if s.peek() != '}' {
			return h, s.fail(s.at(), "found %s; expected ',' or '}' after the value of %s", s.found(), key)
		}
	}
	closing := s.at()
	s.pos++
	for i, key := range [...]string{"descr", "fortran_order", "shape"} {
		if seen&(1<<i) == 0 {
			return h, s.fail(closing, "the header ends without the key '%s'", key)
		}
	}
	if s.peek(); s.pos != len(s.b) {
		return h, s.fail(s.at(), "found %s behind the header's closing brace; expected only white space", s.found())
	}
	return h, nil
}

// str takes a quoted string of printable ASCII without escapes: nothing else occurs in a header
// that has a use here.
func (s *scanner) str(what string) (string, int64, error) {
	const longest = 64
	quote := s.peek()
	begin := s.at()
	if quote != '\'' && quote != '"' {
		return "", begin, s.fail(begin, "found %s; expected a quote to begin %s", s.found(), what)
	}
	s.pos++
	from := s.pos
	for ; s.pos < len(s.b) && s.pos-from <= longest; s.pos++ {
		switch c := s.b[s.pos]; {
		case c == quote:
			text := string(s.b[from:s.pos])
			s.pos++
			return text, begin, nil
		case c < 0x20 || c > 0x7e || c == '\\':
			return "", begin, s.fail(s.at(), "found %q inside %s; expected printable ASCII without escapes",
				s.b[s.pos:s.pos+1], what)
		}
	}
	return "", begin, s.fail(begin, "%s has no closing quote within %d bytes", what, longest)
}

func (s *scanner) boolean() (bool, error) {
	for word, value := range map[string]bool{"True": true, "False": false} {
		if end := s.pos + len(word); end <= len(s.b) && string(s.b[s.pos:end]) == word {
			s.pos = end
			return value, nil
		}
	}
	return false, s.fail(s.at(), "found %s; expected True or False for fortran_order", s.found())
}

// shape takes a tuple of integers: (), (3,), (2, 3), (2, 3,).
func (s *scanner) shape() ([]int64, error) {
	if err := s.take('(', "to begin the tuple of the shape"); err != nil {
		return nil, err
	}
	var shape []int64
	comma := true // whether a comma (or the start) is behind us, so that a dimension may follow
	for s.peek() != ')' {
		at := s.at()
		if !comma {
			return nil, s.fail(at, "found %s; expected ',' or ')' in the shape", s.found())
		}
		n, err := s.integer()
		if err != nil {
			return nil, err
		}
		if len(shape) == tensor.MaxRank {
			return nil, s.fail(at, "more than %d dimensions", tensor.MaxRank)
		}
		shape = append(shape, n)
		if comma = s.peek() == ','; comma {
			s.pos++
		}
	}
	if len(shape) == 1 && !comma {
		return nil, s.fail(s.at(), "found ')'; expected ',': a tuple of one is written (%d,)", shape[0])
	}
	s.pos++
	return shape, nil
}

func (s *scanner) integer() (int64, error) {
	begin, from := s.at(), s.pos
	var v int64
	for s.pos < len(s.b) && '0' <= s.b[s.pos] && s.b[s.pos] <= '9' {
		digit := int64(s.b[s.pos] - '0')
		if v > (math.MaxInt64-digit)/10 {
			return 0, s.fail(begin, "a dimension is above 2^63-1")
		}
		v = 10*v + digit
		s.pos++
	}
	switch {
	case s.pos == from:
		return 0, s.fail(begin, "found %s; expected an integer of at least 0 for a dimension", s.found())
	case s.b[from] == '0' && s.pos > from+1:
		return 0, s.fail(begin, "a dimension has a leading zero")
	case s.pos < len(s.b) && s.b[s.pos] == 'L':
		return 0, s.fail(s.at(), "found 'L': the file was written by Python 2; load and save it with a current numpy")
	}
	return v, nil
}

// descr takes the type string.
func (s *scanner) descr(h *header) error {
	if s.peek() == '[' {
		return s.fail(s.at(), "found '[': a structured type, which a tensor cannot hold; expected a type string such "+
			"as '<f4'")
	}
	text, at, err := s.str("the type string")
	if err != nil {
		return err
	}
	h.descr = text
	if d, ok := littleEndian[text]; ok {
		h.dtype = d
		return nil
	}
	if len(text) > 1 && text[0] == '>' {
		if d, ok := littleEndian["<"+text[1:]]; ok {
			h.dtype, h.bigEndian = d, d.Bits() > 8 // a single byte has no order
			return nil
		}
	}
	kind := byte(0)
	if len(text) > 1 {
		kind = text[1]
	}
	switch kind {
	case 'O':
		return s.fail(at, "type '%s': Python objects are stored as a pickle, which is a program; refused", text)
	case 'V':
		return s.fail(at, "type '%s' is raw memory; numpy writes it for types it does not know, such as bfloat16: "+
			"save those as safetensors", text)
	}
	return s.fail(at, "type '%s'; expected one of %v", text, knownDescrs())
}

// littleEndian maps the type strings that need no swapping to their types; single bytes with either
// order character.
var littleEndian = func() map[string]tensor.DType {
	m := make(map[string]tensor.DType)
	for _, d := range tensor.DTypes() {
		if descr, ok := d.Numpy(); ok {
			m[descr] = d
			m["<"+descr[1:]] = d
		}
	}
	return m
}()

func knownDescrs() []string {
	var all []string
	for _, d := range tensor.DTypes() {
		if descr, ok := d.Numpy(); ok {
			all = append(all, descr)
		}
	}
	return all
}
