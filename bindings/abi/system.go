package abi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/penstock-io/penstock/config"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/system"
	"github.com/penstock-io/penstock/transfer"
)

// maxMessages is how many messages wait for Receive, of up to transfer.MaxNotify bytes each. The
// node bounds what waits behind them.
const maxMessages = 16

// openSystem is a configuration that is open, with the messages and the ended transfers that the
// caller has not taken yet.
type openSystem struct {
	s        *system.System
	records  *records
	event    int // eventfd
	messages chan transfer.Incoming
	closed   chan struct{}

	mu     sync.Mutex // guards what follows and, against its close, event
	over   bool
	ended  []uint64
	shares map[*shared]bool
}

func (s *openSystem) close() error {
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
	s.records.closed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	sys.Close(s.event)
	return err
}

// nodeOf is the system of a handle, which has to be a node.
func (t *Table) nodeOf(h uint64) (*openSystem, *transfer.Node, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return nil, nil, err
	}
	n := s.s.Node()
	if n == nil {
		return nil, nil, fmt.Errorf("the configuration has no section transfers, so the system is no node: %w",
			ErrInvalid)
	}
	return s, n, nil
}

func (s *openSystem) ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		sys.Ring(s.event)
	}
}

// heard keeps a message until it is taken.
func (s *openSystem) heard(in transfer.Incoming) {
	select {
	case s.messages <- in:
		s.ring()
	case <-s.closed:
	}
}

// note keeps the handle of a transfer that has ended.
func (s *openSystem) note(h uint64) {
	s.mu.Lock()
	s.ended = append(s.ended, h)
	s.mu.Unlock()
	s.ring()
}

// System opens what a configuration describes.
func (t *Table) System(yaml string) (uint64, error) {
	cfg, problems := config.Load("penstock_open", []byte(yaml), config.Options{})
	if cfg == nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalid, problems.Err())
	}
	event, err := sys.Eventfd()
	if err != nil {
		return 0, err
	}
	x, err := system.Open(context.Background(), cfg, system.Options{Logger: t.records.opening(cfg)})
	if err != nil {
		t.records.closed()
		sys.Close(event)
		return 0, err
	}
	return t.keep(&openSystem{s: x, records: &t.records, event: event,
			messages: make(chan transfer.Incoming, maxMessages), closed: make(chan struct{}),
			shares: map[*shared]bool{}}),
		nil
}

// Addresses is where peers reach a system, one a line.
func (t *Table) Addresses(h uint64) (string, error) {
	_, node, err := t.nodeOf(h)
	if err != nil {
		return "", err
	}
	return strings.Join(node.Addrs(), "\n"), nil
}

// Status is what a system knows of itself, as JSON.
func (t *Table) Status(h uint64) (string, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(s.s.Snapshot())
	return string(b), err
}

// EventFD is the eventfd of a system, which stays the system's.
func (t *Table) EventFD(h uint64) (int, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return -1, err
	}
	return s.event, nil
}

// DupEvent is a descriptor of the caller's own of the eventfd of a system.
func (t *Table) DupEvent(h uint64) (int, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return -1, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return -1, transfer.ErrClosed
	}
	return sys.Dup(s.event)
}

// Ended moves handles of watched transfers that have ended to the caller, and returns how many.
func (t *Table) Ended(h uint64, to []uint64) (int, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, transfer.ErrClosed
	}
	sys.Unring(s.event)
	k := copy(to, s.ended)
	for _, h := range to[:k] {
		if p, err := get[*post](t, h); err == nil {
			p.watched.Store(false)
		}
	}
	s.ended = s.ended[:copy(s.ended, s.ended[k:])]
	if len(s.ended) > 0 || len(s.messages) > 0 {
		sys.Ring(s.event)
	}
	return k, nil
}

// Subscribe keeps messages with a tag for Receive.
func (t *Table) Subscribe(h uint64, tag uint32) error {
	s, node, err := t.nodeOf(h)
	if err == nil {
		_, err = node.OnTag(tag, s.heard)
	}
	return err
}

// Receive takes the next message; false means that there was none within the time.
func (t *Table) Receive(ctx context.Context, h uint64) (in transfer.Incoming, ok bool, err error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return in, false, err
	}
	select {
	case in = <-s.messages: // also when the time is over
		return in, true, nil
	default:
	}
	select {
	case in = <-s.messages:
		return in, true, nil
	case <-s.closed:
		return in, false, transfer.ErrClosed
	case <-ctx.Done():
		return in, false, nil
	}
}
