package ring

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Errors of a ring of descriptors, to match with errors.Is.
var (
	ErrClosed  = errors.New("ring: closed")
	ErrLayout  = errors.New("ring: memory does not hold a ring of this layout")
	ErrPayload = errors.New("ring: descriptor names bytes outside the payload memory")
)

// Desc describes one packet, or one object of any size: where its bytes lie in the payload memory,
// and what is known of it. The ring carries it; the bytes stay where they are.
type Desc struct {
	Off uint64 // bytes from the start of the payload memory
	Len uint64 // bytes
	// ns, of the clock that the producer says, 0 where unknown. Measure intervals by it only if
	// that clock is monotonic
	Time   int64
	Tag    uint64 // the producer's own; a kernel copies it to the result
	Value  uint64 // of a result: what the kernel has found
	Flow   uint32 // id of the steering rule
	Hash   uint32 // of the receive side
	Source uint32 // id of the sender or connection
	Flags  uint32 // DescVoid, DescTruncated and others
}

// Flags of a Desc. The lower 16 bits are the ring's, the others the user's.
const (
	DescVoid      = 1 << 0 // its producer died between claim and publication: no bytes
	DescTruncated = 1 << 1 // it was longer on the wire than its slot
	DescFrame     = 1 << 2 // a whole Ethernet frame
)

// The layout in shared memory. This is the one description of it: cl/ring_layout.h of
// internal/kernels is made of it, and both compilers check the sizes. Words are in the byte order
// of the machine, which is little-endian wherever accelerators are. Lines are 128 bytes: words of
// producers, of consumers, and those that change at most at the end do not share one, so that a
// call of one side reads no line that the other side keeps writing but the slots.
//
// Only producers change tail by read-modify-write, only consumers head: an accelerator behind PCIe
// has no atomic read-modify-write that is atomic to the CPU as well (CUDA C++ Programming Guide,
// Atomic Functions). DropOldest is the exception, and says so.
type descHeader struct {
	magic    uint64        // descMagic
	version  uint32        // descVersion
	slotSize uint32        // bytes
	slots    uint64        // a power of two
	payload  uint64        // bytes of the payload memory
	closed   atomic.Uint64 // 1: producers have closed
	left     atomic.Uint64 // 1: consumers have closed
	pad0     [80]byte

	tail       atomic.Uint64 // next ticket of producers
	putRetries atomic.Uint64
	refused    atomic.Uint64 // descriptors that found no room and were given up: drop-new
	dropped    atomic.Uint64 // those that DropOldest took
	pad1       [96]byte

	head       atomic.Uint64 // next ticket of consumers
	getRetries atomic.Uint64
	empty      atomic.Uint64 // polls that found nothing
	released   atomic.Uint64 // descriptors that consumers released
	pad2       [96]byte
}

// descSlot is a slot: its sequence word, which is t when it is free for ticket t, t+1 when ticket t
// is published, and t+slots when that was released; and a Desc.
type descSlot struct {
	seq atomic.Uint64
	d   Desc
}

const (
	descMagic   = 0x31676e6972_7370 // "psring1", little-endian
	descVersion = 2

	descHeaderSize = 384
	descSlotSize   = 64

	// MaxDescriptors is the largest number of slots of a ring of descriptors.
	MaxDescriptors = 1 << 24
)

// DescriptorsSize is how many bytes of shared memory a ring of at least slots descriptors takes:
// slots is rounded up to a power of two, at least 2. It is 0, which NewDescriptors refuses, for
// less than 1 or more than MaxDescriptors.
func DescriptorsSize(slots int) int {
	if slots < 1 || slots > MaxDescriptors {
		return 0
	}
	return descHeaderSize + roundCells(slots, 2)*descSlotSize
}

// Descriptors is a ring of descriptors in memory that several processes, or a CPU and an
// accelerator, share. Any number of goroutines, processes and groups of a kernel put into it and
// get from it. Its methods may be called from any goroutine; none waits, and none allocates but for
// an error.
//
// Claim and release are two steps: between them a descriptor and its bytes are the consumer's, and
// no producer uses the slot again. Releases may come in any order. A claim never passes what was
// published, and a poll that finds nothing changes nothing but its count.
//
// The protocol is that of D. Vyukov's bounded queue with runs of tickets claimed at once. All N
// slots hold a descriptor.
//
// The other side is a process of the same user or a kernel of one's own. What it writes is checked
// all the same where it could lead out of the memory: Claim refuses a descriptor outside the
// payload, and a ticket that cannot be makes every later call answer ErrCorrupt. Geometry is
// private after attaching.
type Descriptors struct {
	h       *descHeader
	slots   []descSlot
	mask    uint64
	payload uint64
	corrupt atomic.Bool
}

// NewDescriptors makes an empty ring in mem, whose length is what DescriptorsSize gave and which
// starts on a multiple of 64 bytes, for descriptors of payload bytes of payload memory. The caller
// keeps mem mapped while the ring is in use, and lets no process attach before it returns.
func NewDescriptors(mem []byte, payload uint64) (*Descriptors, error) {
	return newDescriptors(mem, payload, 0)
}

