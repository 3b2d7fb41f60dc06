package cuda

import (
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// out calls f with the address of a T as first argument and returns what f wrote there, with the
// result. At most five arguments follow.
func out[T any](f dl.Func, args ...uintptr) (T, uintptr) {
	v := new(T)
	var r uintptr
	switch len(args) {
	case 0:
		r = f.Call1(uintptr(unsafe.Pointer(v)))
	case 1:
		r = f.Call2(uintptr(unsafe.Pointer(v)), args[0])
	case 2:
		r = f.Call3(uintptr(unsafe.Pointer(v)), args[0], args[1])
	case 3:
		r = f.Call4(uintptr(unsafe.Pointer(v)), args[0], args[1], args[2])
	case 4:
		r = f.Call5(uintptr(unsafe.Pointer(v)), args[0], args[1], args[2], args[3])
	case 5:
		r = f.Call6(uintptr(unsafe.Pointer(v)), args[0], args[1], args[2], args[3], args[4])
	default:
		panic(fmt.Sprintf("cuda: out with %d arguments", len(args)))
	}
	return *v, r
}

// outs is out for functions that write two values.
func outs[A, B any](f dl.Func, args ...uintptr) (A, B, uintptr) {
	a, b := new(A), new(B)
	var r uintptr
	switch len(args) {
	case 0:
		r = f.Call2(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b)))
	case 1:
		r = f.Call3(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b)), args[0])
	case 2:
		r = f.Call4(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b)), args[0], args[1])
	default:
		panic(fmt.Sprintf("cuda: outs with %d arguments", len(args)))
	}
	return *a, *b, r
}

// put stores v at an offset of C memory.
func put[T any](b []byte, offset int, v T) {
	if offset < 0 || offset+int(unsafe.Sizeof(v)) > len(b) {
		panic(fmt.Sprintf("cuda: %d bytes at %d of %d", unsafe.Sizeof(v), offset, len(b)))
	}
	*(*T)(unsafe.Pointer(&b[offset])) = v
}

// lent is C memory for the arguments of one call.
type lent struct{ blocks [][]byte }

func (l *lent) free() {
	for _, b := range l.blocks {
		dl.Free(b)
	}
}

// bytes is the address of n zero bytes.
func (l *lent) bytes(n int) ([]byte, error) {
	b, err := dl.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w: %w", ErrOutOfMemory, err)
	}
	l.blocks = append(l.blocks, b)
	return b, nil
}

// text is the address of s with a zero byte behind it.
func (l *lent) text(s []byte) (uintptr, error) {
	b, err := l.bytes(len(s) + 1)
	if err != nil {
		return 0, err
	}
	copy(b, s)
	return dl.Address(b), nil
}

// place is the address of a copy of v, which has the layout of a structure of C.
func place[T any](l *lent, v T) (uintptr, error) {
	b, err := l.bytes(max(1, int(unsafe.Sizeof(v))))
	if err != nil {
		return 0, err
	}
	put(b, 0, v)
	return dl.Address(b), nil
}

// get is the T at an offset of C memory.
func get[T any](b []byte, offset int) (v T) {
	if offset < 0 || offset+int(unsafe.Sizeof(v)) > len(b) {
		panic(fmt.Sprintf("cuda: %d bytes at %d of %d", unsafe.Sizeof(v), offset, len(b)))
	}
	return *(*T)(unsafe.Pointer(&b[offset]))
}

// address is the address of a byte of C memory.
func address(b []byte, offset int) uintptr { return dl.Address(b[offset:]) }
