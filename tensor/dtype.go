package tensor

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/internal/input"
)

// DType is the type of one element. Its numeric value is its code on the wire and never changes;
// new types get new numbers. The zero value is Invalid.
type DType uint8

// The element types. Multi-byte types are little-endian. The value of each is its wire code.
const (
	Invalid DType = 0
	Bool    DType = 1  // one byte, 0 or 1
	I8      DType = 2  // two's complement
	U8      DType = 3  //
	I16     DType = 4  //
	U16     DType = 5  //
	I32     DType = 6  //
	U32     DType = 7  //
	I64     DType = 8  //
	U64     DType = 9  //
	F16     DType = 10 // IEEE 754 binary16
	BF16    DType = 11 // upper half of a binary32
	F32     DType = 12 // IEEE 754 binary32
	F64     DType = 13 // IEEE 754 binary64
	C64     DType = 14 // two f32: real, imaginary
	C128    DType = 15 // two f64: real, imaginary
	F8E4M3  DType = 16 // OCP 8-bit float E4M3 (no infinities; "fn" in other libraries)
	F8E5M2  DType = 17 // OCP 8-bit float E5M2
	I4      DType = 18 // two elements to a byte, the first in the low half
	U4      DType = 19 // two elements to a byte, the first in the low half
	F4E2M1  DType = 20 // OCP 4-bit float E2M1, two elements to a byte, the first in the low half

	lastDType = F4E2M1
)

// dtypeInfo is what is known of a type. An empty foreign name means that the other format cannot
// hold the type.
type dtypeInfo struct {
	name        string
	bits        int
	safetensors string   // the "dtype" of a safetensors header
	numpy       string   // the "descr" of an npy header
	words       []string // what torch and numpy call it; with the prefix where it means something else in the other one
}

var dtypes = [...]dtypeInfo{
	Invalid: {name: "invalid"},
	Bool:    {"bool", 8, "BOOL", "|b1", []string{"bool_", "boolean"}},
	I8:      {"i8", 8, "I8", "|i1", []string{"int8"}},
	U8:      {"u8", 8, "U8", "|u1", []string{"uint8"}},
	I16:     {"i16", 16, "I16", "<i2", []string{"int16", "short"}},
	U16:     {"u16", 16, "U16", "<u2", []string{"uint16"}},
	I32:     {"i32", 32, "I32", "<i4", []string{"int32", "torch.int"}},
	U32:     {"u32", 32, "U32", "<u4", []string{"uint32"}},
	I64:     {"i64", 64, "I64", "<i8", []string{"int64", "torch.long"}},
	U64:     {"u64", 64, "U64", "<u8", []string{"uint64"}},
	F16:     {"f16", 16, "F16", "<f2", []string{"float16", "fp16", "half"}},
	BF16:    {"bf16", 16, "BF16", "", []string{"bfloat16"}},
	F32:     {"f32", 32, "F32", "<f4", []string{"float32", "fp32", "torch.float"}},
	F64:     {"f64", 64, "F64", "<f8", []string{"float64", "fp64", "double"}},
	C64:     {"c64", 64, "C64", "<c8", []string{"complex64", "torch.cfloat"}},
	C128:    {"c128", 128, "", "<c16", []string{"complex128", "cdouble"}},
	F8E4M3:  {"f8e4m3", 8, "F8_E4M3", "", []string{"float8_e4m3fn"}},
	F8E5M2:  {"f8e5m2", 8, "F8_E5M2", "", []string{"float8_e5m2"}},
	I4:      {"i4", 4, "", "", []string{"int4"}},
	U4:      {"u4", 4, "", "", []string{"uint4"}},
	F4E2M1:  {"f4e2m1", 4, "F4", "", []string{"float4_e2m1fn"}},
}

// spellings maps every lower-case spelling that has one meaning to its type.
//
// Left out on purpose, because they have two meanings: numpy's codes without a byte order ("i4" is
// a 32-bit integer there, "i8" a 64-bit one), which clash with the names of this package;
// safetensors' "F4" in lower case, which is more often numpy's f32; a bare "int", "long", "float"
// or "cfloat", which differ between torch and numpy; "float4_e2m1fn_x2", which counts pairs.
var spellings = func() map[string]DType {
	m := make(map[string]DType, 4*len(dtypes))
	for d := Bool; d <= lastDType; d++ {
		info := &dtypes[d]
		m[info.name] = d
		if info.safetensors != "" && d != F4E2M1 {
			m[strings.ToLower(info.safetensors)] = d
		}
		if info.numpy != "" {
			m[info.numpy] = d
			m["="+info.numpy[1:]] = d // native order; the platforms of this module are little-endian
			if info.bits == 8 {
				m["<"+info.numpy[1:]] = d // numpy takes any order for a single byte
			}
		}
		for _, w := range info.words {
			m[w] = d
		}
	}
	return m
}()

// Words are other names of a valid type that ParseDType takes, such as "float16" and "fp16" for
// F16. The caller owns the slice.
func (d DType) Words() []string { return slices.Clone(dtypes[d].words) }

// DTypes lists all valid types in the order of their wire codes. The caller owns the slice.
func DTypes() []DType {
	all := make([]DType, 0, lastDType)
	for d := Bool; d <= lastDType; d++ {
		all = append(all, d)
	}
	return all
}

