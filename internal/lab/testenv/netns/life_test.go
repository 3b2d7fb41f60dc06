package netns

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// childEnv tells this test binary which part of a test it is to play in a process of its own. It is
// in the environment of everything that the process starts, too, so that nothing of it gets out of
// sight.
const childEnv = "PENSTOCK_NETNS_TEST_CHILD"

func init() {
	if os.Getenv(childEnv) == "first thread" {
		runtime.LockOSThread() // here it means that main runs on the process's first thread
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "first thread" {
		holdFromFirstThread()
	}
	os.Exit(m.Run())
}

// child is this test binary, run again up to the calling test, which looks at childEnv.
func child(t *testing.T, role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), childEnv+"="+role, "PENSTOCK_LAB_LEDGER=")
	return cmd
}

// marked are the processes that have a role of child, or descend from one that has.
func marked(t *testing.T, role string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil && slices.Contains(strings.Split(string(b), "\x00"), childEnv+"="+role) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func killMarked(t *testing.T, role string) {
	for _, pid := range marked(t, role) {
		sys.Kill(pid, sys.SIGKILL)
	}
}

// program is a shell that starts another program in a session of its own.
const program = "setsid sleep 100000 & wait"

// witness makes a veth pair of which one end is in h and the other in observer: the kernel removes
// it when the namespace of h ends, which cannot be seen otherwise, because numbers of namespaces
// are used again.
func witness(h *Host, name string, observer int) error {
	return h.ip(fmt.Sprintf("link add witness type veth peer name %s netns %d", name, observer))
}

// awaitWitnesses waits until observer sees so many of them.
func awaitWitnesses(t *testing.T, observer *Host, want int) {
	t.Helper()
	var events *sys.LinkEvents
	if err := observer.Do(func() (err error) { events, err = sys.WatchLinks(); return err }); err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		var seen []string
		if err := observer.Do(func() (err error) {
			seen, err = filepath.Glob("/sys/class/net/w-*")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if len(seen) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d namespaces after a minute, expected %d: %v", len(seen), want, seen)
		}
		if _, err := sys.PollIn(1000, events.FD()); err != nil {
			t.Fatal(err)
		}
		if err := events.Drain(); err != nil {
			t.Fatal(err)
		}
	}
}

// world is what a namespace could leave outside: mounts of namespaces and of sysfs, and names.
func world(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, " nsfs ") || strings.Contains(l, " sysfs ") {
			out = append(out, l)
		}
	}
	names, _ := filepath.Glob("/run/netns/*")
	return strings.Join(append(out, names...), "\n")
}

