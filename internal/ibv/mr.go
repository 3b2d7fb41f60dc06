package ibv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/sys"
)

// Access is what may be done with a region, a window or a queue pair. Reading by the owner's own
// requests is always allowed.
type Access uint32

// The rights. RemoteWrite and RemoteAtomic need LocalWrite. RelaxedOrdering lets the device's
// writes reach memory in any order, and is ignored where the kernel does not know it.
const (
	LocalWrite      Access = 1 << 0
	RemoteWrite     Access = 1 << 1
	RemoteRead      Access = 1 << 2
	RemoteAtomic    Access = 1 << 3
	MWBind          Access = 1 << 4 // windows may be bound to the region
	ZeroBased       Access = 1 << 5 // addresses in requests are offsets
	RelaxedOrdering Access = 1 << 20

	optionalAccess Access = 0x3ff00000
	knownAccess           = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic | MWBind | ZeroBased | optionalAccess
)

func (a Access) String() string {
	var s []string
	for _, n := range []struct {
		a Access
		s string
	}{{LocalWrite, "local write"}, {RemoteWrite, "remote write"}, {RemoteRead, "remote read"},
		{RemoteAtomic, "remote atomic"}, {MWBind, "window bind"},
		{ZeroBased, "zero-based"}, {RelaxedOrdering, "relaxed ordering"}} {
		if a&n.a != 0 {
			s = append(s, n.s)
			a &^= n.a
		}
	}
	if a != 0 {
		s = append(s, fmt.Sprintf("%#x", uint32(a)))
	}
	if len(s) == 0 {
		return "local read"
	}
	return strings.Join(s, ", ")
}

// DMABuf is memory given by a descriptor: of a GPU, or of another device.
type DMABuf struct {
	FD     int    // stays the caller's, and may be closed once the region is registered
	Offset uint64 // bytes from the beginning of the buffer
}

// MRSpec is a region to be registered.
type MRSpec struct {
	// first byte; memory outside the Go heap, which stays mapped until the region is closed. 0 with
	// DMABuf.
	Addr   uintptr
	Length uint64 // bytes
	// the address that requests use for the first byte; 0: Addr. With DMABuf it lies in its page
	// where the first byte does.
	IOVA   uint64
	Access Access
	DMABuf *DMABuf // nil: memory of this process, or of a device by its address
	// Peer says that Addr is an address of another device, which a module of the kernel knows
	// (nvidia-peermem). The CPU need not reach it.
	Peer bool
}

// MR is a registered region: the device may use its memory under two keys.
type MR struct {
	object
	pd         *PD
	spec       MRSpec
	lkey, rkey uint32
}

// RegMR registers memory. Its pages are pinned. The caller closes the region before the memory
// goes. ErrMemlock says what limit is in the way; ErrUnsupported what the device lacks.
func (p *PD) RegMR(s MRSpec) (*MR, error) {
	const op = "reg_mr"
	if err := p.usable(op); err != nil {
		return nil, err
	}
	if err := p.checkMR(s); err != nil {
		return nil, err
	}
	iova := s.IOVA
	if iova == 0 {
		iova = uint64(s.Addr)
	}
	if s.Access&ZeroBased != 0 {
		iova = 0
	}
	var h uintptr
	var e *Error
	f := &p.ctx.lib.f
	switch {
	case s.DMABuf != nil:
		if f.regDMABufMR == 0 {
			return nil, unsupported("reg_dmabuf_mr", p.ctx.name,
				"libibverbs is older than 34: it needs rdma-core 34 and Linux 5.12")
		}
		h, e = made("reg_dmabuf_mr", p.name, f.regDMABufMR, p.h, uintptr(s.DMABuf.Offset), uintptr(s.Length),
			uintptr(iova), uintptr(s.DMABuf.FD),
			uintptr(s.Access))
	case s.Access&optionalAccess != 0 && f.regMRIOVA2 != 0:
		// This function leaves out what an older kernel does not know.
		h, e = made(op, p.name, f.regMRIOVA2, p.h, s.Addr, uintptr(s.Length), uintptr(iova), uintptr(s.Access))
	case iova != uint64(s.Addr) && s.Access&ZeroBased == 0:
		if f.regMRIOVA == 0 {
			return nil, unsupported(op, p.ctx.name,
				"libibverbs is older than 26: addresses in requests are those of the process")
		}
		h, e = made(op, p.name, f.regMRIOVA, p.h, s.Addr, uintptr(s.Length), uintptr(iova),
			uintptr(s.Access&^optionalAccess))
	default:
		h, e = made(op, p.name, f.regMR, p.h, s.Addr, uintptr(s.Length), uintptr(s.Access&^optionalAccess))
	}
	if e != nil {
		return nil, p.regError(e, s)
	}
	c := dl.At[cMR](h)
	mr := &MR{pd: p, spec: s, lkey: c.lkey, rkey: c.rkey}
	err := same(field{"ibv_mr.context", uint64(c.context), uint64(p.ctx.h)},
		field{"ibv_mr.pd", uint64(c.pd), uint64(p.h)},
		field{"ibv_mr.length", c.length, s.Length})
	if err == nil {
		name := fmt.Sprintf("memory region %#x (%d bytes) of %s", c.lkey, s.Length, p.ctx.name)
		err = mr.open(&p.ctx.tree, "memory region", name, h, nil, &p.object)
	}
	if err != nil {
		return nil, errors.Join(err, p.ctx.returned("dereg_mr", p.name, f.deregMR, h))
	}
	return mr, nil
}

