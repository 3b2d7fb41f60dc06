package ibv

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// DC is the dynamically connected transport of a device, which NVIDIA's cards have and libmlx5 knows: a [DCTarget] is reached by every initiator that has its number
// and key, and a [DCInitiator] names another target with each request. So one queue pair talks to thousands, reliably.
type DC struct {
	ctx      *Context
	lib      *dl.Library // libmlx5 stays loaded, as a driver of libibverbs
	createQP dl.Func
	toEx, dv dl.Func
}

// qpDriver is IBV_QPT_DRIVER: a service of the device's driver.
const qpDriver QPType = 0xff

const (
	dcTarget, dcInitiator = 1, 2
	mlx5MaskDC            = 1 << 1
	qpMaskSendOps         = 1 << 6

	// sendOps are the requests that an initiator may make (IBV_QP_EX_WITH_...): writes and sends with and without immediate values, reads, atomics.
	sendOps = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4
	atomics = 1<<5 | 1<<6
)

// OpenDC finds what DC needs: libmlx5.so.1, which the driver of the device is (o.Path: another file, for tests). A device of another driver, or a card
// without DC, is ErrUnsupported.
func (c *Context) OpenDC(o Options) (*DC, error) {
	const op = "open_dc"
	if err := c.usable(op); err != nil {
		return nil, err
	}
	name := "libmlx5.so.1"
	if o.Path != "" {
		name = o.Path
	}
	lib, err := dl.Open(name)
	if err != nil {
		return nil, fmt.Errorf("ibv: %w: DC needs libmlx5 (Debian: apt-get install ibverbs-providers): %w", ErrUnavailable, err)
	}
	d := &DC{ctx: c, lib: lib}
	var supported dl.Func
	for _, s := range []struct {
		to            *dl.Func
		from          *dl.Library
		name, version string
	}{
		{&supported, lib, "mlx5dv_is_supported", "MLX5_1.8"},
		{&d.createQP, lib, "mlx5dv_create_qp", "MLX5_1.3"},
		{&d.dv, lib, "mlx5dv_qp_ex_from_ibv_qp_ex", "MLX5_1.10"},
		{&d.toEx, c.lib.lib, "ibv_qp_to_qp_ex", "IBVERBS_1.6"},
	} {
		if *s.to, err = s.from.SymbolVersion(s.name, s.version); err != nil {
			return nil, errors.Join(fmt.Errorf("ibv: %w: DC needs libmlx5 and libibverbs of rdma-core 25 or later: %w", ErrUnavailable, err), lib.Close())
		}
	}
	if uint8(supported.Call1(c.c.device)) == 0 {
		return nil, errors.Join(unsupported(op, c.name, "DC is of NVIDIA's cards with the driver mlx5, and this device is another: use RC"), lib.Close())
	}
	return d, nil
}

// Close gives libmlx5 back. Queue pairs that were made stay as they are.
func (d *DC) Close() error { return d.lib.Close() }

// DCTargetSpec is a target to be made.
type DCTargetSpec struct {
	SRQ         *SRQ   // where messages go
	CQ          *CQ    // where their completions go
	Key         uint64 // what an initiator must know; any number
	Access      Access // what initiators may do: RemoteWrite, RemoteRead, RemoteAtomic
	Port        uint8  // 0: port 1
	PKeyIndex   uint16
	SGIDIndex   uint8 // the GID by which it is reached (GID.Index)
	PathMTU     MTU
	MinRNRTimer uint8 // as RTRAttr has it
	HopLimit    uint8 // 0: 64
}

// DCTarget can be reached by any initiator that knows its number, its key and the way. What a request may do is bounded by Access and the keys of regions.
type DCTarget struct{ qp *QP }

// CreateTarget makes a target and opens it for requests. The caller closes it.
func (d *DC) CreateTarget(p *PD, s DCTargetSpec) (*DCTarget, error) {
	bad := func(format string, args ...any) error { return invalid("create_dct", p.name, format, args...) }
	switch {
	case s.SRQ == nil || s.CQ == nil:
		return nil, bad("expected a shared receive queue and a completion queue")
	case s.PathMTU.Bytes() == 0:
		return nil, bad("path MTU %d: expected MTU256 to MTU4096; the port's is PortAttr.ActiveMTU", uint32(s.PathMTU))
	case s.MinRNRTimer > 31:
		return nil, bad("RNR timer %d: expected 0 to 31", s.MinRNRTimer)
	case s.Access&^(LocalWrite|RemoteWrite|RemoteRead|RemoteAtomic) != 0:
		return nil, bad("rights %s: expected remote write, remote read and remote atomic", s.Access)
	}
	q, err := d.create("DC target", p, QPSpec{Type: qpDriver, RecvCQ: s.CQ, SRQ: s.SRQ}, cMLX5Init{dcType: dcTarget, key: s.Key})
	if err != nil {
		return nil, err
	}
	err = q.modify(QPInit, func(c *cQPAttr) int {
		c.port, c.pkeyIndex, c.access = max(s.Port, 1), s.PKeyIndex, uint32(s.Access)
		return maskPort | maskPKeyIndex | maskAccess
	})
	if err == nil {
		err = q.modify(QPReadyToReceive, func(c *cQPAttr) int {
			c.pathMTU, c.minRNRTimer = uint32(s.PathMTU), s.MinRNRTimer
			// Only the local end of the way counts: each initiator has its own.
			c.ah = cAHAttr{global: 1, sgidIndex: s.SGIDIndex, hopLimit: s.HopLimit, port: max(s.Port, 1)}
			if c.ah.hopLimit == 0 {
				c.ah.hopLimit = 64
			}
			return maskPathMTU | maskMinRNRTimer | maskAV
		})
	}
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	q.num = dl.At[cQP](q.h).num // the hardware has made it only now
	q.name = fmt.Sprintf("DC target %#x of %s", q.num, p.ctx.name)
	return &DCTarget{q}, nil
}

