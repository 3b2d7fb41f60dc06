package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// SendPacket sends b as one packet on the connected unix socket fd, with a copy of the descriptor
// pass unless that is negative. It never blocks, whatever flags the socket has, raises no signal
// and does not allocate. EAGAIN means that the peer's queue is full, EPIPE or ECONNRESET that the
// peer is gone.
func SendPacket(fd int, b []byte, pass int) Errno {
	var iov unix.Iovec
	if len(b) > 0 {
		iov.Base = unsafe.SliceData(b)
		iov.SetLen(len(b))
	}
	var msg unix.Msghdr
	msg.Iov = &iov
	msg.SetIovlen(1)
	var oob struct {
		hdr unix.Cmsghdr
		fd  int32
		_   int32
	}
	if pass >= 0 {
		oob.hdr.Level = unix.SOL_SOCKET
		oob.hdr.Type = unix.SCM_RIGHTS
		oob.hdr.SetLen(unix.CmsgLen(4))
		oob.fd = int32(pass)
		msg.Control = (*byte)(unsafe.Pointer(&oob))
		msg.SetControllen(unix.CmsgSpace(4))
	}
	for {
		_, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if e != EINTR {
			return e
		}
	}
}

// RecvPacket receives one packet from the unix socket fd into b, and the descriptors that came with
// it, close-on-exec, into fds; they belong to the caller. It never blocks, whatever flags the
// socket has, and does not allocate. n is 0 with errno 0 when the peer has hung up. whole is false
// when the packet or its descriptors did not fit; what did not fit is lost, and descriptors among
// that are closed.
func RecvPacket(fd int, b []byte, fds *[MaxPacketFDs]int) (n, nfds int, whole bool, errno Errno) {
	var iov unix.Iovec
	if len(b) > 0 {
		iov.Base = unsafe.SliceData(b)
		iov.SetLen(len(b))
	}
	var oob struct {
		hdr unix.Cmsghdr
		fds [MaxPacketFDs]int32
	}
	var msg unix.Msghdr
	msg.Iov = &iov
	msg.SetIovlen(1)
	msg.Control = (*byte)(unsafe.Pointer(&oob))
	msg.SetControllen(int(unsafe.Sizeof(oob)))
	for {
		r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)),
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if e == EINTR {
			continue
		}
		if e != 0 {
			return 0, 0, false, e
		}
		n = int(r)
		break
	}
	if msg.Controllen >= uint64(unix.CmsgLen(0)) && oob.hdr.Level == unix.SOL_SOCKET &&
		oob.hdr.Type == unix.SCM_RIGHTS {
		nfds = min((int(oob.hdr.Len)-unix.CmsgLen(0))/4, MaxPacketFDs)
		for i := range nfds {
			fds[i] = int(oob.fds[i])
		}
	}
	return n, nfds, msg.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0, 0
}

// The layouts above rely on the control message header being aligned as the kernel wants it; a line
// fails to compile if not.
const (
	_ = uint(unsafe.Sizeof(unix.Cmsghdr{}) - 16)
	_ = uint(16 - unsafe.Sizeof(unix.Cmsghdr{}))
)
