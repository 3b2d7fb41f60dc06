package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// group is a process with what it started: a session, or, inside a process that itself runs in such
// a session, a process group.
type group struct {
	leader  int
	session bool
}

// state is what /proc says about a process.
type state struct {
	pid, parent, group, session int
	code                        byte // R, S, D, T, Z ...
}

// readState reads /proc/PID/stat (man 5 proc_pid_stat).
func readState(pid int) (s state, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return s, false
	}
	// The name in parentheses may contain anything.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 4 {
		return s, false
	}
	n := func(i int) int { v, _ := strconv.Atoi(string(f[i])); return v }
	return state{pid: pid, code: f[0][0], parent: n(1), group: n(2), session: n(3)}, true
}

// members are the processes of the group that exist, zombies included.
func (g group) members() (out []state) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, ok := readState(pid); ok && (s.group == g.leader || g.session && s.session == g.leader) {
			out = append(out, s)
		}
	}
	return out
}

// end kills the members of a group whose leader has been reaped, and reaps those that became
// children of this process.
func (g group) end(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for quiet := 0; quiet < 2; {
		var left []state
		for _, s := range g.members() {
			if s.code == 'Z' && (s.parent != os.Getpid() || sys.Reap(s.pid)) {
				// Dead. Those of other parents are theirs to reap; when the parent is of this group
				// and dies they become ours, which the second look sees.
				continue
			}
			if err := sys.Kill(s.pid, sys.SIGKILL); err != nil {
				return fmt.Errorf("proc: %w", err)
			}
			left = append(left, s)
		}
		if len(left) == 0 {
			quiet++
			continue
		}
		quiet = 0
		rest := time.Until(deadline)
		if rest <= 0 {
			return fmt.Errorf("proc: processes left %v after SIGKILL: %v", limit, left)
		}
		if _, err := sys.WaitExit(left[0].pid, min(rest, time.Second)); err != nil {
			return fmt.Errorf("proc: %w", err)
		}
	}
	return nil
}

// Usage is what a process holds at a moment.
type Usage struct {
	RSS     uint64 // resident memory in bytes, with shared pages
	Anon    uint64 // resident anonymous memory in bytes
	Shared  uint64 // resident shared memory in bytes (memfd, shmem)
	FDs     int    // open descriptors
	Threads int
	State   string // R running, S sleeping, D in the kernel, T stopped, Z dead and not reaped
}

// Use reads what the process pid holds (man 5 proc).
func Use(pid int) (Usage, error) {
	var u Usage
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/status")
	if err != nil {
		return u, fmt.Errorf("proc: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		n, _ := strconv.ParseUint(f[0], 10, 64)
		switch key {
		case "State":
			u.State = f[0]
		case "VmRSS":
			u.RSS = n << 10
		case "RssAnon":
			u.Anon = n << 10
		case "RssShmem":
			u.Shared = n << 10
		case "Threads":
			u.Threads = int(n)
		}
	}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		return u, fmt.Errorf("proc: %w", err)
	}
	u.FDs = len(fds)
	return u, nil
}

func describe(pid int) string {
	u, err := Use(pid)
	if errors.Is(err, os.ErrNotExist) {
		return "it is gone, but not its output or its group"
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("state %s, %d threads, %d descriptors", u.State, u.Threads, u.FDs)
}
