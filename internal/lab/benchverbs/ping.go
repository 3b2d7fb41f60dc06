package benchverbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock/bench"
	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/internal/ibv"
	"github.com/penstock-io/penstock/internal/peers"
	"github.com/penstock-io/penstock/internal/sys"
)

// latencyTarget is how much longer ours may take for a small message and its answer than perftest
// for two.
const latencyTarget = 1.2

const (
	pingBytes  = 8    // a number
	pingOut    = 2048 // where an end has what it sends; what it gets is at the beginning
	pingSignal = 16   // one request of so many asks for a completion, so that slots come back
	pingSlots  = 64
)

// latency measures the time of a small message there and back.
func (b *verbsBench) latency(ctx context.Context) error {
	for _, x := range []struct {
		name   string
		mode   string
		inline bool
		test   peers.RDMATest
	}{
		{"write 8 B and one back, inline", bench.Spin, true, peers.RDMATest{Program: "ib_write_lat", Inline: pingBytes}},
		{"write 8 B and one back", bench.Spin, false, peers.RDMATest{Program: "ib_write_lat"}},
		{"send 8 B and one back, asleep", bench.Event, true, peers.RDMATest{Program: "ib_send_lat", Inline: pingBytes, Events: true}},
	} {
		x.test.Size, x.test.Iterations = pingBytes, max(b.o.Trips, 5)
		if err := b.pingRow(ctx, x.name, x.mode, x.inline, x.test); err != nil {
			return err
		}
	}
	return nil
}

