package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"github.com/penstock-io/penstock/internal/sys"
)

// nestedEnv tells a process that it runs inside a group of this package. watcherEnv makes it the
// watcher.
const (
	nestedEnv  = "PENSTOCK_PROC_NESTED"
	watcherEnv = "PENSTOCK_PROC_WATCHER"
)

var nested = os.Getenv(nestedEnv) != ""

// The watcher is this program again. It has nothing to do with what the program does, so it must
// leave before that begins.
func init() {
	if os.Getenv(watcherEnv) != "" {
		watcherMain()
	}
}

// watcher is the harness's end of the pipe to its watcher.
var watcher struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	to  *os.File
}

// ready makes this process fit to have children: it becomes their subreaper and has a watcher.
var ready = sync.OnceValue(func() error {
	if err := sys.Subreaper(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// Its standard streams are the null device: it must not hold the test's output open.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), watcherEnv+"=1")
	cmd.ExtraFiles = []*os.File{r}
	cmd.SysProcAttr = sys.OwnGroup()
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("the watcher: %w", err)
	}
	watcher.cmd, watcher.to = cmd, w
	return nil
})

// tell sends the watcher a line. It ignores that the watcher is gone: a user who kills it wants no
// protection.
func tell(op byte, g group) {
	watcher.mu.Lock()
	defer watcher.mu.Unlock()
	fmt.Fprintf(watcher.to, "%c %d %t\n", op, g.leader, g.session)
}

// watch has the group killed when this process dies; unwatch, when nothing is left of the group,
// takes that back.
func watch(g group)   { tell('+', g) }
func unwatch(g group) { tell('-', g) }

// watcherMain reads from descriptor 3 which groups there are, until the harness is gone; then it
// kills them.
func watcherMain() {
	signal.Ignore(sys.Interrupts()...)
	signal.Ignore(sys.Hangup)
	groups := map[group]bool{}
	in := bufio.NewReader(os.NewFile(3, "pipe"))
	for {
		var op rune
		var g group
		if _, err := fmt.Fscanf(in, "%c %d %t\n", &op, &g.leader, &g.session); err != nil {
			break
		}
		if op == '+' {
			groups[g] = true
		} else {
			delete(groups, g)
		}
	}
	code := 0
	for g := range groups {
		if err := g.end(patience); err != nil {
			code = 1
		}
	}
	os.Exit(code)
}
