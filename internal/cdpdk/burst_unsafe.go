//go:build dpdk

package cdpdk

// #cgo noescape ps_rx_burst
// #cgo nocallback ps_rx_burst
// #cgo noescape ps_tx_burst
// #cgo nocallback ps_tx_burst
// #cgo noescape ps_tx_run
// #cgo nocallback ps_tx_run
// #cgo noescape ps_tx_reap
// #cgo nocallback ps_tx_reap
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const (
	// MaxBurst is the number of packets of one call, MaxDescs that of their segments, MaxSegs that
	// of the segments of one packet, at most.
	MaxBurst, MaxDescs, MaxSegs = C.PS_BURST, C.PS_DESCS, C.PS_SEGS
	// Headroom is what a driver leaves free in front of a packet that it receives, in bytes.
	Headroom = C.RTE_PKTMBUF_HEADROOM
)

// Pool is a mempool whose mbufs have numbers from 0 on.
type Pool struct{ c *C.struct_ps_pool }

var pools atomic.Uint64 // made so far; mempools have names of their own in a process

func newPool(call string, make func(name *C.char, err *C.int) *C.struct_ps_pool) (*Pool, error) {
	name := C.CString(fmt.Sprintf("ps%d", pools.Add(1)))
	defer C.free(unsafe.Pointer(name))
	var e C.int
	p := make(name, &e)
	if p == nil {
		return nil, failed(call, -max(e, 1))
	}
	return &Pool{p}, nil
}

// NewSlotPool makes a pool of one mbuf for each slot of memory, of which the driver may fill room
// bytes, its headroom included. All mbufs are outside at first: Rx.Give hands them over. One
// receive queue uses the pool. EFAULT says that a slot does not lie on physical memory in one
// piece.
func NewSlotPool(base uintptr, slots, stride, room, socket int) (*Pool, error) {
	return newPool("mempool of slots", func(name *C.char, e *C.int) *C.struct_ps_pool {
		return C.ps_slot_pool_at(name, C.uintptr_t(base), C.uint32_t(slots), C.uint64_t(stride), C.uint32_t(room),
			C.int(socket), e)
	})
}

// NewOwnPool makes a pool of mbufs with room bytes behind each, headroom included, all of them for
// the driver at first. memory is what they lie in.
func NewOwnPool(n, room, socket int) (p *Pool, memory []byte, err error) {
	p, err = newPool("rte_pktmbuf_pool_create", func(name *C.char, e *C.int) *C.struct_ps_pool {
		return C.ps_own_pool(name, C.uint32_t(n), C.uint32_t(room), C.int(socket), e)
	})
	if err != nil {
		return nil, nil, err
	}
	return p, unsafe.Slice((*byte)(unsafe.Pointer(p.c.memory)), int(p.c.length)), nil
}

// Size is the number of mbufs, Free that of those in the mempool: those that a driver may take.
func (p *Pool) Size() int { return int(p.c.n) }

// Free is the number of mbufs in the mempool.
func (p *Pool) Free() int { return int(C.ps_pool_free_count(p.c)) }

// Close frees the mbufs. No driver has any of them.
func (p *Pool) Close() { C.ps_pool_close(p.c) }

// Alloc allocates memory of DPDK, which drivers share with their other ends. free frees it.
func Alloc(n int) (b []byte, free func() error, err error) {
	p := C.ps_alloc(C.uint64_t(n))
	if p == nil {
		return nil, nil, &Error{Call: "rte_zmalloc", Errno: syscall.ENOMEM}
	}
	return unsafe.Slice((*byte)(p), n), func() error { C.ps_dealloc(p); return nil }, nil
}

// Rx is a receive queue of a port. It is used by one goroutine at a time.
type Rx struct {
	c     *C.struct_ps_rx
	give  *[MaxBurst]uint32
	descs *[MaxDescs]Desc
}

// Desc is one received segment. What is of the packet is in its first one.
type Desc struct {
	Addr, Mbuf, Flags  uint64 // Flags as mbuf.ol_flags
	Time               uint64 // of reception, by the device's clock (Port.Clock); 0: none
	Slot, PktLen, Hash uint32 // Slot is the number of the mbuf in the queue's pool
	Mark               uint32 // of the rule that took the packet, if Flags has Marked
	Off, Len           uint16
	Foreign            bool  // the mbuf is of another pool
	Segs               uint8 // segments of the packet; 0 in those behind the first
}

var _ = [1]struct{}{}[unsafe.Sizeof(Desc{})-C.sizeof_struct_ps_desc]

// NewRx makes what receives from a queue that was set up with that pool.
func NewRx(p Port, queue int, pool *Pool) (*Rx, error) {
	c := C.ps_rx_new(p.c(), C.uint16_t(queue), pool.c)
	if c == nil {
		return nil, &Error{Call: "memory of a receive queue", Errno: syscall.ENOMEM}
	}
	return &Rx{c, (*[MaxBurst]uint32)(unsafe.Pointer(c.give)), (*[MaxDescs]Desc)(unsafe.Pointer(c.desc))}, nil
}

// Move has it receive from another queue of its port.
func (r *Rx) Move(queue int) { r.c.queue = C.uint16_t(queue) }

