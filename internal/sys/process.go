package sys

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Signals that stop, continue and kill a process; none of them can be caught.
const (
	SIGSTOP = unix.SIGSTOP
	SIGCONT = unix.SIGCONT
	SIGKILL = unix.SIGKILL
)

// WaitStopped waits until the child process pid has been stopped by a signal. It does not reap a
// child that ended instead: that is an error here.
func WaitStopped(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err == EINTR {
			continue
		}
		if err != nil {
			return callError("waitid", fmt.Sprintf("pid %d", pid), err)
		}
		// Something happened: stopped is taken without waiting; nothing means that it ended.
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG, nil); err != nil {
			return callError("waitid", fmt.Sprintf("pid %d", pid), err)
		}
		if info.Signo == 0 {
			return fmt.Errorf("waitid pid %d: the process ended instead of stopping", pid)
		}
		return nil
	}
}

// ThreadCPU is the processor time that the calling thread has used in user and kernel mode. Lock
// the goroutine to its thread (runtime.LockOSThread) to compare two values. Its clock counts
// nanoseconds (man 2 clock_gettime, CLOCK_THREAD_CPUTIME_ID), where getrusage goes on only with the
// scheduler's next look at the thread.
func ThreadCPU() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, callError("clock_gettime", "CLOCK_THREAD_CPUTIME_ID", err)
	}
	return time.Duration(t.Nano()), nil
}
