package sys

import "golang.org/x/sys/unix"

// Groups of NetlinkRoute (linux/rtnetlink.h).
const (
	NetlinkLinks     = 1 << (unix.RTNLGRP_LINK - 1)
	NetlinkAddresses = 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1)
	NetlinkNeighbors = 1 << (unix.RTNLGRP_NEIGH - 1)
)

// NetlinkRoute makes a non-blocking rtnetlink socket of the calling thread's network namespace,
// which gets the changes in the groups. It needs no rights.
func NetlinkRoute(groups uint32) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, callError("socket", "NETLINK_ROUTE", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return -1, callError("bind", "NETLINK_ROUTE", err)
	}
	// since Linux 4.20: dumps are filtered by the kernel
	_ = SetOption(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return fd, nil
}

// NetlinkSend sends requests to the kernel.
func NetlinkSend(fd int, b []byte) error {
	return callError("sendto", "netlink", unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// NetlinkRecv receives a message of the kernel's and returns its length, which is more than len(b)
// if it was cut off. What other processes send is left out. EAGAIN: there is none; ENOBUFS: some
// were lost.
func NetlinkRecv(fd int, b []byte) (int, Errno) {
	for {
		n, from, err := unix.Recvfrom(fd, b, unix.MSG_TRUNC)
		if err != nil {
			if e, ok := err.(Errno); ok {
				if e == EINTR {
					continue
				}
				return 0, e
			}
			return 0, EINVAL
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid == 0 {
			return n, 0
		}
	}
}
