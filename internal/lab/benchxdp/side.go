package benchxdp

import (
	"context"
	"errors"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"

	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/sys"
)

// packetHost is where a side has its interfaces: it runs a function there, or starts a command. A
// netns.Host is one.
type packetHost interface {
	Do(func() error) error
	Start(*exec.Cmd) error
}

// packetSide is what is measured: it receives on its first interface, sends on it, or forwards from
// it to the second. The program in C is one (*xdpref.Peer), and its commands and results are the
// language of all.
//
// Receive and Forward without Live take what is there when they look and end at the first look that
// finds nothing. Times are of the thread that does the work, from the first look to the end, and to
// the last packet's departure for what is sent.
type packetSide interface {
	Begin(xdpref.Command) error
	Stop() error
	Wait(context.Context) (xdpref.Result, error)
	Close() error
}

// sideSpec is what a side is opened with.
type sideSpec struct {
	interfaces []string // one, or two to forward between
	size       int      // bytes of a frame
	slots      int      // packets that can wait to be received, at least
	cpu        int      // of this process's set, as sys.PinThread counts
	batch      int      // packets taken and sent at a time
	huge       bool
}

// run gives a side one command and waits for its end.
func run(ctx context.Context, s packetSide, c xdpref.Command) (xdpref.Result, error) {
	if err := s.Begin(c); err != nil {
		return xdpref.Result{}, err
	}
	return s.Wait(ctx)
}

// openSide opens the program in C.
func openReference(_ context.Context, h packetHost, s sideSpec) (packetSide, error) {
	cpu, err := sys.Processor(s.cpu)
	if err != nil {
		return nil, err
	}
	p, err := xdpref.Start(h.Start, s.config(cpu))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// frame of more than one chunk takes multi-buffer.
func (s *sideSpec) chains() bool { return s.size > 3800 }

// chunks that a received frame takes, and one to send does not take more.
func (s *sideSpec) chunks() int {
	if s.chains() {
		return (s.size + 4096 - 256 - 1) / (4096 - 256)
	}
	return 1
}

func (s *sideSpec) config(cpu int) xdpref.Config {
	c := xdpref.Config{Interfaces: s.interfaces, Size: s.size, Batch: s.batch, Slots: s.slots * s.chunks(), CPU: cpu,
		Huge: s.huge, MultiBuffer: s.chains()}
	if !s.chains() && s.size > 2048-256 {
		c.Chunk = 4096
	}
	return c
}

// openerOf opens a side.
type openerOf func(context.Context, packetHost, sideSpec) (packetSide, error)

// loops are how a side of ours works. All but close and dropped are called by one goroutine that is
// locked to its thread.
type loops interface {
	receive(ctx context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error
	send(ctx context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error
	forward(ctx context.Context, c *xdpref.Command, r *xdpref.Result, stop *atomic.Bool) error
	dropped() (uint64, error) // packets that came and were lost, since it was opened
	blind() bool              // dropped does not have those that the kernel had no room for
	close() error             // reports memory that is not back
}

// worker is a side in this process. One goroutine, on a thread of its own that is bound to a
// processor, does all the work.
type worker struct {
	loops
	size  int
	ctx   context.Context
	halt  atomic.Bool
	work  chan xdpref.Command
	done  chan outcome
	ended chan struct{}

	before  uint64 // packets that were lost until the command before
	running bool
}

type outcome struct {
	r   xdpref.Result
	err error
}

func newWorker(ctx context.Context, l loops, s sideSpec) *worker {
	w := &worker{loops: l, size: s.size, ctx: ctx, work: make(chan xdpref.Command), done: make(chan outcome, 1),
		ended: make(chan struct{})}
	go w.serve(s.cpu)
	return w
}

func (w *worker) serve(cpu int) {
	defer close(w.ended)
	runtime.LockOSThread() // never unlocked: the thread ends with its pinning
	pinned := sys.PinThread(cpu)
	for c := range w.work {
		if pinned != nil {
			w.done <- outcome{err: pinned}
			continue
		}
		var r xdpref.Result
		do := map[xdpref.Op]func(context.Context, *xdpref.Command, *xdpref.Result, *atomic.Bool) error{
			xdpref.Receive: w.receive, xdpref.Send: w.send, xdpref.Forward: w.forward}[c.Op]
		start := time.Now()
		cpu, err := sys.ThreadCPU()
		if err == nil {
			err = do(w.ctx, &c, &r, &w.halt)
		}
		end, e2 := sys.ThreadCPU()
		r.Wall, r.CPU, r.Bytes = time.Since(start), end-cpu, r.Packets*uint64(w.size)
		w.done <- outcome{r, errors.Join(err, e2)}
	}
}

// Begin implements packetSide.
func (w *worker) Begin(c xdpref.Command) error {
	if w.running {
		return errors.New("bench: a side does one thing at a time")
	}
	w.halt.Store(false)
	w.running = true
	w.work <- c
	return nil
}

// Stop implements packetSide.
func (w *worker) Stop() error { w.halt.Store(true); return nil }

// Wait implements packetSide.
func (w *worker) Wait(ctx context.Context) (xdpref.Result, error) {
	var o outcome
	select {
	case o = <-w.done:
	case <-ctx.Done():
		w.halt.Store(true)
		o = <-w.done
		o.err = errors.Join(ctx.Err(), o.err)
	}
	w.running = false
	if o.err == nil {
		var d uint64
		d, o.err = w.dropped()
		o.r.Dropped, w.before = d-w.before, d
	}
	return o.r, o.err
}

// Close implements packetSide. Its error reports memory that is not back.
func (w *worker) Close() error {
	w.halt.Store(true)
	if w.running {
		<-w.done
	}
	close(w.work)
	<-w.ended
	return w.close()
}

// inspector checks every byte of packets.
type inspector struct {
	size  int
	whole []byte // of a packet of several parts
}

// one takes whole, which is a packet.
func (x *inspector) one(f []byte, c *xdpref.Command, r *xdpref.Result) {
	seq, err := xdpref.CheckFrame(f, x.size)
	if err != nil {
		r.Bad++
		return
	}
	r.Checked += uint64(len(f))
	if seq != c.Seq {
		r.Gaps++
	}
	c.Seq = seq + 1
}
