package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// FileLock takes an exclusive lock on an open file and waits for it (man 2 flock). It ends when the
// file is closed, also by the end of the process.
func FileLock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return callError("flock", f.Name(), err)
		}
		return nil
	}
}
