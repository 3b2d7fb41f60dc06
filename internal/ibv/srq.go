package ibv

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// SRQSpec is a shared receive queue to be made.
type SRQSpec struct {
	WRs, SGEs int   // receives, and SGEs of each
	XRCD      *XRCD // a queue for XRC, of this domain; then CQ is where its completions go
	CQ        *CQ
}

// SRQ is a shared receive queue: queue pairs take their receives from it.
type SRQ struct {
	object
	ctx    *Context
	number uint32
}

// CreateSRQ makes a shared receive queue. The caller closes it, after the queue pairs that use it.
func (p *PD) CreateSRQ(s SRQSpec) (*SRQ, error) {
	const op = "create_srq"
	c := p.ctx
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if s.WRs < 1 || s.SGEs < 0 {
		return nil, invalid(op, p.name, "%d receives of %d SGEs: expected at least one receive", s.WRs, s.SGEs)
	}
	if (s.XRCD == nil) != (s.CQ == nil) {
		return nil, invalid(op, p.name, "an XRC queue has both a domain and a completion queue, others neither")
	}
	t, err := newTemp[cSRQInitEx]() // it begins like the plain one
	if err != nil {
		return nil, err
	}
	defer t.free()
	t.v.attr = cSRQAttr{maxWR: uint32(s.WRs), maxSGE: uint32(s.SGEs)}
	parents := []*object{&p.object}
	var h uintptr
	var e *Error
	if s.XRCD == nil {
		h, e = made(op, p.name, c.lib.f.createSRQ, p.h, t.p())
	} else {
		if err := errors.Join(s.XRCD.usable(op), s.CQ.usable(op)); err != nil {
			return nil, err
		}
		if s.XRCD.ctx != c || s.CQ.ctx != c {
			return nil, invalid(op, p.name, "the domain and the completion queue of XRC are of another device")
		}
		f := c.x.createSRQExFn()
		if f == 0 {
			return nil, unsupported(op, c.name, "the device has no XRC")
		}
		parents = append(parents, &s.XRCD.object, &s.CQ.object)
		t.v.mask, t.v.typ, t.v.pd, t.v.xrcd, t.v.cq = srqMaskXRC, srqTypeXRC, p.h, s.XRCD.h, s.CQ.h
		h, e = made(op, p.name, f, c.h, t.p())
	}
	if e != nil {
		if e.Errno == sys.EINVAL || e.Errno == sys.ENOMEM {
			e.Hint = fmt.Sprintf("%d receives of %d SGEs: the device has at most DeviceAttr.MaxSRQ, MaxSRQWR and "+
				"MaxSRQSGE", s.WRs, s.SGEs)
		}
		return nil, e
	}
	q := &SRQ{ctx: c}
	cs := dl.At[cSRQ](h)
	err = same(field{"ibv_srq.context", uint64(cs.context), uint64(c.h)},
		field{"ibv_srq.pd", uint64(cs.pd), uint64(p.h)})
	if err == nil && s.XRCD != nil {
		err = q.askNumber(h)
	}
	if err == nil {
		err = q.open(&c.tree, "shared receive queue", fmt.Sprintf("shared receive queue %d of %s", cs.handle, c.name),
			h, q, parents...)
	}
	if err != nil {
		return nil, errors.Join(err, c.returned("destroy_srq", p.name, c.lib.f.destroySRQ, h))
	}
	return q, nil
}

const (
	srqMaskXRC = 1<<0 | 1<<1 | 1<<2 | 1<<3 // type, pd, xrcd, cq
	srqTypeXRC = 1
)

func (q *SRQ) askNumber(h uintptr) error {
	f := q.ctx.x.getSRQNumFn()
	if f == 0 {
		return unsupported("get_srq_num", q.ctx.name, "the device has no XRC")
	}
	t, err := newTemp[uint32]()
	if err != nil {
		return err
	}
	defer t.free()
	if err := q.ctx.returned("get_srq_num", q.ctx.name, f, h, t.p()); err != nil {
		return err
	}
	q.number = *t.v
	return nil
}

// Number is what an XRC sender names the queue by (SendChain.ToSRQ); 0 for others.
func (q *SRQ) Number() uint32 { return q.number }

// PostRecv posts the receives of a chain, as QP.PostRecv.
func (q *SRQ) PostRecv(c *RecvChain) (int, error) {
	if q.h == 0 {
		return 0, q.usable("post_srq_recv")
	}
	if c.posted == c.n {
		return 0, nil
	}
	*c.bad = 0
	ret := int32(q.ctx.c.ops.postSRQRecv.Call3(q.h, c.base+uintptr(c.posted)*recvWRSize, c.badAt))
	return c.advance("post_srq_recv", &q.object, ret)
}

// Close ends the queue. ErrInUse names a queue pair that uses it.
func (q *SRQ) Close() error {
	return q.close("destroy_srq", func(h uintptr) error {
		return q.ctx.returned("destroy_srq", q.name, q.ctx.lib.f.destroySRQ, h)
	})
}

// XRCD is an XRC domain: queue pairs for receiving and shared receive queues of it belong together,
// whatever their protection domain.
type XRCD struct {
	object
	ctx *Context
}

// OpenXRCD makes an XRC domain of this process alone.
func (c *Context) OpenXRCD() (*XRCD, error) {
	const op = "open_xrcd"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	open, shut := c.x.openXRCDFn(), c.x.closeXRCDFn()
	if open == 0 || shut == 0 {
		return nil, unsupported(op, c.name, "the device has no XRC")
	}
	t, err := newTemp[cXRCDInit]()
	if err != nil {
		return nil, err
	}
	defer t.free()
	*t.v = cXRCDInit{mask: 1<<0 | 1<<1, fd: -1, flags: sys.OCreat} // both masks are required
	h, e := made(op, c.name, open, c.h, t.p())
	if e != nil {
		return nil, e
	}
	x := &XRCD{ctx: c}
	err = same(field{"ibv_xrcd.context", uint64(dl.At[cXRCD](h).context), uint64(c.h)})
	if err == nil {
		err = x.open(&c.tree, "XRC domain", "XRC domain of "+c.name, h, nil, &c.object)
	}
	if err != nil {
		return nil, errors.Join(err, c.returned("close_xrcd", c.name, shut, h))
	}
	return x, nil
}

// Close ends the domain. ErrInUse names an object of it.
func (x *XRCD) Close() error {
	return x.close("close_xrcd", func(h uintptr) error {
		return x.ctx.returned("close_xrcd", x.name, x.ctx.x.closeXRCDFn(), h)
	})
}
