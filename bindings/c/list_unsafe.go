package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include <stdlib.h>
#include "penstock.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

func describeTensor(d *tensor.Desc, to *C.penstock_tensor) {
	*to = C.penstock_tensor{rank: C.uint32_t(len(d.Shape))}
	text(d.DType.String(), &to.dtype[0], C.size_t(len(to.dtype)))
	for i, n := range d.Shape {
		to.shape[i] = C.int64_t(n)
	}
}

//export penstock_list
func penstock_list(h C.penstock_handle, prefix *C.char, timeout C.int64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		ctx, end := abi.Within(int64(timeout))
		defer end()
		return table.List(ctx, uint64(h), str(prefix))
	})
}

//export penstock_entries
func penstock_entries(h C.penstock_handle, to *C.penstock_entry, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		if to == nil || n == 0 {
			return 0, fmt.Errorf("no room for a penstock_entry: %w", abi.ErrInvalid)
		}
		all, err := table.Entries(uint64(h), int(min(n, 1<<30)), func(all []*transfer.Remote) func() {
			return entries(unsafe.Slice(to, n), all)
		})
		return C.int64_t(len(all)), err
	})
}

// entries describes exports to C. Their names lie in one piece of C's memory, which end frees.
func entries(to []C.penstock_entry, all []*transfer.Remote) (end func()) {
	size := 0
	for _, r := range all {
		size += len(r.Name) + 1
	}
	names := C.malloc(C.size_t(size))
	b := unsafe.Slice((*byte)(names), size)
	at := 0
	for i, r := range all {
		to[i] = C.penstock_entry{name: (*C.char)(unsafe.Add(names, at)), size: C.uint64_t(r.Size()),
			rights: C.uint32_t(abi.RightsOf(r))}
		at += copy(b[at:], r.Name)
		b[at] = 0
		at++
		if r.Tensor != nil {
			to[i].described = 1
			describeTensor(r.Tensor, &to[i].what)
		}
	}
	return func() { C.free(names) }
}
