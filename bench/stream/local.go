package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
)

// Arrivals are what one receiving end saw of one trial.
type Arrivals struct {
	Counts
	Queues  []uint64      // of Arrived, by queue
	Span    time.Duration // from the first packet of the trial that came to the last one
	CPU     time.Duration // of all receiving threads
	Refused uint64        // packets that a reflector could not send back
	Drops   engine.Drops  // that the engine counted on the way in, during the trial
	Latency metrics.HistogramSnapshot
}

// unknown is a number of packets that never comes.
const unknown = ^uint64(0)

// receiver is the receiving end of trials, here or in another process.
type receiver interface {
	// begin makes it count packets of that run from 0. When it returns packets may come.
	begin(ctx context.Context, run uint16) error
	// end says how many packets each stream sent, waits until they are there or nothing has come
	// for settle, and tells what came.
	end(ctx context.Context, sent []uint64, settle time.Duration) (*Arrivals, error)
	close() error
}

// localReceiver is a receiving end in this process: sinks, each with a queue and a goroutine for
// the time of a trial.
type localReceiver struct {
	parts
	c     *clock
	in    *arrivals
	sinks []*sink

	before engine.Drops
	cancel context.CancelFunc
	errs   chan error // of each sink, when it ends
}

func newLocalReceiver(c *cell, k *clock) *localReceiver {
	size, at := c.inMemory()
	in := &arrivals{ledgers: make([]ledger, c.streams()), size: size, at: at,
		pattern: pattern(size-at-HeaderLen, c.Seed, c.Workload), stream: c.bytes(),
		full: make(chan struct{}, 1)}
	return &localReceiver{c: k, in: in}
}

// add makes a sink of a queue.
func (h *localReceiver) add(c *cell, rx engine.RxQueue) *sink {
	_, segments := c.chunk()
	s := newSink(rx, h.c, h.in, c.Workload, c.frames(), c.Spin, 64, segments)
	h.sinks = append(h.sinks, s)
	return s
}

func (h *localReceiver) close() error {
	h.stop()
	return h.parts.close()
}

// stop ends the sinks' goroutines.
func (h *localReceiver) stop() error {
	if h.cancel == nil {
		return nil
	}
	h.cancel()
	h.cancel = nil
	var err error
	for range h.sinks {
		err = errors.Join(err, <-h.errs)
	}
	return err
}

func (h *localReceiver) begin(_ context.Context, run uint16) error {
	if err := h.stop(); err != nil {
		return err
	}
	h.in.run = run
	h.in.want.Store(unknown)
	h.in.total.Store(0)
	select {
	case <-h.in.full:
	default:
	}
	for i := range h.in.ledgers {
		h.in.ledgers[i].reset()
	}
	h.before, _ = h.drops()
	// The trial outlives the call that begins it.
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel, h.errs = cancel, make(chan error, len(h.sinks))
	for _, s := range h.sinks {
		s.counts, s.refused, s.first, s.last, s.latency = Counts{}, 0, 0, 0, new(metrics.Histogram)
		go func() { h.errs <- s.serve(ctx) }()
	}
	return nil
}

// wait waits until all have come, or none of this trial came for that long, whatever else comes.
func (h *localReceiver) wait(ctx context.Context, settle time.Duration) error {
	quiet := time.NewTimer(settle)
	defer quiet.Stop()
	for seen := h.in.total.Load(); ; {
		select {
		case <-h.in.full:
			return nil
		case err := <-h.errs:
			h.errs <- err
			if err == nil {
				err = errors.New("stream: a receiver ended before its time")
			}
			return err
		case <-quiet.C:
			now := h.in.total.Load()
			if now == seen {
				return nil
			}
			seen = now
			quiet.Reset(settle)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *localReceiver) end(ctx context.Context, sent []uint64, settle time.Duration) (*Arrivals, error) {
	if h.cancel == nil || len(sent) != len(h.in.ledgers) {
		return nil, fmt.Errorf("%w: stream: the end of a trial of %d streams: expected one that has begun, of %d",
			engine.ErrInvalid, len(sent), len(h.in.ledgers))
	}
	total := uint64(0)
	for _, n := range sent {
		total += n
	}
	h.in.expect(total)
	err := h.wait(ctx, settle)
	if err = errors.Join(err, h.stop()); err != nil {
		return nil, err
	}
	a := &Arrivals{}
	var one metrics.HistogramSnapshot
	first, last := int64(0), int64(0)
	for _, s := range h.sinks {
		a.Counts.add(&s.counts)
		a.Queues = append(a.Queues, s.counts.Arrived)
		if s.first > 0 && (first == 0 || s.first < first) {
			first = s.first
		}
		last = max(last, s.last)
		a.CPU += s.cpu
		a.Refused += s.refused
		s.latency.Snapshot(&one)
		a.Latency.Merge(&one)
	}
	a.Span = time.Duration(last - first)
	a.Drops, _ = h.drops()
	for i := range a.Drops {
		a.Drops[i] -= h.before[i]
	}
	for i := range h.in.ledgers {
		if err := h.in.ledgers[i].check(i, sent[i]); err != nil {
			return nil, err
		}
	}
	return a, a.check(total)
}