// checkMR refuses what no device can do, and what this one says that it cannot.
func (p *PD) checkMR(s MRSpec) error {
	bad := func(format string, args ...any) error { return invalid("reg_mr", p.name, format, args...) }
	switch {
	case s.Length == 0:
		return bad("a region of no bytes: expected at least 1")
	case s.DMABuf == nil && (s.Addr == 0 || s.Addr+uintptr(s.Length) < s.Addr):
		return bad("%d bytes at %#x are no memory", s.Length, s.Addr)
	case s.DMABuf != nil && s.DMABuf.FD < 0:
		return bad("descriptor %d: expected that of a dma-buf", s.DMABuf.FD)
	case s.DMABuf != nil && (s.Addr != 0 || s.Peer):
		return bad("a dma-buf and the address %#x at once: expected one of both", s.Addr)
	case s.DMABuf != nil && (s.IOVA^s.DMABuf.Offset)%uint64(sys.PageSize) != 0:
		return bad("offset %#x of a dma-buf at address %#x: expected both at one place in their pages of %d bytes",
			s.DMABuf.Offset, s.IOVA, sys.PageSize)
	case s.Access&(RemoteWrite|RemoteAtomic) != 0 && s.Access&LocalWrite == 0:
		return bad("%s: what others may write, its owner must be allowed to write: add local write", s.Access)
	case s.Access&^knownAccess != 0:
		return bad("%s: there is no such right", s.Access&^knownAccess)
	case s.Access&ZeroBased != 0 && s.IOVA != 0:
		return bad("zero-based and at %#x at once: expected one of both", s.IOVA)
	}
	return nil
}

// regError explains a refusal by what is known about this machine.
func (p *PD) regError(e *Error, s MRSpec) error {
	if s.DMABuf != nil || s.Peer {
		return deviceRegError(e, s)
	}
	switch e.Errno {
	case sys.ENOMEM, sys.EAGAIN:
		limit, err := sys.LockLimit()
		if err != nil {
			return e
		}
		capable, err := sys.HasCapability(sys.CapIPCLock)
		explainMemlock(e, s, limit, err == nil && capable)
	case sys.EFAULT:
		e.Hint = fmt.Sprintf("not all of %d bytes at %#x are mapped, or they may not be written (%s)", s.Length, s.Addr,
			s.Access)
	case sys.EOPNOTSUPP:
		e.Kind = ErrUnsupported
	case sys.EINVAL:
		e.Hint = fmt.Sprintf("the device does not take %d bytes at %#x with %s", s.Length, s.Addr, s.Access)
	}
	return e
}

// noDMABufs is what a device needs that refuses all of them.
const noDMABufs = "the device's driver cannot register dma-bufs; mlx5, irdma, efa and bnxt_re can, from Linux 5.12"

