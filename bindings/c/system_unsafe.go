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
)

//export penstock_abi
func penstock_abi() C.uint32_t { return C.PENSTOCK_ABI }

//export penstock_open
func penstock_open(yaml *C.char, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) { return table.System(str(yaml)) })
}

//export penstock_close
func penstock_close(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error { return table.Close(uint64(h)) })
}

//export penstock_addresses
func penstock_addresses(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return said(to, n, out, func() (string, error) { return table.Addresses(uint64(h)) })
}

//export penstock_status
func penstock_status(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return said(to, n, out, func() (string, error) { return table.Status(uint64(h)) })
}

//export penstock_event_fd
func penstock_event_fd(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		fd, err := table.EventFD(uint64(h))
		return C.int32_t(fd), err
	})
}

//export penstock_ended
func penstock_ended(h C.penstock_handle, to *C.penstock_handle, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		if to == nil {
			n = 0
		}
		k, err := table.Ended(uint64(h), unsafe.Slice((*uint64)(unsafe.Pointer(to)), n))
		return C.int64_t(k), err
	})
}

//export penstock_subscribe
func penstock_subscribe(h C.penstock_handle, tag C.uint32_t, out *C.penstock_error) C.int32_t {
	return done(out, func() error { return table.Subscribe(uint64(h), uint32(tag)) })
}

//export penstock_receive
func penstock_receive(h C.penstock_handle, to *C.penstock_message, room unsafe.Pointer, n C.size_t, timeout C.int64_t,
	out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		if to == nil {
			return 0, fmt.Errorf("no penstock_message: %w", abi.ErrInvalid)
		}
		ctx, end := abi.Within(int64(timeout))
		defer end()
		in, ok, err := table.Receive(ctx, uint64(h))
		if err != nil || !ok {
			return 0, err
		}
		to.tag, to.size, to.bytes = C.uint32_t(in.Tag), C.uint32_t(len(in.Msg)), C.uint64_t(in.Bytes)
		text(in.Peer.Name(), &to.peer[0], C.size_t(len(to.peer)))
		if room != nil {
			copy(unsafe.Slice((*byte)(room), n), in.Msg)
		}
		return 1, nil
	})
}
