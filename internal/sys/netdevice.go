package sys

import (
	"golang.org/x/sys/unix"
)

// NetlinkDump is the flag of a netlink request for everything there is (linux/netlink.h).
const NetlinkDump = unix.NLM_F_DUMP

// DeviceSocket makes a socket for ioctls on network devices of the calling thread's network
// namespace (man 7 netdevice). It needs no rights.
func DeviceSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil { // a kernel without IPv4
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	}
	if err != nil {
		return -1, callError("socket", "for network devices", err)
	}
	return fd, nil
}

// InterfaceMTU is the MTU of a network device in bytes (SIOCGIFMTU).
func InterfaceMTU(fd int, name string) (int, error) {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFMTU, req)
	}
	if err != nil {
		return 0, callError("ioctl", "SIOCGIFMTU "+name, err)
	}
	return int(int32(req.Uint32())), nil
}

// SetInterfaceMTU sets the MTU of a network device (SIOCSIFMTU). EPERM: CAP_NET_ADMIN is missing;
// EINVAL: the device cannot have it.
func SetInterfaceMTU(fd int, name string, mtu int) error {
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint32(uint32(mtu))
		err = unix.IoctlIfreq(fd, unix.SIOCSIFMTU, req)
	}
	return callError("ioctl", "SIOCSIFMTU "+name, err)
}

// NetlinkGeneric makes a blocking socket for generic netlink (kernel:
// userspace-api/netlink/intro.rst) of the calling thread's network namespace.
func NetlinkGeneric() (int, error) { return netlinkSocket(unix.NETLINK_GENERIC, "NETLINK_GENERIC") }

// NetlinkRouteAsk makes a blocking socket for questions to rtnetlink; see NetlinkRoute for one that
// gets changes.
func NetlinkRouteAsk() (int, error) { return netlinkSocket(unix.NETLINK_ROUTE, "NETLINK_ROUTE") }

func netlinkSocket(family int, name string) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return -1, callError("socket", name, err)
	}
	// The kernel answers before the send returns. This is for the case that it does not.
	tv := unix.NsecToTimeval(5e9)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		unix.Close(fd)
		return -1, callError("setsockopt", "SO_RCVTIMEO", err)
	}
	return fd, nil
}

// NetworkCookie is a number of the calling thread's network namespace that no other one gets until
// the machine boots again (SO_NETNS_COOKIE, since Linux 5.14).
func NetworkCookie() (uint64, error) {
	fd, err := DeviceSocket()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return n, callError("getsockopt", "SO_NETNS_COOKIE", err)
}
