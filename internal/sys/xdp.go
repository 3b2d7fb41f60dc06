package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Flags of XDPUmem and BindXDP (linux/if_xdp.h).
const (
	XDPUmemUnaligned = unix.XDP_UMEM_UNALIGNED_CHUNK_FLAG

	XDPSharedUmem = unix.XDP_SHARED_UMEM
	XDPCopy       = unix.XDP_COPY
	XDPZeroCopy   = unix.XDP_ZEROCOPY
	XDPNeedWakeup = unix.XDP_USE_NEED_WAKEUP
	XDPUseSG      = unix.XDP_USE_SG

	XDPRingNeedWakeup = unix.XDP_RING_NEED_WAKEUP
	XDPPacketContd    = unix.XDP_PKT_CONTD
	XDPHeadroom       = unix.XDP_PACKET_HEADROOM
)

// Capabilities that HasCapability knows (man 7 capabilities).
const (
	CapNetAdmin = unix.CAP_NET_ADMIN
	CapNetRaw   = unix.CAP_NET_RAW
	CapIPCLock  = unix.CAP_IPC_LOCK
	CapBPF      = unix.CAP_BPF
)

// More error numbers of AF_XDP sockets and network devices.
const (
	EBUSY        = unix.EBUSY
	ENOPROTOOPT  = unix.ENOPROTOOPT
	EAFNOSUPPORT = unix.EAFNOSUPPORT
)

// XDPRing names one of the four rings of an AF_XDP socket.
type XDPRing int

// The rings: two of a socket and two of a queue.
const (
	XDPRingRx         XDPRing = unix.XDP_RX_RING
	XDPRingTx         XDPRing = unix.XDP_TX_RING
	XDPRingFill       XDPRing = unix.XDP_UMEM_FILL_RING
	XDPRingCompletion XDPRing = unix.XDP_UMEM_COMPLETION_RING
)

func (r XDPRing) String() string {
	switch r {
	case XDPRingRx:
		return "XDP_RX_RING"
	case XDPRingTx:
		return "XDP_TX_RING"
	case XDPRingFill:
		return "XDP_UMEM_FILL_RING"
	case XDPRingCompletion:
		return "XDP_UMEM_COMPLETION_RING"
	}
	return fmt.Sprintf("XDP ring %d", int(r))
}

// page is the offset at which mmap finds the ring.
func (r XDPRing) page() int64 {
	switch r {
	case XDPRingTx:
		return unix.XDP_PGOFF_TX_RING
	case XDPRingFill:
		return unix.XDP_UMEM_PGOFF_FILL_RING
	case XDPRingCompletion:
		return unix.XDP_UMEM_PGOFF_COMPLETION_RING
	}
	return unix.XDP_PGOFF_RX_RING
}

// XDPRingOffset says where the parts of a ring begin in its mapping, in bytes (struct
// xdp_ring_offset).
type XDPRingOffset struct {
	Producer, Consumer, Desc, Flags uint64
}

// XDPSocket makes an AF_XDP socket in the calling thread's network namespace. EPERM: CAP_NET_RAW is
// missing. EAFNOSUPPORT: the kernel was built without AF_XDP.
func XDPSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	return fd, callError("socket", "AF_XDP", err)
}

// SetXDPRing gives the socket a ring of so many entries, a power of two.
func SetXDPRing(fd int, r XDPRing, entries int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_XDP, int(r), entries)
	return callError("setsockopt", fmt.Sprintf("%s of %d entries", r, entries), err)
}

// MapXDPRing maps a ring that SetXDPRing made; desc is the size of an entry in bytes. Before the
// socket is bound. The mapping holds the socket open: it ends when both the descriptor is closed
// and the mapping is gone (Munmap).
func MapXDPRing(fd int, r XDPRing, entries, desc int, off XDPRingOffset) ([]byte, error) {
	b, err := unix.Mmap(fd, r.page(), int(off.Desc)+entries*desc, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	return b, callError("mmap", r.String(), err)
}

// SetXDPTxBudget sets how many descriptors the kernel sends at one call of XDPSend in copy mode
// (since Linux 6.17; 32 before). At least 32, at most the size of the transmit ring. ENOPROTOOPT:
// the kernel does not know it.
func SetXDPTxBudget(fd, n int) error {
	return callError("setsockopt", fmt.Sprintf("XDP_MAX_TX_SKB_BUDGET %d", n),
		unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, n))
}

// XDPZeroCopied reports whether a bound socket is in zero-copy mode (XDP_OPTIONS).
func XDPZeroCopied(fd int) (bool, error) {
	v, err := unix.GetsockoptInt(fd, unix.SOL_XDP, unix.XDP_OPTIONS)
	return v&unix.XDP_OPTIONS_ZEROCOPY != 0, callError("getsockopt", "XDP_OPTIONS", err)
}

// BindXDP binds the socket to a queue of an interface. With XDPSharedUmem in flags, and nothing
// else, it uses the memory of the bound socket shared, and its fill and completion rings if that is
// bound to the same queue.
func BindXDP(fd, ifindex, queue int, flags uint16, shared int) error {
	a := &unix.SockaddrXDP{Flags: flags, Ifindex: uint32(ifindex), QueueID: uint32(queue)}
	if flags&XDPSharedUmem != 0 {
		a.SharedUmemFD = uint32(shared)
	}
	return callError("bind", fmt.Sprintf("AF_XDP to queue %d of interface %d", queue, ifindex), unix.Bind(fd, a))
}

// HasCapability reports whether the calling thread has a capability in effect.
func HasCapability(c int) (bool, error) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return false, callError("capget", "", err)
	}
	return d[c/32].Effective>>(c%32)&1 != 0, nil
}
