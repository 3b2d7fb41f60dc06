package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// MaxRank is the largest number of dimensions of a tensor.
const MaxRank = 32

// Desc describes a tensor without its data: plain values that can be copied, compared with Equal
// and printed. It opens and holds nothing. The slices belong to the maker of the Desc; functions of
// this package never change or keep those that they get, except where a Desc is stored in a Tensor.
type Desc struct {
	DType DType
	// Shape has the size of each dimension, slowest first. An empty shape is a scalar: one element.
	// A size of 0 is allowed.
	Shape []int64
	// Strides has the distance between neighbours along each dimension, in elements, never
	// negative. Nil means row-major contiguous. A stride of 0 repeats the same elements.
	Strides []int64
}

// Validate checks everything that the other methods rely on: a known dtype, at most MaxRank
// dimensions, none negative, as many strides as dimensions, none negative, and sizes that fit in 63
// bits. Zero dimensions are left out of the product, as numpy does, so that [2^40, 2^40, 0] is
// refused in any order of its dimensions.
func (d Desc) Validate() error {
	_, err := d.Bytes()
	return err
}

// Elems is the number of elements: the product of the shape. It fails where Validate does on the
// shape.
func (d Desc) Elems() (int64, error) {
	if len(d.Shape) > MaxRank {
		return 0, fmt.Errorf("tensor: shape has %d dimensions; expected at most %d", len(d.Shape), MaxRank)
	}
	product, empty := int64(1), false
	for i, n := range d.Shape {
		switch {
		case n < 0:
			return 0, fmt.Errorf("tensor: dimension %d of shape %v is negative", i, d.Shape)
		case n == 0:
			empty = true
		default:
			var ok bool
			if product, ok = mul(product, n); !ok {
				return 0, fmt.Errorf("tensor: shape %v has more than 2^63-1 elements", d.Shape)
			}
		}
	}
	// The check of the bytes comes before the shortcut for empty tensors, for the same reason.
	if _, err := d.DType.Size(product); err != nil {
		return 0, err
	}
	if empty {
		return 0, nil
	}
	return product, nil
}

// Bytes is the length of the memory that the tensor spans, from the first byte of its first element
// to the last byte of the last one: the size of its elements if it is contiguous, more if strides
// leave gaps, less if a stride of 0 repeats elements. It fails where Validate does.
func (d Desc) Bytes() (int64, error) {
	elems, err := d.Elems()
	if err != nil {
		return 0, err
	}
	if d.Strides == nil {
		return d.DType.Size(elems)
	}
	if len(d.Strides) != len(d.Shape) {
		return 0, fmt.Errorf("tensor: %d strides for %d dimensions; expected one each, or nil for row-major",
			len(d.Strides), len(d.Shape))
	}
	span := int64(1)
	for i, s := range d.Strides {
		if s < 0 {
			return 0, fmt.Errorf("tensor: stride %d of %v is negative; expected at least 0", i, d.Strides)
		}
		step, ok := mul(s, max(d.Shape[i]-1, 0))
		if !ok || span > math.MaxInt64-step {
			return 0, fmt.Errorf("tensor: shape %v with strides %v spans more than 2^63-1 elements", d.Shape, d.Strides)
		}
		span += step
	}
	n, err := d.DType.Size(span)
	if err != nil || elems == 0 {
		return 0, err
	}
	return n, nil
}

// Contiguous reports whether the elements lie in memory one after another in row-major order.
// Strides of dimensions of size 1 do not matter, nor do any strides of an empty tensor. An invalid
// Desc is not contiguous.
func (d Desc) Contiguous() bool { return d.dense(false) }

// ColumnMajor reports whether the elements lie one after another with the first dimension running
// fastest (Fortran order). A tensor with at most one dimension larger than 1 is both row-major and
// column-major.
func (d Desc) ColumnMajor() bool { return d.dense(true) }

func (d Desc) dense(columns bool) bool {
	if d.Validate() != nil {
		return false
	}
	if slices.Contains(d.Shape, 0) {
		return true
	}
	strides := d.Strides
	if strides == nil {
		if !columns {
			return true
		}
		strides = RowMajor(d.Shape)
	}
	want := int64(1)
	for k := range d.Shape {
		i := k
		if !columns {
			i = len(d.Shape) - 1 - k
		}
		if d.Shape[i] != 1 && strides[i] != want {
			return false
		}
		want *= d.Shape[i] // cannot overflow: Validate checked the product
	}
	return true
}

// RowMajor gives the strides of a row-major contiguous tensor of a valid shape: last dimension 1.
// Zero dimensions count as 1.
func RowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	next := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = next
		next *= max(shape[i], 1)
	}
	return strides
}

