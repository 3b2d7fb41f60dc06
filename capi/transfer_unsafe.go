package main

/*
#define PENSTOCK_NO_PROTOTYPES
#include "penstock.h"
*/
import "C"

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/penstock-io/penstock/path"
	"github.com/penstock-io/penstock/transfer"
)

type peer struct {
	s *system
	p *transfer.Peer
}

func (p *peer) close() error { return p.p.Close() }

type remote struct {
	r *transfer.Remote
	p *peer
}

// post is a transfer.
type post struct {
	s     *system
	t     *transfer.Transfer
	lends *region // memory of the caller that was adopted for it alone, or nil
}

// close gives the memory back, if it was adopted for this transfer, when nothing uses it any more.
func (t *post) close() error {
	if t.lends == nil {
		return nil
	}
	return t.lends.close()
}

type prepared struct {
	s       *system
	l       *transfer.Prepared
	regions map[*region]bool
}

func (l *prepared) close() error {
	for r := range l.regions {
		defer r.users.Add(-1)
	}
	return l.l.Close()
}

//export penstock_dial
func penstock_dial(h C.penstock_handle, address *C.char, timeout C.int64_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*peer, error) {
		s, node, err := nodeOf(h)
		if err != nil {
			return nil, err
		}
		ctx, end := within(timeout)
		defer end()
		p, err := node.Dial(ctx, str(address))
		return &peer{s, p}, err
	})
}

//export penstock_lookup
func penstock_lookup(h C.penstock_handle, name *C.char, timeout C.int64_t, size *C.uint64_t, rights *C.uint32_t, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*remote, error) {
		p, err := get[*peer](uint64(h))
		if err != nil {
			return nil, err
		}
		ctx, end := within(timeout)
		defer end()
		r, err := p.p.Lookup(ctx, str(name))
		if err != nil {
			return nil, err
		}
		if size != nil {
			*size = C.uint64_t(r.Size())
		}
		if rights != nil {
			*rights = rightsOf(r)
		}
		return &remote{r, p}, nil
	})
}

func foreign(far C.penstock_handle) error {
	return fmt.Errorf("the remote %d is of another peer: %w", uint64(far), errInvalid)
}

// list makes copies of blocks.
func list(p *peer, blocks *C.penstock_block, n C.size_t) ([]path.Copy, error) {
	if blocks == nil || n == 0 {
		return nil, fmt.Errorf("no blocks: %w", errInvalid)
	}
	var local *region
	var far *remote
	var lastLocal, lastFar C.penstock_handle
	out := make([]path.Copy, n)
	for i, b := range unsafe.Slice(blocks, n) {
		var err error
		if b.region != lastLocal || local == nil { // lists are mostly of one region and one export
			local, err = get[*region](uint64(b.region))
			lastLocal = b.region
		}
		if err == nil && (b.remote != lastFar || far == nil) {
			far, err = get[*remote](uint64(b.remote))
			lastFar = b.remote
		}
		if err == nil && far.p != p {
			err = foreign(b.remote)
		}
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		span, err := local.r.Span(uint64(b.offset), uint64(b.length))
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", i, err)
		}
		out[i] = far.r.At(uint64(b.remote_offset), span)
	}
	return out, nil
}

// modes are options of C.
func modes(o *C.penstock_options) (out transfer.PutOptions, err error) {
	if o == nil {
		return out, nil
	}
	if o.reserved != 0 {
		return out, fmt.Errorf("penstock_options.reserved is %d: expected 0: %w", uint32(o.reserved), errInvalid)
	}
	if o.message_size > transfer.MaxNotify || o.message == nil && o.message_size > 0 {
		return out, fmt.Errorf("a message of %d bytes: expected an address and %d at most: %w", uint32(o.message_size), transfer.MaxNotify, errInvalid)
	}
	if o.message_size > 0 {
		out.Msg = bytes.Clone(unsafe.Slice((*byte)(o.message), o.message_size))
	}
	out.Tag, out.Digest = uint32(o.tag), o.digest != 0
	if s := str(o.paths); s != "" {
		out.Paths = strings.Split(s, ",")
	}
	return out, nil
}

func kindOf(what C.int32_t) (path.OpKind, error) {
	switch what {
	case C.PENSTOCK_PUT:
		return path.Put, nil
	case C.PENSTOCK_GET:
		return path.Get, nil
	}
	return 0, fmt.Errorf("a transfer of kind %d: expected PENSTOCK_PUT or PENSTOCK_GET: %w", int32(what), errInvalid)
}

// asked is what C wants to be moved.
type asked struct {
	p      *peer
	kind   path.OpKind
	copies []path.Copy
	put    transfer.PutOptions
}