// Num is the number by which initiators name the target.
func (t *DCTarget) Num() uint32 { return t.qp.num }

// Close ends the target: no request reaches memory through it any more.
func (t *DCTarget) Close() error { return t.qp.Close() }

// DCInitiatorSpec is an initiator to be made.
type DCInitiatorSpec struct {
	CQ         *CQ
	WRs, SGEs  int // slots of its queue, and SGEs of a request
	Inline     int // bytes of a request that may be inline
	Port       uint8
	PKeyIndex  uint16
	PathMTU    MTU
	Timeout    uint8 // as RTSAttr has them
	RetryCount uint8
	RNRRetry   uint8
	ReadsLimit uint8 // reads and atomics at once
	Atomics    bool  // it may make atomics, which not all cards do
}

// DCInitiator makes requests of targets. One goroutine posts at a time.
type DCInitiator struct {
	qp *QP
	ex *cQPEx
	dv uintptr
	dc dl.Func
}

// CreateInitiator makes an initiator that is ready for requests. The caller closes it.
func (d *DC) CreateInitiator(p *PD, s DCInitiatorSpec) (*DCInitiator, error) {
	bad := func(format string, args ...any) error { return invalid("create_dci", p.name, format, args...) }
	switch {
	case s.CQ == nil:
		return nil, bad("expected a completion queue")
	case s.WRs < 1 || s.SGEs < 0 || s.Inline < 0 || max(s.WRs, s.SGEs, s.Inline) > 1<<24:
		return nil, bad("%d requests of %d SGEs, %d bytes inline: expected at least one request", s.WRs, s.SGEs, s.Inline)
	case s.PathMTU.Bytes() == 0:
		return nil, bad("path MTU %d: expected MTU256 to MTU4096; the port's is PortAttr.ActiveMTU", uint32(s.PathMTU))
	case s.Timeout > 31 || s.RetryCount > 7 || s.RNRRetry > 7:
		return nil, bad("timeout %d, retries %d, RNR retries %d: expected at most 31, 7 and 7", s.Timeout, s.RetryCount, s.RNRRetry)
	}
	spec := QPSpec{Type: qpDriver, SendCQ: s.CQ, SendWRs: s.WRs, SendSGEs: s.SGEs, Inline: s.Inline}
	ops := uint64(sendOps)
	if s.Atomics {
		ops |= atomics
	}
	q, err := d.create("DC initiator", p, spec, cMLX5Init{dcType: dcInitiator}, ops)
	if err != nil {
		return nil, err
	}
	i := &DCInitiator{qp: q}
	if err := errors.Join(i.functions(d), i.ready(s)); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return i, nil
}

// functions finds the functions that make requests; they must be code, since they are called.
func (i *DCInitiator) functions(d *DC) error {
	ex := d.toEx.Call1(i.qp.h)
	if ex == 0 {
		return unsupported("qp_to_qp_ex", i.qp.name, "the driver does not make requests by functions")
	}
	i.ex = dl.At[cQPEx](ex)
	if err := same(field{"ibv_qp_ex.qp_base.qp_num", uint64(i.ex.base.num), uint64(i.qp.num)}); err != nil {
		return err
	}
	if i.dv = d.dv.Call1(ex); i.dv == 0 {
		return unsupported("mlx5dv_qp_ex", i.qp.name, "the driver has no DC requests")
	}
	i.dc = dl.At[cMLX5Ex](i.dv).setDC
	code, err := executableNow()
	if err != nil {
		return err
	}
	for name, f := range map[string]dl.Func{"wr_start": i.ex.start, "wr_complete": i.ex.complete, "wr_abort": i.ex.abort, "wr_set_sge": i.ex.setSGE,
		"wr_set_sge_list": i.ex.setSGEs, "wr_rdma_write": i.ex.write, "wr_rdma_read": i.ex.read, "wr_send": i.ex.send, "wr_set_dc_addr": i.dc} {
		if !code.has(f) {
			return layoutError("ibv_qp_ex."+name, fmt.Sprintf("%#x", uintptr(f)), "the address of a function")
		}
	}
	return nil
}

