package ibv

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// QPType is the service of a queue pair.
type QPType uint32

// The services: reliable and unreliable connections, datagrams, reliable connections with shared
// receive queues of a domain, raw frames.
const (
	RC        QPType = 2
	UC        QPType = 3
	UD        QPType = 4
	RawPacket QPType = 8
	XRCSend   QPType = 9
	XRCRecv   QPType = 10
)

func (t QPType) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	case RawPacket:
		return "raw packet"
	case XRCSend:
		return "XRC send"
	case XRCRecv:
		return "XRC receive"
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// QPSpec is a queue pair to be made.
type QPSpec struct {
	Type               QPType
	SendCQ, RecvCQ     *CQ   // where its completions go; may be one. XRCSend has no RecvCQ, XRCRecv none at all.
	SRQ                *SRQ  // where its receives come from; nil: its own receive queue
	XRCD               *XRCD // of XRCRecv only
	SendWRs, RecvWRs   int   // slots of its queues; 0 where there is none
	SendSGEs, RecvSGEs int   // SGEs of one request
	Inline             int   // bytes of a request that may be Inline
}

// QP is a queue pair. Methods that change its state are for one goroutine at a time; posting is the
// library's to guard, chains are the caller's.
type QP struct {
	object
	pd   *PD
	spec QPSpec
	num  uint32

	mu    sync.Mutex // of what follows
	state QPState    // as far as this process knows: an error can come at any time
	attr  temp[cQPAttr]
	init  temp[cQPInitEx]
}

// CreateQP makes a queue pair in state Reset. Its queues may be larger than asked for: Spec tells.
// The caller closes it.
func (p *PD) CreateQP(s QPSpec) (*QP, error) {
	const op = "create_qp"
	c := p.ctx
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if err := p.checkQP(s); err != nil {
		return nil, err
	}
	q := &QP{pd: p, spec: s}
	if err := q.memory(); err != nil {
		return nil, err
	}
	h, parents, err := q.create(op)
	if err != nil {
		q.free()
		return nil, err
	}
	i := q.init.v
	q.spec.SendWRs, q.spec.RecvWRs = int(i.cap.sendWRs), int(i.cap.recvWRs)
	q.spec.SendSGEs, q.spec.RecvSGEs, q.spec.Inline = int(i.cap.sendSGEs), int(i.cap.recvSGEs), int(i.cap.inline)
	cq := dl.At[cQP](h)
	q.num = cq.num
	err = same(field{"ibv_qp.context", uint64(cq.context), uint64(c.h)},
		field{"ibv_qp.pd", uint64(cq.pd), uint64(i.pd)},
		field{"ibv_qp.send_cq", uint64(cq.sendCQ), uint64(i.sendCQ)},
		field{"ibv_qp.recv_cq", uint64(cq.recvCQ), uint64(i.recvCQ)},
		field{"ibv_qp.srq", uint64(cq.srq), uint64(i.srq)}, field{"ibv_qp.qp_type", uint64(cq.typ), uint64(s.Type)})
	if err == nil {
		err = q.open(&c.tree, "queue pair", fmt.Sprintf("queue pair %#x (%s) of %s", q.num, s.Type, c.name), h, q,
			parents...)
	}
	if err != nil {
		err = errors.Join(err, c.returned("destroy_qp", p.name, c.lib.f.destroyQP, h))
		q.free()
		return nil, err
	}
	return q, nil
}

// memory is what calls of this queue pair need, allocated once so that it can be ended when nothing
// can be had any more.
func (q *QP) memory() (err error) {
	if q.attr, err = newTemp[cQPAttr](); err != nil {
		return err
	}
	if q.init, err = newTemp[cQPInitEx](); err != nil {
		q.attr.free()
	}
	return err
}

func (q *QP) free() {
	q.attr.free()
	q.init.free()
	q.attr, q.init = temp[cQPAttr]{}, temp[cQPInitEx]{}
}

// alive is the error of calls that need this memory, once the queue pair is closed. The caller
// holds q.mu.
func (q *QP) alive(op string) error {
	if q.attr.v == nil {
		return &Error{Op: op, On: q.name, Kind: ErrClosed}
	}
	return nil
}

// create makes the C object out of init, which begins like the plain structure.
func (q *QP) create(op string) (h uintptr, parents []*object, err error) {
	s, p, c := q.spec, q.pd, q.pd.ctx
	i := q.init.v
	*i = cQPInitEx{typ: uint32(s.Type), cap: cQPCap{uint32(s.SendWRs), uint32(s.RecvWRs), uint32(s.SendSGEs),
		uint32(s.RecvSGEs), uint32(s.Inline)}}
	if s.SendCQ != nil {
		i.sendCQ, parents = s.SendCQ.h, append(parents, &s.SendCQ.object)
	}
	if s.RecvCQ != nil && s.RecvCQ != s.SendCQ {
		parents = append(parents, &s.RecvCQ.object)
	}
	if s.RecvCQ != nil {
		i.recvCQ = s.RecvCQ.h
	}
	if s.SRQ != nil {
		i.srq, parents = s.SRQ.h, append(parents, &s.SRQ.object)
	}
	var e *Error
	switch s.Type {
	case XRCSend, XRCRecv:
		f := c.x.createQPExFn()
		if f == 0 {
			return 0, nil, unsupported(op, c.name, "the device has no XRC")
		}
		if s.Type == XRCRecv {
			i.mask, i.xrcd, parents = qpMaskXRCD, s.XRCD.h, append(parents, &s.XRCD.object)
			// The protection domain counts as a parent as well: what arrives is checked against the
			// receive queue's.
		} else {
			i.mask, i.pd = qpMaskPD, p.h
		}
		h, e = made(op, c.name, f, c.h, q.init.p())
	default:
		h, e = made(op, p.name, c.lib.f.createQP, p.h, q.init.p())
		i.pd = p.h
	}
	if e != nil {
		return 0, nil, q.createError(e)
	}
	return h, append(parents, &p.object), nil
}

