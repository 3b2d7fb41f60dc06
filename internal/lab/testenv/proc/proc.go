package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/internal/sys"
)

// patience is how long the end of a killed process is waited for before that counts as a failure.
// The kernel needs milliseconds; a machine that is overloaded may need seconds.
const patience = time.Minute

// Spec says what to run.
type Spec struct {
	// Path is the program; a name without a slash is looked up in PATH.
	Path string
	Args []string // without the program's name
	Env  []string // added to this process's environment, NAME=value
	Dir  string   // working directory; "" is this process's own
	// Files are open in the process from descriptor 3 on. They stay the caller's.
	Files []*os.File
	// Input gives the process a pipe as standard input (Process.Input); otherwise that is empty.
	Input bool
	// OnLine, if any, is called with each line of the standard output, in order, by one goroutine,
	// without the line's end.
	OnLine func(line string)
	// Columns and Rows, if not 0, give the process a terminal of that size for its standard
	// streams, which is also its controlling terminal: see Process.Terminal. There is no Input, no
	// OnLine and no line to wait for then.
	Columns, Rows int

	shape func(*exec.Cmd) // see As, OwnUsers
}

// Self is a Spec that runs this test binary again, up to the top-level test t, with env set so that
// it can tell.
func Self(t testenv.TB, env ...string) Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatalf("proc: %v", err)
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	return Spec{Path: exe, Args: []string{"-test.run=^" + name + "$", "-test.v", "-test.count=1"}, Env: env}
}

// Exit is how a process ended.
type Exit struct {
	Code   int           // exit status; -1 when a signal ended it
	Signal sys.Signal    // that ended it; 0 when it ended by itself
	CPU    time.Duration // user and system time, with children that it waited for
	MaxRSS uint64        // bytes
}

// OK reports whether the process ended by itself with status 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == 0 }

func (e Exit) String() string {
	if e.Signal != 0 {
		return fmt.Sprintf("ended by signal %d (%v)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Process is a process that was started. Its methods may be called from any goroutine.
type Process struct {
	t     testenv.TB // nil: of no test
	spec  Spec
	cmd   *exec.Cmd
	in    *os.File
	out   *output
	term  *Terminal
	group group

	done chan struct{} // closed when it was reaped with its group and its output has been read
	exit Exit          // valid once done
	err  error         // what is wrong about its end, once done: descendants that do not die
}

// Start runs a process until the end of the test at the latest: then it is killed. The test fails
// when the process does not start or, killed, does not end. When the test failed, what the process
// printed is logged.
func Start(t testenv.TB, spec Spec) *Process {
	t.Helper()
	p, err := Launch(spec)
	if err != nil {
		t.Fatalf("%v", err)
		return nil
	}
	p.t = t
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Errorf("%v", err)
		}
		if t.Failed() {
			t.Logf("%s\n%s", p, p.Output())
		}
	})
	return p
}

