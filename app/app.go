package app

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/penstock-io/penstock/burst"
	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
)

// Kind is what an App does.
type Kind string

// The kinds, by the words of a configuration.
const (
	Count   Kind = "count"   // counts and releases
	Echo    Kind = "echo"    // sends back where it came from
	Forward Kind = "forward" // sends out of another port
	Sink    Kind = "sink"    // takes everything, into a tensor if there is one
)

// Receiver is where packets come from: *engine.Rx and *engine.Polled.
type Receiver interface {
	Recv(ctx context.Context, b *burst.Burst) error
}

// Options say what an App does. Name, Kind and Rx are required.
type Options struct {
	Name string // for messages and counts
	Kind Kind
	Rx   Receiver
	// Frames says that packets are whole Ethernet frames, and Stream that they are pieces of byte streams: engine.Capabilities of
	// the port.
	Frames, Stream bool
	Burst          int // packets of a burst at most; 0 means 256
	Core           int // the processor to stay on, counted from 0 among those that the process may use; -1 for any

	// Tx is where Echo and Forward send; it belongs to somebody else. Depth is the number of its descriptors, 0 for 1024: with a Stream the
	// App waits for them instead of dropping.
	Tx    engine.TxQueue
	Depth int
	// OtherPort says that Tx is of another port than Rx, so that connection ids mean nothing to it.
	OtherPort bool

	Tensor *Tensor // of a Sink; nil: packets are taken and given back
}

// maxBurst bounds Options.Burst.
const maxBurst = 1 << 16

// App is an application: see New. Run is called once; Snapshot by any goroutine at any time.
type App struct {
	o      Options
	in     *burst.Burst
	refuse *burst.Burst   // packets that are taken out of in, to be released
	sink   *sink          // nil: none
	tx     engine.TxStats // for room
	c      counts
}

