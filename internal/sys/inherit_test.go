package sys

import (
	"bytes"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A child does not have the descriptor, and would have it otherwise.
func TestUninherited(t *testing.T) {
	open := func() (int, error) { return unix.Open("/dev/zero", unix.O_RDONLY, 0) }
	for _, kept := range []bool{false, true} {
		make := Uninherited
		if kept {
			make = func(open func() (int, error)) (int, error) { return open() }
		}
		fd, err := make(open)
		if err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := flags&unix.FD_CLOEXEC == 0; got != kept {
			t.Errorf("the descriptor goes to children: %v, want %v", got, kept)
		}
		if out, err := exec.Command("ls", "-l", "/proc/self/fd").Output(); err != nil {
			t.Error(err)
		} else if got := bytes.Contains(out, []byte("/dev/zero")); got != kept {
			t.Errorf("a child has it: %v, want %v:\n%s", got, kept, out)
		}
		if err := Close(fd); err != nil {
			t.Error(err)
		}
	}
	if _, err := Uninherited(func() (int, error) { return -1, unix.EMFILE }); err != unix.EMFILE {
		t.Errorf("open's error became %v", err)
	}
}
