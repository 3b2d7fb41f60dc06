package sys

import (
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"
)

// TermSize is the size of the terminal that fd is, in columns and rows; an error (ENOTTY) says that
// it is none. A terminal whose size was never set says 0 (man 2 TIOCGWINSZ).
func TermSize(fd uintptr) (columns, rows int, err error) {
	w, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, callError("ioctl", "TIOCGWINSZ", err)
	}
	return int(w.Col), int(w.Row), nil
}

// OpenTerminal makes a pseudo-terminal of that size (man 7 pty): what is written to one end is read
// at the other. program is the end for a program, user the one where the user types and reads. Both
// belong to the caller. A read of the user's end fails with EIO when no process has the other one
// open any more.
func OpenTerminal(columns, rows int) (user, program *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, callError("open", "/dev/ptmx", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, nil, callError("ioctl", "/dev/ptmx", err)
	}
	user = os.NewFile(uintptr(fd), "/dev/ptmx") // in Go's poller, so that Close ends a Read
	program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		user.Close()
		return nil, nil, err
	}
	return user, program, nil
}

// ResizeTerminal sets the size of a terminal, one of whose ends f is. Programs in its foreground
// get a signal, see WindowChange.
func ResizeTerminal(f *os.File, columns, rows int) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	}); err != nil {
		return err
	}
	if failed != nil {
		return callError("ioctl", "TIOCSWINSZ", failed)
	}
	return nil
}

// WindowChange is the signal that tells a program that its terminal has another size.
const WindowChange = unix.SIGWINCH

// Foreground reports whether this process is in the foreground of the terminal that fd is, and may
// read from it and change it: others are stopped when they try.
func Foreground(fd uintptr) bool {
	group, err := unix.IoctlGetInt(int(fd), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// SingleKeys makes the terminal that fd is give out each key at once and show none (man 3 termios),
// until restore. Ctrl-C stays a signal; Ctrl-Z becomes a key: a program that is stopped could not
// put the terminal back. The process must be in its foreground.
func SingleKeys(fd uintptr) (restore func() error, err error) {
	was, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	if err != nil {
		return nil, callError("ioctl", "TCGETS", err)
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME], now.Cc[unix.VSUSP] = 1, 0, 0
	if err := unix.IoctlSetTermios(int(fd), unix.TCSETS, &now); err != nil {
		return nil, callError("ioctl", "TCSETS", err)
	}
	return func() error {
		if err := unix.IoctlSetTermios(int(fd), unix.TCSETS, was); err != nil {
			return callError("ioctl", "TCSETS", err)
		}
		return nil
	}, nil
}

// LineInput makes the terminal that fd is give out whole lines, until restore, and drops what was
// typed before, so that it does not answer a question that comes now. Without echo it shows only
// the end of a line, as for a password.
func LineInput(fd uintptr, echo bool) (restore func() error, err error) {
	was, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
	if err != nil {
		return nil, callError("ioctl", "TCGETS", err)
	}
	now := *was
	now.Lflag |= unix.ICANON | unix.ISIG
	if !echo {
		now.Lflag &^= unix.ECHO
		now.Lflag |= unix.ECHONL
	}
	if err := unix.IoctlSetTermios(int(fd), unix.TCSETSF, &now); err != nil {
		return nil, callError("ioctl", "TCSETSF", err)
	}
	return func() error {
		if err := unix.IoctlSetTermios(int(fd), unix.TCSETS, was); err != nil {
			return callError("ioctl", "TCSETS", err)
		}
		return nil
	}, nil
}

// ControllingTerminal adds to the attributes of a command that it leads a session of its own whose
// controlling terminal is its standard input: keys such as Ctrl-C become signals to it, and the end
// of the terminal a hang-up.
func ControllingTerminal(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(unix.SysProcAttr)
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setpgid = true, false
	cmd.SysProcAttr.Setctty, cmd.SysProcAttr.Ctty = true, 0
}
