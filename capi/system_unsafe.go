package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/transfer"
)

// maxMessages is how many messages wait for penstock_receive, of up to transfer.MaxNotify bytes each. The node bounds what waits behind them.
const maxMessages = 16

// system is a configuration that is open, with the messages and the ended transfers that C has not taken yet.
type system struct {
	s        *penstock.System
	event    int // eventfd
	messages chan transfer.Incoming
	closed   chan struct{}

	mu     sync.Mutex // guards what follows and, against its close, event
	over   bool
	ended  []uint64
	shares map[*shared]bool
}

func (s *system) close() error {
	close(s.closed)
	s.mu.Lock()
	shares := s.shares
	s.shares = nil // none is added any more
	s.mu.Unlock()
	var errs []error
	for x := range shares { // a node closes after what it serves
		errs = append(errs, x.x.Close())
	}
	err := errors.Join(append(errs, s.s.Close())...)
	records.closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	sys.Close(s.event)
	return err
}

// nodeOf is the system of a handle, which has to be a node.
func nodeOf(h C.penstock_handle) (*system, *transfer.Node, error) {
	s, err := get[*system](uint64(h))
	if err != nil {
		return nil, nil, err
	}
	n := s.s.Node()
	if n == nil {
		return nil, nil, fmt.Errorf("the configuration has no section transfers, so the system is no node: %w", errInvalid)
	}
	return s, n, nil
}

func (s *system) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		sys.Ring(s.event)
	}
}

// heard keeps a message until it is taken.
func (s *system) heard(in transfer.Incoming) {
	select {
	case s.messages <- in:
		s.ring()
	case <-s.closed:
	}
}

// note keeps the handle of a transfer that has ended.
func (s *system) note(h uint64) {
	s.mu.Lock()
	s.ended = append(s.ended, h)
	s.mu.Unlock()
	s.ring()
}

//export penstock_abi
func penstock_abi() C.uint32_t { return C.PENSTOCK_ABI }

//export penstock_open
func penstock_open(yaml *C.char, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*system, error) {
		cfg, problems := config.Load("penstock_open", []byte(str(yaml)), config.Options{})
		if cfg == nil {
			return nil, fmt.Errorf("%w: %w", errInvalid, problems.Err())
		}
		event, err := sys.Eventfd()
		if err != nil {
			return nil, err
		}
		x, err := penstock.Open(context.Background(), cfg, penstock.Options{Logger: records.opening(cfg)})
		if err != nil {
			records.closed()
			sys.Close(event)
			return nil, err
		}
		return &system{s: x, event: event, messages: make(chan transfer.Incoming, maxMessages), closed: make(chan struct{}), shares: map[*shared]bool{}}, nil
	})
}

//export penstock_close
func penstock_close(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error { return drop(uint64(h)) })
}

//export penstock_addresses
func penstock_addresses(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		_, node, err := nodeOf(h)
		if err != nil {
			return 0, err
		}
		return text(strings.Join(node.Addrs(), "\n"), to, n), nil
	})
}

//export penstock_status
func penstock_status(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return 0, err
		}
		b, err := json.Marshal(s.s.Snapshot())
		return text(string(b), to, n), err
	})
}

//export penstock_event_fd
func penstock_event_fd(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return 0, err
		}
		return C.int32_t(s.event), nil
	})
}

//export penstock_ended
func penstock_ended(h C.penstock_handle, to *C.penstock_handle, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil {
			n = 0
		}
		return s.take(unsafe.Slice(to, n))
	})
}

// take moves handles of ended transfers to C.
func (s *system) take(to []C.penstock_handle) (C.int64_t, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, transfer.ErrClosed
	}
	sys.Unring(s.event)
	k := min(len(s.ended), len(to))
	for i, t := range s.ended[:k] {
		to[i] = C.penstock_handle(t)
	}
	s.ended = s.ended[:copy(s.ended, s.ended[k:])]
	if len(s.ended) > 0 || len(s.messages) > 0 {
		sys.Ring(s.event)
	}
	return C.int64_t(k), nil
}

//export penstock_subscribe
func penstock_subscribe(h C.penstock_handle, tag C.uint32_t, out *C.penstock_error) C.int32_t {
	return done(out, func() error {
		s, node, err := nodeOf(h)
		if err == nil {
			_, err = node.OnTag(uint32(tag), s.heard)
		}
		return err
	})
}

//export penstock_receive
func penstock_receive(h C.penstock_handle, to *C.penstock_message, room unsafe.Pointer, n C.size_t, timeout C.int64_t, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		s, err := get[*system](uint64(h))
		if err != nil {
			return 0, err
		}
		if to == nil {
			return 0, fmt.Errorf("no penstock_message: %w", errInvalid)
		}
		ctx, end := within(timeout)
		defer end()
		var in transfer.Incoming
		select {
		case in = <-s.messages: // also when the time is over
		default:
			select {
			case in = <-s.messages:
			case <-s.closed:
				return 0, transfer.ErrClosed
			case <-ctx.Done():
				return 0, nil
			}
		}
		to.tag, to.size, to.bytes = C.uint32_t(in.Tag), C.uint32_t(len(in.Msg)), C.uint64_t(in.Bytes)
		text(in.Peer.Name(), &to.peer[0], C.size_t(len(to.peer)))
		if room != nil {
			copy(unsafe.Slice((*byte)(room), n), in.Msg)
		}
		return 1, nil
	})
}
