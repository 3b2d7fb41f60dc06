package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/penstock-io/penstock/tensor"
)

// MaxHeader is the longest header in bytes that is read or written, the limit of the reference
// implementation.
const MaxHeader = 100_000_000

const (
	prefix      = 8 // bytes of the header's length
	metadataKey = "__metadata__"
)

// dtypes maps the format's own spelling, and no other, to the types of package tensor.
var dtypes = func() map[string]tensor.DType {
	m := make(map[string]tensor.DType)
	for _, d := range tensor.DTypes() {
		if name, ok := d.Safetensors(); ok {
			m[name] = d
		}
	}
	return m
}()

// foreignBits are the bits of an element of the types that the format has and package tensor has
// not.
var foreignBits = map[string]int64{"F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}

// entry is one tensor of a header before its place in the data has been checked.
type entry struct {
	name       string
	desc       tensor.Desc
	dtype      string // as the header has it
	opaque     bool   // it has a type or a key that is not known
	begin, end int64
	at         int64 // offset in the file of the name
	offsetsAt  int64 // offset in the file of data_offsets
}

// Parse reads a whole file from memory. The tensors are views of b: they live as long as b, and b
// must not change while they are in use. The header itself is copied before it is checked, so b may
// be memory that another process can write. Every failure is an *Error.
func Parse(b []byte) (*File, error) {
	if len(b) < prefix {
		return nil, &Error{int64(len(b)), "the file ends inside the length of the header; expected 8 bytes"}
	}
	var s scanner
	n := binary.LittleEndian.Uint64(b)
	switch {
	case n > MaxHeader:
		return nil, s.fail(0, "header length %d; expected at most %d", n, MaxHeader)
	case n > uint64(len(b)-prefix):
		return nil, s.fail(0, "header length %d, but the file has only %d bytes after it; is it truncated?", n,
			len(b)-prefix)
	}
	s = scanner{b: bytes.Clone(b[prefix : prefix+int(n)]), base: prefix}
	data := b[prefix+int(n):]
	if !utf8.Valid(s.b) {
		for size := 0; ; s.pos += size {
			var r rune
			if r, size = utf8.DecodeRune(s.b[s.pos:]); r == utf8.RuneError && size <= 1 {
				return nil, s.fail(s.at(), "byte %#02x is not UTF-8", s.b[s.pos])
			}
		}
	}
	if len(s.b) == 0 || s.b[0] != '{' {
		return nil, s.fail(s.at(), "found %s; expected '{' to begin the header", s.found())
	}
	entries, f, err := s.header()
	if err != nil {
		return nil, err
	}
	if err := f.place(&s, entries, data); err != nil {
		return nil, err
	}
	return f, nil
}

// header reads the JSON object: all that can be checked without the data.
func (s *scanner) header() ([]entry, *File, error) {
	f := &File{index: make(map[string]int)}
	var entries []entry
	metadataAt := int64(-1)
	s.pos++ // the brace that Parse has seen
	for first := true; ; first = false {
		more, err := s.more(first, '}', "the header")
		if err != nil {
			return nil, nil, err
		}
		if !more {
			break
		}
		name, at, err := s.str("a tensor's name")
		if err != nil {
			return nil, nil, err
		}
		if err := s.take(':', "after the name "+quote(name)); err != nil {
			return nil, nil, err
		}
		if name == metadataKey {
			if metadataAt >= 0 {
				return nil, nil, s.fail(at, "%s for the second time; the first is at byte %d", metadataKey, metadataAt)
			}
			metadataAt = at
			if s.peek(); bytes.HasPrefix(s.b[s.pos:], []byte("null")) { // as some writers say that there is none
				s.pos += len("null")
				continue
			}
			if f.metadata, err = s.metadata(); err != nil {
				return nil, nil, err
			}
			continue
		}
		if k, twice := f.index[name]; twice {
			return nil, nil, s.fail(at, "tensor %s for the second time; the first is at byte %d", quote(name),
				entries[k].at)
		}
		e := entry{name: name, at: at}
		if err := s.entry(&e); err != nil {
			return nil, nil, err
		}
		f.index[name] = len(entries)
		entries = append(entries, e)
	}
	if s.peek(); s.pos != len(s.b) {
		return nil, nil, s.fail(s.at(), "found %s behind the header's closing brace; expected only white space",
			s.found())
	}
	return entries, f, nil
}

// metadata reads an object of strings.
func (s *scanner) metadata() (map[string]string, error) {
	if err := s.take('{', "to begin "+metadataKey); err != nil {
		return nil, err
	}
	m := make(map[string]string)
	for first := true; ; first = false {
		more, err := s.more(first, '}', metadataKey)
		if err != nil || !more {
			return m, err
		}
		key, at, err := s.str("a key of " + metadataKey)
		if err != nil {
			return nil, err
		}
		if _, twice := m[key]; twice {
			return nil, s.fail(at, "key %s of %s for the second time", quote(key), metadataKey)
		}
		if err := s.take(':', "after the key "+quote(key)); err != nil {
			return nil, err
		}
		if m[key], _, err = s.str("the value of " + quote(key) + ", a string as all of " + metadataKey); err != nil {
			return nil, err
		}
	}
}

// entry reads the object of one tensor and checks what it says of itself.
func (s *scanner) entry(e *entry) error {
	const (
		hasDType = 1 << iota
		hasShape
		hasOffsets
	)
	name := "tensor " + quote(e.name)
	if err := s.take('{', "to begin "+name); err != nil {
		return err
	}
	seen := 0
	var dtypeAt, shapeAt int64
	for first := true; ; first = false {
		more, err := s.more(first, '}', name)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		key, at, err := s.str("a key of " + name)
		if err != nil {
			return err
		}
		bit := 0
		switch key {
		case "dtype":
			bit = hasDType
		case "shape":
			bit = hasShape
		case "data_offsets":
			bit = hasOffsets
		default: // what it changes about the tensor is not known
			e.opaque = true
		}
		if seen&bit != 0 {
			return s.fail(at, "%s has %s for the second time", name, key)
		}
		seen |= bit
		if err := s.take(':', "after "+key); err != nil {
			return err
		}
		s.peek()
		switch bit {
		case hasDType:
			dtypeAt = s.at()
			err = s.dtype(e, name)
		case hasShape:
			shapeAt = s.at()
			e.desc.Shape, err = s.integers("a dimension of "+name, tensor.MaxRank)
		case hasOffsets:
			e.offsetsAt = s.at()
			err = s.offsets(e, name)
		default:
			err = s.skip("the value of "+quote(key), maxDepth)
		}
		if err != nil {
			return err
		}
	}
	for i, key := range [...]string{"dtype", "shape", "data_offsets"} {
		if seen&(1<<i) == 0 {
			return s.fail(e.at, "%s has no %s", name, key)
		}
	}
	if !e.opaque && e.desc.DType == tensor.Invalid {
		e.opaque = true
		if err := s.foreign(e, name, dtypeAt, shapeAt); err != nil {
			return err
		}
	}
	if e.opaque {
		return nil
	}
	size, err := e.desc.Bytes()
	if err != nil {
		return s.fail(shapeAt, "%s: %v", name, err)
	}
	if elems, _ := e.desc.Elems(); e.desc.DType.Bits() < 8 && elems%2 != 0 {
		return s.fail(dtypeAt, "%s: %d elements of %s do not fill whole bytes; the format expects an even number", name,
			elems, e.desc.DType)
	}
	if size != e.end-e.begin {
		return s.fail(e.offsetsAt, "%s: data_offsets [%d,%d] hold %d bytes; expected %d for %s", name, e.begin, e.end,
			e.end-e.begin, size, e.desc)
	}
	return nil
}

func (s *scanner) dtype(e *entry, name string) error {
	text, _, err := s.str("the dtype of " + name)
	e.dtype, e.desc.DType = text, dtypes[text]
	return err
}

// foreign checks the size of a tensor whose type package tensor does not have.
func (s *scanner) foreign(e *entry, name string, dtypeAt, shapeAt int64) error {
	bits, ok := foreignBits[e.dtype]
	if !ok {
		return nil
	}
	bytes := tensor.Desc{DType: tensor.U8, Shape: e.desc.Shape}
	elems, err := bytes.Elems()
	switch {
	case err != nil || elems > math.MaxInt64/bits:
		return s.fail(shapeAt, "%s: %v of %s takes more than 2^63-1 bits", name, e.desc.Shape, e.dtype)
	case elems*bits%8 != 0:
		return s.fail(dtypeAt, "%s: %d elements of %s do not fill whole bytes", name, elems, e.dtype)
	case elems*bits/8 != e.end-e.begin:
		return s.fail(e.offsetsAt, "%s: data_offsets [%d,%d] hold %d bytes; expected %d for %s%v", name, e.begin, e.end,
			e.end-e.begin, elems*bits/8, e.dtype, e.desc.Shape)
	}
	return nil
}

func (s *scanner) offsets(e *entry, name string) error {
	at := s.at()
	pair, err := s.integers("a data offset of "+name, 2)
	if err != nil {
		return err
	}
	if len(pair) != 2 {
		return s.fail(at, "%s: data_offsets has %d numbers; expected 2: [begin,end]", name, len(pair))
	}
	if pair[0] > pair[1] {
		return s.fail(at, "%s: data_offsets [%d,%d] end before they begin", name, pair[0], pair[1])
	}
	e.begin, e.end = pair[0], pair[1]
	return nil
}

// integers reads a list of at most most integers.
func (s *scanner) integers(what string, most int) ([]int64, error) {
	if err := s.take('[', "to begin the list that has "+what); err != nil {
		return nil, err
	}
	var v []int64
	for first := true; ; first = false {
		more, err := s.more(first, ']', "the list that has "+what)
		if err != nil || !more {
			return v, err
		}
		s.peek()
		at := s.at()
		n, err := s.integer(what)
		if err != nil {
			return nil, err
		}
		if len(v) == most {
			return nil, s.fail(at, "more than %d numbers in the list that has %s", most, what)
		}
		v = append(v, n)
	}
}

// place checks that the tensors cover the data exactly, in some order, and makes the views, in the
// order of the file.
func (f *File) place(s *scanner, entries []entry, data []byte) error {
	// Tensors without bytes sort in front of the tensor that begins where they are; the rest of a
	// tie keeps the header's order.
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	size := int64(len(data))
	f.dataAt = prefix + int64(len(s.b))
	next := int64(0)
	for i := range entries {
		e := &entries[i]
		switch {
		case e.end > size:
			return s.fail(e.offsetsAt,
				"tensor %s: data_offsets [%d,%d], but the file has only %d bytes of data; is it truncated?",
				quote(e.name), e.begin, e.end, size)
		case e.begin > next:
			return s.fail(e.offsetsAt,
				"tensor %s begins at %d of the data, but the one before it ends at %d; expected no hole", quote(e.name),
				e.begin, next)
		case e.begin < next:
			return s.fail(e.offsetsAt, "tensor %s begins at %d of the data and overlaps %s, which ends at %d",
				quote(e.name), e.begin, quote(entries[i-1].name), next)
		}
		next = e.end
	}
	if next != size {
		return s.fail(f.dataAt+next, "%d bytes of data that belong to no tensor; expected the file to end here",
			size-next)
	}
	f.tensors = make([]tensor.Tensor, len(entries))
	f.offsets = make([]int64, len(entries))
	for i := range entries {
		e := &entries[i]
		if e.opaque {
			if f.opaque == nil {
				f.opaque = make(map[string]Opaque)
			}
			f.opaque[e.name] = Opaque{e.dtype, e.desc.Shape}
			e.desc = tensor.Desc{DType: tensor.U8, Shape: []int64{e.end - e.begin}}
		}
		t, err := tensor.New(e.name, e.desc, data[e.begin:e.end])
		if err != nil {
			return s.fail(e.offsetsAt, "%v", err)
		}
		f.tensors[i] = t
		f.offsets[i] = f.dataAt + e.begin
		f.index[e.name] = i
	}
	return nil
}
