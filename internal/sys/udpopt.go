package sys

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Error numbers of datagram sockets.
const (
	EMSGSIZE      = unix.EMSGSIZE
	ENETUNREACH   = unix.ENETUNREACH
	EHOSTUNREACH  = unix.EHOSTUNREACH
	ENETDOWN      = unix.ENETDOWN
	EADDRINUSE    = unix.EADDRINUSE
	EADDRNOTAVAIL = unix.EADDRNOTAVAIL
	EIO           = unix.EIO
	ETIMEDOUT     = unix.ETIMEDOUT
)

// Levels and names of socket options (man 7 socket, man 7 ip, man 7 ipv6, man 7 udp, man 7 tcp).
const (
	SolIP   = unix.IPPROTO_IP
	SolIPv6 = unix.IPPROTO_IPV6
	SolUDP  = unix.IPPROTO_UDP

	SoReusePort      = unix.SO_REUSEPORT
	SoRcvBufForce    = unix.SO_RCVBUFFORCE
	SoSndBufForce    = unix.SO_SNDBUFFORCE
	SoTimestamping   = unix.SO_TIMESTAMPING
	SoPreferBusyPoll = unix.SO_PREFER_BUSY_POLL
	SoBusyPollBudget = unix.SO_BUSY_POLL_BUDGET
	SoPriority       = unix.SO_PRIORITY
	SoKeepAlive      = unix.SO_KEEPALIVE

	IPTOS             = unix.IP_TOS
	IPTTL             = unix.IP_TTL
	IPMulticastTTL    = unix.IP_MULTICAST_TTL
	IPMulticastLoop   = unix.IP_MULTICAST_LOOP
	IPMulticastAll    = unix.IP_MULTICAST_ALL
	IPv6Only          = unix.IPV6_V6ONLY
	IPv6TClass        = unix.IPV6_TCLASS
	IPv6UnicastHops   = unix.IPV6_UNICAST_HOPS
	IPv6MulticastHops = unix.IPV6_MULTICAST_HOPS
	IPv6MulticastLoop = unix.IPV6_MULTICAST_LOOP
	IPv6MulticastAll  = unix.IPV6_MULTICAST_ALL
	UDPGRO            = unix.UDP_GRO

	TCPKeepIdle    = unix.TCP_KEEPIDLE
	TCPKeepInt     = unix.TCP_KEEPINTVL
	TCPUserTimeout = unix.TCP_USER_TIMEOUT
)

// Flags of SoTimestamping (kernel: networking/timestamping.rst).
const (
	TimestampRxSoftware  = unix.SOF_TIMESTAMPING_RX_SOFTWARE
	TimestampSoftware    = unix.SOF_TIMESTAMPING_SOFTWARE
	TimestampRxHardware  = unix.SOF_TIMESTAMPING_RX_HARDWARE
	TimestampRawHardware = unix.SOF_TIMESTAMPING_RAW_HARDWARE
)

// EventEdge reports each change of readiness once.
const EventEdge = 1 << 31

// SocketUDP makes a UDP socket that is non-blocking, closed on exec and unknown to Go's runtime.
func SocketUDP(ipv6 bool) (int, error) {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	return fd, callError("socket", "udp", err)
}

// scoped is sockaddr with the number of the interface that the address belongs to (IPv6
// link-local), 0 for none.
func scoped(a netip.AddrPort, zone uint32) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zone}
}

// Bind gives a socket its local address; port 0 lets the kernel choose. zone is the interface of a
// link-local address.
func Bind(fd int, a netip.AddrPort, zone uint32) error {
	return callError("bind", a.String(), unix.Bind(fd, scoped(a, zone)))
}

// Connect sets the peer of a datagram socket. zone is the interface of a link-local address.
func Connect(fd int, a netip.AddrPort, zone uint32) error {
	return callError("connect", a.String(), unix.Connect(fd, scoped(a, zone)))
}

// CloseWrite ends the sending direction of a stream; the peer reads the end of it after what was
// sent before.
func CloseWrite(fd int) error {
	return callError("shutdown", "SHUT_WR", unix.Shutdown(fd, unix.SHUT_WR))
}

// Shutdown ends both directions. The descriptor remains.
func Shutdown(fd int) error {
	return callError("shutdown", "SHUT_RDWR", unix.Shutdown(fd, unix.SHUT_RDWR))
}

// BindToDevice keeps a socket to one network interface, by name (SO_BINDTODEVICE).
func BindToDevice(fd int, device string) error {
	return callError("setsockopt", "SO_BINDTODEVICE "+device, unix.BindToDevice(fd, device))
}

// InterfaceIndex is the number of a network interface in the socket's own network namespace.
func InterfaceIndex(fd int, name string) (int, error) {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req)
	}
	if err != nil {
		return 0, callError("ioctl", "SIOCGIFINDEX "+name, err)
	}
	return int(req.Uint32()), nil
}

