package ibv

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/dl"
)

// mwType2 is the only type of windows here: one is bound by a request in a chain (SendChain.BindMW)
// to a key of the caller's choice (MW.NextKey), belongs to that queue pair (2B), and ends by Close
// or a peer's request.
const mwType2 = 2

// MW is a memory window: a part of a region with a key of its own, which comes and goes with a
// request and without the kernel.
type MW struct {
	object
	pd   *PD
	rkey atomic.Uint32
}

// AllocMW makes a window that is bound to nothing.
func (p *PD) AllocMW() (*MW, error) {
	const op = "alloc_mw"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	ops := &p.ctx.c.ops
	if ops.allocMW == 0 || ops.deallocMW == 0 {
		return nil, unsupported(op, p.ctx.name, "the device has no memory windows")
	}
	h, e := made(op, p.name, ops.allocMW, p.h, mwType2)
	if e != nil {
		return nil, e
	}
	c := dl.At[cMW](h)
	mw := &MW{pd: p}
	mw.rkey.Store(c.rkey)
	err := same(field{"ibv_mw.pd", uint64(c.pd), uint64(p.h)}, field{"ibv_mw.type", uint64(c.typ), mwType2})
	if err == nil {
		err = mw.open(&p.ctx.tree, "memory window", fmt.Sprintf("memory window %#x of %s", c.rkey, p.ctx.name), h, nil,
			&p.object)
	}
	if err != nil {
		return nil, errors.Join(err, p.ctx.returned("dealloc_mw", p.name, ops.deallocMW, h))
	}
	return mw, nil
}

// RKey is the key that peers use while the window is bound.
func (m *MW) RKey() uint32 { return m.rkey.Load() }

// NextKey is the key to bind the window to next: the lowest 8 bits are the caller's, and each bind
// should have others, so that peers with an older key are refused. SendChain.BindMW makes the key
// that it is given the current one.
func (m *MW) NextKey() uint32 {
	k := m.rkey.Load()
	return k&^0xff | (k+1)&0xff
}

// Close ends the window, bound or not.
func (m *MW) Close() error {
	return m.close("dealloc_mw", func(h uintptr) error {
		return m.pd.ctx.returned("dealloc_mw", m.name, m.pd.ctx.c.ops.deallocMW, h)
	})
}

// Window is what a memory window shows: length bytes of a region from Addr on (in the region's
// addresses), under these rights.
type Window struct {
	MR     *MR
	Addr   uint64
	Length uint64
	Access Access
}
