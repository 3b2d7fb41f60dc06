package peers

import (
	"bytes"
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

	"github.com/penstock-io/penstock/internal/sys"
)

// ErrOutput says that a peer ran and printed something else than what it is known to print.
var ErrOutput = errors.New("output not understood")

// runTime bounds one run of a peer. Some wait for ever when the other side fails. It is generous,
// because machines of CI are shared, and only a hang ever sees it.
const runTime = 120 * time.Second

// maxOutput is what a peer may print, in bytes, before it is taken for mad and killed.
const maxOutput = 64 << 20

// command is one run of a program to be.
type command struct {
	args  []string // the program, found by name or path, and its arguments
	env   []string // added to the environment of this process; the locale is always C
	dir   string
	home  *home // whose directory the program gets for its own files; nil for none
	stdin io.Reader
	limit time.Duration // 0 is runTime
	// onOutput and onError, when set, get after each write of the program all that it has printed
	// so far to its standard output and its standard error.
	onOutput, onError func(sofar []byte)
}

// child is a program that runs. It leads a process group, which is killed with it, and the kernel
// kills it when this process ends in any way.
type child struct {
	name   string
	pid    int
	stdout *output
	stderr *output
	cancel context.CancelFunc
	ctx    context.Context
	done   chan struct{}
	err    error // valid after done
}

// start starts a program that ends with ctx.
func (c command) start(ctx context.Context) (*child, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("peers: %s is not started: %w", c.args[0], err)
	}
	limit := c.limit
	if limit == 0 {
		limit = runTime
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("still running after %v", limit))
	p := &child{
		name: filepath.Base(c.args[0]), ctx: ctx, cancel: cancel, done: make(chan struct{}),
		stdout: &output{onWrite: c.onOutput}, stderr: &output{onWrite: c.onError},
	}
	args := c.args
	var held, release *os.File
	if c.home != nil {
		// The program begins when the shell of its home knows of it, so that the shell also knows
		// the children of a quick one.
		var err error
		if held, release, err = os.Pipe(); err != nil {
			cancel()
			return nil, fmt.Errorf("peers: %w", err)
		}
		defer held.Close()
		defer release.Close()
		args = append([]string{"/bin/sh", "-c", `read -r _ <&3 || exit 125; exec 3<&-; exec "$@"`, "sh"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if c.home != nil {
		cmd.Env = append(cmd.Env, c.home.env()...)
		cmd.ExtraFiles = []*os.File{held}
	}
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.dir, c.stdin, p.stdout, p.stderr
	cmd.SysProcAttr = sys.ChildAttributes(false)
	cmd.Cancel = func() error { return sys.Kill(-cmd.Process.Pid, sys.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // for grandchildren that hold the pipes; the group's end closes them
	started := make(chan error)
	// The kernel kills the child when the thread that started it ends, so that thread stays with
	// it.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		// What it left behind: nothing is the rule.
		sys.Kill(-p.pid, sys.SIGKILL)
		if left, err := filepath.Glob(sharedFiles(p.pid)); err == nil {
			for _, f := range left {
				os.Remove(f)
			}
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("peers: %w", err)
	}
	if c.home != nil {
		c.home.guard(p.pid)
		fmt.Fprintln(release, "go")
	}
	return p, nil
}

// wait waits for the end and returns what the program printed to its standard output, and an error
// unless it ended with 0.
func (p *child) wait() ([]byte, error) {
	<-p.done
	p.cancel()
	if p.err != nil {
		return p.stdout.bytes(), p.failure(p.err)
	}
	return p.stdout.bytes(), nil
}

// stop kills the program and its group, and waits for it.
func (p *child) stop() {
	p.cancel()
	<-p.done
}

// failure is err with the name of the program and the end of what it printed.
func (p *child) failure(err error) error {
	if cause := context.Cause(p.ctx); cause != nil && p.ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return fmt.Errorf("peers: %s: %w: %s", p.name, err, tail(append(p.stdout.bytes(), p.stderr.bytes()...)))
}

// run runs a program to its end.
func (c command) run(ctx context.Context) ([]byte, error) {
	p, err := c.start(ctx)
	if err != nil {
		return nil, err
	}
	return p.wait()
}

// output gathers what a program prints.
type output struct {
	onWrite func([]byte)
	mu      sync.Mutex
	b       bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b.Len()+len(p) > maxOutput {
		return 0, fmt.Errorf("it printed more than %d MiB", maxOutput>>20)
	}
	o.b.Write(p)
	if o.onWrite != nil {
		o.onWrite(o.b.Bytes())
	}
	return len(p), nil
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.b.Bytes())
}

// tail is the end of a program's output, for an error message, and a little of its beginning, where
// some say what is wrong before they explain how they are used.
func tail(b []byte) string {
	const first, last = 300, 600
	s := strings.TrimSpace(string(b))
	if s == "" {
		return "it printed nothing"
	}
	if len(s) > first+last {
		s = s[:first] + " ... " + s[len(s)-last:]
	}
	return strings.ToValidUTF8(s, "?")
}

// pair is a run of a measuring tool: a server, which listens on a port of its own choosing, and a
// client, whose output counts.
type pair struct {
	env []string
	// command returns the arguments of the server and of the client for a port.
	command func(port int) (server, client []string)
	limit   time.Duration
}

// run starts the server, waits until it listens, runs the client and returns what the client
// printed. A server that cannot have its port, because another process took it in between, gets
// another one.
func (p pair) run(ctx context.Context) ([]byte, error) {
	for try := 1; ; try++ {
		out, err := p.once(ctx)
		if err == nil || try == 3 || !errors.Is(err, errNoPort) {
			return out, err
		}
	}
}

// errNoPort is an early end of a server. It may have other reasons than its port, so it is tried
// again only a few times.
var errNoPort = errors.New("ended before it listened")

func (p pair) once(ctx context.Context) (_ []byte, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	h, err := newHome("pair")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.remove()) }()
	server, client := p.command(port)
	srv, err := command{args: server, env: p.env, home: h, limit: p.limit}.start(ctx)
	if err != nil {
		return nil, err
	}
	defer srv.stop()
	if err := srv.waitListening(port); err != nil {
		return nil, err
	}
	out, err := command{args: client, env: p.env, home: h, limit: p.limit}.run(ctx)
	if err != nil {
		return out, fmt.Errorf("%w; its server said: %s", err, tail(append(srv.stdout.bytes(), srv.stderr.bytes()...)))
	}
	select { // these servers end by themselves after one client
	case <-srv.done:
	case <-time.After(200 * time.Millisecond):
	}
	return out, nil
}