// New makes an App. The caller closes it; with a Tensor it holds memory from now on.
func New(o Options) (*App, error) {
	bad := func(format string, args ...any) (*App, error) {
		return nil, fmt.Errorf("application %q: %s: %w", o.Name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	sends := o.Kind == Echo || o.Kind == Forward
	switch {
	case o.Kind != Count && o.Kind != Sink && !sends:
		return bad("kind %q: expected count, echo, forward or sink", o.Kind)
	case o.Rx == nil:
		return bad("it has nothing to receive from")
	case sends && o.Tx == nil:
		return bad("%s has no transmit queue", o.Kind)
	case !sends && o.Tx != nil:
		return bad("%s has a transmit queue: it sends nothing", o.Kind)
	case o.Kind != Sink && o.Tensor != nil:
		return bad("%s has a tensor: it keeps nothing", o.Kind)
	case o.Burst < 0 || o.Burst > maxBurst:
		return bad("bursts of %d packets: expected 1 to %d", o.Burst, maxBurst)
	case o.Depth < 0:
		return bad("a transmit queue of %d descriptors", o.Depth)
	}
	if o.Burst == 0 {
		o.Burst = 256
	}
	if o.Depth == 0 {
		o.Depth = 1024
	}
	if o.Stream && sends {
		o.Burst = min(o.Burst, o.Depth) // it must find room as a whole
	}
	segments := 2*o.Burst + burst.MaxSegments
	a := &App{o: o, in: burst.NewSegmented(o.Burst, segments), refuse: burst.NewSegmented(o.Burst, segments)}
	if o.Tensor != nil {
		var err error
		if a.sink, err = newSink(*o.Tensor, o.Frames, o.Stream, &a.c); err != nil {
			return nil, fmt.Errorf("application %q: %w", o.Name, err)
		}
	}
	return a, nil
}

// Name is the application's name.
func (a *App) Name() string { return a.o.Name }

// Run does the work until the context ends, which is no error, or the receiver or the transmit queue does, which is. What was received by
// then is dealt with. Everything that it holds it gives back.
func (a *App) Run(ctx context.Context) (err error) {
	defer func() {
		a.in.Release()
		a.refuse.Release()
		if err != nil && ctx.Err() != nil {
			err = nil
		} else if err != nil {
			err = fmt.Errorf("application %q: %w", a.o.Name, err)
		}
	}()
	if a.o.Core >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := sys.PinThread(a.o.Core); err != nil {
			return fmt.Errorf("core %d: %w", a.o.Core, err)
		}
		defer sys.UnpinThread()
	}
	for {
		ended := a.o.Rx.Recv(ctx, a.in)
		if a.in.Len() > 0 {
			if err := a.handle(ctx); err != nil {
				return err
			}
		}
		if ended != nil {
			return ended
		}
	}
}

// handle deals with the burst, and leaves it empty.
func (a *App) handle(ctx context.Context) error {
	a.c.received(a.in)
	switch a.o.Kind {
	case Echo:
		a.turn()
		return a.send(ctx)
	case Forward:
		if a.o.OtherPort {
			for i := range a.in.Len() {
				a.in.SetConn(i, 0)
			}
		}
		if a.o.Stream {
			a.takeEnds()
		}
		return a.send(ctx)
	}
	if a.sink != nil {
		if err := a.sink.handle(ctx, a.in); err != nil {
			a.in.Release()
			return err
		}
	} else {
		a.c.taken.Add(uint64(a.in.Len()))
	}
	a.in.Release()
	return nil
}

// turn makes the packets answers to themselves, and takes out those that cannot be.
func (a *App) turn() {
	if a.o.Stream {
		a.takeEnds()
		return
	}
	if !a.o.Frames {
		return // each carries the id of whom it came from
	}
	for i := range a.in.Len() {
		drop, ok := turn(a.in.Bytes(i, 0))
		if !ok && a.in.Take(a.refuse, i) {
			a.c.drops[drop].Inc()
		}
	}
	a.refuse.Release()
}

// takeEnds takes out the empty packets that say that a connection has ended: there is nothing to send for them.
func (a *App) takeEnds() {
	for i := range a.in.Len() {
		if a.in.Flags(i)&burst.Last != 0 && a.in.PacketLen(i) == 0 && a.in.Take(a.refuse, i) {
			a.c.taken.Inc()
		}
	}
	a.refuse.Release()
}

// errTorn is the end of a byte stream that could not be sent on as a whole.
var errTorn = errors.New("bytes of a stream found no room in the transmit queue, which others use too: what follows would not be the stream any more")

// send sends the burst, and counts what finds no room: what a forwarder cannot send now it drops, because to wait would only move
// the loss to where it is not seen. Bytes of a stream wait.
func (a *App) send(ctx context.Context) error {
	live := a.in.Live()
	if live == 0 {
		a.in.Release()
		return nil
	}
	if a.o.Stream {
		if err := a.room(ctx, live); err != nil {
			return err
		}
	}
	_, err := a.o.Tx.Forward(a.in)
	ready, bytes := a.in.Live(), a.in.TotalLen()
	reason := DropNoRoom
	switch {
	case err == nil || errors.Is(err, engine.ErrFull):
	case errors.Is(err, engine.ErrNoBuffers):
		reason = DropNoBuffers
	default:
		reason = DropRefused
	}
	a.c.drops[reason].Add(uint64(live - ready))
	if reason == DropRefused {
		a.in.Release()
		a.c.drops[reason].Add(uint64(ready))
		return err
	}
	if a.o.Stream && ready < live {
		return errTorn
	}
	if ready == 0 {
		a.in.Release()
		return nil
	}
	a.c.sent.Add(uint64(ready))
	a.c.sentBytes.Add(uint64(bytes))
	// What of it does not leave the queue counts by reason; a queue that is closed will not take any more either.
	if err := a.o.Tx.Send(a.in); errors.Is(err, engine.ErrClosed) {
		return err
	}
	return nil
}

// room waits until the transmit queue has descriptors for n packets.
func (a *App) room(ctx context.Context, n int) error {
	if a.o.Tx.Stats(&a.tx); a.tx.Queued+uint64(n) <= uint64(a.o.Depth) {
		return nil
	}
	return a.o.Tx.Drain(ctx)
}

// Close takes the tensor away from the peers, if there is one, and gives its memory back. Run has returned by then. When the context ends
// first, the memory goes when the last peer has let go of it.
func (a *App) Close(ctx context.Context) error {
	if a.sink == nil {
		return nil
	}
	return a.sink.close(ctx)
}
