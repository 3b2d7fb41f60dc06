package neigh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// Resolver resolves addresses by sending frames through a port, in place of the kernel. Its receive
// queue needs ARP and neighbour discovery only: a steering rule, or a port of its own, keeps other
// packets away.
type Resolver struct {
	rx engine.Receiver
	tx engine.TxQueue

	kick  *engine.Waker
	waker *engine.Waker
	b, s  *burst.Burst

	mu   sync.Mutex // over the next fields
	m    *Machine
	news chan struct{} // closed when something has changed
}

// NewResolver makes a Resolver. The queues stay the caller's, and the receive queue belongs to Run
// while that runs.
func NewResolver(o MachineOptions, rx engine.Receiver, tx engine.TxQueue) (*Resolver, error) {
	if rx == nil || tx == nil {
		return nil, fmt.Errorf("neigh: a resolver needs a receive and a transmit queue: %w", engine.ErrNil)
	}
	m, err := NewMachine(o)
	if err != nil {
		return nil, err
	}
	return &Resolver{rx: rx, tx: tx, m: m, kick: engine.NewWaker(), waker: engine.NewWaker(),
		b: burst.NewSegmented(64, 128), s: burst.NewSegmented(1, 2), news: make(chan struct{})}, nil
}

// Run receives, answers and asks, until the context ends or a queue fails. Call it in a goroutine
// of its own.
func (r *Resolver) Run(ctx context.Context) error {
	var timer *time.Timer
	frame := make([]byte, 2048)
	for {
		n, err := r.rx.TryRecv(r.b)
		if err != nil {
			return err
		}
		now := time.Now()
		r.mu.Lock()
		changed := false
		for i := range n {
			k := r.b.CopyTo(frame, i)
			if r.m.Handle(now, frame[:k]) {
				changed = true
			}
		}
		if r.m.Poll(now) {
			changed = true
		}
		if changed {
			close(r.news)
			r.news = make(chan struct{})
		}
		at, timed := r.m.Deadline()
		r.mu.Unlock()
		r.b.Release()
		if err := r.flush(frame); err != nil {
			return err
		}
		if n > 0 || r.rx.Arm(r.waker) {
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		var due <-chan time.Time
		if timed {
			if timer == nil {
				timer = time.NewTimer(time.Until(at))
				defer timer.Stop()
			} else {
				timer.Reset(time.Until(at))
			}
			due = timer.C
		}
		select {
		case <-r.waker.C():
		case <-r.kick.C():
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// flush sends what the Machine wants sent. What finds no room is lost, and asked again.
func (r *Resolver) flush(frame []byte) error {
	for {
		r.mu.Lock()
		n := r.m.Output(frame)
		r.mu.Unlock()
		if n == 0 {
			return nil
		}
		k, err := r.tx.Alloc(r.s, 1, n)
		if k == 0 {
			if errors.Is(err, engine.ErrClosed) {
				return err
			}
			continue
		}
		copied := 0
		for seg := range r.s.Segments(0) {
			if !r.s.SetLen(0, seg, min(n-copied, r.s.SegmentCap(0, seg))) {
				continue
			}
			copied += copy(r.s.Bytes(0, seg), frame[copied:n])
		}
		if err := r.tx.Send(r.s); err != nil && !errors.Is(err, engine.ErrConnect) &&
			!errors.Is(err, engine.ErrDown) {
			return err
		}
	}
}

// Resolve finds the Ethernet address of a neighbour on the link. It waits until that answers,
// ErrNoAnswer says that it does not, or the context ends (ErrNoAnswer and the context's error). Any
// goroutine may call it while Run runs. Groups need no answer.
func (r *Resolver) Resolve(ctx context.Context, a netip.Addr) (packet.MAC, error) {
	if m, ok := packet.MulticastMAC(a.Unmap()); ok {
		return m, nil
	}
	for {
		r.mu.Lock()
		mac, state, err := r.m.Lookup(time.Now(), a)
		news := r.news
		r.mu.Unlock()
		if err != nil {
			return packet.MAC{}, err
		}
		r.kick.Wake()
		switch state {
		case Known:
			return mac, nil
		case Silent:
			return packet.MAC{}, fmt.Errorf("%v: %w", a, ErrNoAnswer)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return packet.MAC{}, fmt.Errorf("%v: %w: %w", a, ErrNoAnswer, ctx.Err())
		}
	}
}