// Slots is where the caller writes numbers of mbufs, for the next Burst or Give.
func (r *Rx) Slots() *[MaxBurst]uint32 { return r.give }

// Burst gives the driver the first mbufs in Slots, and takes up to most packets from it. The
// descriptors hold until the next call. Each mbuf of the queue's own pool is the caller's then, and
// idle; foreign ones go back by FreeForeign.
func (r *Rx) Burst(give, most int) (packets int, d []Desc) {
	n := uint64(C.ps_rx_burst(r.c, C.uint32_t(give), C.uint32_t(most)))
	return int(uint32(n)), r.descs[:n>>32]
}

// Give gives the driver mbufs, as Burst does.
func (r *Rx) Give(n int) { C.ps_rx_give(r.c, C.uint32_t(n)) }

// TakeBack takes up to MaxBurst mbufs from the driver, which is stopped, and returns their numbers.
func (r *Rx) TakeBack() []uint32 { return r.give[:C.ps_rx_take_back(r.c)] }

// TooLong is the number of packets that had more than MaxSegs segments, and were dropped.
func (r *Rx) TooLong() uint64 { return uint64(r.c.too_long) }

// FreeForeign frees mbufs of other pools, by Desc.Mbuf.
func FreeForeign(mbufs []uint64) {
	if len(mbufs) > 0 {
		C.ps_free_foreign((*C.uint64_t)(unsafe.Pointer(&mbufs[0])), C.uint32_t(len(mbufs)))
	}
}

// Close frees what the queue has, but for its pools.
func (r *Rx) Close() { C.ps_rx_free(r.c) }

// Tx is a transmit queue of a port. It is used by one goroutine at a time.
type Tx struct {
	c    *C.struct_ps_tx
	segs *[MaxDescs]Seg
	ones *[MaxBurst]One
	done *[MaxDescs]uint32
}

// Seg is one segment to send. What is of the packet is in its first one.
type Seg struct {
	Addr, Flags   uint64 // Flags as mbuf.ol_flags
	Time          uint64 // before which the packet does not leave, by the device's clock (Port.Clock); 0: none
	Index, PktLen uint32 // Index is that of the header
	Len, Cut      uint16 // Cut is the payload of each packet that the device makes of it, with AskCutTCP or AskCutUDP
	L2, L3, L4    uint8  // lengths of headers
	Segs          uint8  // segments of the packet; 0 in those behind the first
}

var _ = [1]struct{}{}[unsafe.Sizeof(Seg{})-C.sizeof_struct_ps_seg]

// One is a packet to send that is of one segment and asks for nothing.
type One struct {
	Addr       uint64
	Index, Len uint32
}

var _ = [1]struct{}{}[unsafe.Sizeof(One{})-C.sizeof_struct_ps_one]

// NewTx makes what sends by a queue, with so many headers: segments that the driver has, at most.
// others says that another port frees headers, on goroutines of its own; otherwise the driver frees
// them only while it is called.
func NewTx(p Port, queue, headers int, others bool) (*Tx, error) {
	var c *C.struct_ps_tx
	_, err := newPool("mempool of headers", func(name *C.char, e *C.int) *C.struct_ps_pool {
		if c = C.ps_tx_new(p.c(), C.uint16_t(queue), C.uint32_t(headers), boolean(others), name, e); c == nil {
			return nil
		}
		return c.pool
	})
	if err != nil {
		return nil, err
	}
	return &Tx{c, (*[MaxDescs]Seg)(unsafe.Pointer(c.seg)), (*[MaxBurst]One)(unsafe.Pointer(c.one)),
		(*[MaxDescs]uint32)(unsafe.Pointer(c.done))}, nil
}

// Segs is where the caller writes what is to be sent.
func (t *Tx) Segs() *[MaxDescs]Seg { return t.segs }

// Ones is where the caller writes packets that Run is to send.
func (t *Tx) Ones() *[MaxBurst]One { return t.ones }

// Run sends the first n of Ones, and returns how many the driver took. Otherwise it is as Burst.
func (t *Tx) Run(n int) int { return int(C.ps_tx_run(t.c, C.uint32_t(n))) }

// Burst sends the packets in the first n of Segs, and returns how many segments of whole packets
// the driver took. The headers of the others are still the caller's. refused says that the driver
// can never send the first packet that it did not take.
func (t *Tx) Burst(n int) (taken int, refused bool) {
	before := t.c.refused
	taken = int(C.ps_tx_burst(t.c, C.uint32_t(n)))
	return taken, t.c.refused != before
}

// Back is what Reap would have returned, of what was there right after Burst: headers of this burst
// too, of a driver that frees them at once.
func (t *Tx) Back() []uint32 { return t.done[:t.c.back] }

// Reap returns the indices of headers that drivers have freed: what they pointed at was sent, or
// dropped. They hold until the next call. running says that the port has started: some drivers free
// only when they are asked to.
func (t *Tx) Reap(running bool) []uint32 { return t.done[:C.ps_tx_reap(t.c, boolean(running))] }

// Out is the number of headers that drivers have.
func (t *Tx) Out() int { return int(t.c.out) }

// Close frees what the queue has. No driver has any of its headers.
func (t *Tx) Close() { C.ps_tx_free(t.c) }