const (
	qpMaskPD   = 1 << 0
	qpMaskXRCD = 1 << 1
)

func (q *QP) createError(e *Error) error {
	s := q.spec
	switch e.Errno {
	case sys.EINVAL, sys.ENOMEM:
		e.Hint = fmt.Sprintf("%s with %d requests of %d SGEs, %d receives of %d SGEs, %d bytes inline: the limits of "+
			"the device are DeviceAttr.MaxQP, MaxQPWR and MaxSGE; "+
			"inline data has none that can be asked for: try less", s.Type, s.SendWRs, s.SendSGEs, s.RecvWRs,
			s.RecvSGEs, s.Inline)
	case sys.EOPNOTSUPP:
		e.Hint = fmt.Sprintf("the device has no queue pairs of type %s", s.Type)
	case sys.EPERM:
		e.Hint = "raw packets need CAP_NET_RAW"
	}
	return e
}

// checkQP refuses what makes no sense for the type, and objects of another device or domain.
func (p *PD) checkQP(s QPSpec) error {
	bad := func(format string, args ...any) error { return invalid("create_qp", p.name, format, args...) }
	switch s.Type {
	case RC, UC, UD, RawPacket:
		if s.SendCQ == nil || s.RecvCQ == nil {
			return bad("%s needs a completion queue for requests and one for receives, which may be the same", s.Type)
		}
		if s.XRCD != nil {
			return bad("%s has no XRC domain", s.Type)
		}
	case XRCSend:
		if s.SendCQ == nil || s.RecvCQ != nil || s.SRQ != nil || s.RecvWRs != 0 || s.XRCD != nil {
			return bad("XRC send has requests and their completion queue, and nothing else")
		}
	case XRCRecv:
		if s.SendCQ != nil || s.RecvCQ != nil || s.SRQ != nil || s.RecvWRs != 0 || s.SendWRs != 0 || s.XRCD == nil {
			return bad("XRC receive has a domain and nothing else: receives are in shared receive queues of the domain")
		}
	default:
		return bad("%s: there is no such service", s.Type)
	}
	for _, n := range []int{s.SendWRs, s.RecvWRs, s.SendSGEs, s.RecvSGEs, s.Inline} {
		if n < 0 || n > 1<<24 {
			return bad("%d requests, %d receives, %d and %d SGEs, %d bytes inline: expected numbers from 0", s.SendWRs,
				s.RecvWRs, s.SendSGEs, s.RecvSGEs, s.Inline)
		}
	}
	if s.SRQ != nil && s.RecvWRs != 0 {
		return bad("receives of its own and a shared receive queue: expected one of both")
	}
	for _, cq := range []*CQ{s.SendCQ, s.RecvCQ} {
		if cq == nil {
			continue
		}
		if err := cq.usable("create_qp"); err != nil {
			return err
		}
		if cq.ctx != p.ctx {
			return bad("%s is of another device", cq.name)
		}
	}
	if s.SRQ != nil {
		if err := s.SRQ.usable("create_qp"); err != nil {
			return err
		}
		if s.SRQ.ctx != p.ctx {
			return bad("%s is of another device", s.SRQ.name)
		}
	}
	if s.XRCD != nil {
		if err := s.XRCD.usable("create_qp"); err != nil {
			return err
		}
		if s.XRCD.ctx != p.ctx {
			return bad("%s is of another device", s.XRCD.name)
		}
	}
	return nil
}

// Num is the queue pair's number, by which peers address it.
func (q *QP) Num() uint32 { return q.num }

// Spec is what was asked for, with the sizes that the device chose.
func (q *QP) Spec() QPSpec { return q.spec }

// PostSend posts the requests of a chain that are not posted yet, in one call of the library, and
// returns how many it took. On an error those are posted and the rest is not; the chain goes on
// with the refused one when it is posted again. ErrFull: no slot is free. It allocates nothing when
// all goes well.
func (q *QP) PostSend(c *SendChain) (posted int, err error) {
	if q.h == 0 {
		return 0, q.usable("post_send")
	}
	if c.posted == c.n {
		return 0, nil
	}
	*c.bad = 0
	ret := int32(q.pd.ctx.c.ops.postSend.Call3(q.h, c.base+uintptr(c.posted)*sendWRSize, c.badAt))
	return c.advance("post_send", &q.object, ret)
}

// PostRecv posts receives, as PostSend does requests.
func (q *QP) PostRecv(c *RecvChain) (posted int, err error) {
	if q.h == 0 {
		return 0, q.usable("post_recv")
	}
	if c.posted == c.n {
		return 0, nil
	}
	*c.bad = 0
	ret := int32(q.pd.ctx.c.ops.postRecv.Call3(q.h, c.base+uintptr(c.posted)*recvWRSize, c.badAt))
	return c.advance("post_recv", &q.object, ret)
}

// Close ends the queue pair. What is outstanding has no completions any more: to have them, call
// Err and poll first.
func (q *QP) Close() error {
	return q.close("destroy_qp", func(h uintptr) error {
		q.mu.Lock() // waits for a call that changes or reads the state; a later one finds the memory gone
		defer q.mu.Unlock()
		if err := q.pd.ctx.returned("destroy_qp", q.name, q.pd.ctx.lib.f.destroyQP, h); err != nil {
			return err
		}
		q.free()
		return nil
	})
}
