package sys

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketDrops is the number of packets, modulo 2^32, that the kernel dropped because the socket's
// buffer was full, a filter refused them or a checksum was wrong (SO_MEMINFO, SK_MEMINFO_DROPS). It
// is what SO_RXQ_OVFL says with the next packet, at any time.
func SocketDrops(fd int) (uint32, Errno) {
	var info [16]uint32
	n := uint32(unsafe.Sizeof(info))
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&n)), 0)
	return info[8], e
}

// SockAddr is an address of IPv4 or IPv6 with its port in the kernel's form (struct sockaddr_in,
// sockaddr_in6). SockAddrs are comparable; the zero one is no address.
type SockAddr struct {
	raw [28]byte
	len uint32
}

// MakeSockAddr makes a SockAddr; zone is the number of the interface of a link-local address.
func MakeSockAddr(a netip.AddrPort, zone uint32) SockAddr {
	var s SockAddr
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	switch {
	case a.Addr().Is4():
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		v := a.Addr().As4()
		copy(s.raw[4:], v[:])
		s.len = unix.SizeofSockaddrInet4
	case a.Addr().Is6():
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
		v := a.Addr().As16()
		copy(s.raw[8:], v[:])
		binary.NativeEndian.PutUint32(s.raw[24:], zone)
		s.len = unix.SizeofSockaddrInet6
	}
	return s
}

// AddrPort is the address, the zero one of a SockAddr that is none, and the number of its
// interface.
func (s *SockAddr) AddrPort() (a netip.AddrPort, zone uint32) {
	port := binary.BigEndian.Uint16(s.raw[2:])
	switch family := binary.NativeEndian.Uint16(s.raw[:]); {
	case s.len >= unix.SizeofSockaddrInet4 && family == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s.raw[4:])), port), 0
	case s.len >= unix.SizeofSockaddrInet6 && family == unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(s.raw[8:])), port), binary.NativeEndian.Uint32(s.raw[24:])
	}
	return netip.AddrPort{}, 0
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	h   unix.Msghdr
	len uint32
}

// Messages are the headers of a batch of datagrams, made once and used again and again (man 2
// recvmmsg, sendmmsg). One goroutine at a time uses it. It allocates nothing after NewMessages.
type Messages struct {
	hdr     []mmsghdr
	names   []SockAddr
	pieces  []Iovec
	control []byte
	room    int // bytes of control for each message
	n       int // messages added, to be sent
	used    int // of pieces
	namelen uint32
	fresh   int // the headers from this one on are as Recv made them: the kernel has not written there
}

// segmentControl is the size of the control message UDP_SEGMENT with its header: 8 + 4 + 4, and a
// 16-bit number padded to 8 bytes.
const segmentControl = 24

// NewMessages makes headers for n datagrams of as many pieces altogether, and control bytes for
// each.
func NewMessages(n, pieces, control int) *Messages {
	return &Messages{fresh: n, hdr: make([]mmsghdr, n), names: make([]SockAddr, n), pieces: make([]Iovec, pieces),
		control: make([]byte, n*control), room: control}
}

// SetBuffer says where datagram i is to be received.
func (m *Messages) SetBuffer(i int, b []byte) {
	m.pieces[i].Set(b)
	h := &m.hdr[i].h
	if h.Iovlen == 1 {
		return // the rest is as it was
	}
	h.Iov, h.Iovlen = &m.pieces[i].v, 1
	h.Name = &m.names[i].raw[0]
	if m.room > 0 {
		h.Control = &m.control[i*m.room]
	}
}

// Recv receives up to n datagrams into their buffers and returns how many came. EAGAIN: nothing is
// there. A datagram that did not fit is cut off; its Len is its full length. With names the sender
// of each is noted.
func (m *Messages) Recv(fd, n int, names bool) (int, Errno) {
	namelen := uint32(0) // the kernel looks at the length first
	if names {
		namelen = uint32(len(SockAddr{}.raw))
	}
	if namelen != m.namelen {
		m.namelen, m.fresh = namelen, len(m.hdr)
	}
	for i := range m.hdr[:m.fresh] {
		h := &m.hdr[i].h
		h.Namelen = namelen
		h.Controllen = uint64(m.room)
	}
	m.fresh = 0
	got, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr[0])), uintptr(n),
		unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
	if e != 0 {
		return 0, e
	}
	m.fresh = int(got)
	return int(got), 0
}

