package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a base page in bytes.
var PageSize = os.Getpagesize()

// Protection and mapping flags for Mmap.
const (
	ProtRead  = unix.PROT_READ
	ProtWrite = unix.PROT_WRITE

	MapShared   = unix.MAP_SHARED
	MapPrivate  = unix.MAP_PRIVATE
	MapPopulate = unix.MAP_POPULATE
)

// Seals of a memfd (man 2 fcntl, F_ADD_SEALS).
const (
	SealSeal        = unix.F_SEAL_SEAL
	SealShrink      = unix.F_SEAL_SHRINK
	SealGrow        = unix.F_SEAL_GROW
	SealFutureWrite = unix.F_SEAL_FUTURE_WRITE
)

// MemfdCreate makes an anonymous file of size bytes that can be sealed and is closed on exec.
// hugePage is 0 for base pages or the huge page size in bytes (2 MiB or 1 GiB); size must be a
// multiple of it.
func MemfdCreate(name string, size int64, hugePage int) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	switch hugePage {
	case 0:
	case 2 << 20:
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	case 1 << 30:
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_1GB
	default:
		return -1, callError("memfd_create", fmt.Sprintf("%q with %d-byte pages", name, hugePage), EINVAL)
	}
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return -1, callError("memfd_create", fmt.Sprintf("%q", name), err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return -1, callError("ftruncate", fmt.Sprintf("memfd %q to %d bytes", name, size), err)
	}
	return fd, nil
}

// Ftruncate sets the size of the file fd in bytes.
func Ftruncate(fd int, size int64) error {
	return callError("ftruncate", fmt.Sprintf("to %d bytes", size), unix.Ftruncate(fd, size))
}

// FileSize is the size of the file fd in bytes.
func FileSize(fd int) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, callError("fstat", fmt.Sprintf("fd %d", fd), err)
	}
	return st.Size, nil
}

// AddSeals seals the memfd fd; seals cannot be taken back.
func AddSeals(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return callError("fcntl", "F_ADD_SEALS", err)
}

// Seals returns the seals of fd; it fails with EINVAL when fd is not a file that can be sealed.
func Seals(fd int) (int, error) {
	s, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return s, callError("fcntl", "F_GET_SEALS", err)
}

// Mmap maps size bytes of fd from offset. The result must be passed unchanged to Munmap.
func Mmap(fd int, offset int64, size, prot, flags int) ([]byte, error) {
	b, err := unix.Mmap(fd, offset, size, prot, flags)
	return b, callError("mmap", fmt.Sprintf("%d bytes", size), err)
}

// Munmap unmaps what Mmap returned. No slice of it may be touched afterwards.
func Munmap(b []byte) error {
	return callError("munmap", fmt.Sprintf("%d bytes", len(b)), unix.Munmap(b))
}

// AllocatedSize is the number of bytes for which the file fd has pages or blocks; less than its
// size if it is sparse.
func AllocatedSize(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, callError("fstat", fmt.Sprintf("fd %d", fd), err)
	}
	return uint64(st.Blocks) * 512, nil
}

// Pread reads from the file fd at an offset into b, which may be a part of a mapping. A hole of a
// memfd reads as zeros, and stays a hole; EFAULT if b cannot be written.
func Pread(fd int, b []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(fd, b, off)
		if err == EINTR {
			continue
		}
		return max(n, 0), callError("pread", fmt.Sprintf("%d bytes at %d", len(b), off), err)
	}
}

// Close closes a file descriptor.
func Close(fd int) error { return callError("close", fmt.Sprintf("fd %d", fd), unix.Close(fd)) }

// Dup duplicates fd with close-on-exec set.
func Dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, callError("fcntl", "F_DUPFD_CLOEXEC", err)
}
