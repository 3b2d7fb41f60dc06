package ibv

import (
	"fmt"
	"unsafe"

	"github.com/penstock-io/penstock/internal/sys"
)

// DCAddress is a target and the way to it.
type DCAddress struct {
	AH     *AH    // the way; one for each peer's port, however many targets it has
	Target uint32 // DCTarget.Num
	Key    uint64 // DCTargetSpec.Key
}

// DCOp is what a request of an initiator does.
type DCOp uint8

// The requests. Sends go into the next receive of the target's shared receive queue.
const (
	DCWrite DCOp = iota
	DCWriteImm
	DCRead
	DCSend
	DCSendImm
	DCFetchAdd // 8 bytes; the old value goes to the SGE
	DCCmpSwap
)

// DCRequest is one request of an initiator.
type DCRequest struct {
	ID            uint64
	Op            DCOp
	Flags         SendFlags // Signaled, Fence, Solicited, Inline
	To            DCAddress
	RemoteAddr    uint64
	RKey          uint32
	Imm           uint32
	Operand, Swap uint64 // of atomics: what is added, or compared and stored
	SGEs          []SGE  // with the flag Inline one, of a write or send: its bytes are taken when Post returns, and its key means nothing
	Inline        []byte // in place of SGEs, of writes and sends: taken when Post returns
}

// Post posts the requests in one batch, all or none. It allocates nothing when all goes well. ErrFull: there are not enough free slots.
func (i *DCInitiator) Post(reqs []DCRequest) error {
	const op = "dc_post"
	if i.qp.h == 0 {
		return i.qp.usable(op)
	}
	for n := range reqs {
		if err := i.check(&reqs[n]); err != nil {
			return err
		}
	}
	if len(reqs) == 0 {
		return nil
	}
	x, q := i.ex, i.qp.h
	x.start.Call1(q)
	for n := range reqs {
		r := &reqs[n]
		x.wrID, x.wrFlags = r.ID, uint32(r.Flags&^Inline)
		switch r.Op {
		case DCWrite:
			x.write.Call3(q, uintptr(r.RKey), uintptr(r.RemoteAddr))
		case DCWriteImm:
			x.writeImm.Call4(q, uintptr(r.RKey), uintptr(r.RemoteAddr), uintptr(fromBE32(r.Imm)))
		case DCRead:
			x.read.Call3(q, uintptr(r.RKey), uintptr(r.RemoteAddr))
		case DCSend:
			x.send.Call1(q)
		case DCSendImm:
			x.sendImm.Call2(q, uintptr(fromBE32(r.Imm)))
		case DCFetchAdd:
			x.fetchAdd.Call4(q, uintptr(r.RKey), uintptr(r.RemoteAddr), uintptr(r.Operand))
		case DCCmpSwap:
			x.cmpSwap.Call5(q, uintptr(r.RKey), uintptr(r.RemoteAddr), uintptr(r.Operand), uintptr(r.Swap))
		}
		i.dc.Call4(i.dv, r.To.AH.h, uintptr(r.To.Target), uintptr(r.To.Key))
		switch {
		case len(r.Inline) > 0:
			x.setInline.Call3(q, uintptr(unsafe.Pointer(unsafe.SliceData(r.Inline))), uintptr(len(r.Inline)))
		case len(r.SGEs) == 1 && r.Flags&Inline != 0:
			s := r.SGEs[0]
			x.setInline.Call3(q, uintptr(s.Addr), uintptr(s.Length))
		case len(r.SGEs) == 1:
			s := r.SGEs[0]
			x.setSGE.Call4(q, uintptr(s.LKey), uintptr(s.Addr), uintptr(s.Length))
		case len(r.SGEs) > 1:
			x.setSGEs.Call3(q, uintptr(len(r.SGEs)), uintptr(unsafe.Pointer(unsafe.SliceData(r.SGEs))))
		}
	}
	if errno := int32(x.complete.Call1(q)); errno != 0 {
		e := failed(op, i.qp.name, sys.Errno(errno))
		if e.Errno == sys.ENOMEM {
			e.Kind, e.Hint = ErrFull, fmt.Sprintf("%d requests, and the queue has %d slots: poll completions", len(reqs), i.qp.spec.SendWRs)
		}
		return e
	}
	return nil
}

// check refuses what the library would take and do wrong.
func (i *DCInitiator) check(r *DCRequest) error {
	s := &i.qp.spec
	switch {
	case r.Op > DCCmpSwap || (r.Op == DCFetchAdd && i.ex.fetchAdd == 0) || (r.Op == DCCmpSwap && i.ex.cmpSwap == 0):
		return i.qp.badPost("operation %d: the initiator was not made with it (DCInitiatorSpec.Atomics)", r.Op)
	case r.To.AH == nil || r.To.AH.pd != i.qp.pd || r.To.AH.h == 0:
		return i.qp.badPost("the way to the target: expected an open address handle of the same protection domain")
	case r.To.Target == 0 || r.To.Target >= 1<<24:
		return i.qp.badPost("target %#x: expected its number, 24 bits", r.To.Target)
	case r.Flags&Inline != 0 && (len(r.SGEs) != 1 || int(r.SGEs[0].Length) > s.Inline || len(r.Inline) > 0 || r.Op == DCRead || r.Op >= DCFetchAdd):
		return i.qp.badPost("the flag Inline: expected a write or send with one SGE of at most %d bytes", s.Inline)
	case len(r.SGEs) > s.SendSGEs || len(r.Inline) > s.Inline:
		return i.qp.badPost("%d SGEs, %d bytes inline: expected at most %d and %d", len(r.SGEs), len(r.Inline), s.SendSGEs, s.Inline)
	case len(r.Inline) > 0 && (len(r.SGEs) > 0 || r.Op == DCRead || r.Op >= DCFetchAdd):
		return i.qp.badPost("inline data of a request that has SGEs or receives bytes")
	}
	return nil
}

func (q *QP) badPost(format string, args ...any) error {
	return invalid("dc_post", q.name, format, args...)
}
