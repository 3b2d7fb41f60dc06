package benchverbs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/tensor/synth"
)

// bandwidthTarget is what ours has to reach of perftest's bandwidth.
const bandwidthTarget = 0.95

// flowRow measures the bandwidth of writes, reads or sends of a size.
func (b *verbsBench) flowRow(ctx context.Context, op string, size uint64) (err error) {
	if most := b.d.port.MaxMessage; most != 0 && size > most {
		b.r.Notes = append(b.r.Notes, fmt.Sprintf("no %s of %s: the device's messages have at most %s", op,
			bench.FormatSize(size), bench.FormatSize(most)))
		return nil
	}
	f, err := b.openFlow(op, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.p.close()) }()
	n, err := f.count(ctx, b.o.Budget)
	if err != nil {
		return err
	}
	ours := paired.Contender{Name: "ibv", Run: func(ctx context.Context) (paired.Sample, error) {
		return f.sample(ctx, n)
	}}
	theirs := b.theirs(peers.RDMATest{Program: "ib_" + op + "_bw", Size: size, Iterations: n, Depth: b.o.Depth},
		func(r peers.RDMARow) float64 {
			return r.MessagesPerS * float64(r.Size) / 1e9 // its own column has two digits behind the point
		})
	return b.measure(ctx, shape{what: op, size: size}, paired.Plan{Name: fmt.Sprintf("%s %s", op,
		bench.FormatSize(size)), Unit: paired.GBs, Target: bandwidthTarget, Ours: ours, Theirs: theirs})
}

// verbsFlow is messages of one kind and size, one after the other.
type verbsFlow struct {
	p        *verbsPair
	op       string
	size     uint64
	depth    int
	chain    int // requests of one call
	signal   int // requests of one completion
	src, dst []byte
}

func (b *verbsBench) openFlow(op string, size uint64) (f *verbsFlow, err error) {
	f = &verbsFlow{op: op, size: size, depth: b.o.Depth, chain: b.o.Chain, signal: b.o.signal()}
	s := verbsShape{size: size, depth: f.depth, chain: f.chain}
	if op == "send" {
		s.recvs = f.signal * max(1, 2*f.depth/f.signal)
	}
	if f.p, err = b.d.pair(s); err != nil {
		return nil, err
	}
	a, z := &f.p.a, &f.p.b
	f.src, f.dst = a.buf[:size], z.buf[:size]
	if op == "read" {
		f.src, f.dst = f.dst, f.src
	}
	sge := a.mr.SGE(0, uint32(size))
	ok := a.chains(f.chain, func(c *ibv.SendChain, i int, flags ibv.SendFlags) (ok bool) {
		switch op {
		case "write":
			_, ok = c.Write(uint64(i), flags, z.mr.Addr(), z.mr.RKey(), sge)
		case "read":
			_, ok = c.Read(uint64(i), flags, z.mr.Addr(), z.mr.RKey(), sge)
		default:
			_, ok = c.Send(uint64(i), flags, sge)
		}
		return ok
	})
	if op == "send" {
		for i := range f.signal {
			_, took := z.recv.Recv(uint64(i), z.mr.SGE(0, uint32(size)))
			ok = ok && took
		}
	}
	if !ok {
		return nil, errors.Join(fmt.Errorf("bench: a chain of %d %ss is full", f.chain, op), f.p.close())
	}
	return f, nil
}

// count is how many messages take about as long as that; a multiple of those that have one
// completion together.
func (f *verbsFlow) count(ctx context.Context, budget time.Duration) (int, error) {
	n := f.signal
	for {
		took, err := f.run(ctx, n)
		if err != nil {
			return 0, err
		}
		if took >= budget/8 || n >= 1<<22 {
			groups := float64(n/f.signal) * float64(budget) / float64(took+1)
			return f.signal * max(1, min(int(groups), 1<<22)), nil
		}
		n *= 4
	}
}

// sample moves n messages of new bytes and compares what arrived.
func (f *verbsFlow) sample(ctx context.Context, n int) (s paired.Sample, err error) {
	seed := rand.Uint64()
	synth.Fill(f.src, seed)
	clear(f.dst)
	took, err := f.run(ctx, n)
	if err != nil {
		return s, err
	}
	if bad, ok := synth.Verify(f.dst, seed, 0); !ok {
		return s, fmt.Errorf("%w: byte %d of %d is wrong", paired.ErrFailed, bad, f.size)
	}
	return paired.Sample{Value: bench.GBps(f.size*uint64(n), took), Verified: f.size}, nil
}

// run moves n messages, of which count speaks, and returns how long that took until the last
// completion.
func (f *verbsFlow) run(ctx context.Context, n int) (took time.Duration, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	received := make(chan error, 1)
	if f.op == "send" {
		ready := make(chan struct{})
		go func() {
			err := f.receive(ctx, n, func() { close(ready) })
			if err != nil {
				stop(err)
			}
			received <- err
		}()
		select {
		case <-ready:
		case err := <-received:
			return 0, err
		}
	} else {
		received <- nil
	}
	begin := time.Now()
	err = f.post(ctx, n)
	if err != nil {
		stop(err)
	}
	err = errors.Join(err, <-received)
	return time.Since(begin), err
}

// post keeps the send queue full until n messages are complete.
func (f *verbsFlow) post(ctx context.Context, n int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := &f.p.a
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done+f.chain <= f.depth {
			c := a.send
			if posted += f.chain; posted%f.signal == 0 {
				c = a.last
			}
			if err := a.post(c); err != nil {
				return err
			}
		}
		got, err := a.await(ctx, a.sendCQ)
		if err != nil {
			return err
		}
		done += got * f.signal
	}
	return nil
}

// receive posts receives and takes n messages; ready is called when the first are posted.
func (f *verbsFlow) receive(ctx context.Context, n int, ready func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	z := &f.p.b
	room := z.qp.Spec().RecvWRs
	for posted, done := 0, 0; done < n; {
		for posted < n && posted-done+f.signal <= room {
			if err := z.postRecvs(); err != nil {
				return err
			}
			posted += f.signal
		}
		if ready != nil {
			ready()
			ready = nil
		}
		got, err := z.await(ctx, z.recvCQ)
		if err != nil {
			return err
		}
		for i := range z.wc[:got] {
			if l := z.wc[i].Len(); l != int(f.size) {
				return fmt.Errorf("%w: a message of %d bytes: expected %d", paired.ErrFailed, l, f.size)
			}
		}
		done += got
	}
	return nil
}
