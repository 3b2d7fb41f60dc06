package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"

extern uintptr_t context_get(void);
extern void context_keep(uintptr_t);
*/
import "C"

import (
	"unsafe"

	"github.com/penstock-io/penstock/bindings/abi"
)

// table has what C knows by a handle.
var table abi.Table

// The codes are those of the header.
var _ = map[bool]int{false: 0, C.PENSTOCK_INVALID == abi.Invalid && C.PENSTOCK_MISSING == abi.Missing &&
	C.PENSTOCK_TIMEOUT == abi.Timeout: 1}

// fail is the code of an error, which it also leaves with the caller.
func fail(out *C.penstock_error, err error) C.int32_t {
	code, retriable := abi.CodeOf(err)
	if out != nil && code != abi.OK {
		out.code, out.retriable = C.int32_t(code), 0
		if retriable {
			out.retriable = 1
		}
		text(err.Error(), &out.text[0], C.size_t(len(out.text)))
	}
	return C.int32_t(code)
}

// kept calls f, and leaves the thread of C the CUDA context that it has.
func kept[T any](f func() (T, error)) (T, error) {
	defer C.context_keep(C.context_get())
	return abi.Guarded(f)
}

// made is a call that makes something, and returns its handle.
func made(out *C.penstock_error, f func() (uint64, error)) C.penstock_handle {
	h, err := kept(f)
	if err != nil {
		fail(out, err)
		return 0
	}
	return C.penstock_handle(h)
}

// counted is a call that returns a number of 0 or more.
func counted[N C.int32_t | C.int64_t](out *C.penstock_error, f func() (N, error)) N {
	n, err := kept(f)
	if err != nil {
		return N(fail(out, err))
	}
	return n
}

// done is a call that succeeds or fails.
func done(out *C.penstock_error, f func() error) C.int32_t {
	return counted(out, func() (C.int32_t, error) { return C.PENSTOCK_OK, f() })
}

// said is a call that returns text.
func said(to *C.char, n C.size_t, out *C.penstock_error, f func() (string, error)) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		s, err := f()
		if err != nil {
			return 0, err
		}
		return text(s, to, n), nil
	})
}

// text writes s to C and returns its length.
func text(s string, to *C.char, n C.size_t) C.int64_t {
	if to != nil && n > 0 {
		b := unsafe.Slice((*byte)(unsafe.Pointer(to)), n)
		k := copy(b[:n-1], s)
		b[k] = 0
	}
	return C.int64_t(len(s))
}

func str(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}