// Launch runs a process that belongs to the caller, who calls Kill when done with it, also when it
// has ended.
func Launch(spec Spec) (*Process, error) {
	p := &Process{spec: spec, done: make(chan struct{}), out: newOutput(spec.OnLine)}
	if err := ready(); err != nil {
		return nil, fmt.Errorf("proc: %w", err)
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir, cmd.ExtraFiles = spec.Dir, spec.Files
	cmd.Env = append(append(os.Environ(), spec.Env...), nestedEnv+"=1")
	cmd.SysProcAttr = sys.ChildAttributes(!nested)
	if spec.shape != nil {
		spec.shape(cmd)
	}
	p.cmd = cmd
	ours, theirs, err := p.streams()
	if err != nil {
		closeAll(append(ours, theirs...))
		return nil, fmt.Errorf("proc: %w", err)
	}
	started := make(chan error)
	go func() {
		// The thread that starts the process must live as long as it: its end would kill it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		closeAll(theirs)
		if err != nil {
			closeAll(ours)
			started <- err
			return
		}
		p.group = group{leader: cmd.Process.Pid, session: !nested}
		watch(p.group)
		if p.term != nil {
			p.out.follow(p.term)
		} else {
			p.out.read(ours[0], ours[1])
		}
		started <- nil
		p.await()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("proc: %w", err)
	}
	return p, nil
}

// streams gives the command its standard streams and returns our ends and its ends: our first two
// are what it prints and says, or the first is its terminal. With an error, what was opened so far
// is returned too.
func (p *Process) streams() (ours, theirs []*os.File, err error) {
	if p.spec.Columns > 0 {
		user, program, err := sys.OpenTerminal(p.spec.Columns, p.spec.Rows)
		if err != nil {
			return nil, nil, err
		}
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = program, program, program
		sys.ControllingTerminal(p.cmd)
		p.term = &Terminal{user: user, screen: NewScreen(p.spec.Columns), more: make(chan struct{})}
		p.term.screen.Rows = p.spec.Rows
		return []*os.File{user}, []*os.File{program}, nil
	}
	for _, to := range []*io.Writer{&p.cmd.Stdout, &p.cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return ours, theirs, err
		}
		*to = w
		ours, theirs = append(ours, r), append(theirs, w)
	}
	if p.spec.Input {
		r, w, err := os.Pipe()
		if err != nil {
			return ours, theirs, err
		}
		p.cmd.Stdin, p.in = r, w
		ours, theirs = append(ours, w), append(theirs, r)
	}
	return ours, theirs, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// await collects the process's end.
func (p *Process) await() {
	defer close(p.done)
	werr := p.cmd.Wait()
	s := p.cmd.ProcessState
	if s == nil {
		p.err = fmt.Errorf("proc: %s: %w", p.name(), werr)
		return
	}
	p.exit = Exit{Code: s.ExitCode(), Signal: sys.ExitSignal(s), CPU: s.UserTime() + s.SystemTime(),
		MaxRSS: sys.MaxRSS(s)}
	p.err = p.group.end(patience)
	if p.err == nil {
		unwatch(p.group)
	}
	if p.in != nil {
		p.in.Close()
	}
	// Every process that could write is gone, except a daemon that made a session of its own.
	if !p.out.finish(patience) && p.err == nil {
		p.err = errors.New("proc: a process outside the group holds its output open")
	}
	if p.err != nil {
		p.err = fmt.Errorf("%s: %w", p.name(), p.err)
	}
}

// PID is the process's number; after its end the kernel may give it to another.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Input is the process's standard input; nil unless Spec.Input. The caller closes it to let the
// process see its end.
func (p *Process) Input() io.WriteCloser {
	if p.in == nil {
		return nil
	}
	return p.in
}

// Done is closed when the process has ended and all its output is there.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process's end by itself. The error is ctx's, or says what is left of the
// process.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return Exit{}, fmt.Errorf("proc: waiting for the end of %s: %w\n%s", p.name(), context.Cause(ctx), p.out.tail())
	}
}

// Kill ends the process and all of its group with SIGKILL, also when it is stopped, and returns
// when nothing is left. A process that has ended already is no error; one that does not end is.
func (p *Process) Kill() error {
	select {
	case <-p.done:
		return p.err
	default:
	}
	p.cmd.Process.Kill() // its error says that the process has ended
	t := time.NewTimer(2 * patience)
	defer t.Stop()
	select {
	case <-p.done:
		return p.err
	case <-t.C:
		return fmt.Errorf("proc: %s is still there %v after SIGKILL: %s", p.name(), 2*patience, describe(p.PID()))
	}
}

// Stop freezes the process with SIGSTOP: when it returns without an error no thread of the process
// runs any more. What it started itself runs on.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(sys.SIGSTOP); err != nil {
		return fmt.Errorf("proc: stop %s: %w", p.name(), err)
	}
	if err := sys.WaitStopped(p.PID()); err != nil {
		return fmt.Errorf("proc: stop %s: %w", p.name(), err)
	}
	return nil
}

// Continue lets a stopped process run on.
func (p *Process) Continue() error { return p.Signal(sys.SIGCONT) }

// Signal sends any signal to the process alone.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("proc: %v to %s: %w", s, p.name(), err)
	}
	return nil
}

// Restart kills the process if it still runs and starts another one from the same Spec, for the
// same test. The old Process keeps its output and its exit status. Only for processes from Start.
func (p *Process) Restart() *Process {
	p.t.Helper()
	if err := p.Kill(); err != nil {
		p.t.Fatalf("%v", err)
	}
	return Start(p.t, p.spec)
}

func (p *Process) name() string {
	return fmt.Sprintf("%s (pid %d)", filepath.Base(p.spec.Path), p.cmd.Process.Pid)
}

func (p *Process) String() string {
	state := "running"
	select {
	case <-p.done:
		state = p.exit.String()
	default:
	}
	return fmt.Sprintf("%s %s: %s", p.name(), strings.Join(p.spec.Args, " "), state)
}

var penstock = sync.OnceValues(func() (string, error) {
	root, err := testenv.Root()
	if err != nil {
		return "", err
	}
	key, err := sources(root)
	if err != nil {
		return "", err
	}
	name := "penstock-" + key
	prune(name)
	return testenv.Cached(name, func(tmp string) error {
		args := []string{"build", "-trimpath", "-o", tmp}
		if testenv.Invariants {
			args = append(args, "-tags", "invariants")
		}
		cmd := exec.Command("go", append(args, "./cmd/penstock")...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("proc: go build ./cmd/penstock: %w\n%s", err, out)
		}
		return nil
	})
})

// Penstock is the path of the real penstock binary, built from this checkout without cgo and kept
// in the lab's cache by the contents of its sources. A build with -tags invariants makes it so,
// too.
func Penstock() (string, error) { return penstock() }
