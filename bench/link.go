package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/identity"
	"github.com/penstock-io/penstock/transfer/path"
)

// link is the second process and this process's node that is connected to it.
type link struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder
	node   *transfer.Node
	addr   string
	peers  []*transfer.Peer // the first is node's; more have nodes of their own
	nodes  []*transfer.Node
	opts   nodeOptions
	huge   bool
	pin    bool
	driver Drivers

	queues   []*transfer.Queue
	memories memories
}

// dial starts the second process and connects a node to it.
func (o *TransferOptions) dial(ctx context.Context, n nodeOptions) (l *link, err error) {
	if len(o.Command) == 0 {
		return nil, errors.New("bench: no command for the second process")
	}
	l = &link{cmd: exec.CommandContext(ctx, o.Command[0], o.Command[1:]...), opts: n, huge: o.Huge, pin: !o.NoPin,
		driver: o.Drivers}
	l.cmd.Stderr = os.Stderr
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start the second process: %w", err)
	}
	started := l // what is returned is nil by then
	defer func() {
		if err != nil {
			started.close()
		}
	}()
	l.out = json.NewDecoder(bufio.NewReader(out))
	a, err := l.ask(request{Do: "start", Node: &n})
	if err != nil {
		return nil, err
	}
	l.addr = a.Addr
	if err := l.addPeer(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// addPeer opens one more node of this process and connects it.
func (l *link) addPeer(ctx context.Context) error {
	paths, err := l.opts.drivers(l.driver)
	if err != nil {
		return err
	}
	node, err := transfer.Open(ctx, transfer.Options{Anonymous: identity.All,
		Name: fmt.Sprintf("bench-%d", len(l.nodes)), Paths: paths, Budget: budget,
		NoChecksum: l.opts.NoChecksum, Spin: l.opts.Spin})
	if err != nil {
		return err
	}
	l.nodes = append(l.nodes, node)
	p, err := node.Dial(ctx, l.addr)
	if err != nil {
		return err
	}
	l.node = l.nodes[0]
	l.peers = append(l.peers, p)
	return nil
}

// close ends the second process and says how it ended.
func (l *link) close() error {
	for _, n := range l.nodes {
		n.Close()
	}
	l.in.Close() // the second process ends at the end of its input
	err := l.memories.close()
	if werr := l.cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("bench: the second process: %w", werr))
	}
	return err
}

func (l *link) ask(q request) (reply, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return reply{}, err
	}
	if _, err := l.in.Write(append(b, '\n')); err != nil {
		return reply{}, fmt.Errorf("bench: ask the second process to %s: %w", q.Do, err)
	}
	var a reply
	if err := l.out.Decode(&a); err != nil {
		return a, fmt.Errorf("bench: the second process ended during %s: %w", q.Do, err)
	}
	if a.Err != "" {
		// What the second process found wrong with bytes is a failed run on this side too.
		return a, fmt.Errorf("%w: second process: %s: %s", paired.ErrFailed, q.Do, a.Err)
	}
	return a, nil
}

// serveAsk asks while this process's ends of the queues are served: revoking memory waits until
// those who map it confirm.
func (l *link) serveAsk(q request) (reply, error) {
	var a reply
	done := make(chan error, 1)
	go func() {
		var err error
		a, err = l.ask(q)
		done <- err
	}()
	var events [16]path.Event
	for {
		select {
		case err := <-done:
			return a, err
		default:
		}
		for _, x := range l.queues {
			x.Poll(events[:])
		}
		runtime.Gosched()
	}
}

// openQueues opens one queue per peer, with the second process serving them.
func (l *link) openQueues(ctx context.Context, driver, mode string, n int, echo uint64) error {
	for len(l.peers) < n {
		if err := l.addPeer(ctx); err != nil {
			return err
		}
	}
	if _, err := l.ask(request{Do: "accept", Queues: n, Mode: mode, Echo: echo > 0, Size: echo, Pin: l.pin &&
		mode == Spin}); err != nil {
		return err
	}
	for i := range n {
		q, err := l.peers[i].OpenQueue(ctx, transfer.QueueOptions{Path: driver, Name: queueName(i),
			NoChecksum: l.opts.NoChecksum})
		if err != nil {
			l.closeQueues()
			return err
		}
		l.queues = append(l.queues, q)
	}
	_, err := l.ask(request{Do: "ready"})
	return err
}

// alone runs f while the second process rests, so that f has both cores. Without a session it rests
// anyway.
func (l *link) alone(f func() error) error {
	if len(l.queues) == 0 {
		return f()
	}
	if _, err := l.ask(request{Do: "rest"}); err != nil {
		return err
	}
	ferr := f()
	_, err := l.ask(request{Do: "resume"})
	return errors.Join(ferr, err)
}

