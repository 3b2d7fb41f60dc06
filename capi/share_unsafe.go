package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

// rescanEvery is how often a share looks for new, changed and removed files. One that a peer asks for by its name it looks at then.
const rescanEvery = 10 * time.Second

// shared is a share of a system, which ends it at the latest.
type shared struct {
	s *system
	x *share.Server
}

func (x *shared) close() error {
	x.s.mu.Lock()
	delete(x.s.shares, x)
	x.s.mu.Unlock()
	return x.x.Close()
}

// describedBy is the tensor that C describes.
func describedBy(t *C.penstock_tensor) (d tensor.Desc, err error) {
	switch {
	case t == nil:
		return d, fmt.Errorf("no penstock_tensor: %w", errInvalid)
	case t.rank > tensor.MaxRank || t.reserved != 0:
		return d, fmt.Errorf("a tensor of %d dimensions, reserved %d: expected at most %d, and 0: %w", uint32(t.rank), uint32(t.reserved), tensor.MaxRank, errInvalid)
	}
	name := unsafe.Slice((*byte)(unsafe.Pointer(&t.dtype[0])), len(t.dtype))
	if d.DType, err = tensor.ParseDType(cut(name)); err == nil {
		d.Shape = make([]int64, t.rank)
		for i := range d.Shape {
			d.Shape[i] = int64(t.shape[i])
		}
		err = d.Validate()
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errInvalid, err)
	}
	return d, err
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
func penstock_publish(h, memory C.penstock_handle, offset C.uint64_t, t *C.penstock_tensor, name *C.char, rights, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*export, error) {
		d, err := describedBy(t)
		if err != nil {
			return nil, err
		}
		size, err := d.Bytes()
		if err != nil {
			return nil, err
		}
		return newExport(h, memory, uint64(offset), uint64(size), &d, name, rights, flags)
	})
}

//export penstock_describe
func penstock_describe(h C.penstock_handle, to *C.penstock_tensor, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		r, err := get[*remote](uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil {
			return 0, fmt.Errorf("no penstock_tensor: %w", errInvalid)
		}
		d := r.r.Tensor
		if d == nil {
			return 0, nil
		}
		describeTensor(d, to)
		return 1, nil
	})
}

//export penstock_serve
func penstock_serve(h C.penstock_handle, path *C.char, flags C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*shared, error) {
		s, node, err := nodeOf(h)
		if err != nil {
			return nil, err
		}
		if flags&^C.PENSTOCK_TENSORS != 0 {
			return nil, fmt.Errorf("flags %#x: expected PENSTOCK_TENSORS or 0: %w", uint32(flags), errInvalid)
		}
		x, err := share.Serve(context.Background(), node, share.Options{Root: str(path), Tensors: flags != 0, RescanEvery: rescanEvery})
		if err != nil {
			return nil, err
		}
		w := &shared{s, x}
		s.mu.Lock()
		open := s.shares != nil
		if open {
			s.shares[w] = true
		}
		s.mu.Unlock()
		if !open { // closed meanwhile
			return nil, errors.Join(transfer.ErrClosed, x.Close())
		}
		return w, nil
	})
}
