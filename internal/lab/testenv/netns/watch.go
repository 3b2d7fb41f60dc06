package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// watcherEnv makes a process the watcher of the process whose number it is.
const watcherEnv = "PENSTOCK_NETNS_WATCHER"

// patience is how long killed programs may take to end. The kernel needs milliseconds, an
// overloaded machine seconds.
const patience = time.Minute

// mayWatch says that this program, started again, is the watcher: a test, or a program that has
// called Main.
var mayWatch bool

func init() {
	if testing.Testing() {
		Main()
	}
}

// Main makes a program its own watcher. A main function that opens hosts calls it first: in the
// copy that is the watcher it does not return. Tests need no call. A program without it has no
// watcher: what its programs had started in their turn may outlive it if it is killed.
func Main() {
	mayWatch = true
	if of := os.Getenv(watcherEnv); of != "" {
		// It has nothing to do with what the program does, so it leaves before that begins.
		os.Exit(watcherMain(of, os.NewFile(3, "commands"), os.NewFile(4, "answers")))
	}
}

// watcher is this process's end of the pipes to its watcher.
type watcher struct {
	mu   sync.Mutex
	cmd  *exec.Cmd
	to   *os.File
	from *bufio.Reader
}

var theWatcher = sync.OnceValues(func() (*watcher, error) {
	commands, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer commands.Close()
	from, answers, err := os.Pipe()
	if err != nil {
		to.Close()
		return nil, err
	}
	defer answers.Close()
	// Its standard streams are the null device: it must not hold the test's output open.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), watcherEnv+"="+strconv.Itoa(os.Getpid()))
	cmd.ExtraFiles = []*os.File{commands, answers}
	cmd.SysProcAttr = sys.OwnGroup()
	if err := cmd.Start(); err != nil {
		to.Close()
		from.Close()
		return nil, fmt.Errorf("the watcher: %w", err)
	}
	return &watcher{cmd: cmd, to: to, from: bufio.NewReader(from)}, nil
})

// ask sends a command and waits for the answer.
func (w *watcher) ask(op byte, tid int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := fmt.Fprintf(w.to, "%c %d\n", op, tid); err != nil {
		return fmt.Errorf("the watcher: %w", err)
	}
	line, err := w.from.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the watcher: %w", err)
	}
	if line = strings.TrimSpace(line); line != "ok" {
		return errors.New("the watcher: " + line)
	}
	return nil
}

// watch has every program in the namespace of a thread killed when this process ends; unwatch takes
// that back.
func watch(tid int) error {
	if !mayWatch {
		return nil
	}
	w, err := theWatcher()
	if err != nil {
		return err
	}
	return w.ask('+', tid)
}

func unwatch(tid int) error {
	if !mayWatch {
		return nil
	}
	w, err := theWatcher()
	if err != nil {
		return err
	}
	return w.ask('-', tid)
}

// watcherMain holds the namespaces that the commands name, so that their numbers stay theirs, until
// the process is gone. Then it kills what runs in them, and they end with it.
func watcherMain(of string, commands io.Reader, answers io.Writer) int {
	signal.Ignore(sys.Interrupts()...)
	signal.Ignore(sys.Hangup)
	held := map[int]*os.File{}
	names := map[int]string{}
	in := bufio.NewReader(commands)
	for {
		var op rune
		var tid int
		if _, err := fmt.Fscanf(in, "%c %d\n", &op, &tid); err != nil {
			break
		}
		answer := "ok"
		if op == '+' {
			f, name, err := openNamespace("/proc/" + of + "/task/" + strconv.Itoa(tid) + "/ns/net")
			if err != nil {
				answer = err.Error()
			} else {
				held[tid], names[tid] = f, name
			}
		} else {
			held[tid].Close()
			delete(held, tid)
			delete(names, tid)
		}
		fmt.Fprintln(answers, answer)
	}
	code := 0
	for _, name := range names {
		if err := killAll(name); err != nil {
			code = 1
		}
	}
	return code
}

func openNamespace(path string) (f *os.File, name string, err error) {
	if f, err = os.Open(path); err != nil {
		return nil, "", err
	}
	if name, err = os.Readlink(path); err != nil {
		f.Close()
	}
	return f, name, err
}

// inNamespace are the processes whose first thread is in the network namespace ns. A process that
// holds a Host is not.
func inNamespace(ns string) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && isIn(pid, ns) {
			out = append(out, pid)
		}
	}
	return out
}

func isIn(pid int, ns string) bool {
	in, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err == nil && in == ns
}

// killAll kills the processes in a namespace, which the caller holds, until two looks find none.
// Children of this process are left for their owners to wait for.
func killAll(ns string) error {
	deadline := time.Now().Add(patience)
	for quiet := 0; quiet < 2; quiet++ {
		pids := inNamespace(ns)
		for _, pid := range pids {
			// What FindProcess returns stays this process, also when another one gets the number.
			// So look again which it is.
			p, err := os.FindProcess(pid)
			if err != nil {
				continue
			}
			if isIn(pid, ns) {
				p.Kill() // the error says that it has ended
				quiet = -1
			}
			p.Release()
		}
		if quiet >= 0 {
			continue
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			return fmt.Errorf("netns: processes are left %v after SIGKILL: %v", patience, pids)
		}
		if _, err := sys.WaitExit(pids[0], min(rest, time.Second)); err != nil {
			return fmt.Errorf("netns: %w", err)
		}
	}
	return nil
}
