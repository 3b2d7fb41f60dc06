package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/netlink"
	"golang.org/x/sys/unix"
)

// NetlinkLinks is the group of NetlinkRoute for changes of interfaces (linux/rtnetlink.h).
const NetlinkLinks = 1 << (unix.RTNLGRP_LINK - 1)

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

// ErrNetlink says that the kernel's answer is not understood.
var ErrNetlink = errors.New("malformed answer of the kernel")

// asked is the sequence number of the last question.
var asked atomic.Uint32

// NetlinkAsk sends a request, whose sequence number it sets, on a blocking socket that nothing else
// uses meanwhile, and calls each for every message of the answer. An error message of the kernel is
// an Errno.
func NetlinkAsk(fd int, req []byte, each func(netlink.Message)) error {
	seq := asked.Add(1)
	binary.NativeEndian.PutUint32(req[8:], seq)
	dump := binary.NativeEndian.Uint16(req[6:])&NetlinkDump == NetlinkDump
	if err := NetlinkSend(fd, req); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for answered := false; dump || !answered; {
		n, e := NetlinkRecv(fd, buf)
		if e == EAGAIN {
			return fmt.Errorf("the kernel does not answer: %w", e)
		}
		if e != 0 {
			return e
		}
		if n > len(buf) {
			return fmt.Errorf("an answer of %d bytes: %w", n, ErrNetlink)
		}
		for m, rest, ok := netlink.Next(buf[:n]); ok; m, rest, ok = netlink.Next(rest) {
			switch {
			case m.Seq != seq: // of a question that was given up
				continue
			case m.Kind == netlink.Done:
				return nil
			case m.Kind == netlink.Error:
				switch e, ok := m.Errno(); {
				case !ok:
					return ErrNetlink
				case e != 0:
					return Errno(e)
				}
				return nil
			}
			each(m)
			answered = true
		}
	}
	return nil
}
