package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/paired"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/path"
)

// pinger puts small messages with a notification and hears those of the other side.
type pinger struct {
	q      *transfer.Queue
	out    []byte
	ops    []path.Op
	posted uint64
	done   uint64
}

func newPinger(q *transfer.Queue, local *mem.Region, remote *transfer.Remote, size uint64) (*pinger, error) {
	s, err := local.Span(0, size)
	if err != nil {
		return nil, err
	}
	p := &pinger{q: q, out: s.Bytes()}
	p.ops = []path.Op{{Kind: path.Put, Notify: true, Copies: []path.Copy{remote.At(0, s)}}}
	return p, nil
}

// say puts message n. The message before was answered, so its memory is free again.
func (p *pinger) say(n uint64) error {
	writeMessage(p.out, n)
	p.ops[0].Token, p.ops[0].Imm = n, n
	_, err := p.q.Post(p.ops)
	if err == nil {
		p.posted++
	}
	return err
}

// hear waits for the next message and returns its number, or 0 when the session is over.
func (p *pinger) hear(ctx context.Context, events []path.Event, mode string, b *brake) (uint64, error) {
	heard := uint64(0)
	for idle := 0; heard == 0; {
		n := 0
		if mode == Spin {
			if n = p.q.Poll(events); n == 0 {
				if idle++; idle&1023 == 0 && (b.halted() || ctx.Err() != nil) {
					return 0, ctx.Err()
				}
				continue
			}
		} else {
			var err error
			if n, err = p.q.Wait(ctx, events, 0); err != nil {
				return 0, err
			}
		}
		for _, e := range events[:n] {
			switch e.Kind {
			case path.EventNotify:
				if heard != 0 {
					return 0, fmt.Errorf("%w: ping-pong: message %d came before %d was answered", paired.ErrFailed,
						e.Imm, heard)
				}
				heard = e.Imm
			case path.EventDone:
				p.done++
				if e.Err != nil {
					return 0, e.Err
				}
			case path.EventDown:
				return 0, errors.Join(path.ErrDown, e.Err)
			}
		}
	}
	return heard, nil
}

// pingPong makes n round trips from number first and appends half of each round trip's time in
// microseconds to out. in is where answers arrive; every byte of every message is checked on both
// sides.
func (p *pinger) pingPong(ctx context.Context, in []byte, first uint64, n int, mode string, out []float64) ([]float64,
	error) {
	var b brake
	var events [8]path.Event
	for k := first; k < first+uint64(n); k++ {
		t := time.Now()
		if err := p.say(k); err != nil {
			return out, err
		}
		got, err := p.hear(ctx, events[:], mode, &b)
		if err != nil {
			return out, err
		}
		d := time.Since(t)
		if got != k || !messageIs(in, k) {
			return out, fmt.Errorf("%w: ping-pong: answer %d is wrong or out of order (number %d)", paired.ErrFailed, k,
				got)
		}
		out = append(out, float64(d)/2e3)
	}
	return out, nil
}