// Len is the length of datagram i as it was received, also of what did not fit, or the bytes of it
// that were sent.
func (m *Messages) Len(i int) int { return int(m.hdr[i].len) }

// Name is the sender of datagram i, valid until the next Recv.
func (m *Messages) Name(i int) *SockAddr {
	s := &m.names[i]
	s.len = min(m.hdr[i].h.Namelen, uint32(len(s.raw)))
	if s.len == unix.SizeofSockaddrInet4 {
		*(*[12]byte)(s.raw[unix.SizeofSockaddrInet4:]) = [12]byte{} // what one of IPv6 left
	}
	return s
}

// SameName reports whether datagrams i and j came from one sender.
func (m *Messages) SameName(i, j int) bool {
	n, a, b := m.hdr[i].h.Namelen, &m.names[i].raw, &m.names[j].raw
	at := func(s *[28]byte, i int) uint64 { return binary.NativeEndian.Uint64(s[i:]) }
	return n == m.hdr[j].h.Namelen && at(a, 0) == at(b, 0) && at(a, 8) == at(b, 8) &&
		(n <= unix.SizeofSockaddrInet4 || at(a, 16) == at(b, 16) && at(a, 20) == at(b, 20))
}

// Control are the control messages of datagram i, valid until the next Recv.
func (m *Messages) Control(i int) []byte {
	at := i * m.room
	return m.control[at : at+min(int(m.hdr[i].h.Controllen), m.room)]
}

// Reset takes all messages away that were added.
func (m *Messages) Reset() { m.n, m.used = 0, 0 }

// Count is the number of messages added.
func (m *Messages) Count() int { return m.n }

// Add adds an empty message to send to a, or to the socket's peer if that is nil, and reports
// whether there was room.
func (m *Messages) Add(a *SockAddr) bool {
	if m.n == len(m.hdr) || m.used == len(m.pieces) {
		return false
	}
	h := &m.hdr[m.n].h
	*h = unix.Msghdr{}
	if a != nil {
		m.names[m.n] = *a
		h.Name, h.Namelen = &m.names[m.n].raw[0], a.len
	}
	h.Iov = &m.pieces[m.used].v
	m.n++
	return true
}

// Append adds bytes to the last message and reports whether there was room.
func (m *Messages) Append(b []byte) bool {
	h := &m.hdr[m.n-1].h
	if m.used == len(m.pieces) || h.Iovlen == MaxIovecs {
		return false
	}
	m.pieces[m.used].Set(b)
	m.used++
	h.Iovlen++
	return true
}

// Room is the number of pieces that can be appended.
func (m *Messages) Room() int { return len(m.pieces) - m.used }

// SetSegment makes the kernel cut the last message into datagrams of that many bytes each, the last
// one shorter (UDP_SEGMENT, man 7 udp). NewMessages must have been given at least 24 bytes of
// control.
func (m *Messages) SetSegment(size uint16) {
	c := m.Spare()[:segmentControl]
	binary.NativeEndian.PutUint64(c, unix.SizeofCmsghdr+2)
	binary.NativeEndian.PutUint32(c[8:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(c[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(c[16:], size)
	m.Grow(segmentControl)
}

// Spare is the room for control messages that is left in the last message. What is written there
// counts after Grow.
func (m *Messages) Spare() []byte {
	i := m.n - 1
	return m.control[i*m.room+int(m.hdr[i].h.Controllen) : (i+1)*m.room]
}

// Grow adds n bytes of control messages, a multiple of 8, that were written into Spare.
func (m *Messages) Grow(n int) {
	i := m.n - 1
	h := &m.hdr[i].h
	h.Control = &m.control[i*m.room]
	h.SetControllen(int(h.Controllen) + n)
}

// Send sends the messages from first on and returns how many the kernel took. An error is that of
// the first: it took none.
func (m *Messages) Send(fd, first int) (int, Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr[first])),
		uintptr(m.n-first), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
