package mem

import (
	"fmt"
	"unsafe"
)

// Slice is the bytes of a span as numbers in the byte order of this machine: the elements are in
// the region, and hold for as long as Bytes does. The error wraps ErrBounds if the span is not
// inside its region or its length is no multiple of an element, and ErrUnavailable if the elements
// would not be aligned, or the CPU does not reach the memory.
func Slice[T ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64 |
	~complex64 | ~complex128](s Span) ([]T, error) {
	var x T
	size := uint64(unsafe.Sizeof(x))
	switch {
	case !s.Valid():
		return nil, fmt.Errorf("mem: a span of %d bytes from %d is not inside its region: %w", s.Len, s.Off, ErrBounds)
	case s.Region.data == nil:
		return nil, fmt.Errorf("mem: region %q: the CPU does not reach it: %w", s.Region.name, ErrUnavailable)
	case s.Len%size != 0:
		return nil, fmt.Errorf("mem: region %q: %d bytes are no whole number of %T: %w", s.Region.name, s.Len, x,
			ErrBounds)
	case s.Len == 0:
		return []T{}, nil
	}
	p := unsafe.Pointer(unsafe.SliceData(s.Bytes()))
	if align := unsafe.Alignof(x); uintptr(p)%align != 0 {
		return nil, fmt.Errorf("mem: region %q: offset %d is not aligned for %T: expected a multiple of %d: %w",
			s.Region.name, s.Off, x, align, ErrUnavailable)
	}
	return unsafe.Slice((*T)(p), s.Len/size), nil
}
