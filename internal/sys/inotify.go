package sys

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// Inotify tells what happens in directories (man 7 inotify).
type Inotify struct{ f *os.File }

// NewInotify makes an instance without watches. Each user may have a number of them (sysctl
// fs.inotify.max_user_instances).
func NewInotify() (*Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, callError("inotify_init1", "", err)
	}
	return &Inotify{os.NewFile(uintptr(fd), "inotify")}, nil
}

// directoryEvents is everything that may give a file in a directory another content.
const directoryEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// WatchDirectory begins to watch a directory, and returns the number that its events carry.
// Watching again returns the same number.
func (i *Inotify) WatchDirectory(path string) (watch int32, err error) {
	raw, err := i.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		var n int
		n, err = unix.InotifyAddWatch(int(fd), path, directoryEvents)
		watch = int32(n)
	})
	if err == nil {
		err = failed
	}
	return watch, callError("inotify_add_watch", path, err)
}

// InotifyEvent is one event. Lost says that there were more of them than the kernel keeps:
// everything may have changed. Gone says that the watch has ended, because the directory is no
// more.
type InotifyEvent struct {
	Watch      int32
	Name       string // of the file in the directory; "": the directory itself
	Lost, Gone bool
}

// Read waits for events and returns those that are there. Close ends it with os.ErrClosed.
func (i *Inotify) Read() ([]InotifyEvent, error) {
	var buf [16 << 10]byte // an event has 16 bytes and a name of up to 256
	n, err := i.f.Read(buf[:])
	if err != nil {
		return nil, err
	}
	return parseInotify(buf[:n]), nil
}

// Pending is how many bytes of events there are to read.
func (i *Inotify) Pending() (n int, err error) {
	raw, err := i.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err == nil {
		err = failed
	}
	return n, callError("ioctl", "FIONREAD", err)
}

// parseInotify reads the kernel's struct inotify_event. What is cut off is left out.
func parseInotify(b []byte) (out []InotifyEvent) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		e := InotifyEvent{Watch: int32(binary.NativeEndian.Uint32(b)), Lost: mask&unix.IN_Q_OVERFLOW != 0,
			Gone: mask&unix.IN_IGNORED != 0}
		b = b[unix.SizeofInotifyEvent:]
		if size > len(b) {
			break
		}
		name, _, _ := bytes.Cut(b[:size], []byte{0})
		e.Name = string(name)
		b = b[size:]
		out = append(out, e)
	}
	return out
}

// Close ends all watches, and a Read that waits.
func (i *Inotify) Close() error { return i.f.Close() }
