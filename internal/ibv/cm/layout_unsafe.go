package cm

import (
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// Structures of rdma/rdma_cma.h and infiniband/verbs.h as far as they are read or written here; TestLayout asks a C compiler. They are the library's ABI,
// the same on all machines with pointers of 64 bits.

const storage = 128 // bytes of a sockaddr_storage

type cmID struct {
	verbs    uintptr // *ibv_context, the library's own
	channel  uintptr
	context  uintptr
	qp       uintptr
	source   [storage]byte
	dest     [storage]byte
	ib       [40]byte
	paths    uintptr
	numPaths int32
	_        int32
	ps       uint32
	port     uint8
}

type cmParams struct {
	private    uintptr
	privateLen uint8
	responder  uint8
	initiator  uint8
	flow       uint8
	retry      uint8
	rnrRetry   uint8
	srq        uint8
	_          uint8
	qpn        uint32
	_          uint32
}

type cmEvent struct {
	id     uintptr
	listen uintptr
	typ    uint32
	status int32
	params cmParams
}

type cmChannel struct{ fd int32 }

// qpAttr is the part of an ibv_qp_attr that is looked at here; package ibv has the whole.
type qpAttr struct {
	state         uint32
	_             [122]byte
	maxRdAtomic   uint8
	maxDestAtomic uint8
	minRNR        uint8
	_             [3]byte
	rnrRetry      uint8
}

// deviceName is where the name is in an ibv_device, which is what the first word of an ibv_context points to.
const deviceName = 24

// nameOf is the name of the device of a context that the library opened.
func nameOf(context uintptr) string {
	if context == 0 {
		return ""
	}
	return dl.GoString(*dl.At[uintptr](context) + deviceName)
}

// block is C memory for one call: parameters and behind them private data.
type block struct{ b []byte }

func newBlock(p Params) (block, error) {
	const size = int(unsafe.Sizeof(cmParams{}))
	b, err := dl.Alloc(size + len(p.PrivateData))
	if err != nil {
		return block{}, err
	}
	copy(b[size:], p.PrivateData)
	c := dl.At[cmParams](dl.Address(b))
	*c = cmParams{privateLen: uint8(len(p.PrivateData)), responder: p.ResponderResources, initiator: p.InitiatorDepth, retry: p.RetryCount,
		rnrRetry: p.RNRRetryCount, qpn: p.QPN}
	if p.FlowControl {
		c.flow = 1
	}
	if p.SRQ {
		c.srq = 1
	}
	if len(p.PrivateData) > 0 {
		c.private = dl.Address(b) + uintptr(size)
	}
	return block{b}, nil
}

func (b block) address() uintptr { return dl.Address(b.b) }

func (b block) free() { dl.Free(b.b) }

func (c *cmParams) params() Params {
	p := Params{ResponderResources: c.responder, InitiatorDepth: c.initiator, FlowControl: c.flow != 0, RetryCount: c.retry, RNRRetryCount: c.rnrRetry,
		SRQ: c.srq != 0, QPN: c.qpn}
	if c.private != 0 && c.privateLen > 0 {
		p.PrivateData = append([]byte(nil), dl.Bytes(c.private, int(c.privateLen))...)
	}
	return p
}