// DTypeOf is the type with the given wire code, or an error for a code that no type has.
func DTypeOf(code uint8) (DType, error) {
	if d := DType(code); d.Valid() {
		return d, nil
	}
	return Invalid, fmt.Errorf("tensor: dtype code %d is not known; expected 1 to %d", code, lastDType)
}

// Valid reports whether d is one of the listed types.
func (d DType) Valid() bool { return d > Invalid && d <= lastDType }

// String is the stable lower-case name, such as "bf16"; ParseDType reads it back. For a value that
// is no type it is "dtype(n)".
func (d DType) String() string {
	if d > lastDType {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits is the number of bits that one element takes in memory: 4 for the packed types, 0 for an
// invalid type.
func (d DType) Bits() int {
	if d > lastDType {
		return 0
	}
	return dtypes[d].bits
}

// Safetensors is the name of the type in a safetensors header; ok is false when that format cannot
// hold it.
func (d DType) Safetensors() (name string, ok bool) {
	if d > lastDType {
		return "", false
	}
	return dtypes[d].safetensors, dtypes[d].safetensors != ""
}

// Numpy is the type string of the type in numpy ("<f4"); ok is false when numpy has no such type.
func (d DType) Numpy() (descr string, ok bool) {
	if d > lastDType {
		return "", false
	}
	return dtypes[d].numpy, dtypes[d].numpy != ""
}

// Size is the number of bytes that elems contiguous elements take. The packed 4-bit types are
// rounded up to a whole byte once per tensor, not per row: 3 elements take 2 bytes, and the unused
// high half of the last byte should be zero. It fails for an invalid type, a negative count, and a
// size above 2^63-1.
func (d DType) Size(elems int64) (int64, error) {
	bits := int64(d.Bits())
	switch {
	case bits == 0:
		return 0, fmt.Errorf("tensor: size of %s: not a valid dtype", d)
	case elems < 0:
		return 0, fmt.Errorf("tensor: size of %d elements of %s: expected a count of at least 0", elems, d)
	case bits == 4:
		return elems/2 + elems%2, nil
	}
	width := bits / 8
	if elems > math.MaxInt64/width {
		return 0, fmt.Errorf("tensor: %d elements of %s take more than 2^63-1 bytes", elems, d)
	}
	return elems * width, nil
}

// ParseDType finds the type for a name, whatever library spelled it: the names of this package
// ("bf16"), safetensors ("BF16", "F8_E4M3"), torch ("torch.bfloat16"), numpy by name ("float32",
// "numpy.float32") and by type string with its byte order ("<f4", "|u1"). Case is ignored, except
// that safetensors' "F4" must be in capitals: see the package's names. An unknown name is an error
// with the nearest known names; a big-endian type string is an error that says so.
func ParseDType(s string) (DType, error) {
	if s == "F4" {
		return F4E2M1, nil
	}
	// No known name is near this long, and the search for the nearest one below is quadratic.
	const longest = 48
	if len(s) > longest {
		return Invalid, fmt.Errorf("tensor: unknown dtype %q... (%d bytes); expected a name such as %s", s[:longest],
			len(s), namesList())
	}
	key := strings.ToLower(s)
	if d, ok := spellings[key]; ok {
		return d, nil
	}
	if library, word, ok := strings.Cut(key, "."); ok && (library == "torch" || library == "numpy" || library == "np") {
		key = word
		// A word that keeps a prefix of its own is spelled with that one only.
		if d, ok := spellings[key]; ok && !strings.Contains(key, ".") {
			return d, nil
		}
	}
	if rest, ok := strings.CutPrefix(key, ">"); ok {
		if d, ok := spellings["="+rest]; ok {
			if d.Bits() == 8 {
				return d, nil // one byte has no order
			}
			return Invalid, fmt.Errorf("tensor: dtype %q is big-endian; expected the little-endian %q", s,
				dtypes[d].numpy)
		}
	}
	if key == "f4" {
		return Invalid, fmt.Errorf(`tensor: dtype "f4" is ambiguous: write "f32" or "<f4" for a 32-bit float, "f4e2m1" or "F4" for a 4-bit one`)
	}
	return Invalid, fmt.Errorf("tensor: unknown dtype %q; did you mean %s?", s, strings.Join(nearest(key), " or "))
}

func namesList() string {
	names := make([]string, 0, lastDType)
	for _, d := range DTypes() {
		names = append(names, d.String())
	}
	return strings.Join(names, ", ")
}

// nearest gives the names of at most three types, those with the spelling closest to key.
func nearest(key string) []string {
	type candidate struct {
		d    DType
		dist int
	}
	best := make([]candidate, 0, lastDType)
	for _, d := range DTypes() {
		c := candidate{d, math.MaxInt}
		for _, w := range append([]string{dtypes[d].name, strings.ToLower(dtypes[d].safetensors), dtypes[d].numpy},
			dtypes[d].words...) {
			if w != "" {
				c.dist = min(c.dist, input.Distance(key, w, math.MaxInt))
			}
		}
		best = append(best, c)
	}
	slices.SortStableFunc(best, func(a, b candidate) int { return a.dist - b.dist })
	var names []string
	for _, c := range best[:3] {
		if c.dist <= best[0].dist+1 {
			names = append(names, fmt.Sprintf("%q", c.d.String()))
		}
	}
	return names
}