// deviceRegError explains a refusal of memory of another device. No limit of this process counts
// it: if room is lacking, then in a device.
func deviceRegError(e *Error, s MRSpec) error {
	switch e.Errno {
	case sys.ENOMEM, sys.ENOSPC, sys.EAGAIN:
		e.Kind = ErrNoRoom
		e.Hint = fmt.Sprintf("%d bytes of a device's memory do not fit: its window (BAR) is too small or full, or "+
			"the adapter has no room left for translations", s.Length)
	case sys.EPERM, sys.EACCES:
		e.Kind = ErrRefused
		e.Hint = fmt.Sprintf("the device that exports the memory does not let other devices use it so (%s), or this "+
			"process may not", s.Access)
	case sys.EFAULT:
		e.Kind = ErrUnsupported
		e.Hint = fmt.Sprintf("no module of the kernel knows %#x as memory of a device: modprobe nvidia-peermem, "+
			"which also needs a kernel whose RDMA part has peer memory", s.Addr)
		if s.DMABuf != nil {
			e.Hint = fmt.Sprintf("%d bytes at %d are not all in the dma-buf", s.Length, s.DMABuf.Offset)
		}
	case sys.EBADF:
		e.Kind, e.Hint = ErrInvalid, "the descriptor is not a dma-buf"
	case sys.EOPNOTSUPP, sys.ENOSYS:
		e.Kind, e.Hint = ErrUnsupported, noDMABufs
		if s.Peer {
			e.Hint = "the kernel's RDMA part has no peer memory: it comes with NVIDIA's own drivers (DOCA-OFED) and " +
				"with some kernels of distributions"
		}
	case sys.EINVAL:
		e.Hint = fmt.Sprintf("the device does not take %d bytes of another device's memory with %s", s.Length, s.Access)
	}
	return e
}

// explainMemlock says whether the limit of locked memory is in the way. The kernel counts whole
// pages, and all that this user has pinned through RDMA, and does not report the sum.
func explainMemlock(e *Error, s MRSpec, limit uint64, capable bool) {
	page := uint64(sys.PageSize)
	need := (uint64(s.Addr)%page + s.Length + page - 1) / page * page
	if capable || limit == ^uint64(0) {
		e.Hint = fmt.Sprintf("%d bytes must be pinned; the limit (RLIMIT_MEMLOCK, ulimit -l) is %s and does not bind "+
			"this process, so the machine or the device has no "+
			"room left", need, limitText(limit))
		return
	}
	e.Kind = ErrMemlock
	e.Hint = fmt.Sprintf("%d bytes must be pinned, besides what this user has pinned already; the limit "+
		"(RLIMIT_MEMLOCK) is %d: raise it with \"ulimit -l %d\" or more before "+
		"the program starts, or with LimitMEMLOCK= of its systemd unit, or give the process CAP_IPC_LOCK", need, limit,
		need/1024)
}

func limitText(n uint64) string {
	if n == ^uint64(0) {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// LKey is the key for SGEs of requests in queue pairs of the same domain.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the key that peers use.
func (m *MR) RKey() uint32 { return m.rkey }

// Addr is the address that requests, local and remote, use for the first byte.
func (m *MR) Addr() uint64 {
	switch {
	case m.spec.Access&ZeroBased != 0:
		return 0
	case m.spec.IOVA != 0:
		return m.spec.IOVA
	}
	return uint64(m.spec.Addr)
}

// Length is the size in bytes.
func (m *MR) Length() uint64 { return m.spec.Length }

// SGE is length bytes from offset on, for a request. It panics on nothing and checks nothing: the
// device does.
func (m *MR) SGE(offset uint64, length uint32) SGE {
	return SGE{Addr: m.Addr() + offset, Length: length, LKey: m.lkey}
}

// Close deregisters the region; afterwards no request can use its keys. While windows are bound to
// it the device refuses, with ErrInUse.
func (m *MR) Close() error {
	return m.close("dereg_mr", func(h uintptr) error {
		err := m.pd.ctx.returned("dereg_mr", m.name, m.pd.ctx.lib.f.deregMR, h)
		var e *Error
		if errors.As(err, &e) && (e.Errno == sys.EBUSY || e.Errno == sys.EINVAL) {
			e.Kind, e.Hint = ErrInUse, "a memory window may be bound to it: invalidate or close the window first"
		}
		return err
	})
}
