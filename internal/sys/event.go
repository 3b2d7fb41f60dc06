package sys

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Events of an Epoll registration.
const (
	EventIn  = unix.EPOLLIN
	EventOut = unix.EPOLLOUT
	EventHup = unix.EPOLLHUP
	EventErr = unix.EPOLLERR
	EventRdH = unix.EPOLLRDHUP

	EventOneShot = unix.EPOLLONESHOT
)

// Epoll is an epoll instance (man 7 epoll). Its own descriptor is readable while one of its members
// is ready, so an Epoll can be a member of another one.
type Epoll struct {
	fd   int
	file *os.File // of NewParkingEpoll: fd, in Go's poller
}

// EpollEvent is one ready member: the events and the 64-bit tag given to Add.
type EpollEvent struct {
	Events uint32
	Tag    uint64
}

// NewEpoll makes an epoll instance that is closed on exec.
func NewEpoll() (*Epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, callError("epoll_create1", "", err)
	}
	return &Epoll{fd: fd}, nil
}

// NewParkingEpoll makes an epoll instance whose Wait blocks the calling goroutine alone. A thread
// that blocks in the kernel keeps its processor (a P of the Go scheduler) until it is taken away,
// which may be 10 ms later: with a few of them nothing else runs until then. It takes some
// microseconds longer to wake.
func NewParkingEpoll() (*Epoll, error) {
	e, err := NewEpoll()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(e.fd, true); err != nil { // as os.NewFile wants it; epoll_wait goes by its timeout
		Close(e.fd)
		return nil, callError("fcntl", "O_NONBLOCK", err)
	}
	e.file = os.NewFile(uintptr(e.fd), "epoll")
	return e, nil
}

// FD is the descriptor of the instance.
func (e *Epoll) FD() int { return e.fd }

// Add makes fd a member; events 0 keeps it silent (errors and hang-up are always reported).
func (e *Epoll) Add(fd int, events uint32, tag uint64) error {
	return e.ctl(unix.EPOLL_CTL_ADD, fd, events, tag)
}

// Set changes what member fd is watched for.
func (e *Epoll) Set(fd int, events uint32, tag uint64) error {
	return e.ctl(unix.EPOLL_CTL_MOD, fd, events, tag)
}

// Remove ends the membership of fd.
func (e *Epoll) Remove(fd int) error { return e.ctl(unix.EPOLL_CTL_DEL, fd, 0, 0) }

func (e *Epoll) ctl(op, fd int, events uint32, tag uint64) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(tag), Pad: int32(tag >> 32)}
	return callError("epoll_ctl", "", unix.EpollCtl(e.fd, op, fd, &ev))
}

// Wait blocks the calling thread (see NewParkingEpoll) for up to timeout milliseconds (-1: for
// ever, 0: not at all) and fills out. An interrupted wait returns 0 and no error.
func (e *Epoll) Wait(out []EpollEvent, timeout int) (int, error) {
	if e.file != nil && timeout != 0 {
		return e.park(out, timeout)
	}
	return e.wait(out, timeout)
}

func (e *Epoll) park(out []EpollEvent, timeout int) (n int, err error) {
	var until time.Time
	if timeout > 0 {
		until = time.Now().Add(time.Duration(timeout) * time.Millisecond)
	}
	if err := e.file.SetReadDeadline(until); err != nil {
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	conn, err := e.file.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	var failed error
	err = conn.Read(func(uintptr) bool {
		n, failed = e.wait(out, 0)
		return n > 0 || failed != nil
	})
	switch {
	case failed != nil:
		return 0, failed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return e.wait(out, 0)
	case err != nil:
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	return n, nil
}

func (e *Epoll) wait(out []EpollEvent, timeout int) (int, error) {
	var buf [64]unix.EpollEvent
	n, err := unix.EpollWait(e.fd, buf[:min(len(buf), len(out))], timeout)
	if err != nil {
		if err == EINTR {
			return 0, nil
		}
		return 0, callError("epoll_wait", "", err)
	}
	for i := range n {
		out[i] = EpollEvent{buf[i].Events, uint64(uint32(buf[i].Fd)) | uint64(uint32(buf[i].Pad))<<32}
	}
	return n, nil
}

// Close closes the instance.
func (e *Epoll) Close() error {
	if e.file != nil {
		return e.file.Close()
	}
	return Close(e.fd)
}

// Eventfd makes a non-blocking eventfd (man 2 eventfd): a doorbell that epoll can wait for.
func Eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return fd, callError("eventfd", "", err)
}

// Timerfd makes a descriptor that becomes readable once d has passed, and stays so until it is
// closed (man 2 timerfd_create). It needs no goroutine, so that epoll can wait for a time as for
// everything else. A duration that is not positive has passed.
func Timerfd(d time.Duration) (int, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return -1, callError("timerfd_create", "", err)
	}
	t := unix.ItimerSpec{Value: unix.NsecToTimespec(max(d, 1).Nanoseconds())} // 0 would be never
	if err := unix.TimerfdSettime(fd, 0, &t, nil); err != nil {
		Close(fd)
		return -1, callError("timerfd_settime", "", err)
	}
	return fd, nil
}

// PollIn blocks the calling thread until one of fds is readable or in error, for up to timeout
// milliseconds (-1: for ever). It returns the index of the first that is, or -1 after the timeout
// or an interruption.
func PollIn(timeout int, fds ...int) (int, error) {
	var set [4]unix.PollFd
	p := set[:0]
	for _, fd := range fds {
		p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	n, err := unix.Poll(p, timeout)
	if err != nil && err != EINTR {
		return -1, callError("poll", "", err)
	}
	if n > 0 {
		for i := range p {
			if p[i].Revents != 0 {
				return i, nil
			}
		}
	}
	return -1, nil
}
