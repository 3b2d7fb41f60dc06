package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/sys"
)

// ErrClosed is the error of calls on a host that was closed.
var ErrClosed = errors.New("netns: the host is closed")

// Host is a network namespace that one thread of this process holds. Its methods may be called from
// any goroutine; they take turns on the thread.
type Host struct {
	Name  string  // host0, host1 ...
	Links []*Link // its devices besides lo, by rail

	tid   int
	ns    string // as /proc names the namespace: net:[4026532281]
	calls chan call
	quit  chan struct{} // closed by close
	done  chan struct{} // closed when the thread has left the namespace

	mu      sync.Mutex
	watched bool // the watcher knows this host
	closed  bool
}

type call struct {
	fn  func() error
	end chan error
}

// openHost makes a namespace. The caller closes it.
func openHost(name string) (*Host, error) {
	h := &Host{Name: name, calls: make(chan call), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan error)
	go h.hold(ready)
	if err := <-ready; err != nil {
		<-h.done
		if sys.IsErrno(err, sys.EPERM) {
			err = &MissingError{"root (CAP_SYS_ADMIN and CAP_NET_ADMIN)", err}
		}
		return nil, fmt.Errorf("netns: %s: %w", name, err)
	}
	return h, nil
}

// hold gives the host a thread. It must not be the process's first: that one does not end with its
// goroutine.
func (h *Host) hold(ready chan<- error) {
	runtime.LockOSThread()
	if sys.ThreadID() != os.Getpid() {
		h.serve(ready)
		return
	}
	got := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(got)
		h.serve(ready)
	}()
	<-got // until here the first thread is taken
	runtime.UnlockOSThread()
}

// serve runs on the host's thread, which is never unlocked: it ends with this goroutine.
func (h *Host) serve(ready chan<- error) {
	defer close(h.done)
	h.tid = sys.ThreadID()
	err := sys.OwnThreadNetwork()
	if err == nil {
		h.ns, err = os.Readlink("/proc/thread-self/ns/net")
	}
	ready <- err
	if err != nil {
		return
	}
	// Leaving the namespace does not wait for the thread's end, which comes some time after the
	// goroutine's.
	defer leave()
	for {
		select {
		case c := <-h.calls:
			c.end <- c.fn()
		case <-h.quit:
			return
		}
	}
}

// leave moves the thread back to where the process is. When that fails, the thread's end does as
// well.
func leave() {
	if f, err := os.Open("/proc/self/ns/net"); err == nil {
		sys.JoinNetwork(f)
		f.Close()
	}
}

// Do runs fn on the host's thread. Sockets that fn opens belong to the host for good, wherever they
// are used; files below /proc/sys/net and /sys/class/net are the host's. Goroutines that fn starts
// are not in the host, nor is anything that Go does on other goroutines, such as looking up names.
// fn must not end its goroutine (t.Fatal, runtime.Goexit): that ends the host. While fn runs, other
// calls on this host wait; fn itself may make them.
func (h *Host) Do(fn func() error) error {
	select {
	case <-h.done:
		return fmt.Errorf("%w: %s", ErrClosed, h.Name)
	default:
	}
	if sys.ThreadID() == h.tid {
		return fn()
	}
	c := call{fn, make(chan error, 1)}
	select {
	case h.calls <- c:
	case <-h.done:
		return fmt.Errorf("%w: %s", ErrClosed, h.Name)
	}
	select {
	case err := <-c.end:
		return err
	case <-h.done:
	}
	select {
	case err := <-c.end:
		return err
	default:
		return fmt.Errorf("%w: %s: a function given to Do ended its goroutine; return an error instead of calling "+
			"t.Fatal there", ErrClosed, h.Name)
	}
}

// Command is a program that Start, Run or Output will run in the host. It is exec.Command in this
// process's working directory.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	// The host's thread has a working directory of its own.
	if dir, err := os.Getwd(); err == nil {
		cmd.Dir = dir
	}
	return cmd
}

// Start starts a command in the host. The caller calls cmd.Wait, as after cmd.Start. The kernel
// kills the command when the host is closed or this process ends.
func (h *Host) Start(cmd *exec.Cmd) error {
	if err := h.watch(); err != nil {
		return fmt.Errorf("netns: %s: %w", h.Name, err)
	}
	return h.start(cmd)
}

// start is Start for commands that start nothing themselves.
func (h *Host) start(cmd *exec.Cmd) error {
	sys.DieWithThread(cmd)
	return h.Do(cmd.Start)
}

// Run starts a command in the host and waits for its end.
func (h *Host) Run(cmd *exec.Cmd) error {
	if err := h.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// outputDelay is how long Output waits for the output's end when the program has ended: what it
// started may hold it open.
const outputDelay = 10 * time.Second

// Output runs a program in the host until it or ctx ends and returns what it printed on its
// standard output. The error has what it printed as errors.
func (h *Host) Output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := h.Command(name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = outputDelay
	if err := h.Start(cmd); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return out.Bytes(), fmt.Errorf("netns: %s: %s %s: %w: %s", h.Name, name, strings.Join(args, " "), err,
			strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// Dial connects from the host to an address without names in it. Until it is connected, other calls
// on this host wait.
func (h *Host) Dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = h.Do(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen listens in the host on an address without names in it.
func (h *Host) Listen(ctx context.Context, network, addr string) (l net.Listener, err error) {
	err = h.Do(func() error {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, network, addr)
		return err
	})
	return l, err
}

// ListenPacket opens a packet socket in the host on an address without names in it.
func (h *Host) ListenPacket(ctx context.Context, network, addr string) (p net.PacketConn, err error) {
	err = h.Do(func() error {
		var lc net.ListenConfig
		p, err = lc.ListenPacket(ctx, network, addr)
		return err
	})
	return p, err
}

// Sysctl sets a parameter below net of this host alone: Sysctl("net.ipv4.tcp_fastopen", "3"). A dot
// that belongs to a name is written as a slash, as in sysctl(8).
func (h *Host) Sysctl(name, value string) error {
	swap := strings.NewReplacer(".", "/", "/", ".")
	if !strings.HasPrefix(name, "net.") {
		return fmt.Errorf("netns: sysctl %s: a host has only those below net", name)
	}
	return h.Do(func() error { return os.WriteFile("/proc/sys/"+swap.Replace(name), []byte(value), 0) })
}

// Link is the host's first link; nil in a topology without links.
func (h *Host) Link() *Link {
	if len(h.Links) == 0 {
		return nil
	}
	return h.Links[0]
}

func (h *Host) String() string { return h.Name }

// watch tells the watcher of this host, once.
func (h *Host) watch() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrClosed
	}
	if h.watched {
		return nil
	}
	if err := watch(h.tid); err != nil {
		return err
	}
	h.watched = true
	return nil
}

// close kills every program in the host and gives the namespace up. The namespace itself ends when
// no socket of it is open.
func (h *Host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	var err error
	if h.watched {
		err = killAll(h.ns)
	}
	close(h.quit)
	<-h.done
	if h.watched {
		err = errors.Join(err, unwatch(h.tid))
	}
	return err
}
