package job

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/penstock-io/penstock/internal/lab/testenv"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
	"github.com/penstock-io/penstock/transfer/path/setup"
	"github.com/penstock-io/penstock/transfer/path/shm"
	"github.com/penstock-io/penstock/transfer/path/tcp"
)

const childEnv = "PENSTOCK_JOB_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		if err := runJobChild(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if testenv.Race { // it is for races, the other runs are for the models
		flag.Set("rapid.checks", "25")
	}
	goleak.VerifyTestMain(m)
}

var paths = []string{"shm", "tcp"}

// open opens a node; peers without a certificate may do everything there, unless the options say
// what they may.
func open(t testing.TB, o transfer.Options) *transfer.Node {
	t.Helper()
	if o.Anonymous == 0 {
		o.Anonymous = identity.All
	}
	n, err := transfer.Open(ctx(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func region(t testing.TB, size int) *mem.Region {
	t.Helper()
	r, err := mem.Alloc(mem.Options{Name: t.Name(), Size: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func export(t testing.TB, n *transfer.Node, r *mem.Region, name string, rights path.Rights) *transfer.Export {
	t.Helper()
	x, err := n.Export(r.All(), transfer.ExportOptions{Name: name, Rights: rights})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func fill(r *mem.Region, seed uint64) {
	b := r.All().Bytes()
	x := rand.New(rand.NewPCG(seed, seed))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x.Uint64())
	}
}

func lookup(t testing.TB, p *transfer.Peer, name string) *transfer.Remote {
	t.Helper()
	r, err := p.Lookup(ctx(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wait(t testing.TB, x *transfer.Transfer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Wait(ctx(t)); err != nil {
		t.Fatalf("%v\n%v", err, x.Explain())
	}
}

// ctx ends long after anything that works would have.
func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return c
}

// soon fails the test unless c is closed before long. It is no assertion of speed: it only keeps a
// hang from lasting.
func soon(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-ctx(t).Done():
		buf := make([]byte, 1<<20)
		t.Fatalf("%s did not happen\n%s", what, buf[:runtime.Stack(buf, true)])
	}
}

// unleased waits until a region has no leases.
func unleased(t testing.TB, r *mem.Region) {
	t.Helper()
	r.Close()
	select {
	case <-r.Unmapped():
	case <-ctx(t).Done():
		t.Fatalf("%d leases are left", r.Leases())
	}
}

// stop stops the child's threads, and returns when they stand.
func (c *child) stop(t testing.TB) {
	t.Helper()
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(c.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the child did not stop: %#x, %v", status, err)
	}
}

type child struct {
	*exec.Cmd
	addr string
}

func startChild(t testing.TB, role string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: cmd}
	t.Cleanup(func() {
		in.Close()
		c.kill()
	})
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&c.addr); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	return c
}

func (c *child) kill() {
	if c.ProcessState == nil {
		c.Process.Signal(syscall.SIGCONT)
		c.Process.Kill()
		c.Wait()
	}
}

// fakeDriver is a real driver under another name, whose paths a test can disturb.
type fakeDriver struct {
	setup.ListenDriver
	name   string
	cost   path.Cost // the prior, unless zero
	dial   func(ctx context.Context) error
	dialed func() // called when a path was dialed, before the dialer gets it
	listen error
	// in the place of listen, which is the real one
	opens func(listen func() (setup.Listener, error)) (setup.Listener, error)
	// what its paths say of themselves, if they are to say something else than they are
	level   *path.Security
	post    func(p path.Path, ops []path.Op) (int, error)
	poll    func(p path.Path, events []path.Event) int
	dials   atomic.Int64
	cancels atomic.Int64
}

// over puts a fake on top of transfer/path/tcp.
func over(name string) *fakeDriver {
	return &fakeDriver{ListenDriver: tcp.New(tcp.Options{}), name: name}
}

// overPath puts a fake on top of one of the paths, under its own name.
func overPath(name string) *fakeDriver {
	if name == "shm" {
		return &fakeDriver{ListenDriver: shm.Driver{}, name: "shm"}
	}
	return over(name)
}

func (d *fakeDriver) Name() string { return d.name }

func (d *fakeDriver) Traits() setup.Traits {
	t := d.ListenDriver.Traits()
	if d.cost != (path.Cost{}) {
		t.Prior = d.cost
	}
	if d.level != nil {
		t.Encrypts = *d.level == path.SecurityEncrypted
	}
	return t
}

func (d *fakeDriver) Listen() (setup.Listener, error) {
	if d.listen != nil {
		return nil, d.listen
	}
	listen := d.ListenDriver.Listen
	if d.opens != nil {
		listen = func() (setup.Listener, error) { return d.opens(d.ListenDriver.Listen) }
	}
	l, err := listen()
	return fakeListener{l, d}, err
}

func (d *fakeDriver) Dial(ctx context.Context, o setup.Offer, cfg setup.Config) (path.Path, error) {
	d.dials.Add(1)
	if d.dial != nil {
		if err := d.dial(ctx); err != nil {
			return nil, err
		}
	}
	p, err := d.ListenDriver.Dial(ctx, o, cfg)
	if err == nil && d.dialed != nil {
		d.dialed()
	}
	return d.wrap(p, err)
}

func (d *fakeDriver) wrap(p path.Path, err error) (path.Path, error) {
	if err != nil {
		return nil, err
	}
	return &fakePath{p, d}, nil
}

type fakeListener struct {
	setup.Listener
	d *fakeDriver
}

func (l fakeListener) Accept(ctx context.Context, token setup.Token, cfg setup.Config) (path.Path, error) {
	return l.d.wrap(l.Listener.Accept(ctx, token, cfg))
}

type fakePath struct {
	path.Path
	d *fakeDriver
}

func (p *fakePath) Name() string { return p.d.name }

func (p *fakePath) Capabilities() path.Capabilities {
	c := p.Path.Capabilities()
	if p.d.level != nil {
		c.Security = *p.d.level
	}
	return c
}

func (p *fakePath) Post(ops []path.Op) (int, error) {
	if p.d.post != nil {
		return p.d.post(p.Path, ops)
	}
	return p.Path.Post(ops)
}

func (p *fakePath) Poll(events []path.Event) int {
	if p.d.poll != nil {
		return p.d.poll(p.Path, events)
	}
	return p.Path.Poll(events)
}

func (p *fakePath) Cancel(token uint64) bool {
	p.d.cancels.Add(1)
	return p.Path.Cancel(token)
}
