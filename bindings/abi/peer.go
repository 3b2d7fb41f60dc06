package abi

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/tensor"
	"github.com/penstock-io/penstock/transfer"
)

type peer struct {
	s *openSystem
	p *transfer.Peer
}

func (p *peer) close() error { return p.p.Close() }

type remote struct {
	r *transfer.Remote
	p *peer
}

// listing is what a peer exports, of which the caller has taken some.
type listing struct {
	mu     sync.Mutex
	left   []*transfer.Remote
	ends   []func()
	closed bool
}

func (l *listing) close() error {
	l.mu.Lock()
	ends := l.ends
	l.left, l.ends, l.closed = nil, nil, true
	l.mu.Unlock()
	for _, f := range ends {
		f()
	}
	return nil
}

// Dial connects with the node at an address.
func (t *Table) Dial(ctx context.Context, h uint64, address string) (uint64, error) {
	s, node, err := t.nodeOf(h)
	if err != nil {
		return 0, err
	}
	p, err := node.Dial(ctx, address)
	return made(t, &peer{s, p}, err)
}

// Lookup finds an export of a peer by its name.
func (t *Table) Lookup(ctx context.Context, h uint64, name string) (uint64, *transfer.Remote, error) {
	p, err := get[*peer](t, h)
	if err != nil {
		return 0, nil, err
	}
	r, err := p.p.Lookup(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	return t.keep(&remote{r, p}), r, nil
}

// Describe is the tensor that a remote is; nil if the peer does not say.
func (t *Table) Describe(h uint64) (*tensor.Desc, error) {
	r, err := get[*remote](t, h)
	if err != nil {
		return nil, err
	}
	return r.r.Tensor, nil
}

// Tag names the content of a remote; zero if the peer does not say.
func (t *Table) Tag(h uint64) (tag [16]byte, err error) {
	r, err := get[*remote](t, h)
	if err != nil {
		return tag, err
	}
	return r.r.Tag, nil
}

// List asks a peer for its exports whose names begin with a prefix.
func (t *Table) List(ctx context.Context, h uint64, prefix string) (uint64, error) {
	p, err := get[*peer](t, h)
	if err != nil {
		return 0, err
	}
	all, err := p.p.List(ctx, prefix)
	return made(t, &listing{left: all}, err)
}

// Entries are the next exports of a listing, n at most. What end returns for them is called when
// the listing is closed; end may be nil.
func (t *Table) Entries(h uint64, n int, end func([]*transfer.Remote) func()) ([]*transfer.Remote, error) {
	l, err := get[*listing](t, h)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("handle %d is not open: expected a listing: %w", h, ErrInvalid)
	}
	out := l.left[:min(n, len(l.left))]
	l.left = l.left[len(out):]
	if end != nil && len(out) > 0 {
		l.ends = append(l.ends, end(out))
	}
	return out, nil
}
