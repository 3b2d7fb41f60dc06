package abi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// What a transfer does, as in penstock.h.
const (
	Put int32 = 1
	Get int32 = 2
)

// Block is one block of a transfer, laid out as penstock_block: local bytes and where they are in
// the peer's export.
type Block struct {
	Region, Offset, Length uint64
	Remote, RemoteOffset   uint64
}

// Modes are how blocks are moved.
type Modes struct {
	Msg    []byte // not changed until the call returns
	Tag    uint32
	Paths  string // with commas between; "": all
	Digest bool
}

// options are those of package transfer, with a copy of the message.
func (m Modes) options() (out transfer.PutOptions, err error) {
	if len(m.Msg) > transfer.MaxNotify {
		return out, fmt.Errorf("a message of %d bytes: expected %d at most: %w", len(m.Msg), transfer.MaxNotify,
			ErrInvalid)
	}
	if len(m.Msg) > 0 {
		out.Msg = append([]byte(nil), m.Msg...)
	}
	out.Tag, out.Digest = m.Tag, m.Digest
	if m.Paths != "" {
		out.Paths = strings.Split(m.Paths, ",")
	}
	return out, nil
}

// post is a transfer.
type post struct {
	s     *openSystem
	t     *transfer.Transfer // nil: it could not be begun
	lends *region            // memory of the caller that was adopted for it alone, or nil
	err   error              // why it could not be begun

	watched atomic.Bool // Ended has yet to return it
}

// close gives the memory back, if it was adopted for this transfer, when nothing uses it any more.
func (t *post) close() error {
	if t.lends == nil {
		return nil
	}
	return t.lends.close()
}

type prepared struct {
	s       *openSystem
	l       *transfer.Prepared
	regions map[*region]bool
}

func (l *prepared) close() error {
	for r := range l.regions {
		defer r.users.Add(-1)
	}
	return l.l.Close()
}

func foreign(far uint64) error {
	return fmt.Errorf("the remote %d is of another peer: %w", far, ErrInvalid)
}

// list makes copies of blocks.
func (t *Table) list(p *peer, blocks []Block) ([]path.Copy, error) {
	if len(blocks) == 0 {
		return nil, fmt.Errorf("no blocks: %w", ErrInvalid)
	}
	var local *region
	var far *remote
	var lastLocal, lastFar uint64
	out := make([]path.Copy, len(blocks))
	for i, b := range blocks {
		var err error
		if b.Region != lastLocal || local == nil { // lists are mostly of one region and one export
			local, err = get[*region](t, b.Region)
			lastLocal = b.Region
		}
		if err == nil && (b.Remote != lastFar || far == nil) {
			far, err = get[*remote](t, b.Remote)
			lastFar = b.Remote
		}
		if err == nil && far.p != p {
			err = foreign(b.Remote)
		}
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		span, err := local.r.Span(b.Offset, b.Length)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		out[i] = far.r.At(b.RemoteOffset, span)
	}
	return out, nil
}

// asked is what the caller wants to be moved.
type asked struct {
	p      *peer
	kind   path.OpKind
	put    transfer.PutOptions
	copies []path.Copy
}

func (t *Table) begun(h uint64, what int32, m Modes) (a asked, err error) {
	if a.p, err = get[*peer](t, h); err != nil {
		return a, err
	}
	switch what {
	case Put:
		a.kind = path.Put
	case Get:
		a.kind = path.Get
	default:
		return a, fmt.Errorf("a transfer of kind %d: expected PENSTOCK_PUT or PENSTOCK_GET: %w", what, ErrInvalid)
	}
	a.put, err = m.options()
	return a, err
}

func (t *Table) ask(h uint64, what int32, blocks []Block, m Modes) (a asked, err error) {
	if a, err = t.begun(h, what, m); err == nil {
		a.copies, err = t.list(a.p, blocks)
	}
	return a, err
}

func (a *asked) begin() (*transfer.Transfer, error) {
	if a.kind == path.Put {
		return a.p.p.Put(context.Background(), a.copies, a.put)
	}
	return a.p.p.Get(context.Background(), a.copies, a.put)
}

