package abi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/gpu"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/reorder"
)

// roomPackets is how many packets a burst for the caller holds.
const roomPackets = 1024

// rx is a receive queue with the packets that the caller has.
type rx struct {
	q   *engine.Rx
	end context.CancelFunc
	ctx context.Context

	mu sync.Mutex // one call at a time; guards b
	b  *burst.Burst
}

func (r *rx) close() error {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b.Release()
	return nil
}

// Rx is a receive queue of an interface.
func (t *Table) Rx(h uint64, iface string, queue int) (uint64, error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return 0, err
	}
	q, err := s.s.Rx(iface, queue)
	if err != nil {
		return 0, err
	}
	r := &rx{q: q, b: burst.NewSegmented(roomPackets, 4*roomPackets)}
	r.ctx, r.end = context.WithCancel(context.Background())
	return t.keep(r), nil
}

// Burst waits for packets, and shows them to see if there are at most n segments; it returns how
// many, 0 if none came within the time. The packets stay the caller's until Release.
func (t *Table) Burst(ctx context.Context, h uint64, n int, see func(*burst.Burst)) (k int, err error) {
	r, err := get[*rx](t, h)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("no room for segments: %w", ErrInvalid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.b.Len() > 0 {
		return 0, fmt.Errorf("the caller has %d packets of the last burst: call penstock_release: %w", r.b.Len(),
			ErrInvalid)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(r.ctx, end)()
	if err := r.q.Recv(ctx, r.b); err != nil {
		switch {
		case r.ctx.Err() != nil:
			return 0, engine.ErrClosed
		case errors.Is(err, context.DeadlineExceeded):
			return 0, nil
		}
		return 0, err
	}
	for i := range r.b.Len() {
		k += r.b.Segments(i)
	}
	if k > n {
		packets := r.b.Len()
		r.b.Release()
		return 0, fmt.Errorf("%d packets with %d segments came, and there was room for %d: dropped: %w", packets, k, n,
			engine.ErrFull)
	}
	see(r.b)
	return k, nil
}

// BatchOf is a copy of what is known of the batch that packet i is, without the mask of an
// accelerator; nil for another packet.
func BatchOf(b *burst.Burst, i int) *reorder.Batch {
	x := reorder.Of(b, i)
	if x == nil {
		return nil
	}
	c := *x
	c.Present, c.Mask = slices.Clone(x.Present), gpu.Span{}
	return &c
}

// Batch is BatchOf of a packet of the last burst, which the caller has.
func (t *Table) Batch(h uint64, packet uint32) (*reorder.Batch, error) {
	r, err := get[*rx](t, h)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if int64(packet) >= int64(r.b.Len()) {
		return nil, fmt.Errorf("packet %d: the caller has %d of the last burst: %w", packet, r.b.Len(), ErrInvalid)
	}
	return BatchOf(r.b, int(packet)), nil
}

// Release gives the packets of the last burst back.
func (t *Table) Release(h uint64) error {
	r, err := get[*rx](t, h)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b.Release()
	return nil
}

// Send copies n packets and sends them, those of one length together; it returns how many there was
// room for. packet gives the bytes of each, nil for one without any.
func (t *Table) Send(h uint64, iface string, queue, n int, bytes func(int) []byte) (sent int, err error) {
	s, err := get[*openSystem](t, h)
	if err != nil {
		return 0, err
	}
	q, err := s.s.Tx(iface, queue)
	if err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, fmt.Errorf("no packets: %w", ErrInvalid)
	}
	frames := s.s.Port(iface).Capabilities().Frames
	var l packet.Layers
	b := burst.New(min(n, roomPackets))
	defer b.Release()
	for sent < n {
		if bytes(sent) == nil {
			return sent, fmt.Errorf("packet %d has no data: %w", sent, ErrInvalid)
		}
		size, run := len(bytes(sent)), 1
		for sent+run < n && run < b.Cap() && bytes(sent+run) != nil && len(bytes(sent+run)) == size {
			run++
		}
		got, err := q.Alloc(b, run, size)
		for i := range got {
			copy(b.Bytes(i, 0), bytes(sent+i))
			if frames { // a copy of what was received may have no checksum yet: see burst.ChecksumPartial
				if _, partial := packet.FindPartial(b.Bytes(i, 0), &l); partial {
					b.Builder().SetPartial(i)
				}
			}
		}
		if got > 0 {
			if err := q.Send(b); err != nil {
				return sent, err
			}
		}
		sent += got
		switch {
		case errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrNoBuffers):
			return sent, nil
		case err != nil:
			return sent, err
		}
	}
	return sent, nil
}