func newDescriptors(mem []byte, payload, start uint64) (*Descriptors, error) {
	n := (len(mem) - descHeaderSize) / descSlotSize
	if n < 2 || DescriptorsSize(n) != len(mem) {
		return nil, fmt.Errorf("%w: %d bytes: expected %d + %d*n, n a power of two from 2 to %d (DescriptorsSize tells)", ErrLayout, len(mem), descHeaderSize, descSlotSize, MaxDescriptors)
	}
	if err := checkAligned("NewDescriptors", mem); err != nil {
		return nil, err
	}
	clear(mem)
	r := descriptorsAt(mem, uint64(n), payload)
	for i := range r.slots {
		t := start + (uint64(i)-start)&r.mask // the first ticket of this slot
		r.slots[i].seq.Store(t)
	}
	h := r.h
	h.version, h.slotSize, h.slots, h.payload = descVersion, descSlotSize, uint64(n), payload
	h.tail.Store(start)
	h.head.Store(start)
	h.released.Store(start)
	magicWord(mem).Store(descMagic)
	return r, nil
}

// AttachDescriptors is the ring that another process has made in the same memory. The error wraps
// ErrLayout and says what differs: the magic number, the version, the sizes.
func AttachDescriptors(mem []byte) (*Descriptors, error) {
	bad := func(what string, got, want any) error {
		return fmt.Errorf("%w: %s is %v, expected %v: both sides must be of the same build, and the ring made first",
			ErrLayout, what, got, want)
	}
	if len(mem) < descHeaderSize {
		return nil, bad("length in bytes", len(mem), fmt.Sprintf("%d or more", descHeaderSize))
	}
	if err := checkAligned("AttachDescriptors", mem); err != nil {
		return nil, err
	}
	if got := magicWord(mem).Load(); got != descMagic {
		return nil, bad("magic number", fmt.Sprintf("%#x", got), fmt.Sprintf("%#x", uint64(descMagic)))
	}
	h := headerAt(mem)
	version, slotSize, n, payload := h.version, h.slotSize, h.slots, h.payload
	switch {
	case version != descVersion:
		return nil, bad("version", version, descVersion)
	case slotSize != descSlotSize:
		return nil, bad("slot size", slotSize, descSlotSize)
	case n < 2 || n > MaxDescriptors || bits.OnesCount64(n) != 1 || descHeaderSize+int(n)*descSlotSize != len(mem):
		return nil, bad("number of slots", n, fmt.Sprintf("a power of two for %d bytes", len(mem)))
	}
	return descriptorsAt(mem, n, payload), nil
}

// Cap is the number of slots.
func (r *Descriptors) Cap() int { return len(r.slots) }

// Payload is the size of the payload memory in bytes.
func (r *Descriptors) Payload() uint64 { return r.payload }

// CloseProducers says that nothing will be published any more: Publish answers ErrClosed, and Claim
// answers it when what was published has been claimed. Closing again does nothing.
func (r *Descriptors) CloseProducers() { r.h.closed.Store(1) }

// CloseConsumers says that nothing will be claimed any more: Publish and Claim answer ErrClosed.
// What was published stays until Recover. Closing again does nothing.
func (r *Descriptors) CloseConsumers() { r.h.left.Store(1) }

// ConsumersClosed reports whether CloseConsumers was called, by any process.
func (r *Descriptors) ConsumersClosed() bool { return r.h.left.Load() != 0 }

// DescStats are the counts of a ring. Published - Released - Dropped - InRing is 0 whenever no call
// is in progress. A call that was killed stays in progress until Recover.
type DescStats struct {
	Published  uint64 // tickets that producers took
	Released   uint64
	Dropped    uint64 // by DropOldest
	Refused    uint64 // found no room, and never were in the ring
	InRing     uint64 // published and not released, claimed ones included: counted slot by slot
	Claimed    uint64 // those of InRing that are with consumers
	PutRetries uint64 // claims of a ticket that another producer came before
	GetRetries uint64
	Empty      uint64 // polls of consumers that found nothing
}

// Stats looks at every slot. It may be called from any goroutine; the numbers fit together when no
// call is in progress.
func (r *Descriptors) Stats() DescStats {
	s := DescStats{Refused: r.h.refused.Load(), Dropped: r.h.dropped.Load(), Released: r.h.released.Load(),
		PutRetries: r.h.putRetries.Load(),
		GetRetries: r.h.getRetries.Load(), Empty: r.h.empty.Load()}
	head := r.h.head.Load()
	tail := r.h.tail.Load()
	s.Published = tail
	for t := tail - uint64(len(r.slots)); t != tail; t++ {
		if r.slots[t&r.mask].seq.Load() == t+1 {
			s.InRing++
			if int64(t-head) < 0 {
				s.Claimed++
			}
		}
	}
	return s
}

// Check is an error unless everything that was published is released, dropped or in the ring. No
// side may use the ring during the call. After the death of a side, call Recover first.
func (r *Descriptors) Check() error {
	s := r.Stats()
	if s.Published != s.Released+s.Dropped+s.InRing {
		return fmt.Errorf("ring: %d descriptors were published, but %d are released, %d dropped and %d in the ring: %w",
			s.Published, s.Released, s.Dropped, s.InRing, ErrCorrupt)
	}
	return nil
}

// Len is how many descriptors are published and not claimed, at about the time of the call.
func (r *Descriptors) Len() int {
	h := r.h.head.Load()
	return int(min(r.h.tail.Load()-h, r.mask+1))
}