// closeQueues ends both sides' queues and returns what the echo checked.
func (l *link) closeQueues() (uint64, error) {
	a, err := l.ask(request{Do: "stop"})
	for _, q := range l.queues {
		err = errors.Join(err, q.Close())
	}
	l.queues = nil
	return a.Checked, err
}

// buffers are memory on both sides of a measurement.
type buffers struct {
	l      *link
	name   string
	local  *mem.Region
	remote []*transfer.Remote // of each peer
}

func (l *link) allocate(ctx context.Context, size uint64) (*buffers, error) {
	return l.allocateNamed(ctx, "memory", size)
}

func (l *link) allocateNamed(ctx context.Context, name string, size uint64) (*buffers, error) {
	if _, err := l.ask(request{Do: "alloc", Name: name, Size: size, Huge: l.huge}); err != nil {
		return nil, err
	}
	b := &buffers{l: l, name: name}
	var err error
	if b.local, err = Allocate("local", size, l.huge); err != nil {
		return nil, errors.Join(err, b.free())
	}
	for _, p := range l.peers {
		r, err := p.Lookup(ctx, name)
		if err != nil {
			return nil, errors.Join(err, b.free())
		}
		b.remote = append(b.remote, r)
	}
	return b, nil
}

func (b *buffers) free() error {
	_, err := b.l.serveAsk(request{Do: "free", Name: b.name})
	if b.local != nil {
		err = errors.Join(err, b.local.Close())
	}
	return err
}

// usage is what both processes and their paths have used so far.
type usage struct {
	cpu      time.Duration
	mallocs  uint64
	syscalls uint64
}

func (u usage) minus(v usage) usage {
	return usage{u.cpu - v.cpu, u.mallocs - v.mallocs, u.syscalls - v.syscalls}
}

func (u *usage) add(v usage) {
	u.cpu += v.cpu
	u.mallocs += v.mallocs
	u.syscalls += v.syscalls
}

// usage asks the second process first, so that asking is not counted twice in this one.
func (l *link) usage() (usage, error) {
	a, err := l.ask(request{Do: "usage"})
	if err != nil {
		return usage{}, err
	}
	own, err := sys.ProcessCPU()
	if err != nil {
		return usage{}, err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u := usage{own + a.CPU, m.Mallocs + a.Mallocs, a.Syscalls}
	for _, q := range l.queues {
		u.syscalls += q.Path().Stats().Syscalls
	}
	return u, nil
}

// meter adds up what a row's runs used.
type meter struct {
	l     *link
	idle  usage // that asking costs by itself
	used  usage
	runs  int
	ops   int
	bytes uint64
}

// begin finds out the least that asking twice costs.
func (m *meter) begin() error {
	m.idle = usage{mallocs: 1 << 62}
	for range 4 {
		a, err := m.l.usage()
		if err != nil {
			return err
		}
		b, err := m.l.usage()
		if err != nil {
			return err
		}
		if d := b.minus(a); d.mallocs < m.idle.mallocs {
			m.idle = d
		}
	}
	return nil
}

// during counts what f uses for so many operations and bytes.
func (m *meter) during(ops int, bytes uint64, f func() error) error {
	before, err := m.l.usage()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := m.l.usage()
	if err != nil {
		return err
	}
	m.used.add(after.minus(before))
	m.runs++
	m.ops += ops
	m.bytes += bytes
	return nil
}

// cost divides what was used by what was done, those of the warm-up included; nil when nothing was
// done.
func (m *meter) cost() *paired.Cost {
	if m.ops == 0 || m.bytes == 0 {
		return nil
	}
	ops := float64(m.ops)
	return &paired.Cost{
		CPUPerGB: m.used.cpu.Seconds() / (float64(m.bytes) / 1e9),
		CPUPerOp: m.used.cpu.Seconds() * 1e6 / ops,
		Allocs:   max(0, float64(m.used.mallocs)-float64(m.idle.mallocs)*float64(m.runs)) / ops,
		Syscalls: float64(m.used.syscalls) / ops,
	}
}

// pinned runs f with its goroutine's thread bound to the first processor.
func pinned(pin bool, f func() error) error {
	if !pin {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := sys.PinThread(0); err != nil {
		return err
	}
	defer sys.UnpinThread()
	return f()
}

// downOf is what an event says about the end of a path, or nil.
func downOf(e *path.Event) error {
	if e.Kind != path.EventDown {
		return nil
	}
	return errors.Join(path.ErrDown, e.Err)
}
