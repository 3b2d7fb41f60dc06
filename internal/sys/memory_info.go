package sys

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// More error numbers that memory calls answer with.
const (
	EFAULT = unix.EFAULT
	ENODEV = unix.ENODEV
	ENOSPC = unix.ENOSPC
	EACCES = unix.EACCES
)

// MemAvailable is the kernel's estimate of the bytes that can be allocated without swapping (man 5
// proc, MemAvailable).
func MemAvailable() (uint64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parseMemAvailable(b)
}

func parseMemAvailable(b []byte) (uint64, error) {
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:")
		if !ok {
			continue
		}
		kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 54)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: line %q: %w", s.Text(), err)
		}
		return kb << 10, nil
	}
	return 0, fmt.Errorf("/proc/meminfo: no line MemAvailable")
}

// LockLimit is the number of bytes that this process may lock in memory (RLIMIT_MEMLOCK), or the
// largest uint64 when that is unlimited. A process with CAP_IPC_LOCK is not bound by it.
func LockLimit() (uint64, error) { return limit(unix.RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK") }

// Allocate gives the file fd its pages now (man 2 fallocate); ENOSPC when there are not enough.
// Pages are zero.
func Allocate(fd int, size int64) error {
	for {
		err := unix.Fallocate(fd, 0, 0, size)
		if err == EINTR {
			continue
		}
		return callError("fallocate", fmt.Sprintf("%d bytes", size), err)
	}
}

// PunchHole gives pages of the file fd back; they read as zero afterwards. EPERM: seals forbid it.
func PunchHole(fd int, offset, size int64) error {
	return callError("fallocate", "FALLOC_FL_PUNCH_HOLE",
		unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size))
}

// OpenRead opens a file for reading without waiting (a pipe without a writer would make a plain
// open hang) and without becoming its controlling terminal's owner.
func OpenRead(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == EINTR {
			continue
		}
		return fd, callError("open", path, err)
	}
}

// RegularSize is the size in bytes of the regular file fd; regular is false when fd is something
// else (pipe, device, directory).
func RegularSize(fd int) (size int64, regular bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, false, callError("fstat", fmt.Sprintf("fd %d", fd), err)
	}
	return st.Size, st.Mode&unix.S_IFMT == unix.S_IFREG, nil
}
