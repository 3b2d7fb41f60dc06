package sys

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PinThread binds the calling thread to one processor (man 2 sched_setaffinity). Lock the goroutine
// to its thread first (runtime.LockOSThread). cpu counts the processors that the process may use,
// modulo their number: pinning works the same in a container that has processors 4 and 5.
func PinThread(cpu int) error {
	cpus, err := processors()
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpus[cpu%len(cpus)])
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return callError("sched_setaffinity", fmt.Sprintf("cpu %d", cpus[cpu%len(cpus)]), err)
	}
	return nil
}

// Yield lets another thread that waits for this processor run first (man 2 sched_yield). With none
// it returns at once. The scheduler of Go does not learn of it: other goroutines run by
// runtime.Gosched.
func Yield() { syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) }

// UnpinThread gives the calling thread every processor back that the process may use.
func UnpinThread() error {
	cpus, err := processors()
	if err != nil {
		return err
	}
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return callError("sched_setaffinity", "", err)
	}
	return nil
}

// Processor is the number of the cpu-th processor that this process may use, as programs like
// taskset count them.
func Processor(cpu int) (int, error) {
	cpus, err := processors()
	if err != nil {
		return 0, err
	}
	return cpus[cpu%len(cpus)], nil
}

// processors lists the processors that the process may use. It asks once, before the first thread
// is pinned: later, any thread that could be asked may be a pinned one.
var processors = sync.OnceValues(func() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, callError("sched_getaffinity", "", err)
	}
	var cpus []int
	for i := 0; len(cpus) < set.Count(); i++ {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) == 0 {
		return nil, errors.New("sched_getaffinity: no processor")
	}
	return cpus, nil
})

// ProcessCPU is the processor time that all threads of this process have used in user and kernel
// mode.
func ProcessCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, callError("getrusage", "RUSAGE_SELF", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// KernelRelease is the release of the running kernel (uname -r).
func KernelRelease() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", callError("uname", "", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// OwnNetwork makes cmd start in a network namespace of its own, which ends with it. Starting fails
// with EPERM without CAP_SYS_ADMIN. Its loopback device is down: the command calls LoopbackUp
// first.
func OwnNetwork(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
}

// LoopbackUp brings up the device lo of this process's network namespace (man 7 netdevice).
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return callError("socket", "", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return callError("ioctl", "SIOCGIFFLAGS lo", err)
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return callError("ioctl", "SIOCSIFFLAGS lo", err)
	}
	return nil
}

const congestionFile = "/proc/sys/net/ipv4/tcp_congestion_control"

// DefaultCongestion is the TCP congestion control that sockets of this network namespace begin
// with.
func DefaultCongestion() (string, error) {
	b, err := os.ReadFile(congestionFile)
	return strings.TrimSpace(string(b)), err
}

// SetDefaultCongestion changes what DefaultCongestion says, for every program in this network
// namespace.
func SetDefaultCongestion(name string) error {
	return os.WriteFile(congestionFile, []byte(name), 0)
}
