package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include <stdlib.h>
#include "penstock.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

// listing is what a peer exports, of which C has taken some.
type listing struct {
	mu    sync.Mutex
	left  []*transfer.Remote
	names unsafe.Pointer // of all of them, each with a zero byte; nil for none, and after close
	at    uintptr        // the name of left[0] in names
}

func newListing(all []*transfer.Remote) *listing {
	size := 0
	for _, r := range all {
		size += len(r.Name) + 1
	}
	l := &listing{left: all}
	if size > 0 {
		l.names = C.malloc(C.size_t(size))
		at := 0
		for b, i := unsafe.Slice((*byte)(l.names), size), 0; i < len(all); i++ {
			at += copy(b[at:], all[i].Name)
			b[at] = 0
			at++
		}
	}
	return l
}

func (l *listing) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	C.free(l.names)
	l.left, l.names = nil, nil
	return nil
}

// take describes the next exports to C, and returns how many.
func (l *listing) take(to []C.penstock_entry) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(to), len(l.left))
	for i, r := range l.left[:n] {
		to[i] = C.penstock_entry{name: (*C.char)(unsafe.Add(l.names, l.at)), size: C.uint64_t(r.Size()), rights: rightsOf(r)}
		l.at += uintptr(len(r.Name) + 1)
		if r.Tensor != nil {
			to[i].described = 1
			describeTensor(r.Tensor, &to[i].what)
		}
	}
	l.left = l.left[n:]
	return n
}

func rightsOf(r *transfer.Remote) (out C.uint32_t) {
	if r.Desc.Rights&path.Read != 0 {
		out |= C.PENSTOCK_READ
	}
	if r.Desc.Rights&path.Write != 0 {
		out |= C.PENSTOCK_WRITE
	}
	return out
}

func describeTensor(d *tensor.Desc, to *C.penstock_tensor) {
	*to = C.penstock_tensor{rank: C.uint32_t(len(d.Shape))}
	text(d.DType.String(), &to.dtype[0], C.size_t(len(to.dtype)))
	for i, n := range d.Shape {
		to.shape[i] = C.int64_t(n)
	}
}

//export penstock_list
func penstock_list(h C.penstock_handle, prefix *C.char, timeout C.int64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*listing, error) {
		p, err := get[*peer](uint64(h))
		if err != nil {
			return nil, err
		}
		ctx, end := within(timeout)
		defer end()
		all, err := p.p.List(ctx, str(prefix))
		if err != nil {
			return nil, err
		}
		return newListing(all), nil
	})
}

//export penstock_entries
func penstock_entries(h C.penstock_handle, to *C.penstock_entry, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		l, err := get[*listing](uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil || n == 0 {
			return 0, fmt.Errorf("no room for a penstock_entry: %w", errInvalid)
		}
		return C.int64_t(l.take(unsafe.Slice(to, n))), nil
	})
}
