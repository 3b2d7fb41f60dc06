package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of this file are made without a notice to the scheduler (RawSyscall): the sockets are
// non-blocking, so a call lasts as long as its copy, and the hand-shake with the scheduler would
// cost the tail of a small message more than the call.

// MaxIovecs is the most pieces that one call takes (IOV_MAX).
const MaxIovecs = 1024

// Iovec is one piece of memory for Sendv and Recvv. It keeps Go memory alive, as a slice does.
type Iovec struct{ v unix.Iovec }

// Set names b; an empty b is allowed.
func (v *Iovec) Set(b []byte) {
	v.v.Base = unsafe.SliceData(b)
	v.v.Len = uint64(len(b))
}

// Len is the number of bytes.
func (v *Iovec) Len() int { return int(v.v.Len) }

// Bytes are the bytes named.
func (v *Iovec) Bytes() []byte { return unsafe.Slice(v.v.Base, int(v.v.Len)) }

// Skip drops the first n bytes; n must not be more than Len.
func (v *Iovec) Skip(n int) {
	if uint64(n) >= v.v.Len {
		v.v.Base, v.v.Len = nil, 0 // never a pointer past the end of an object
		return
	}
	v.v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.v.Base), n))
	v.v.Len -= uint64(n)
}

// Grow extends the piece by b if b follows it directly in memory, and reports whether it did.
func (v *Iovec) Grow(b []byte) bool {
	if v.v.Len == 0 || len(b) == 0 || unsafe.Add(unsafe.Pointer(v.v.Base),
		v.v.Len) != unsafe.Pointer(unsafe.SliceData(b)) {
		return false
	}
	v.v.Len += uint64(len(b))
	return true
}

// Sendv sends the pieces in order and returns how many bytes the kernel took. EAGAIN: the send
// buffer is full. It raises no SIGPIPE. v must not be empty; more than MaxIovecs pieces are left
// for the next call.
func Sendv(fd int, v []Iovec, flags int) (int, Errno) {
	if len(v) == 1 {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(v[0].v.Base)),
			uintptr(v[0].v.Len), uintptr(flags|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT), 0, 0)
		return int(n), e
	}
	if len(v) > MaxIovecs {
		v = v[:MaxIovecs]
	}
	var m unix.Msghdr
	m.Iov = &v[0].v
	m.Iovlen = uint64(len(v))
	n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)),
		uintptr(flags|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT))
	return int(n), e
}

// Recvv fills the pieces in order and returns how many bytes came; 0 without an error is the end of
// the stream. EAGAIN: nothing is there. The socket must be non-blocking. v must not be empty.
func Recvv(fd int, v []Iovec) (int, Errno) {
	if len(v) == 1 {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(v[0].v.Base)),
			uintptr(v[0].v.Len), unix.MSG_DONTWAIT, 0, 0)
		return int(n), e
	}
	if len(v) > MaxIovecs {
		v = v[:MaxIovecs]
	}
	n, _, e := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), uintptr(len(v)))
	return int(n), e
}

// ZeroCopyDone reads one report of MSG_ZEROCOPY from the socket's error queue: sends first to last
// (counted from 0, one for each send that was accepted) no longer use their memory; copied says
// that the kernel copied it after all. EAGAIN: there is no report. A report of another origin
// returns last < first, that is (1, 0).
func ZeroCopyDone(fd int) (first, last uint32, copied bool, e Errno) {
	var control [128]byte
	var m unix.Msghdr
	m.Control = &control[0]
	m.Controllen = uint64(len(control))
	_, _, e = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)),
		unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if e != 0 {
		return 1, 0, false, e
	}
	head := int(unsafe.Sizeof(unix.Cmsghdr{})) // already a multiple of the alignment
	if m.Controllen < uint64(head)+uint64(unsafe.Sizeof(unix.SockExtendedErr{})) {
		return 1, 0, false, 0
	}
	ee := *(*unix.SockExtendedErr)(unsafe.Pointer(&control[head]))
	if ee.Origin != unix.SO_EE_ORIGIN_ZEROCOPY {
		return 1, 0, false, 0
	}
	return ee.Info, ee.Data, ee.Code&unix.SO_EE_CODE_ZEROCOPY_COPIED != 0, 0
}
