package benchdpdk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/engine/dpdk"
	xdpref "github.com/penstock-io/penstock/internal/lab/testenv/peers/xdp"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// devices numbers those of DPDK, which wants a name of its own for each.
var devices atomic.Int64

// slots of the pool, as many as testpmd has mbufs.
const slots = 2048

// sample is a run of ours, on a thread of its own.
func sample(ctx context.Context, op string, batch int, d time.Duration) (out paired.Sample, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its pinning
		if err = sys.PinThread(1); err == nil {
			out, err = measure(ctx, op, batch, d)
		}
	}()
	<-done
	return out, err
}

// measure opens a port, works for a while and closes it.
func measure(ctx context.Context, op string, batch int, d time.Duration) (out paired.Sample, err error) {
	pool, err := mem.NewPool(mem.PoolOptions{Name: "packets", SlotSize: 2048, Slots: slots})
	if err != nil {
		return out, err
	}
	defer func() {
		if n := pool.Stats().InUse; n != 0 {
			err = errors.Join(err, fmt.Errorf("%w: %d slots of %d are missing", paired.ErrFailed, n, slots))
		}
		err = errors.Join(err, pool.Close())
	}()
	p, err := dpdk.New().OpenPort(ctx, engine.PortSpec{RxQueues: 1, TxQueues: 1,
		Address: fmt.Sprintf("dpdk://net_null%d?huge=off", devices.Add(1))})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	w := worker{op: op, b: burst.New(batch), header: make([]byte, xdpref.HeaderSize)}
	xdpref.WriteHeaders(w.header, size)
	if w.rx, err = p.AddRxQueue(engine.RxSpec{Pools: []*mem.Pool{pool}}); err != nil {
		return out, err
	}
	if w.tx, err = p.AddTxQueue(engine.TxSpec{Pools: []*mem.Pool{pool}}); err != nil {
		return out, err
	}
	if err := w.until(time.Now().Add(d / 10)); err != nil { // what is made on first use is there then
		return out, err
	}
	before, began := w.packets, time.Now()
	if err := w.until(began.Add(d)); err != nil {
		return out, err
	}
	took := time.Since(began)
	out.Value = float64(took.Nanoseconds()) / float64(w.packets-before)
	if err := w.tx.Drain(ctx); err != nil {
		return out, err
	}
	var s engine.PortStats
	p.Stats(&s)
	rx, tx := w.packets, w.packets
	switch op {
	case "receive":
		tx = 0
	case "send":
		rx = 0
	}
	if lost := s.Drops.Total() + s.Rx.Drops.Total() + s.Tx.Drops.Total(); s.Rx.Packets != rx || s.Tx.Packets != tx ||
		lost+s.Rx.Copied+s.Tx.Copied != 0 {
		return out, fmt.Errorf("%w: %d packets, and the port counted %d received, %d sent, %d lost, %d bytes copied",
			paired.ErrFailed, w.packets, s.Rx.Packets, s.Tx.Packets, lost, s.Rx.Copied+s.Tx.Copied)
	}
	return out, nil
}

// worker is a loop over a port.
type worker struct {
	op      string
	rx      engine.RxQueue
	tx      engine.TxQueue
	b       *burst.Burst
	header  []byte
	packets uint64
}

// until works until a time, at which it looks now and then.
func (w *worker) until(end time.Time) error {
	step := w.forward
	switch w.op {
	case "receive":
		step = w.receive
	case "send":
		step = w.send
	}
	for time.Now().Before(end) {
		for range 256 {
			if err := step(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) receive() error {
	n, err := w.rx.TryRecv(w.b)
	w.packets += uint64(n)
	w.b.Release()
	return err
}

func (w *worker) send() error {
	n, err := w.tx.Alloc(w.b, w.b.Room(), size)
	if n == 0 && !errors.Is(err, engine.ErrFull) && !errors.Is(err, engine.ErrNoBuffers) {
		return err
	}
	for i := range n {
		copy(w.b.Bytes(i, 0), w.header)
	}
	w.packets += uint64(n)
	return w.tx.Send(w.b)
}

func (w *worker) forward() error {
	n, err := w.rx.TryRecv(w.b)
	if err != nil {
		return err
	}
	if w.op == "swap" {
		for i := range n {
			xdpref.SwapMACs(w.b.Bytes(i, 0))
		}
	}
	sent, err := w.tx.Forward(w.b)
	if err != nil {
		return err
	}
	w.packets += uint64(n)
	if sent != n {
		return fmt.Errorf("%w: %d packets of %d were forwarded", paired.ErrFailed, sent, n)
	}
	return w.tx.Send(w.b)
}
