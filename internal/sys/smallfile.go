package sys

import (
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// WriteNew makes a file in an open directory, which must not have the name yet (EEXIST): with these
// bytes, permissions and times, synced. The umask takes permissions away unless exact is set. Where
// it fails, a file may be left. It takes five system calls, where package os takes eleven for its
// poller and for links on the way.
func WriteNew(dir *os.File, name string, b []byte, mode fs.FileMode, exact bool, modified time.Time) (err error) {
	var fd int
	for {
		fd, err = unix.Openat(int(dir.Fd()), name,
			unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		if err != EINTR {
			break
		}
	}
	if err != nil {
		return callError("openat", name, err)
	}
	defer func() {
		if cerr := unix.Close(fd); err == nil && cerr != EINTR { // the descriptor is closed then, too
			err = callError("close", name, cerr)
		}
	}()
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != EINTR {
			return callError("write", name, err)
		}
		b = b[max(n, 0):]
	}
	if exact {
		if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
			return callError("fchmod", name, err)
		}
	}
	t := unix.NsecToTimespec(modified.UnixNano())
	if err := unix.UtimesNanoAt(int(dir.Fd()), name, []unix.Timespec{t, t}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return callError("utimensat", name, err)
	}
	for {
		if err = unix.Fsync(fd); err != EINTR {
			return callError("fsync", name, err)
		}
	}
}

// FileStat is what stat(2) tells about a file.
type FileStat struct {
	FileIdentity
	Regular    bool
	Size       int64
	Perm       fs.FileMode
	ModifiedNs int64 // mtime, ns since 1970
}

func fileStat(st *unix.Stat_t) FileStat {
	return FileStat{FileIdentity{Device: uint64(st.Dev), Inode: st.Ino, Links: uint64(st.Nlink), UID: st.Uid,
		GID: st.Gid, ChangedNs: st.Ctim.Nano()},
		st.Mode&unix.S_IFMT == unix.S_IFREG, st.Size, fs.FileMode(st.Mode) & fs.ModePerm, st.Mtim.Nano()}
}

// StatIn is what is in an open directory under a name, without following a link.
func StatIn(dir *os.File, name string) (FileStat, error) {
	var st unix.Stat_t
	for {
		err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != EINTR {
			return fileStat(&st), callError("fstatat", name, err)
		}
	}
}

// ReadWhole reads the first bytes of an open file into b, and says what the file was before and
// after. A file with fewer bytes is io.ErrUnexpectedEOF. What is no regular file is not read. One
// that says that it has no bytes, and has some, as files of /proc do, is EFBIG.
func ReadWhole(f *os.File, b []byte) (before, after FileStat, err error) {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return before, after, callError("fstat", f.Name(), err)
	}
	if before = fileStat(&st); !before.Regular {
		return before, before, nil
	}
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case err == EINTR:
			continue
		case err != nil:
			return before, after, callError("read", f.Name(), err)
		case n == 0:
			return before, after, callError("read", f.Name(), io.ErrUnexpectedEOF)
		}
		b = b[n:]
	}
	if before.Size == 0 {
		if n, _ := unix.Read(fd, make([]byte, 1)); n > 0 {
			return before, after, callError("read", f.Name(), EFBIG)
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return before, after, callError("fstat", f.Name(), err)
	}
	return before, fileStat(&st), nil
}
