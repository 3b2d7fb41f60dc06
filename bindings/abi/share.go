package abi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/share"
	"github.com/penstock-io/penstock/transfer"
)

// rescanEvery is how often a share looks for new, changed and removed files. One that a peer asks
// for by its name it looks at then.
const rescanEvery = 10 * time.Second

// shared is a share of a system, which ends it at the latest.
type shared struct {
	s *openSystem
	x *share.Server
}

func (x *shared) close() error {
	x.s.mu.Lock()
	delete(x.s.shares, x)
	x.s.mu.Unlock()
	return x.x.Close()
}

// Serve exports a file, or each file of a directory and below.
func (t *Table) Serve(h uint64, path string, flags uint32) (uint64, error) {
	s, node, err := t.nodeOf(h)
	if err != nil {
		return 0, err
	}
	if flags&^Tensors != 0 {
		return 0, fmt.Errorf("flags %#x: expected PENSTOCK_TENSORS or 0: %w", flags, ErrInvalid)
	}
	x, err := share.Serve(context.Background(), node,
		share.Options{Root: path, Tensors: flags != 0, RescanEvery: rescanEvery})
	if err != nil {
		return 0, err
	}
	w := &shared{s, x}
	s.mu.Lock()
	open := s.shares != nil
	if open {
		s.shares[w] = true
	}
	s.mu.Unlock()
	if !open { // closed meanwhile
		return 0, errors.Join(transfer.ErrClosed, x.Close())
	}
	return t.keep(w), nil
}
