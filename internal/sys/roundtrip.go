package sys

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RoundTrip is what the kernel measured of a TCP connection, smoothed, from its opening handshake
// on; 0 of any other file.
func RoundTrip(fd int) time.Duration {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return time.Duration(i.Rtt) * time.Microsecond
}

// RoundTripOf is RoundTrip of a connection of package net.
func RoundTripOf(c net.Conn) (rtt time.Duration) {
	if s, ok := c.(syscall.Conn); ok {
		OfConn(s, func(fd int) error {
			rtt = RoundTrip(fd)
			return nil
		})
	}
	return rtt
}

// Patience is how long to wait for the next bytes of a handshake: so long as usual, and ten round
// trips more, but not more than 20 s more: the other end may make its answers late.
func Patience(usual time.Duration, fd int) time.Duration {
	return usual + min(10*RoundTrip(fd), 20*time.Second)
}

// PatienceOf is Patience for a connection of package net.
func PatienceOf(usual time.Duration, c net.Conn) time.Duration {
	if s, ok := c.(syscall.Conn); ok {
		OfConn(s, func(fd int) error {
			usual = Patience(usual, fd)
			return nil
		})
	}
	return usual
}
