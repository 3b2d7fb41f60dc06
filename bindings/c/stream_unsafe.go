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
	"github.com/penstock-io/penstock/packet/burst"
)

//export penstock_rx
func penstock_rx(h C.penstock_handle, iface *C.char, queue C.int32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (uint64, error) { return table.Rx(uint64(h), str(iface), int(queue)) })
}

//export penstock_burst
func penstock_burst(h C.penstock_handle, to *C.penstock_segment, n C.size_t, timeout C.int64_t,
	out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		if to == nil {
			return 0, fmt.Errorf("no room for segments: %w", abi.ErrInvalid)
		}
		ctx, end := abi.Within(int64(timeout))
		defer end()
		k, err := table.Burst(ctx, uint64(h), int(min(n, 1<<30)), func(b *burst.Burst) {
			describe(b, unsafe.Slice(to, n))
		})
		return C.int64_t(k), err
	})
}

// describe tells C of the segments of a burst.
func describe(b *burst.Burst, to []C.penstock_segment) {
	k := 0
	for i := range b.Len() {
		ns, timed := b.Time(i)
		for j := range b.Segments(i) {
			data := b.Bytes(i, j)
			s := C.penstock_segment{data: unsafe.Pointer(unsafe.SliceData(data)), size: C.uint32_t(len(data)),
				packet: C.uint32_t(i), flow: C.uint32_t(b.Flow(i))}
			if timed {
				s.timed, s.time = 1, C.int64_t(ns)
			}
			to[k] = s
			k++
		}
	}
}

//export penstock_batch_of
func penstock_batch_of(h C.penstock_handle, packet C.uint32_t, to *C.penstock_batch, present *C.uint64_t,
	words C.size_t, out *C.penstock_error) C.int32_t {
	return C.int32_t(counted(out, func() (C.int64_t, error) {
		if to == nil {
			return 0, fmt.Errorf("no penstock_batch: %w", abi.ErrInvalid)
		}
		b, err := table.Batch(uint64(h), uint32(packet))
		if err != nil || b == nil {
			return 0, err
		}
		*to = C.penstock_batch{id: C.int64_t(b.ID), packets: C.uint32_t(b.Packets), per_batch: C.uint32_t(b.PerBatch),
			words: C.uint32_t(len(b.Present)), first: C.int64_t(b.First), last: C.int64_t(b.Last)}
		if b.TimedOut {
			to.timed_out = 1
		}
		d := b.Tensor()
		describeTensor(&d, &to.what)
		if present != nil {
			copy(unsafe.Slice((*uint64)(unsafe.Pointer(present)), words), b.Present)
		}
		return 1, nil
	}))
}

//export penstock_release
func penstock_release(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error { return table.Release(uint64(h)) })
}

//export penstock_send
func penstock_send(h C.penstock_handle, iface *C.char, queue C.int32_t, packets *C.penstock_segment, n C.size_t,
	out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		var all []C.penstock_segment
		if packets != nil {
			all = unsafe.Slice(packets, n)
		}
		sent, err := table.Send(uint64(h), str(iface), int(queue), len(all), func(i int) []byte {
			if all[i].data == nil {
				return nil
			}
			return unsafe.Slice((*byte)(all[i].data), all[i].size)
		})
		return C.int64_t(sent), err
	})
}
