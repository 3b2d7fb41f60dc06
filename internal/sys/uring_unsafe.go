package sys

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Uring is an io_uring (man 7 io_uring) for one thread, which submits and reaps with its own calls (SINGLE_ISSUER,
// DEFER_TASKRUN). It holds just enough to measure io_uring against plain socket calls; no path uses it, because it lost
// (docs/measurements/tcp.md). Its methods must be called on the thread that made it.
type Uring struct {
	fd              int
	rings, entries  []byte
	sqTail, sqMask  *uint32
	cqHead, cqTail  *uint32
	cqMask          *uint32
	cqes, sqes, arr unsafe.Pointer
	queued          uint32
	bufs            []byte // of the provided buffers
	bufRing         []byte
	bufTail         uint16
	bufSize         int
}

// UringEvent is a completion.
type UringEvent struct {
	Tag uint64
	// N is a count of bytes, or a negative error number.
	N     int32
	Flags uint32
}

// More says that further events of the same request follow.
func (e UringEvent) More() bool { return e.Flags&uringCqeMore != 0 }

// Notice says that this is the second event of a SendZC: the kernel no longer uses the memory.
func (e UringEvent) Notice() bool { return e.Flags&uringCqeNotif != 0 }

// Copied says, in a Notice, that the kernel copied the bytes after all.
func (e UringEvent) Copied() bool { return uint32(e.N)&uringZCCopied != 0 }

// Buffer is the number of the provided buffer that was filled.
func (e UringEvent) Buffer() int { return int(e.Flags >> 16) }

// Names and layouts of linux/io_uring.h.
const (
	uringSetupSingle = 1 << 12
	uringSetupDefer  = 1 << 13
	uringOpSend      = 26
	uringOpRecv      = 27
	uringOpSendZC    = 47
	uringMultishot   = 1 << 1
	uringFixedBuf    = 1 << 2
	uringReportUsage = 1 << 3
	uringSelectBuf   = 1 << 5
	uringCqeMore     = 1 << 1
	uringCqeNotif    = 1 << 3
	uringZCCopied    = 1 << 31
	uringRegBuffers  = 0
	uringRegBufRing  = 22
	uringOffSqes     = 0x10000000
	uringGetEvents   = 1
	uringSqeSize     = 64
	uringCqeSize     = 16
)

type uringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sq                                                   struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type uringSqe struct {
	op, flags  uint8
	prio       uint16
	fd         int32
	off, addr  uint64
	n, opFlags uint32
	tag        uint64
	buf, pers  uint16
	file       int32
	_          [2]uint64
}

// NewUring makes a ring with room for entries requests, a power of two.
func NewUring(entries int) (*Uring, error) {
	p := uringParams{flags: uringSetupSingle | uringSetupDefer}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, callError("io_uring_setup", fmt.Sprint(entries, " entries"), e)
	}
	r := &Uring{fd: int(fd)}
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes+p.cqEntries*uringCqeSize))
	var err error
	if r.rings, err = unix.Mmap(r.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.Close()
		return nil, callError("mmap", "io_uring rings", err)
	}
	if r.entries, err = unix.Mmap(r.fd, uringOffSqes, int(p.sqEntries)*uringSqeSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.Close()
		return nil, callError("mmap", "io_uring entries", err)
	}
	word := func(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[at])) }
	r.sqTail, r.sqMask = word(p.sq.tail), word(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = word(p.cq.head), word(p.cq.tail), word(p.cq.mask)
	r.cqes, r.arr = unsafe.Pointer(&r.rings[p.cq.cqes]), unsafe.Pointer(&r.rings[p.sq.array])
	r.sqes = unsafe.Pointer(&r.entries[0])
	return r, nil
}

func (r *Uring) push(e uringSqe) {
	t := *r.sqTail
	i := t & *r.sqMask
	*(*uringSqe)(unsafe.Add(r.sqes, uintptr(i)*uringSqeSize)) = e
	*(*uint32)(unsafe.Add(r.arr, uintptr(i)*4)) = i
	atomic.StoreUint32(r.sqTail, t+1)
	r.queued++
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Send queues a send of b, which must not lie on Go's heap (the kernel alone remembers it) and stay until the event.
func (r *Uring) Send(fd int, b []byte, tag uint64) {
	r.push(uringSqe{op: uringOpSend, fd: int32(fd), addr: address(b), n: uint32(len(b)), opFlags: unix.MSG_NOSIGNAL, tag: tag})
}

// SendZC queues a send of b from its pages; b must stay until the Notice. Fixed says that b lies in memory given to Register.
func (r *Uring) SendZC(fd int, b []byte, fixed bool, tag uint64) {
	e := uringSqe{op: uringOpSendZC, prio: uringReportUsage, fd: int32(fd), addr: address(b), n: uint32(len(b)), opFlags: unix.MSG_NOSIGNAL, tag: tag}
	if fixed {
		e.prio |= uringFixedBuf
	}
	r.push(e)
}

// RecvMultishot queues a receive that fills one provided buffer after the other until an event without More.
func (r *Uring) RecvMultishot(fd int, tag uint64) {
	r.push(uringSqe{op: uringOpRecv, flags: uringSelectBuf, prio: uringMultishot, fd: int32(fd), tag: tag})
}

// Register pins b for SendZC.
func (r *Uring) Register(b []byte) error {
	var v Iovec
	v.Set(b)
	return r.register(uringRegBuffers, unsafe.Pointer(&v), "buffers")
}

func (r *Uring) register(op int, p unsafe.Pointer, what string) error {
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), uintptr(op), uintptr(p), 1, 0, 0); e != 0 {
		return callError("io_uring_register", what, e)
	}
	return nil
}

