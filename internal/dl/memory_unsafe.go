package dl

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// alignment of memory of Alloc: a cache line.
const alignment = 64

// Alloc is n bytes of C memory, zero, aligned to 64 bytes, for structures that a library keeps or
// that are filled again and again without the garbage collector looking at them. No Go pointer may
// be stored in it. The caller owns it and gives it to [Free].
func Alloc(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("dl: alloc %d bytes: expected at least 1", n)
	}
	c, err := libc()
	if err != nil {
		return nil, err
	}
	var p uintptr
	if e := int32(c.memalign.Call3(uintptr(unsafe.Pointer(&p)), alignment, uintptr(n))); e != 0 {
		return nil, fmt.Errorf("dl: alloc %d bytes of C memory: errno %d: the machine or this process' limit has "+
			"no more", n, e)
	}
	b := Bytes(p, n)
	clear(b)
	return b, nil
}

// Free gives back memory of [Alloc], as it was returned: with its first byte. It must not be used
// any more. Free of nil does nothing.
func Free(b []byte) {
	if cap(b) == 0 {
		return
	}
	c, err := libc()
	if err != nil {
		panic(err) // b is not from Alloc
	}
	c.free.Call1(Address(b))
}

// Address is the address of the first byte of b. It keeps nothing alive, so that it is for memory
// of [Alloc] and of C.
func Address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Bytes are the n bytes of C memory at address p. They end with that memory.
func Bytes(p uintptr, n int) []byte { return unsafe.Slice(At[byte](p), n) }

// At is the C structure at address p, nil where p is 0. T has the layout of the structure and no Go
// pointers.
func At[T any](p uintptr) *T {
	// By way of a pointer to the address, since the address of C memory is no misuse of a pointer
	// to Go's.
	return *(**T)(unsafe.Pointer(&p))
}

// CString is s with a zero byte behind it, in Go memory, for one call.
func CString(s string) (*byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errors.New("dl: a string for C has a zero byte inside: expected text without it")
	}
	b := make([]byte, len(s)+1)
	copy(b, s)
	return &b[0], nil
}

// dlvsym is the address of a function in one of its versions. The caller holds the thread.
func dlvsym(handle uintptr, name, version *byte) (uintptr, error) {
	c, err := libc()
	if err != nil {
		return 0, err
	}
	if a := c.dlvsym.Call3(handle, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(version))); a != 0 {
		return a, nil
	}
	return 0, errors.New(GoString(c.dlerror.Call0()))
}

// maxString is the length at which GoString stops, in bytes.
const maxString = 1 << 20

// GoString is a copy of the C string at address p, at most 1 MiB of it; empty where p is 0.
func GoString(p uintptr) string {
	if p == 0 {
		return ""
	}
	n := 0
	for n < maxString && *At[byte](p + uintptr(n)) != 0 {
		n++
	}
	return string(Bytes(p, n))
}