func (b *verbsBench) pingRow(ctx context.Context, name, mode string, inline bool, t peers.RDMATest) (err error) {
	s := verbsShape{size: 4096, depth: pingSlots, chain: 1, recvs: pingSlots, events: mode == bench.Event}
	if inline {
		s.inline = pingBytes
	}
	p, err := b.d.pair(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	g := &verbsPing{p: p, inline: inline, events: mode == bench.Event, clock: b.clock}
	if g.events {
		for _, e := range []*verbsEnd{&p.a, &p.b} {
			if _, ok := e.recv.Recv(0, e.mr.SGE(0, pingBytes)); !ok {
				return errors.New("bench: a chain of one receive is full")
			}
			for range pingSlots / 2 {
				if err := e.postRecvs(); err != nil {
					return err
				}
			}
		}
	}
	ours := paired.Contender{Name: "ibv", Run: func(ctx context.Context) (paired.Sample, error) {
		v, err := g.sample(ctx, b.o.Trips)
		if err != nil {
			return paired.Sample{}, err
		}
		slices.Sort(v)
		return paired.Sample{Value: paired.Percentile(v, 50), Verified: 2 * pingBytes * uint64(len(v)), Single: v}, nil
	}}
	theirs := b.theirs(t, func(r peers.RDMARow) float64 { return 2 * r.Typical })
	return b.measure(ctx, shape{what: "ping", mode: mode, size: pingBytes},
		paired.Plan{Name: name, Unit: paired.Microseconds, Target: latencyTarget, Ours: ours, Theirs: theirs})
}

// verbsPing is a number that goes from one end to the other and back.
type verbsPing struct {
	p      *verbsPair
	inline bool
	events bool
	clock  time.Duration // what it takes to read it
	next   uint64        // number of the last message
}

// clockTakes is how long it takes to read the clock, the best of some. The processor's counter,
// perftest's clock, takes nothing; ours is read through the vDSO in 25 ns or so, but an emulated
// guest has the HPET alone, which takes 4 to 10 us.
func clockTakes() time.Duration {
	const reads = 64
	best := time.Hour
	for range 8 {
		begin := time.Now()
		for range reads - 1 {
			_ = time.Now()
		}
		best = min(best, time.Since(begin)/reads)
	}
	return best
}

// microseconds is a time that was measured with a clock which takes so long.
func microseconds(d, clock time.Duration) float64 { return float64(max(0, d-clock)) / 1e3 }

// sample makes n round trips and returns their times in microseconds. Both ends check each number.
func (g *verbsPing) sample(ctx context.Context, n int) ([]float64, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	answered := make(chan error, 1)
	first := g.next + 1
	g.next += uint64(n)
	go func() {
		err := g.answer(ctx, &g.p.b, &g.p.a, first, n)
		if err != nil {
			stop(err)
		}
		answered <- err
	}()
	v, err := g.ask(ctx, &g.p.a, &g.p.b, first, n)
	if err != nil {
		stop(err)
	}
	return v, errors.Join(err, <-answered)
}

func (g *verbsPing) ask(ctx context.Context, e, to *verbsEnd, first uint64, n int) ([]float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	v := make([]float64, 0, n)
	for k := first; k < first+uint64(n); k++ {
		t := time.Now()
		if err := g.say(ctx, e, to, k); err != nil {
			return v, err
		}
		if err := g.hear(ctx, e, k); err != nil {
			return v, err
		}
		v = append(v, microseconds(time.Since(t), g.clock))
	}
	return v, nil
}

func (g *verbsPing) answer(ctx context.Context, e, to *verbsEnd, first uint64, n int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for k := first; k < first+uint64(n); k++ {
		if err := g.hear(ctx, e, k); err != nil {
			return err
		}
		if err := g.say(ctx, e, to, k); err != nil {
			return err
		}
	}
	return nil
}

// say sends number k. The number before was answered, so its memory is free again.
func (g *verbsPing) say(ctx context.Context, e, to *verbsEnd, k uint64) error {
	out := e.buf[pingOut : pingOut+pingBytes]
	binary.NativeEndian.PutUint64(out, k)
	flags := ibv.SendFlags(0)
	if k%pingSignal == 0 {
		flags = ibv.Signaled
	}
	if g.inline {
		flags |= ibv.Inline
	}
	e.send.Reset()
	ok := false
	if g.events {
		_, ok = e.send.Send(k, flags, e.mr.SGE(pingOut, pingBytes))
	} else {
		_, ok = e.send.Write(k, flags, to.mr.Addr(), to.mr.RKey(), e.mr.SGE(pingOut, pingBytes))
	}
	if !ok {
		return errors.New("bench: a chain of one request is full")
	}
	if err := e.post(e.send); err != nil || k%pingSignal != 0 {
		return err
	}
	_, err := e.await(ctx, e.sendCQ)
	return err
}

// hear waits for number k.
func (g *verbsPing) hear(ctx context.Context, e *verbsEnd, k uint64) error {
	if g.events {
		if err := e.sleep(ctx); err != nil {
			return err
		}
		if got := loadWord(e.buf); got != k {
			return fmt.Errorf("%w: message %d came where %d was due", paired.ErrFailed, got, k)
		}
		return e.postRecvs()
	}
	for idle := 1; ; idle++ {
		switch got := loadWord(e.buf); {
		case got == k:
			return nil
		case got > k:
			return fmt.Errorf("%w: message %d came where %d was due", paired.ErrFailed, got, k)
		}
		if idle%patience != 0 {
			continue
		}
		// A request that fails makes a completion, also where it asked for none.
		if _, err := e.poll(e.sendCQ); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// tick is how long sleep sleeps before it checks whether its context has ended, in milliseconds.
const tick = 100

// sleep waits for one receive without looking all the time.
func (e *verbsEnd) sleep(ctx context.Context) error {
	one := e.wc[:1]
	for {
		for range 2 {
			n, err := e.recvCQ.Poll(one)
			if err != nil {
				return err
			}
			if n > 0 {
				return one[0].Err()
			}
			// No event reports what came before this, so sleep polls once more.
			if err := e.recvCQ.Arm(false); err != nil {
				return err
			}
		}
		if _, err := sys.PollIn(tick, e.channel.FD()); err != nil {
			return err
		}
		if _, ok, err := e.channel.Next(); err != nil {
			return err
		} else if ok {
			e.recvCQ.Ack()
		}
		if _, err := e.poll(e.sendCQ); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
