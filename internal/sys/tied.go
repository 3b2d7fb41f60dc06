package sys

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartTied starts cmd so that the kernel kills it (SIGKILL) when this process ends, however it
// ends. Only the process itself is tied, not what it starts. wait must be called once; it returns
// what cmd.Wait returns.
//
// The kernel ties a child to the thread that made it, not to the process (man 2 PR_SET_PDEATHSIG),
// so one thread is held until the child has ended.
func StartTied(cmd *exec.Cmd) (wait func() error, err error) {
	DieWithThread(cmd)
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return func() error { return <-ended }, nil
}

// SocketPairStream makes two connected stream sockets without a name, for a child to inherit one.
// Both are closed on exec and belong to the caller.
func SocketPairStream(name string) (a, b *os.File, err error) {
	return socketPair(name, unix.SOCK_STREAM)
}

// SocketPairDatagram makes two connected sockets like [SocketPairStream], for messages: what is
// sent when the far end is closed everywhere is refused (ECONNREFUSED).
func SocketPairDatagram(name string) (a, b *os.File, err error) {
	return socketPair(name, unix.SOCK_DGRAM)
}

func socketPair(name string, kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, callError("socketpair", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name+" (far end)"), nil
}

// Memfile makes an anonymous file in memory, empty, which is closed on exec and belongs to the
// caller.
func Memfile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, callError("memfd_create", fmt.Sprintf("%q", name), err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