// Provide gives n buffers (a power of two) of size bytes to RecvMultishot.
func (r *Uring) Provide(n, size int) (err error) {
	const rw, private = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if r.bufs, err = unix.Mmap(-1, 0, n*size, rw, private|unix.MAP_POPULATE); err != nil {
		return callError("mmap", "provided buffers", err)
	}
	if r.bufRing, err = unix.Mmap(-1, 0, n*16, rw, private|unix.MAP_POPULATE); err != nil {
		return callError("mmap", "ring of provided buffers", err)
	}
	r.bufSize = size
	arg := struct {
		addr    uint64
		entries uint32
		group   uint16
		flags   uint16
		_       [3]uint64
	}{addr: address(r.bufRing), entries: uint32(n)}
	if err := r.register(uringRegBufRing, unsafe.Pointer(&arg), "provided buffers"); err != nil {
		return err
	}
	for i := range n {
		r.Return(i)
	}
	return nil
}

// Filled are the bytes of an event of RecvMultishot; they stay until Return.
func (r *Uring) Filled(e UringEvent) []byte {
	at := e.Buffer() * r.bufSize
	return r.bufs[at : at+int(e.N)]
}

// Return gives a provided buffer back.
func (r *Uring) Return(buffer int) {
	n := uint16(len(r.bufRing) / 16)
	e := unsafe.Pointer(&r.bufRing[int(r.bufTail%n)*16])
	*(*uint64)(e) = address(r.bufs[buffer*r.bufSize:])
	*(*uint32)(unsafe.Add(e, 8)) = uint32(r.bufSize)
	*(*uint16)(unsafe.Add(e, 12)) = uint16(buffer)
	r.bufTail++
	// The tail shares its 32-bit word with the number of entry 0; there are no 16-bit atomic stores in Go.
	w := (*uint32)(unsafe.Pointer(&r.bufRing[12]))
	atomic.StoreUint32(w, *w&0xffff|uint32(r.bufTail)<<16)
}

// Enter submits what is queued and waits for so many events.
func (r *Uring) Enter(wait int) error {
	n, _, e := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.queued), uintptr(wait), uringGetEvents, 0, 0)
	if e != 0 {
		return callError("io_uring_enter", "", e)
	}
	r.queued -= uint32(n)
	return nil
}

// Next takes the next event.
func (r *Uring) Next() (UringEvent, bool) {
	h := *r.cqHead
	if h == atomic.LoadUint32(r.cqTail) {
		return UringEvent{}, false
	}
	e := *(*UringEvent)(unsafe.Add(r.cqes, uintptr(h&*r.cqMask)*uringCqeSize))
	atomic.StoreUint32(r.cqHead, h+1)
	return e, true
}

// Close ends the ring; requests under way are canceled.
func (r *Uring) Close() error {
	err := Close(r.fd)
	for _, m := range [][]byte{r.rings, r.entries, r.bufs, r.bufRing} {
		if m != nil {
			unix.Munmap(m)
		}
	}
	return err
}

// MapReceive reserves addresses for ZeroCopyReceive on a TCP socket.
func MapReceive(fd, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	return b, callError("mmap", "tcp socket", err)
}

// UnmapReceive gives what MapReceive reserved back.
func UnmapReceive(b []byte) error { return callError("munmap", "tcp socket", unix.Munmap(b)) }

// ZeroCopyReceive maps received pages at the start of b, which MapReceive reserved, and says how many bytes it mapped, and
// how many bytes after them only recv can take (TCP_ZEROCOPY_RECEIVE). What an earlier call mapped there is gone. Like
// Uring it is here to be measured only.
func ZeroCopyReceive(fd int, b []byte) (mapped, skip int, e Errno) {
	arg := struct {
		addr         uint64
		n, skip, inq uint32
		err          int32
		copyAddr     uint64
		copyLen      int32
		flags        uint32
		control      [3]uint64
	}{addr: address(b), n: uint32(len(b))}
	size := uint32(32) // up to copyLen: no copy of the rest is asked for
	_, _, e = unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_ZEROCOPY_RECEIVE, uintptr(unsafe.Pointer(&arg)), uintptr(unsafe.Pointer(&size)), 0)
	return int(arg.n), int(arg.skip), e
}
