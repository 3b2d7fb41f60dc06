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
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
)

//export penstock_dial
func penstock_dial(h C.penstock_handle, address *C.char, timeout C.int64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		ctx, end := abi.Within(int64(timeout))
		defer end()
		return table.Dial(ctx, uint64(h), str(address))
	})
}

//export penstock_lookup
func penstock_lookup(h C.penstock_handle, name *C.char, timeout C.int64_t, size *C.uint64_t, rights *C.uint32_t,
	out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		ctx, end := abi.Within(int64(timeout))
		defer end()
		far, r, err := table.Lookup(ctx, uint64(h), str(name))
		if err != nil {
			return 0, err
		}
		if size != nil {
			*size = C.uint64_t(r.Size())
		}
		if rights != nil {
			*rights = C.uint32_t(abi.RightsOf(r))
		}
		return far, nil
	})
}

// list is blocks of C.
func list(blocks *C.penstock_block, n C.size_t) []abi.Block {
	if blocks == nil {
		return nil
	}
	return unsafe.Slice((*abi.Block)(unsafe.Pointer(blocks)), n)
}

// Both have the same layout: a line fails to compile if not.
const (
	_ = uint(unsafe.Sizeof(abi.Block{}) - C.sizeof_penstock_block)
	_ = uint(C.sizeof_penstock_block - unsafe.Sizeof(abi.Block{}))
)

// modes are options of C.
func modes(o *C.penstock_options) (out abi.Modes, err error) {
	if o == nil {
		return out, nil
	}
	if o.reserved != 0 {
		return out, fmt.Errorf("penstock_options.reserved is %d: expected 0: %w", uint32(o.reserved), abi.ErrInvalid)
	}
	if o.message == nil && o.message_size > 0 {
		return out, fmt.Errorf("a message of %d bytes: expected an address and %d at most: %w", uint32(o.message_size),
			transfer.MaxNotify, abi.ErrInvalid)
	}
	return abi.Modes{Msg: unsafe.Slice((*byte)(o.message), o.message_size), Tag: uint32(o.tag), Paths: str(o.paths),
		Digest: o.digest != 0}, nil
}

// posted is a call that begins a transfer.
func posted(o *C.penstock_options, out *C.penstock_error,
	f func(abi.Modes) (uint64, *transfer.Transfer, error)) C.penstock_handle {
	return made(out, func() (uint64, error) {
		m, err := modes(o)
		if err != nil {
			return 0, err
		}
		h, _, err := f(m)
		return h, err
	})
}

//export penstock_post
func penstock_post(h C.penstock_handle, what C.int32_t, blocks *C.penstock_block, n C.size_t, o *C.penstock_options,
	out *C.penstock_error) C.penstock_handle {
	return posted(o, out, func(m abi.Modes) (uint64, *transfer.Transfer, error) {
		return table.Post(uint64(h), int32(what), list(blocks, n), m)
	})
}

//export penstock_post_memory
func penstock_post_memory(h C.penstock_handle, what C.int32_t, memory unsafe.Pointer, size C.uint64_t,
	far C.penstock_handle, offset C.uint64_t, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return posted(o, out, func(m abi.Modes) (uint64, *transfer.Transfer, error) {
		return table.PostMemory(uint64(h), int32(what), uint64(far), uint64(offset), m, func() (*mem.Region, error) {
			return adopted("", memory, uint64(size), what == C.PENSTOCK_PUT)
		})
	})
}

//export penstock_notify
func penstock_notify(h C.penstock_handle, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return posted(o, out, func(m abi.Modes) (uint64, *transfer.Transfer, error) { return table.Notify(uint64(h), m) })
}

//export penstock_prepare
func penstock_prepare(h C.penstock_handle, what C.int32_t, blocks *C.penstock_block, n C.size_t, o *C.penstock_options,
	out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		m, err := modes(o)
		if err != nil {
			return 0, err
		}
		return table.Prepare(uint64(h), int32(what), list(blocks, n), m)
	})
}

//export penstock_repost
func penstock_repost(h C.penstock_handle, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) {
		t, _, err := table.Repost(uint64(h))
		return t, err
	})
}

//export penstock_wait
func penstock_wait(h C.penstock_handle, timeout C.int64_t, out *C.penstock_error) C.int32_t {
	return done(out, func() error {
		t, err := table.Transfer(uint64(h))
		if err != nil {
			return err
		}
		return wait(t, timeout)
	})
}

//export penstock_watch
func penstock_watch(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error { return table.Watch(uint64(h)) })
}

//export penstock_progress
func penstock_progress(h C.penstock_handle) C.double {
	x, err := abi.Guarded(func() (float64, error) {
		t, err := table.Transfer(uint64(h))
		if err != nil {
			return 0, err
		}
		return t.Progress(), nil
	})
	if err != nil {
		return -1
	}
	return C.double(x)
}

//export penstock_cancel
func penstock_cancel(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		t, err := table.Transfer(uint64(h))
		if err != nil || !t.Cancel() {
			return 0, err
		}
		return 1, nil
	})
}

//export penstock_explain
func penstock_explain(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return said(to, n, out, func() (string, error) {
		t, err := table.Transfer(uint64(h))
		if err != nil {
			return "", err
		}
		return t.Explain().String(), nil
	})
}
