package cm

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

import (
	"encoding/binary"
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/sys"
)

// Structures of rdma/rdma_cma.h and infiniband/verbs.h as far as they are read or written here;
// TestLayout asks a C compiler. They are the library's ABI, the same on all machines with pointers
// of 64 bits.

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

// udParams are in the place of cmParams in events of IDs for datagrams.
type udParams struct {
	private    uintptr
	privateLen uint8
	_          [7]byte
	way        [ibv.SizeAHAttr]byte
	qpn        uint32
	qkey       uint32
}

type cmEvent struct {
	id     uintptr
	listen uintptr
	typ    uint32
	status int32
	params cmParams
	_      [unsafe.Sizeof(udParams{}) - unsafe.Sizeof(cmParams{})]byte
}

type addrInfo struct {
	flags, family, qpType, space         int32
	sourceLen, destLen                   uint32
	source, dest, sourceName, destName   uintptr
	routeLen, route, connectLen, connect uintptr
	next                                 uintptr
}

type cmChannel struct{ fd int32 }

// qpAttr is the part of an ibv_qp_attr that this package reads; package ibv has the whole.
type qpAttr struct {
	state         uint32
	_             [122]byte
	maxRdAtomic   uint8
	maxDestAtomic uint8
	minRNR        uint8
	_             [3]byte
	rnrRetry      uint8
}

// deviceName is where the name is in an ibv_device, which is what the first word of an ibv_context
// points to.
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
	*c = cmParams{privateLen: uint8(len(p.PrivateData)), responder: p.ResponderResources, initiator: p.InitiatorDepth,
		retry:    p.RetryCount,
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
	return Params{PrivateData: private(c.private, c.privateLen), ResponderResources: c.responder,
		InitiatorDepth: c.initiator, FlowControl: c.flow != 0,
		RetryCount: c.retry, RNRRetryCount: c.rnrRetry, SRQ: c.srq != 0, QPN: c.qpn}
}

func private(at uintptr, n uint8) []byte {
	if at == 0 || n == 0 {
		return nil
	}
	return append([]byte(nil), dl.Bytes(at, int(n))...)
}

// given is what the peer gave along with an event of an ID for that service.
func (e *cmEvent) given(s Service) Params {
	if s != UD {
		return e.params.params()
	}
	u := (*udParams)(unsafe.Pointer(&e.params))
	return Params{PrivateData: private(u.private, u.privateLen), QPN: u.qpn, QKey: u.qkey, To: ibv.AddressOf(&u.way)}
}

// endpoint makes the library's ID for a service, bound to a socket address, which is the only way
// to one for UC. It has a channel of its own, which it loses when it is moved to another one.
func (l *Library) endpoint(s Service, at []byte) (handle uintptr, errno sys.Errno, err error) {
	const size = int(unsafe.Sizeof(addrInfo{}))
	b, err := dl.Alloc(size + 8 + len(at))
	if err != nil {
		return 0, 0, err
	}
	defer dl.Free(b)
	copy(b[size+8:], at)
	info := dl.Address(b)
	out := info + uintptr(size)
	*dl.At[addrInfo](info) = addrInfo{flags: passive, family: int32(binary.NativeEndian.Uint16(at)), qpType: s.qpType(),
		space:     int32(s.portSpace()),
		sourceLen: uint32(len(at)), source: out + 8}
	errno = l.call(l.f.createEP, out, info, 0, 0)
	return *dl.At[uintptr](out), errno, nil
}