// ColumnMajor gives the strides of a column-major contiguous tensor of a valid shape: first
// dimension 1. Zero dimensions count as 1.
func ColumnMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	next := int64(1)
	for i := range shape {
		strides[i] = next
		next *= max(shape[i], 1)
	}
	return strides
}

// Equal reports whether both describe the same elements at the same places: same dtype, same shape,
// and the same strides or both row-major contiguous.
func (d Desc) Equal(e Desc) bool {
	if d.DType != e.DType || !slices.Equal(d.Shape, e.Shape) {
		return false
	}
	if (d.Strides == nil) == (e.Strides == nil) && slices.Equal(d.Strides, e.Strides) {
		return true
	}
	return d.Contiguous() && e.Contiguous()
}

// String is the dtype and the shape, then the strides if there are any: "bf16[1024 768]", "f32[2 3]
// strides [1 2]".
func (d Desc) String() string {
	var b strings.Builder
	b.WriteString(d.DType.String())
	fmt.Fprint(&b, d.Shape)
	if d.Strides != nil {
		fmt.Fprintf(&b, " strides %v", d.Strides)
	}
	return b.String()
}

// The binary form, all little-endian:
//
//	offset  size    field
//	0       1       version, 1
//	1       1       dtype code
//	2       1       rank, 0 to 32
//	3       1       flags: bit 0 strides follow; the other bits are 0
//	4       8·rank  dimensions
//	        8·rank  strides, with flag bit 0; only for rank 1 and above
const (
	descVersion   = 1
	descHeader    = 4
	flagStrides   = 1
	descKnownFlag = flagStrides

	// MaxDescSize is the largest binary form of a Desc in bytes.
	MaxDescSize = descHeader + 2*8*MaxRank
)

// AppendBinary appends the binary form, at most MaxDescSize bytes. It fails, with b unchanged,
// where Validate does.
func (d Desc) AppendBinary(b []byte) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return b, err
	}
	flags := byte(0)
	if len(d.Strides) > 0 {
		flags = flagStrides
	}
	b = append(b, descVersion, byte(d.DType), byte(len(d.Shape)), flags)
	for _, n := range d.Shape {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	for _, s := range d.Strides {
		b = binary.LittleEndian.AppendUint64(b, uint64(s))
	}
	return b, nil
}

// ParseDesc reads one binary Desc from the front of b, which may come from a hostile peer, and
// returns it with the rest of b. What it accepts is valid and encodes to the same bytes again. It
// allocates at most two slices of MaxRank numbers.
func ParseDesc(b []byte) (Desc, []byte, error) {
	if len(b) < descHeader {
		return Desc{}, b, fmt.Errorf("tensor: desc: %d bytes; expected at least %d", len(b), descHeader)
	}
	if b[0] != descVersion {
		return Desc{}, b, fmt.Errorf("tensor: desc: version %d at byte 0; expected %d", b[0], descVersion)
	}
	dtype, err := DTypeOf(b[1])
	if err != nil {
		return Desc{}, b, fmt.Errorf("tensor: desc: byte 1: %w", err)
	}
	rank, flags := int(b[2]), b[3]
	if rank > MaxRank {
		return Desc{}, b, fmt.Errorf("tensor: desc: rank %d at byte 2; expected at most %d", rank, MaxRank)
	}
	if flags&^descKnownFlag != 0 || flags&flagStrides != 0 && rank == 0 {
		return Desc{}, b, fmt.Errorf("tensor: desc: flags %#x at byte 3 with rank %d; expected 0, or 1 (strides) "+
			"with rank 1 and above", flags, rank)
	}
	need := descHeader + 8*rank
	if flags&flagStrides != 0 {
		need += 8 * rank
	}
	if len(b) < need {
		return Desc{}, b, fmt.Errorf("tensor: desc: %d bytes; expected %d for rank %d", len(b), need, rank)
	}
	numbers := func(p []byte) []int64 {
		v := make([]int64, rank)
		for i := range v {
			v[i] = int64(binary.LittleEndian.Uint64(p[8*i:]))
		}
		return v
	}
	d := Desc{DType: dtype}
	if rank > 0 {
		d.Shape = numbers(b[descHeader:])
	}
	if flags&flagStrides != 0 {
		d.Strides = numbers(b[descHeader+8*rank:])
	}
	if err := d.Validate(); err != nil {
		return Desc{}, b, fmt.Errorf("tensor: desc: %w", err)
	}
	return d, b[need:], nil
}

// mul multiplies two numbers that are not negative; ok is false on overflow of 63 bits.
func mul(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, false
	}
	return int64(lo), true
}
