package sys

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ChildAttributes are for exec.Cmd.SysProcAttr of a child that must not outlive the thread that
// starts it: the kernel kills it when that thread ends (man 2 PR_SET_PDEATHSIG), so the caller
// starts it from a goroutine that is locked to its thread until the child has ended. The child
// leads a process group of its own, or a session of its own.
func ChildAttributes(session bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: SIGKILL, Setsid: session, Setpgid: !session}
}

// DieWithThread adds to the attributes of a command that the kernel kills it with SIGKILL when the
// thread that starts it ends. The thread must live as long as the command should.
func DieWithThread(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(unix.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = SIGKILL
}

// AsUser makes cmd start as another user, whose group has the same number. Starting fails with
// EPERM unless this process is root.
func AsUser(cmd *exec.Cmd, uid int) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(unix.SysProcAttr)
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
}

// OwnUsers makes cmd start in a user namespace of its own (man 7 user_namespaces): as its root, who
// is the user uid outside, or for a negative uid as a user who has no number there, like all
// others.
func OwnUsers(cmd *exec.Cmd, uid int) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(unix.SysProcAttr)
	}
	a := cmd.SysProcAttr
	a.Cloneflags |= unix.CLONE_NEWUSER
	if uid >= 0 {
		one := []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		a.UidMappings, a.GidMappings = one, one
		a.Credential = &syscall.Credential{NoSetGroups: true}
	}
}

// OwnGroup are attributes of a child that leads a process group of its own and outlives its parent.
func OwnGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Kill sends a signal to a process (man 2 kill). That the process does not exist any more is no
// error.
func Kill(pid int, signal Signal) error {
	if err := unix.Kill(pid, signal); err != nil && err != unix.ESRCH {
		return callError("kill", fmt.Sprintf("pid %d with %v", pid, signal), err)
	}
	return nil
}

// Reap takes the exit status of the child pid if it has ended and reports whether it did; also for
// children that this process got as their subreaper. Processes that are not children are not
// reaped.
func Reap(pid int) bool {
	for {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		return err == nil && got == pid
	}
}

// Subreaper makes this process the new parent of every descendant whose own parent ends (man 2
// prctl, PR_SET_CHILD_SUBREAPER), so that none can get out of sight.
func Subreaper() error {
	return callError("prctl", "PR_SET_CHILD_SUBREAPER", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// ReapAny takes the exit status of one child that has ended, whichever it is, and reports whether
// there was one. It must not be called while an exec.Cmd of this process has yet to be waited for:
// it could take that one's status.
func ReapAny() bool {
	pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
	return err == nil && pid > 0
}

// WaitExit waits until the process pid, a child or not, has ended, or until the time is over, and
// reports whether it ended. Whether it is reaped is another matter.
func WaitExit(pid int, limit time.Duration) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return true, nil
	}
	if err != nil {
		return false, callError("pidfd_open", fmt.Sprint(pid), err)
	}
	defer unix.Close(fd)
	i, err := PollIn(int(limit.Milliseconds()), fd)
	return i == 0, err
}

// Signal is the number of a signal (man 7 signal).
type Signal = syscall.Signal

// MaxRSS is the most memory in bytes that an ended process had resident, or the largest of those
// that it waited for.
func MaxRSS(s *os.ProcessState) uint64 {
	if ru, ok := s.SysUsage().(*syscall.Rusage); ok {
		return uint64(ru.Maxrss) << 10
	}
	return 0
}

// ExitSignal is the signal that ended a process, or 0 when it ended by itself.
func ExitSignal(s *os.ProcessState) Signal {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

// Hangup is the signal that the end of a terminal sends.
const Hangup = unix.SIGHUP
