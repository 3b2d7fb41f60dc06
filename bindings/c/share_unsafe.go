package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/bindings/abi"
	"github.com/penstock-io/penstock/tensor"
)

// describedBy is the tensor that C describes.
func describedBy(t *C.penstock_tensor) (d tensor.Desc, err error) {
	switch {
	case t == nil:
		return d, fmt.Errorf("no penstock_tensor: %w", abi.ErrInvalid)
	case t.rank > tensor.MaxRank || t.reserved != 0:
		return d, fmt.Errorf("a tensor of %d dimensions, reserved %d: expected at most %d, and 0: %w", uint32(t.rank),
			uint32(t.reserved), tensor.MaxRank, abi.ErrInvalid)
	}
	name := unsafe.Slice((*byte)(unsafe.Pointer(&t.dtype[0])), len(t.dtype))
	if d.DType, err = tensor.ParseDType(cut(name)); err != nil {
		return d, fmt.Errorf("%w: %w", abi.ErrInvalid, err)
	}
	d.Shape = make([]int64, t.rank)
	for i := range d.Shape {
		d.Shape[i] = int64(t.shape[i])
	}
	return d, nil
}

// cut is the text before the first zero byte.
func cut(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

//export penstock_publish
func penstock_publish(h, memory C.penstock_handle, offset C.uint64_t, t *C.penstock_tensor, name *C.char, rights,
	flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		d, err := describedBy(t)
		if err != nil {
			return 0, err
		}
		return table.Publish(uint64(h), uint64(memory), uint64(offset), d, str(name), uint32(rights), uint32(flags))
	})
}

//export penstock_describe
func penstock_describe(h C.penstock_handle, to *C.penstock_tensor, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		d, err := table.Describe(uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil {
			return 0, fmt.Errorf("no penstock_tensor: %w", abi.ErrInvalid)
		}
		if d == nil {
			return 0, nil
		}
		describeTensor(d, to)
		return 1, nil
	})
}

//export penstock_tag
func penstock_tag(h C.penstock_handle, to *C.uint8_t, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		tag, err := table.Tag(uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil {
			return 0, fmt.Errorf("no room for a tag: %w", abi.ErrInvalid)
		}
		if tag == [16]byte{} {
			return 0, nil
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(to)), len(tag)), tag[:])
		return 1, nil
	})
}

//export penstock_serve
func penstock_serve(h C.penstock_handle, path *C.char, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) { return table.Serve(uint64(h), str(path), uint32(flags)) })
}
