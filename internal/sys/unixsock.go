package sys

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MaxPacketFDs is the number of descriptors that one packet of RecvPacket can bring.
const MaxPacketFDs = 4

// PeerCred tells which process is at the other end of a connected unix socket, as the kernel
// recorded it when that process connected or listened (man 7 unix, SO_PEERCRED). The peer cannot
// forge it. The error wraps ErrNoOwner if the user namespace of this process has no number for that
// process's user.
func PeerCred(fd int) (pid, uid int, err error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, 0, callError("getsockopt", "SO_PEERCRED", err)
	}
	uid, err = oneUser(int(c.Uid))
	return int(c.Pid), uid, err
}

// PeerProcess is the number of the process that connected a unix socket, or made the pair, and a
// descriptor of that process, which PollIn reports once it has ended: its number may be another
// process's then, and the descriptor never is (man 2 pidfd_open). Kernels before 6.5 have no
// SO_PEERPIDFD: there the process is looked up by its number, and taken only if the other end is
// open after that. ESRCH: it has ended.
func PeerProcess(fd int) (pid, process int, err error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, -1, callError("getsockopt", "SO_PEERCRED", err)
	}
	pid = int(c.Pid)
	process, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch err {
	case nil:
	case unix.ENOPROTOOPT:
		process, err = processByNumber(fd, pid)
	case unix.EINVAL: // it ended and was reaped before it could be named
		err = unix.ESRCH
		fallthrough
	default:
		err = callError("getsockopt", fmt.Sprintf("SO_PEERPIDFD of process %d", pid), err)
	}
	if err != nil {
		return pid, -1, err
	}
	unix.CloseOnExec(process)
	return pid, process, nil
}

// processByNumber is PeerProcess by the number of the process.
func processByNumber(fd, pid int) (int, error) {
	process, err := OpenProcess(pid)
	if err != nil {
		return -1, err
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	if _, err := unix.Poll(p, 0); err != nil || p[0].Revents != 0 {
		unix.Close(process)
		return -1, callError("poll", fmt.Sprintf("the connection of process %d, which has ended", pid),
			cmp.Or(err, error(unix.ESRCH)))
	}
	return process, nil
}

// RightsMessage is a control message that passes descriptors over a unix socket (SCM_RIGHTS). The
// sender keeps its own.
func RightsMessage(fds ...int) []byte { return unix.UnixRights(fds...) }

// RightsSpace is the room in bytes that a control message with n descriptors takes.
func RightsSpace(n int) int { return unix.CmsgSpace(4 * n) }

// ParseRights returns the descriptors in the control messages oob; they belong to the caller from
// then on. When it fails no descriptor is left open.
func ParseRights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, callError("recvmsg", "control message", err)
	}
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			err = EINVAL
			continue
		}
		f, e := unix.ParseUnixRights(&msgs[i])
		if e != nil {
			err = e
		}
		fds = append(fds, f...)
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, callError("recvmsg", "control message", err)
	}
	return fds, nil
}

// ReopenReadOnly opens the file behind fd again without the right to write, close-on-exec. It needs
// /proc.
func ReopenReadOnly(fd int) (int, error) {
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	n, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, callError("open", path+" read-only", err)
	}
	return n, nil
}

// IsSharedMemory reports whether fd is a file of base pages in memory (a memfd without huge pages).
func IsSharedMemory(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, callError("fstatfs", fmt.Sprintf("fd %d", fd), err)
	}
	return uint64(st.Type) == unix.TMPFS_MAGIC, nil
}

// PopulateRead maps the pages of b for reading now, which is cheaper than a fault for each (Linux
// 5.14). b starts on a page boundary. Memory that cannot be had is an error here and not a signal
// later.
func PopulateRead(b []byte) error {
	return callError("madvise", "MADV_POPULATE_READ", unix.Madvise(b, unix.MADV_POPULATE_READ))
}

// PopulateWrite is PopulateRead for writing.
func PopulateWrite(b []byte) error {
	return callError("madvise", "MADV_POPULATE_WRITE", unix.Madvise(b, unix.MADV_POPULATE_WRITE))
}

// EffectiveUID is the user id that the kernel checks for this process.
func EffectiveUID() int { return os.Geteuid() }

// ETOOMANYREFS says that too many descriptors of this user are on their way in sockets.
const ETOOMANYREFS = unix.ETOOMANYREFS
