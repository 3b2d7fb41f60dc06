package app

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// sender sends what it gets: back, or out of another port.
type sender struct {
	outcome
	o      Options
	back   bool
	refuse *burst.Burst   // packets that are taken out of a burst, to be released
	tx     engine.TxStats // for room
}

func newSender(o *Options, back bool) (engine.Consumer, error) {
	switch {
	case o.Tx == nil:
		return nil, o.bad("%s has no transmit queue", o.Kind)
	case o.Tensor != nil:
		return nil, o.bad("%s has a tensor: it keeps nothing", o.Kind)
	}
	return &sender{o: *o, back: back, refuse: burst.NewSegmented(o.Burst, segmentsOf(o.Burst))}, nil
}

// Consume implements engine.Consumer.
func (a *sender) Consume(ctx context.Context, b *burst.Burst) error {
	if a.o.OtherPort {
		for i := range b.Len() {
			b.SetConn(i, 0)
		}
	}
	switch {
	case a.o.Stream:
		a.takeEnds(b)
	case a.back && a.o.Frames: // datagrams carry the id of whom they came from
		a.turn(b)
	}
	err := a.send(ctx, b)
	if err != nil {
		a.drops[DropRefused].Add(uint64(b.Live())) // what is left
	}
	return err
}

// Close implements engine.Consumer. The transmit queue is the caller's.
func (a *sender) Close() error { return nil }

// turn makes frames answers to themselves, and takes out those that cannot be.
func (a *sender) turn(b *burst.Burst) {
	for i := range b.Len() {
		drop, ok := turn(b.Bytes(i, 0))
		if !ok && b.Take(a.refuse, i) {
			a.drops[drop].Inc()
		}
	}
	a.refuse.Release()
}

// takeEnds takes out the empty packets that say that a connection has ended: there is nothing to
// send for them.
func (a *sender) takeEnds(b *burst.Burst) {
	for i := range b.Len() {
		if b.Flags(i)&burst.Last != 0 && b.PacketLen(i) == 0 && b.Take(a.refuse, i) {
			a.taken.Inc()
		}
	}
	a.refuse.Release()
}

// errTorn is the end of a byte stream that could not be sent on as a whole.
var errTorn = errors.New("bytes of a stream found no room in the transmit queue, which others use too: what follows " +
	"would not be the stream any more")

// send sends the burst, and counts what finds no room: what a forwarder cannot send now it drops,
// because to wait would only move the loss to where it is not seen. Bytes of a stream wait.
func (a *sender) send(ctx context.Context, b *burst.Burst) error {
	live := b.Live()
	if live == 0 {
		return nil
	}
	if a.o.Stream {
		if err := a.room(ctx, live); err != nil {
			return err
		}
	}
	_, err := a.o.Tx.Forward(b)
	ready, bytes := b.Live(), b.TotalLen()
	reason := DropNoRoom
	switch {
	case err == nil || errors.Is(err, engine.ErrFull):
	case errors.Is(err, engine.ErrNoBuffers):
		reason = DropNoBuffers
	default:
		reason = DropRefused
	}
	a.drops[reason].Add(uint64(live - ready))
	switch {
	case reason == DropRefused:
		return err
	case a.o.Stream && ready < live:
		return errTorn
	case ready == 0:
		return nil
	}
	a.sent.Add(uint64(ready))
	a.sentBytes.Add(uint64(bytes))
	// What of it does not leave the queue counts by reason; a queue that is closed will not take
	// any more either.
	if err := a.o.Tx.Send(b); errors.Is(err, engine.ErrClosed) {
		return err
	}
	return nil
}

// room waits until the transmit queue has descriptors for n packets.
func (a *sender) room(ctx context.Context, n int) error {
	if a.o.Tx.Stats(&a.tx); a.tx.Queued+uint64(n) <= uint64(a.o.Depth) {
		return nil
	}
	return a.o.Tx.Drain(ctx)
}