// InterfaceState says whether an interface in the socket's own network namespace is up and has a
// carrier, and its MTU in bytes.
func InterfaceState(fd int, name string) (up bool, mtu int, err error) {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err != nil {
		return false, 0, callError("ioctl", "SIOCGIFFLAGS "+name, err)
	}
	flags := req.Uint16()
	if req, err = unix.NewIfreq(name); err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFMTU, req)
	}
	if err != nil {
		return false, 0, callError("ioctl", "SIOCGIFMTU "+name, err)
	}
	return flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0, int(req.Uint32()), nil
}

// HardwareReceiveTimes says whether an interface can take receive times of all packets (ethtool
// -T).
func HardwareReceiveTimes(fd int, device string) (bool, error) {
	info, err := unix.IoctlGetEthtoolTsInfo(fd, device)
	if err != nil {
		return false, callError("ioctl", "ETHTOOL_GET_TS_INFO "+device, err)
	}
	const need = unix.SOF_TIMESTAMPING_RX_HARDWARE | unix.SOF_TIMESTAMPING_RAW_HARDWARE
	return info.So_timestamping&need == need && info.Rx_filters&(1<<unix.HWTSTAMP_FILTER_ALL) != 0, nil
}

// SetHardwareReceiveTimes makes an interface take receive times of all packets. It takes
// CAP_NET_ADMIN.
func SetHardwareReceiveTimes(fd int, device string) error {
	cfg, err := unix.IoctlGetHwTstamp(fd, device)
	if err != nil {
		cfg = &unix.HwTstampConfig{}
	}
	cfg.Rx_filter = unix.HWTSTAMP_FILTER_ALL
	return callError("ioctl", "SIOCSHWTSTAMP "+device, unix.IoctlSetHwTstamp(fd, device, cfg))
}

// JoinGroup joins a multicast group on an interface, 0 for the one that the routes say, from all
// senders or from source.
func JoinGroup(fd int, group, source netip.Addr, iface int) error {
	level := unix.IPPROTO_IP
	if group.Is6() {
		level = unix.IPPROTO_IPV6
	}
	b := make([]byte, 8, 8+2*128)
	binary.NativeEndian.PutUint32(b, uint32(iface))
	b = appendStorage(b, group)
	name, what := unix.MCAST_JOIN_GROUP, "MCAST_JOIN_GROUP "
	if source.IsValid() {
		name, what = unix.MCAST_JOIN_SOURCE_GROUP, "MCAST_JOIN_SOURCE_GROUP "
		b = appendStorage(b, source)
	}
	return callError("setsockopt", what+group.String(), unix.SetsockoptString(fd, level, name, string(b)))
}

// appendStorage appends a struct sockaddr_storage.
func appendStorage(b []byte, a netip.Addr) []byte {
	var s [128]byte
	if a.Is4() {
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET)
		v := a.As4()
		copy(s[4:], v[:])
	} else {
		binary.NativeEndian.PutUint16(s[:], unix.AF_INET6)
		v := a.As16()
		copy(s[8:], v[:])
	}
	return append(b, s[:]...)
}

// SetMulticastInterface chooses the interface, by number, that multicast leaves by.
func SetMulticastInterface(fd int, ipv6 bool, iface int) error {
	if ipv6 {
		return callError("setsockopt", "IPV6_MULTICAST_IF",
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, iface))
	}
	return callError("setsockopt", "IP_MULTICAST_IF",
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(iface)}))
}

// DropAll makes the kernel drop everything that arrives at a socket from now on, or ends that. What
// is dropped so counts in SocketDrops.
func DropAll(fd int, on bool) error {
	if !on {
		return callError("setsockopt", "SO_DETACH_FILTER",
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0))
	}
	code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	return callError("setsockopt", "SO_ATTACH_FILTER",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &code[0]}))
}

// Spread is how a group of sockets with one address (SO_REUSEPORT) shares what arrives.
type Spread uint8

// Spreads: by the hash of addresses and ports, which is the kernel's own; by the processor that
// received the packet; at random.
const (
	SpreadFlow Spread = iota
	SpreadCPU
	SpreadRandom
)

// SetSpread sets how a group of n sockets shares packets, through any of its members. It takes a
// program of three instructions (classic BPF); SpreadFlow takes it away.
func SetSpread(fd int, s Spread, n int) error {
	var load uint32
	const skfAdOff = 0xfffff000 // SKF_AD_OFF, linux/filter.h
	switch s {
	case SpreadCPU:
		load = skfAdOff + 36 // SKF_AD_CPU
	case SpreadRandom:
		load = skfAdOff + 56 // SKF_AD_RANDOM
	default:
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
		if err == unix.ENOENT {
			err = nil // there was none
		}
		return callError("setsockopt", "SO_DETACH_REUSEPORT_BPF", err)
	}
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: load},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(n)},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
	return callError("setsockopt", "SO_ATTACH_REUSEPORT_CBPF",
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: 3, Filter: &code[0]}))
}
