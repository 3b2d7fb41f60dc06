package ibv

import (
	"unsafe"

	"github.com/penstock-io/penstock/internal/dl"
)

// SizeQPAttr is the size of a C struct ibv_qp_attr in bytes, for [QP.ModifyAs].
const SizeQPAttr = int((unsafe.Sizeof(cQPAttr{}) + 7) &^ 7) // C aligns it to 8

// SizeAHAttr is the size of a C struct ibv_ah_attr in bytes, for [AddressOf].
const SizeAHAttr = int((unsafe.Sizeof(cAHAttr{}) + 7) &^ 7)

// AddressOf reads a struct ibv_ah_attr that another library has filled.
func AddressOf(attr *[SizeAHAttr]byte) Address { return (*cAHAttr)(unsafe.Pointer(attr)).address() }

// ModifyAs makes one transition with attributes that another library has filled: attr is a struct
// ibv_qp_attr of SizeQPAttr bytes in memory of [dl.Alloc], mask says what of it counts, as
// rdma_init_qp_attr of librdmacm gives them. The rights of the peer are access instead, where the
// transition sets them, since a connection manager grants more than was asked for. The transition
// must be legal, as with Init and its like.
func (q *QP) ModifyAs(to QPState, attr []byte, mask int, access Access) error {
	if len(attr) != SizeQPAttr {
		return q.bad("attributes of %d bytes: expected %d", len(attr), SizeQPAttr)
	}
	if mask&^(1<<21-1) != 0 {
		return q.bad("mask %#x of attributes: expected bits 0 to 20", mask)
	}
	return q.modify(to, func(c *cQPAttr) int {
		*c = *dl.At[cQPAttr](dl.Address(attr))
		c.access = uint32(access)
		return mask &^ maskState
	})
}
