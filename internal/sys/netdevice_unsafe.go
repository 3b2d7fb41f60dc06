package sys

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreqData is struct ifreq (man 7 netdevice) with a pointer.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// EthtoolIoctl gives a command of linux/ethtool.h to the driver of a network device (SIOCETHTOOL):
// b begins with the command's number, and the answer is written into b. The kernel reads and writes
// as many bytes as the command and the counts in b say, so the caller makes b as long as that. n is
// what the call returned, which is not 0 for few commands.
func EthtoolIoctl(fd int, name string, b []byte) (n int, err Errno) {
	if len(name) >= unix.IFNAMSIZ || len(b) < 4 {
		return 0, EINVAL
	}
	r := ifreqData{data: unsafe.Pointer(&b[0])}
	copy(r.name[:], name)
	for {
		v, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
		runtime.KeepAlive(b)
		if e == EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(v), 0
	}
}
