package sys

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ThreadID is the kernel's number of the calling thread (man 2 gettid). The main thread's is the
// process's.
func ThreadID() int { return unix.Gettid() }

// OwnThreadNetwork moves the calling thread, and it alone, into a new network namespace whose one
// device, lo, is down, and into a new mount namespace, so that /sys shows the devices of the one.
// Nothing that the machine mounts later is hidden, and nothing mounted here is seen outside. Both
// end with the last thread or process in them. The thread shares its working directory with no
// other from now on and cannot be made ordinary again: the caller locks its goroutine to the thread
// (runtime.LockOSThread) and never unlocks it. EPERM means that CAP_SYS_ADMIN is missing.
//
// After an error the thread may be in the new namespaces already, so the goroutine has to end
// locked as well.
func OwnThreadNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return callError("unshare", "CLONE_NEWNET|CLONE_NEWNS", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return callError("mount", "--make-rslave /", err)
	}
	return ownSysfs()
}

// ownSysfs mounts a sysfs over /sys that shows the thread's network namespace, with what was
// mounted below the old one.
func ownSysfs() error {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	var below []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 || !strings.HasPrefix(f[4], "/sys/") {
			continue
		}
		// A mount below another one comes with it, and one on top of another at the same place is
		// the one that is seen.
		dir := f[4]
		if !slices.ContainsFunc(below, func(d string) bool { return d == dir || strings.HasPrefix(dir, d+"/") }) {
			below = append(below, dir)
		}
	}
	fds := make([]int, 0, len(below))
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, dir := range below {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return callError("open", dir, err)
		}
		fds = append(fds, fd)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return callError("mount", "sysfs on /sys", err)
	}
	for i, dir := range below {
		// One that is not in every sysfs is left out: it belonged to a device of the old namespace.
		err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fds[i]), dir, "", unix.MS_BIND|unix.MS_REC, "")
		if err != nil && err != unix.ENOENT {
			return callError("mount", "--rbind "+dir, err)
		}
	}
	return nil
}

// JoinNetwork moves the calling thread into the network namespace that f refers to, such as
// /proc/PID/ns/net (man 2 setns).
func JoinNetwork(f *os.File) error {
	return callError("setns", f.Name(), unix.Setns(int(f.Fd()), unix.CLONE_NEWNET))
}

// LinkEvents is a socket that becomes readable when a network device of its namespace changes (is
// added, removed, brought up or down, gets or loses its carrier) or an IPv6 route does (man 7
// rtnetlink, RTMGRP_LINK, RTMGRP_IPV6_ROUTE).
type LinkEvents struct{ fd int }

// WatchLinks makes a LinkEvents in the calling thread's network namespace.
func WatchLinks() (*LinkEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, callError("socket", "NETLINK_ROUTE", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK,
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV6_ROUTE}); err != nil {
		unix.Close(fd)
		return nil, callError("bind", "RTMGRP_LINK|RTMGRP_IPV6_ROUTE", err)
	}
	return &LinkEvents{fd}, nil
}

// FD is the socket's descriptor, for PollIn.
func (e *LinkEvents) FD() int { return e.fd }

// Drain throws away the events that are there. It looks at none: the goroutine that wakes up looks
// at the device.
func (e *LinkEvents) Drain() error {
	var buf [8 << 10]byte
	for {
		_, _, err := unix.Recvfrom(e.fd, buf[:], unix.MSG_TRUNC)
		switch err {
		case nil, EINTR, ENOBUFS: // ENOBUFS: so many that some were lost
		case EAGAIN:
			return nil
		default:
			return callError("recv", "rtnetlink events", err)
		}
	}
}

// Close closes the socket.
func (e *LinkEvents) Close() error { return Close(e.fd) }