func (i *DCInitiator) ready(s DCInitiatorSpec) error {
	err := i.qp.modify(QPInit, func(c *cQPAttr) int {
		c.port, c.pkeyIndex = max(s.Port, 1), s.PKeyIndex
		return maskPort | maskPKeyIndex
	})
	if err != nil {
		return err
	}
	if err := i.qp.modify(QPReadyToReceive, func(c *cQPAttr) int {
		c.pathMTU = uint32(s.PathMTU)
		return maskPathMTU
	}); err != nil {
		return err
	}
	return i.qp.modify(QPReadyToSend, func(c *cQPAttr) int {
		c.timeout, c.retryCount, c.rnrRetry, c.maxRdAtomic = s.Timeout, s.RetryCount, s.RNRRetry, s.ReadsLimit
		return maskTimeout | maskRetryCount | maskRNRRetry | maskMaxRdAtomic | maskSQPSN
	})
}

// create makes the queue pair below a target or an initiator, in Reset.
func (d *DC) create(kind string, p *PD, s QPSpec, m cMLX5Init, ops ...uint64) (*QP, error) {
	const op = "mlx5dv_create_qp"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if p.ctx != d.ctx {
		return nil, invalid(op, p.name, "it is of another device")
	}
	for _, cq := range []*CQ{s.SendCQ, s.RecvCQ} {
		if cq == nil {
			continue
		}
		if err := cq.usable(op); err != nil {
			return nil, err
		}
		if cq.ctx != d.ctx {
			return nil, invalid(op, p.name, "%s is of another device", cq.name)
		}
	}
	if s.SRQ != nil {
		if err := s.SRQ.usable(op); err != nil {
			return nil, err
		}
		if s.SRQ.ctx != d.ctx {
			return nil, invalid(op, p.name, "%s is of another device", s.SRQ.name)
		}
	}
	q := &QP{pd: p, spec: s}
	if err := q.memory(); err != nil {
		return nil, err
	}
	dv, err := newTemp[cMLX5Init]()
	if err != nil {
		q.free()
		return nil, err
	}
	defer dv.free()
	i := q.init.v
	*i = cQPInitEx{typ: uint32(s.Type), mask: qpMaskPD, pd: p.h, cap: cQPCap{sendWRs: uint32(s.SendWRs), sendSGEs: uint32(s.SendSGEs), inline: uint32(s.Inline)}}
	parents := []*object{&p.object}
	for _, cq := range []struct {
		cq *CQ
		to *uintptr
	}{{s.SendCQ, &i.sendCQ}, {s.RecvCQ, &i.recvCQ}} {
		if cq.cq != nil {
			*cq.to, parents = cq.cq.h, append(parents, &cq.cq.object)
		}
	}
	if s.SRQ != nil {
		i.srq, parents = s.SRQ.h, append(parents, &s.SRQ.object)
	}
	for _, o := range ops {
		i.mask, i.sendOps = i.mask|qpMaskSendOps, i.sendOps|o
	}
	*dv.v = m
	dv.v.mask = mlx5MaskDC
	h, e := made(op, p.name, d.createQP, d.ctx.h, q.init.p(), dv.p())
	if e != nil {
		q.free()
		if e.Errno == sys.EOPNOTSUPP {
			e.Hint = "the card or its firmware has no DC: use RC"
		}
		return nil, e
	}
	q.spec.SendWRs, q.spec.SendSGEs, q.spec.Inline = int(i.cap.sendWRs), int(i.cap.sendSGEs), int(i.cap.inline)
	c := dl.At[cQP](h)
	q.num = c.num
	err = same(field{"ibv_qp.context", uint64(c.context), uint64(d.ctx.h)}, field{"ibv_qp.qp_type", uint64(c.typ), uint64(qpDriver)})
	if err == nil {
		err = q.open(&d.ctx.tree, kind, fmt.Sprintf("%s %#x of %s", kind, q.num, d.ctx.name), h, q, parents...)
	}
	if err != nil {
		err = errors.Join(err, d.ctx.returned("destroy_qp", p.name, d.ctx.lib.f.destroyQP, h))
		q.free()
		return nil, err
	}
	return q, nil
}

// Num is the queue pair's number, which completions have.
func (i *DCInitiator) Num() uint32 { return i.qp.num }

// Recover makes an initiator that a failed request has stopped ready again. What was outstanding has been flushed; poll its completions first.
func (i *DCInitiator) Recover(s DCInitiatorSpec) error {
	if err := i.qp.Reset(); err != nil {
		return err
	}
	return i.ready(s)
}

// Close ends the initiator. What is outstanding has no completions any more.
func (i *DCInitiator) Close() error { return i.qp.Close() }
