package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// XDPDesc is an entry of a receive or transmit ring (struct xdp_desc): where the data lies in the
// memory of the socket, how many bytes it has, and bits such as XDPPacketContd.
type XDPDesc struct {
	Addr    uint64
	Len     uint32
	Options uint32
}

// XDPStatistics are the kernel's counts of a socket (struct xdp_statistics).
type XDPStatistics struct {
	RxDropped            uint64 // for other reasons than those below
	RxInvalidDescs       uint64
	TxInvalidDescs       uint64
	RxRingFull           uint64
	RxFillRingEmptyDescs uint64 // of the fill ring, whichever socket has it
	TxRingEmptyDescs     uint64
}

// XDPUmem registers memory with a socket that is not bound (XDP_UMEM_REG): its pages are pinned
// until every socket that uses them is gone. headroom bytes are kept in front of each received
// packet besides XDPHeadroom. ENOBUFS: RLIMIT_MEMLOCK, without CAP_IPC_LOCK.
func XDPUmem(fd int, memory []byte, chunk, headroom, flags int) error {
	if len(memory) == 0 {
		return callError("setsockopt", "XDP_UMEM_REG of no memory", EINVAL)
	}
	r := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), Len: uint64(len(memory)),
		Size: uint32(chunk), Headroom: uint32(headroom), Flags: uint32(flags)}
	return xdpSet(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&r), unsafe.Sizeof(r),
		fmt.Sprintf("XDP_UMEM_REG of %d bytes in chunks of %d", len(memory), chunk))
}

func xdpSet(fd, name int, p unsafe.Pointer, n uintptr, what string) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(p), n, 0)
	if e != 0 {
		return callError("setsockopt", what, e)
	}
	return nil
}

// XDPOffsets reads how the rings of a socket are laid out (XDP_MMAP_OFFSETS).
func XDPOffsets(fd int) (rx, tx, fill, completion XDPRingOffset, err error) {
	var o [4]XDPRingOffset
	n := uint32(unsafe.Sizeof(o))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&o)), uintptr(unsafe.Pointer(&n)), 0)
	if e == 0 && n != uint32(unsafe.Sizeof(o)) { // before Linux 5.4 there are no flags
		e = EOPNOTSUPP
	}
	if e != 0 {
		err = callError("getsockopt", "XDP_MMAP_OFFSETS", e)
	}
	return o[0], o[1], o[2], o[3], err
}

// ReadXDPStatistics reads the counts of a socket into s. It does not allocate.
func ReadXDPStatistics(fd int, s *XDPStatistics) Errno {
	n := uint32(unsafe.Sizeof(*s))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_STATISTICS,
		uintptr(unsafe.Pointer(s)), uintptr(unsafe.Pointer(&n)), 0)
	return e
}

// XDPSend makes the kernel look at the transmit ring of a socket. It does not wait and does not
// allocate. EAGAIN: there is more to send than one call does, or the socket's buffer is full.
// EBUSY: the device dropped a packet. ENXIO, ENETDOWN: the interface is gone or down.
//
// The call is made without a notice to the scheduler. A call of unix.Syscall that lasts 20 µs, as
// one for 32 packets on a veth pair does, keeps the runtime's monitor (sysmon) from sleeping: every
// 85 µs it then takes the processor from the goroutine that polls, which was 3 to 10 % of what a
// forwarder did. What the scheduler waits for instead, to stop the world, is bounded by the
// kernel's budget for one call.
func XDPSend(fd int) Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// XDPRecv makes the driver look at the fill ring of a socket's queue, and polls the device where
// busy polling is on. It does not wait and does not allocate; it does not tell the scheduler, as
// XDPSend does not.
func XDPRecv(fd int) Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}