// open is what C asks for but for the blocks.
func open(h C.penstock_handle, what C.int32_t, o *C.penstock_options) (a asked, err error) {
	if a.p, err = get[*peer](uint64(h)); err != nil {
		return a, err
	}
	if a.kind, err = kindOf(what); err != nil {
		return a, err
	}
	a.put, err = modes(o)
	return a, err
}

func ask(h C.penstock_handle, what C.int32_t, blocks *C.penstock_block, n C.size_t, o *C.penstock_options) (a asked, err error) {
	if a, err = open(h, what, o); err == nil {
		a.copies, err = list(a.p, blocks, n)
	}
	return a, err
}

func (a *asked) begin() (*transfer.Transfer, error) {
	if a.kind == path.Put {
		return a.p.p.Put(context.Background(), a.copies, a.put)
	}
	return a.p.p.Get(context.Background(), a.copies, a.put)
}

//export penstock_post
func penstock_post(h C.penstock_handle, what C.int32_t, blocks *C.penstock_block, n C.size_t, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*post, error) {
		a, err := ask(h, what, blocks, n, o)
		if err != nil {
			return nil, err
		}
		t, err := a.begin()
		return &post{s: a.p.s, t: t}, err
	})
}

//export penstock_post_memory
func penstock_post_memory(h C.penstock_handle, what C.int32_t, memory unsafe.Pointer, size C.uint64_t, far C.penstock_handle, offset C.uint64_t, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*post, error) {
		a, err := open(h, what, o)
		if err != nil {
			return nil, err
		}
		to, err := get[*remote](uint64(far))
		if err != nil {
			return nil, err
		}
		if to.p != a.p {
			return nil, foreign(far)
		}
		r, err := adopted("", memory, uint64(size), a.kind == path.Put)
		if err != nil {
			return nil, err
		}
		a.copies = []path.Copy{to.r.At(uint64(offset), r.r.All())}
		t, err := a.begin()
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
		return &post{a.p.s, t, r}, nil
	})
}

//export penstock_notify
func penstock_notify(h C.penstock_handle, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*post, error) {
		p, err := get[*peer](uint64(h))
		if err != nil {
			return nil, err
		}
		put, err := modes(o)
		if err != nil {
			return nil, err
		}
		t, err := p.p.Notify(context.Background(), put.Msg, put)
		return &post{s: p.s, t: t}, err
	})
}

//export penstock_prepare
func penstock_prepare(h C.penstock_handle, what C.int32_t, blocks *C.penstock_block, n C.size_t, o *C.penstock_options, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*prepared, error) {
		a, err := ask(h, what, blocks, n, o)
		if err != nil {
			return nil, err
		}
		x, err := a.p.p.Prepare(a.kind, a.copies, a.put)
		if err != nil {
			return nil, err
		}
		l := &prepared{a.p.s, x, map[*region]bool{}}
		for _, b := range unsafe.Slice(blocks, n) {
			if r, err := get[*region](uint64(b.region)); err == nil && !l.regions[r] {
				l.regions[r] = true
				r.users.Add(1)
			}
		}
		return l, nil
	})
}

//export penstock_repost
func penstock_repost(h C.penstock_handle, out *C.penstock_error) C.penstock_handle {
	return made(out, func() (*post, error) {
		l, err := get[*prepared](uint64(h))
		if err != nil {
			return nil, err
		}
		t, err := l.l.Post(context.Background())
		return &post{s: l.s, t: t}, err
	})
}

//export penstock_wait
func penstock_wait(h C.penstock_handle, timeout C.int64_t, out *C.penstock_error) C.int32_t {
	return done(out, func() error {
		t, err := get[*post](uint64(h))
		if err != nil {
			return err
		}
		return wait(t.t, timeout)
	})
}

//export penstock_watch
func penstock_watch(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return done(out, func() error {
		t, err := get[*post](uint64(h))
		if err == nil {
			t.t.OnDone(func(*transfer.Transfer) { t.s.note(uint64(h)) })
		}
		return err
	})
}

//export penstock_progress
func penstock_progress(h C.penstock_handle) C.double {
	x, err := guarded(func() (float64, error) {
		t, err := get[*post](uint64(h))
		if err != nil {
			return 0, err
		}
		return t.t.Progress(), nil
	})
	if err != nil {
		return -1
	}
	return C.double(x)
}

//export penstock_cancel
func penstock_cancel(h C.penstock_handle, out *C.penstock_error) C.int32_t {
	return counted(out, func() (C.int32_t, error) {
		t, err := get[*post](uint64(h))
		if err != nil || !t.t.Cancel() {
			return 0, err
		}
		return 1, nil
	})
}

//export penstock_explain
func penstock_explain(h C.penstock_handle, to *C.char, n C.size_t, out *C.penstock_error) C.int64_t {
	return counted(out, func() (C.int64_t, error) {
		t, err := get[*post](uint64(h))
		if err != nil {
			return 0, err
		}
		return text(t.t.Explain().String(), to, n), nil
	})
}
