package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadTxTimeReport takes one message from a socket's error queue, of whatever origin. EAGAIN: there
// is none.
func ReadTxTimeReport(fd int) (r TxTimeReport, ns int64, e Errno) {
	var control [256]byte
	var m unix.Msghdr
	m.Control = &control[0]
	m.SetControllen(len(control))
	_, _, e = unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)),
		unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if e != 0 {
		return TxTimeOther, 0, e
	}
	r, ns = ParseTxTimeReport(control[:min(int(m.Controllen), len(control))])
	return r, ns, 0
}
