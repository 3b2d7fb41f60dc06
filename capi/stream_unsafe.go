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
	"sync"
	"unsafe"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
)

// roomPackets is how many packets a burst for C holds.
const roomPackets = 1024

// rx is a receive queue with the packets that C has.
type rx struct {
	q   *engine.Rx
	end context.CancelFunc
	ctx context.Context

	mu sync.Mutex // one call at a time; guards b
	b  *burst.Burst
}

func (r *rx) close() error {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b.Release()
	return nil
}

//export penstock_rx
func penstock_rx(h C.penstock_handle, iface *C.char, queue C.int32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*rx, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return nil, err
		}
		q, err := s.s.Rx(str(iface), int(queue))
		if err != nil {
			return nil, err
		}
		r := &rx{q: q, b: burst.NewSegmented(roomPackets, 4*roomPackets)}
		r.ctx, r.end = context.WithCancel(context.Background())
		return r, nil
	})
}

//export penstock_burst
func penstock_burst(h C.penstock_handle, to *C.penstock_segment, n C.size_t, timeout C.int64_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		r, err := get[*rx](uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil || n == 0 {
			return 0, fmt.Errorf("no room for segments: %w", errInvalid)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.b.Len() > 0 {
			return 0, fmt.Errorf("the caller has %d packets of the last burst: call penstock_release: %w", r.b.Len(), errInvalid)
		}
		ctx, end := within(timeout)
		defer end()
		defer context.AfterFunc(r.ctx, end)()
		if err := r.q.Recv(ctx, r.b); err != nil {
			switch {
			case r.ctx.Err() != nil:
				return 0, engine.ErrClosed
			case errors.Is(err, context.DeadlineExceeded):
				return 0, nil
			}
			return 0, err
		}
		k, err := describe(r.b, unsafe.Slice(to, n))
		return C.int64_t(k), err
	})
}

// describe tells C of the segments of a burst.
func describe(b *burst.Burst, to []C.penstock_segment) (k int, err error) {
	for i := range b.Len() {
		k += b.Segments(i)
	}
	if k > len(to) {
		packets := b.Len()
		b.Release()
		return 0, fmt.Errorf("%d packets with %d segments came, and there was room for %d: dropped: %w", packets, k, len(to), engine.ErrFull)
	}
	k = 0
	for i := range b.Len() {
		ns, timed := b.Time(i)
		for j := range b.Segments(i) {
			data := b.Bytes(i, j)
			s := C.penstock_segment{data: unsafe.Pointer(unsafe.SliceData(data)), size: C.uint32_t(len(data)), packet: C.uint32_t(i), flow: C.uint32_t(b.Flow(i))}
			if timed {
				s.timed, s.time = 1, C.int64_t(ns)
			}
			to[k] = s
			k++
		}
	}
	return k, nil
}

//export penstock_release
func penstock_release(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error {
		r, err := get[*rx](uint64(h))
		if err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.b.Release()
		return nil
	})
}

//export penstock_send
func penstock_send(h C.penstock_handle, iface *C.char, queue C.int32_t, packets *C.penstock_segment, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return 0, err
		}
		q, err := s.s.Tx(str(iface), int(queue))
		if err != nil {
			return 0, err
		}
		if packets == nil || n == 0 {
			return 0, fmt.Errorf("no packets: %w", errInvalid)
		}
		sent, err := send(q, unsafe.Slice(packets, n))
		return C.int64_t(sent), err
	})
}

// send copies packets of C, those of one length together.
func send(q engine.TxQueue, packets []C.penstock_segment) (sent int, err error) {
	b := burst.New(min(len(packets), roomPackets))
	defer b.Release()
	for sent < len(packets) {
		size, run := packets[sent].size, 1
		for sent+run < len(packets) && run < b.Cap() && packets[sent+run].size == size {
			run++
		}
		got, err := q.Alloc(b, run, int(size))
		for i := range got {
			s := &packets[sent+i]
			if s.data == nil {
				return sent, fmt.Errorf("packet %d has no data: %w", sent+i, errInvalid)
			}
			copy(b.Bytes(i, 0), unsafe.Slice((*byte)(s.data), s.size))
		}
		if got > 0 {
			if err := q.Send(b); err != nil {
				return sent, err
			}
		}
		sent += got
		switch {
		case errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrNoBuffers):
			return sent, nil
		case err != nil:
			return sent, err
		}
	}
	return sent, nil
}
