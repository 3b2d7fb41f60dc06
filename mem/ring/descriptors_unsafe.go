package ring

import (
	"sync/atomic"
	"unsafe"
)

// headerAt is the header of a ring of descriptors. The caller has checked length and alignment, and
// keeps mem mapped.
func headerAt(mem []byte) *descHeader {
	return (*descHeader)(unsafe.Pointer(&mem[:descHeaderSize][0]))
}

// magicWord is the first word: it is stored last.
func magicWord(mem []byte) *atomic.Uint64 { return wordAt(mem, 0) }

// descriptorsAt is a ring of n slots. The caller has checked that mem holds them.
func descriptorsAt(mem []byte, n, payload uint64) *Descriptors {
	body := mem[descHeaderSize : descHeaderSize+n*descSlotSize]
	return &Descriptors{h: headerAt(mem), slots: unsafe.Slice((*descSlot)(unsafe.Pointer(&body[0])), n), mask: n - 1,
		payload: payload}
}

// These lines fail to compile if the layout is not what its sizes say.
const (
	_ = uint(unsafe.Sizeof(descHeader{}) - descHeaderSize)
	_ = uint(descHeaderSize - unsafe.Sizeof(descHeader{}))
	_ = uint(unsafe.Sizeof(descSlot{}) - descSlotSize)
	_ = uint(descSlotSize - unsafe.Sizeof(descSlot{}))
	_ = uint(0 - unsafe.Offsetof(descHeader{}.tail)%lineSize)
	_ = uint(0 - unsafe.Offsetof(descHeader{}.head)%lineSize)
)
