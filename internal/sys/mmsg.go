package sys

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Received is what control messages say of a datagram.
type Received struct {
	Time, HardwareTime int64 // nanoseconds since 1970, 0 for none
	Segment            int   // bytes of each of the datagrams that the kernel put together (UDP_GRO), 0 for one alone
}

// ParseReceived reads the control messages of a datagram (man 3 cmsg). What is malformed or unknown
// is left out. It does not allocate.
func ParseReceived(c []byte) (r Received) {
	for len(c) >= unix.SizeofCmsghdr {
		n := binary.NativeEndian.Uint64(c)
		if n < unix.SizeofCmsghdr || n > uint64(len(c)) {
			return r
		}
		level, kind := binary.NativeEndian.Uint32(c[8:]), binary.NativeEndian.Uint32(c[12:])
		data := c[unix.SizeofCmsghdr:n]
		switch {
		case level == unix.SOL_SOCKET && kind == unix.SO_TIMESTAMPING && len(data) >= 48:
			if t := timespec(data); t != 0 {
				r.Time = t
			}
			if t := timespec(data[32:]); t != 0 {
				r.HardwareTime = t
			}
		case level == unix.IPPROTO_UDP && kind == unix.UDP_GRO && len(data) >= 4:
			if s := int32(binary.NativeEndian.Uint32(data)); s > 0 && s <= 1<<16 {
				r.Segment = int(s)
			}
		}
		c = c[min((n+7)&^7, uint64(len(c))):]
	}
	return r
}

// timespec reads a struct timespec, 0 for one that does not fit into 64 bits of nanoseconds.
func timespec(b []byte) int64 {
	s, ns := int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:]))
	if s < 0 || s > 1<<33 || ns < 0 || ns >= 1e9 {
		return 0
	}
	return s*1e9 + ns
}
