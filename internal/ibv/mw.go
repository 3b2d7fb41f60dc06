package ibv

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/dl"
)

// MWType is the kind of a memory window.
type MWType uint32

// A window of type 1 is bound by QP.BindMW, which chooses a new key. One of type 2 is bound by a request in a chain
// (SendChain.BindMW) to a key of the caller's choice (MW.NextKey), belongs to that queue pair (2B), and ends by SendChain.LocalInv or a peer's
// request.
const (
	MWType1 MWType = 1
	MWType2 MWType = 2
)

// MW is a memory window: a part of a region with a key of its own, which comes and goes with a request and without the kernel.
type MW struct {
	object
	pd   *PD
	typ  MWType
	rkey atomic.Uint32
}

// AllocMW makes a window that is bound to nothing.
func (p *PD) AllocMW(typ MWType) (*MW, error) {
	const op = "alloc_mw"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if typ != MWType1 && typ != MWType2 {
		return nil, invalid(op, p.name, "type %d: expected MWType1 or MWType2", typ)
	}
	ops := &p.ctx.c.ops
	if ops.allocMW == 0 || ops.deallocMW == 0 {
		return nil, unsupported(op, p.ctx.name, "the device has no memory windows")
	}
	h, e := made(op, p.name, ops.allocMW, p.h, uintptr(typ))
	if e != nil {
		return nil, e
	}
	c := dl.At[cMW](h)
	mw := &MW{pd: p, typ: typ}
	mw.rkey.Store(c.rkey)
	err := same(field{"ibv_mw.pd", uint64(c.pd), uint64(p.h)}, field{"ibv_mw.type", uint64(c.typ), uint64(typ)})
	if err == nil {
		err = mw.open(&p.ctx.tree, "memory window", fmt.Sprintf("memory window %#x of %s", c.rkey, p.ctx.name), h, nil, &p.object)
	}
	if err != nil {
		return nil, errors.Join(err, p.ctx.returned("dealloc_mw", p.name, ops.deallocMW, h))
	}
	return mw, nil
}

// RKey is the key that peers use while the window is bound. Of type 1 it changes with every QP.BindMW.
func (m *MW) RKey() uint32 { return m.rkey.Load() }

// NextKey is the key to bind a window of type 2 to next: the lowest 8 bits are the caller's, and each bind should have others, so that
// peers with an older key are refused. SendChain.BindMW makes the key that it is given the current one.
func (m *MW) NextKey() uint32 {
	k := m.rkey.Load()
	return k&^0xff | (k+1)&0xff
}

// Type is the kind of the window.
func (m *MW) Type() MWType { return m.typ }

// Close ends the window, bound or not.
func (m *MW) Close() error {
	return m.close("dealloc_mw", func(h uintptr) error { return m.pd.ctx.returned("dealloc_mw", m.name, m.pd.ctx.c.ops.deallocMW, h) })
}

// Window is what a memory window shows: length bytes of a region from Addr on (in the region's addresses), under these rights.
type Window struct {
	MR     *MR
	Addr   uint64
	Length uint64
	Access Access
}

// BindMW binds a window of type 1, or takes it back where Length is 0; the region is named in both cases, since drivers look at it. It is a
// request in the send queue: its completion has the given id and opcode OpBindMW. The new key is RKey from now on. (Soft-RoCE of Linux 6.1
// takes Length 0 for the whole region: there, and where it must be certain, Close takes the window away.)
func (q *QP) BindMW(id uint64, flags SendFlags, m *MW, w Window) error {
	const op = "bind_mw"
	if err := q.usable(op); err != nil {
		return err
	}
	if err := m.usable(op); err != nil {
		return err
	}
	if m.typ != MWType1 {
		return invalid(op, m.name, "a window of type 2 is bound by a request: SendChain.BindMW")
	}
	if w.MR == nil {
		return invalid(op, m.name, "no region: expected one, also to take the window back")
	}
	if err := w.MR.usable(op); err != nil {
		return err
	}
	if m.pd != q.pd || w.MR.pd != q.pd {
		return invalid(op, m.name, "window, region and queue pair must be of one protection domain")
	}
	if q.pd.ctx.c.ops.bindMW == 0 {
		return unsupported(op, q.pd.ctx.name, "the device has no memory windows of type 1")
	}
	t, err := newTemp[cMWBind]()
	if err != nil {
		return err
	}
	defer t.free()
	t.v.id, t.v.flags = id, uint32(flags)
	t.v.info = cBind{mr: w.MR.h, addr: w.Addr, length: w.Length, access: uint32(w.Access)}
	if err := q.pd.ctx.returned(op, m.name, q.pd.ctx.c.ops.bindMW, q.h, m.h, t.p()); err != nil {
		return err
	}
	m.rkey.Store(dl.At[cMW](m.h).rkey)
	return nil
}
