package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags for opening files that another user may have prepared: the kernel does not follow a
// symbolic link as the last component, and opening a FIFO or a device does not wait for its other
// end.
const (
	ONoFollow = unix.O_NOFOLLOW
	ONonblock = unix.O_NONBLOCK
	OCreat    = unix.O_CREAT
	EDQUOT    = unix.EDQUOT
	ELOOP     = unix.ELOOP
	EFBIG     = unix.EFBIG
	EEXIST    = unix.EEXIST
	EXDEV     = unix.EXDEV
)

// ReadSetting reads a short file of /proc or /sys, without the space around it. It takes three
// system calls, where os.ReadFile takes ten for Go's poller; the content is at most 4 KiB.
func ReadSetting(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", callError("open", name, err)
	}
	defer unix.Close(fd)
	var b [4096]byte
	for {
		n, err := unix.Read(fd, b[:])
		if err != EINTR {
			return strings.TrimSpace(string(b[:max(n, 0)])), callError("read", name, err)
		}
	}
}

// Umask is the permissions that files which this process makes do not get (man 2 umask). The call
// itself could only tell by changing them.
func Umask() (fs.FileMode, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "Umask:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(text), 8, 32)
			return fs.FileMode(mask) & fs.ModePerm, err
		}
	}
	return 0, errors.New("/proc/self/status has no line Umask, which Linux has since 4.7")
}

// Fallocate gives the file f blocks for its n bytes from off on (man 2 fallocate), so that writing
// to them later, also through a mapping, cannot fail for lack of room, and extends it to them if
// extend is set. EOPNOTSUPP means that the file system cannot do that.
func Fallocate(f *os.File, off, n int64, extend bool) error {
	if n == 0 {
		return nil
	}
	mode := uint32(unix.FALLOC_FL_KEEP_SIZE)
	if extend {
		mode = 0
	}
	for {
		err := unix.Fallocate(int(f.Fd()), mode, off, n)
		if err == EINTR {
			continue
		}
		return callError("fallocate", fmt.Sprintf("%s from %d to %d bytes", f.Name(), off, off+n), err)
	}
}

// WriteBack has the kernel begin to write n bytes of the file f from off on to the disk, and does
// not wait until they are there (man 2 sync_file_range). It is a hint: where the kernel or the file
// system cannot, nothing happens.
func WriteBack(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE) // fsync reports the error
}

// TryFileLock is FileLock without waiting; it returns false when another open file holds the lock.
func TryFileLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case nil:
			return true, nil
		case EINTR:
			continue
		case unix.EWOULDBLOCK:
			return false, nil
		}
		return false, callError("flock", f.Name(), err)
	}
}

// LstatBelow is what is at a path below an open directory (man 2 openat2): no symbolic link on the
// way is followed, and none leads out. ELOOP means that there is one, EXDEV that the path leads
// out, ENOSYS that the kernel is older than Linux 5.6.
func LstatBelow(dir *os.File, path string) (os.FileInfo, error) {
	f, err := openBelow(dir, path, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// OpenBelow opens the file at a path below an open directory for reading, as LstatBelow finds it;
// ELOOP also means that the file itself is a symbolic link. It does not wait for the other end of a
// pipe.
func OpenBelow(dir *os.File, path string) (*os.File, error) {
	return openBelow(dir, path, unix.O_RDONLY|unix.O_NONBLOCK)
}

func openBelow(dir *os.File, path string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), path, &how)
		if err == EINTR || err == EAGAIN && flags&unix.O_NONBLOCK == 0 {
			// EAGAIN: the path was renamed meanwhile, or, without blocking, a lease holds the file
			// (man 2 fcntl)
			continue
		}
		if err != nil {
			return nil, callError("openat2", path, err)
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// Rename renames a name in one open directory to a name in another (man 2 renameat2). Unless
// replace is set, the new name must not exist yet: EEXIST means that it does, EINVAL that the file
// system cannot rename so.
func Rename(fromDir *os.File, from string, toDir *os.File, to string, replace bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	return callError("renameat2", fmt.Sprintf("%s to %s", from, to),
		unix.Renameat2(int(fromDir.Fd()), from, int(toDir.Fd()), to, flags))
}

// FileIdentity is what stat(2) tells about a file beyond os.FileInfo.
type FileIdentity struct {
	Device, Inode uint64
	Links         uint64
	UID, GID      uint32
	ChangedNs     int64 // ctime, ns since 1970
}

// Identity reads the identity out of what Stat or Lstat returned; the zero value if there is none.
func Identity(fi os.FileInfo) FileIdentity {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return FileIdentity{}
	}
	return FileIdentity{Device: uint64(st.Dev), Inode: st.Ino, Links: uint64(st.Nlink), UID: st.Uid, GID: st.Gid,
		ChangedNs: st.Ctim.Nano()}
}

// DiskSpace is the number of bytes that this process may still write to the file system that holds
// f, and how many it has in all; a file system without a size, such as ramfs, has 0 (man 2 statfs).
func DiskSpace(f *os.File) (free, total uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, 0, callError("fstatfs", f.Name(), err)
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

// ReadOnly reports whether the kernel refuses to write where path lies, because the file system or
// its mount is read-only (man 2 statfs).
func ReadOnly(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, callError("statfs", path, err)
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}

// IsOpen reports whether fd is an open descriptor of this process.
func IsOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// SetNonblock makes reads of fd that have nothing fail with EAGAIN instead of waiting.
func SetNonblock(fd int) error {
	return callError("fcntl", "O_NONBLOCK", unix.SetNonblock(fd, true))
}