// checkMounts sees that a host has every mount below /sys of this process once more, besides the
// old ones, which it hides: also when this process runs in a host itself.
func checkMounts(t *testing.T, h *Host) {
	t.Helper()
	read := func(task string) (all int, places map[string]bool) {
		places = map[string]bool{}
		var b []byte
		if err := h.Do(func() (err error) {
			b, err = os.ReadFile("/proc/" + task + "/mountinfo")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(b)) {
			if dir := strings.Fields(l)[4]; dir == "/sys" || strings.HasPrefix(dir, "/sys/") {
				all++
				places[dir] = true
			}
		}
		return all, places
	}
	mine, places := read("self")
	theirs, seen := read("thread-self")
	if theirs != mine+len(places) || len(seen) != len(places) {
		t.Errorf("a host has %d mounts at %d places below /sys, this process %d at %d", theirs, len(seen), mine,
			len(places))
	}
}

// A process with a pair and a bridge, and with programs in every host that started others, is
// killed. The kernel and the watcher leave nothing of it.
func TestKilledProcessLeavesNothing(t *testing.T) {
	if role := os.Getenv(childEnv); role != "" {
		var all []*Host
		for _, top := range []Topology{{}, {Hosts: 3}} {
			n, err := Open(top)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range n.Hosts {
				for _, cmd := range []*exec.Cmd{h.Command("sleep", "100000"), h.Command("sh", "-c", program)} {
					if err := h.Start(cmd); err != nil {
						t.Fatal(err)
					}
				}
			}
			all = append(all, n.Hosts...)
			if n.fabric != nil {
				all = append(all, n.fabric)
				if err := n.fabric.start(n.fabric.Command("sleep", "100000")); err != nil {
					// the watcher does not know it
					t.Fatal(err)
				}
			}
		}
		checkMounts(t, all[0])
		if t.Failed() {
			return
		}
		for i, h := range all {
			if err := witness(h, fmt.Sprintf("w-%d", i), os.Getpid()); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Println("\nready")
		select {}
	}
	const hosts, namespaces = 5, 6
	// The child and its watcher; in each host sleep, sh and what sh started; one that only the
	// kernel kills.
	const processes = 2 + 3*hosts + 1
	before := world(t)
	n := New(t, Topology{Hosts: 1})
	observer := n.Hosts[0]
	role := fmt.Sprintf("killed %d %d", os.Getpid(), time.Now().UnixNano())
	defer killMarked(t, role) // what there should not be
	cmd := child(t, role)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := observer.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var said []string
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		said = append(said, lines.Text())
	}
	if lines.Text() != "ready" {
		t.Fatalf("the child did not get ready:\n%s", strings.Join(said, "\n"))
	}
	awaitWitnesses(t, observer, namespaces)
	pids := marked(t, role)
	for deadline := time.Now().Add(time.Minute); len(pids) < processes &&
		time.Now().Before(deadline); pids = marked(t, role) {
		runtime.Gosched() // shells that have yet to start something
	}
	if len(pids) != processes {
		t.Fatalf("%d processes, expected %d", len(pids), processes)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for _, pid := range pids {
		if ended, err := sys.WaitExit(pid, max(0, time.Until(deadline))); !ended || err != nil {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d (%q) is still there: %v", pid, b, err)
		}
	}
	if left := marked(t, role); len(left) != 0 {
		t.Errorf("processes %v are new", left)
	}
	awaitWitnesses(t, observer, 0)
	if now := world(t); now != before {
		t.Errorf("mounts and names before:\n%s\nand now:\n%s", before, now)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	n := New(t, Topology{Hosts: 1})
	observer := n.Hosts[0]
	before := world(t)
	inner := New(t, Topology{Hosts: 3})
	all := append([]*Host{inner.fabric}, inner.Hosts...)
	role := fmt.Sprintf("closed %d %d", os.Getpid(), time.Now().UnixNano())
	checkMounts(t, inner.Hosts[0])
	for i, h := range all {
		if err := witness(h, fmt.Sprintf("w-%d", i), observer.tid); err != nil {
			t.Fatal(err)
		}
	}
	cmd := inner.Hosts[1].Command("sh", "-c", program)
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	defer killMarked(t, role) // what there should not be
	if err := inner.Hosts[1].Start(cmd); err != nil {
		t.Fatal(err)
	}
	awaitWitnesses(t, observer, len(all))
	pids := marked(t, role)
	for deadline := time.Now().Add(time.Minute); len(pids) < 2 && time.Now().Before(deadline); pids = marked(t, role) {
		runtime.Gosched()
	}
	if len(pids) != 2 {
		t.Fatalf("processes %v, expected 2", pids)
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState == nil || sys.ExitSignal(cmd.ProcessState) != syscall.SIGKILL {
		t.Errorf("the program ended with %v, expected SIGKILL", err)
	}
	if left := marked(t, role); len(left) != 0 {
		t.Errorf("processes %v outlived the Net", left)
	}
	awaitWitnesses(t, observer, 0)
	if now := world(t); now != before {
		t.Errorf("mounts and names before:\n%s\nand now:\n%s", before, now)
	}
	if err := inner.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// Without root the test is skipped, and fails where CI is set.
func TestWithoutRoot(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		New(t, Topology{})
		fmt.Println("it was made") // by a user with the right to
		return
	}
	for _, c := range []struct {
		ci, want string
		ok       bool
	}{
		{"", "--- SKIP: TestWithoutRoot", true},
		{"1", "--- FAIL: TestWithoutRoot", false},
	} {
		cmd := child(t, "without root")
		cmd.Env = append(cmd.Env, "CI="+c.ci)
		cmd.Dir = "/" // that it may enter
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if _, exit := err.(*exec.ExitError); err != nil && !exit {
			testenv.Missing(t, "a user id to change to", err)
		}
		for _, want := range []string{c.want, "unshare", "operation not permitted", "CAP_SYS_ADMIN"} {
			if !strings.Contains(string(out), want) || (err == nil) != c.ok {
				t.Errorf("CI=%q: %v: expected %q in:\n%s", c.ci, err, want, out)
			}
		}
	}
}

// holdings are what topologies could leave in this process.
func holdings(t *testing.T) (fds, threads int, namespaces map[string]int) {
	t.Helper()
	list := func(dir string) []string {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		names, err := d.Readdirnames(-1)
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	namespaces = map[string]int{}
	tasks := list("/proc/self/task")
	for _, tid := range tasks {
		for _, kind := range []string{"net", "mnt"} {
			if ns, err := os.Readlink("/proc/self/task/" + tid + "/ns/" + kind); err == nil {
				namespaces[ns]++
			}
		}
	}
	return len(list("/proc/self/fd")) - 1, len(tasks), namespaces
}

func TestManyTopologiesStayFlat(t *testing.T) {
	once := func(i int) {
		n, err := Open(Topology{Bridge: i%4 == 3})
		if err != nil {
			New(t, Topology{}) // skips where that is the reason
			t.Fatal(err)
		}
		if i%8 == 0 {
			if _, err := n.Hosts[0].Output(ctx(t), "true"); err != nil {
				t.Error(err)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	once(0) // what stays on purpose: the watcher, descriptors of Go's runtime
	rounds := 200
	if testenv.Race || testenv.Invariants {
		rounds = 50
	}
	fds, threads, _ := holdings(t)
	for i := range rounds {
		once(i)
	}
	// Threads end some time after their goroutines.
	const slack = 12 // threads that Go's runtime may have added for its own ends; the hosts were hundreds
	for deadline := time.Now().Add(time.Minute); ; {
		f, th, ns := holdings(t)
		if f <= fds && th <= threads+slack && len(ns) == 2 {
			t.Logf("%d topologies: %d descriptors, before %d; %d threads, before %d", rounds, f, fds, th, threads)
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d; %d threads, before %d; threads by namespace: %v", f, fds, th, threads,
				ns)
		}
		runtime.Gosched()
	}
}

func TestGoexitInDo(t *testing.T) {
	n := New(t, Topology{})
	h := n.Hosts[0]
	if err := h.Do(func() error {
		runtime.Goexit()
		return nil
	}); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), "t.Fatal") {
		t.Errorf("a function that ended its goroutine: %v", err)
	}
	if err := h.Do(func() error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("a call afterwards: %v", err)
	}
	if err := n.Hosts[1].Do(func() error { return nil }); err != nil {
		t.Errorf("the other host: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// A goroutine that runs on the process's first thread must leave it, or the namespace would live as
// long as the process.
func TestFirstThreadIsNotTaken(t *testing.T) {
	New(t, Topology{Hosts: 1}) // skips without root
	out, err := child(t, "first thread").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// holdFromFirstThread opens a host from the first thread and ends the process with the verdict.
func holdFromFirstThread() {
	h := &Host{Name: "h", calls: make(chan call), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error)
	on := sys.ThreadID()
	go func() {
		err := <-ready
		switch {
		case err != nil:
		case on != os.Getpid():
			err = errors.New("this was not the first thread")
		case h.tid == os.Getpid():
			err = errors.New("the host is on the first thread")
		default:
			err = errors.Join(h.ip("link set lo up"), h.close())
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}()
	h.hold(ready)
	select {}
}

func TestWatcherAnswers(t *testing.T) {
	var out bytes.Buffer
	if code := watcherMain(strconv.Itoa(os.Getpid()), strings.NewReader("+ 1\n+ 999999999\n"), &out); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines) != 3 || !strings.Contains(lines[0], "no such file") ||
		!strings.Contains(lines[1], "no such file") {
		t.Errorf("answers to threads that this process does not have: %q", out.String())
	}
}