// Post begins a transfer of blocks.
func (t *Table) Post(h uint64, what int32, blocks []Block, m Modes) (uint64, *transfer.Transfer, error) {
	a, err := t.ask(h, what, blocks, m)
	if err != nil {
		return 0, nil, err
	}
	x, err := a.begin()
	if err != nil {
		return 0, nil, err
	}
	return t.keep(&post{s: a.p.s, t: x}), x, nil
}

// PostMemory is Post of one block of the caller's memory, which adopt makes a region of for this
// transfer. Close of the transfer waits until nothing uses it.
func (t *Table) PostMemory(h uint64, what int32, far, offset uint64, m Modes,
	adopt func() (*mem.Region, error)) (uint64, *transfer.Transfer, error) {
	a, err := t.begun(h, what, m)
	if err != nil {
		return 0, nil, err
	}
	to, err := get[*remote](t, far)
	if err != nil {
		return 0, nil, err
	}
	if to.p != a.p {
		return 0, nil, foreign(far)
	}
	r, err := adopt()
	if err != nil {
		return 0, nil, err
	}
	lends := &region{r: r, adopted: true}
	a.copies = []path.Copy{to.r.At(offset, r.All())}
	x, err := a.begin()
	if err != nil {
		return 0, nil, errors.Join(err, lends.close())
	}
	return t.keep(&post{s: a.p.s, t: x, lends: lends}), x, nil
}

// Notify sends a message.
func (t *Table) Notify(h uint64, m Modes) (uint64, *transfer.Transfer, error) {
	p, err := get[*peer](t, h)
	if err != nil {
		return 0, nil, err
	}
	put, err := m.options()
	if err != nil {
		return 0, nil, err
	}
	x, err := p.p.Notify(context.Background(), put.Msg, put)
	if err != nil {
		return 0, nil, err
	}
	return t.keep(&post{s: p.s, t: x}), x, nil
}

// Prepare checks a list of blocks and chooses its path once.
func (t *Table) Prepare(h uint64, what int32, blocks []Block, m Modes) (uint64, error) {
	a, err := t.ask(h, what, blocks, m)
	if err != nil {
		return 0, err
	}
	x, err := a.p.p.Prepare(a.kind, a.copies, a.put)
	if err != nil {
		return 0, err
	}
	l := &prepared{a.p.s, x, map[*region]bool{}}
	for _, b := range blocks {
		if r, err := get[*region](t, b.Region); err == nil && !l.regions[r] {
			l.regions[r] = true
			r.users.Add(1)
		}
	}
	return t.keep(l), nil
}

// Repost begins a transfer of a prepared list.
func (t *Table) Repost(h uint64) (uint64, *transfer.Transfer, error) {
	l, err := get[*prepared](t, h)
	if err != nil {
		return 0, nil, err
	}
	x, err := l.l.Post(context.Background())
	if err != nil {
		return 0, nil, err
	}
	return t.keep(&post{s: l.s, t: x}), x, nil
}

// RepostAs is Repost for a caller that has named the transfer, by a handle that is none of this
// table's, and does not wait for an answer: an error is that of each call of the handle.
func (t *Table) RepostAs(h, as uint64) {
	p := &post{}
	l, err := get[*prepared](t, h)
	if err == nil {
		p.s = l.s
		p.t, err = l.l.Post(context.Background())
	}
	p.err = err
	t.keepAs(as, p)
}

// Transfer is the transfer of a handle.
func (t *Table) Transfer(h uint64) (*transfer.Transfer, error) {
	p, err := get[*post](t, h)
	if err != nil {
		return nil, err
	}
	return p.t, p.err
}

// Watch has Ended return a transfer when it has ended: once for all calls that come before Ended
// returns it.
func (t *Table) Watch(h uint64) error {
	p, err := get[*post](t, h)
	if err != nil {
		return err
	}
	if p.err == nil && p.watched.CompareAndSwap(false, true) {
		p.t.OnDone(func(*transfer.Transfer) { p.s.note(h) })
	}
	return p.err
}
