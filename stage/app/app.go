package app

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/record"
)

// Receiver is where packets come from: *engine.Rx and *engine.Polled.
type Receiver interface {
	Recv(ctx context.Context, b *burst.Burst) error
}

// Options say what an App does. Name, Kind and Rx are required.
type Options struct {
	Name  string // for messages and counts
	Kind  Kind
	Kinds map[Kind]Constructor // that there are; nil: Kinds()
	Rx    Receiver
	// Frames says that packets are whole Ethernet frames, and Stream that they are pieces of byte
	// streams: engine.Capabilities of the port.
	Frames, Stream bool
	Burst          int // packets of a burst at most; 0 means 256
	Core           int // the processor to stay on, counted from 0 among those that the process may use; -1 for any

	// Tx is where Echo and Forward send; the caller closes it. Depth is the number of its
	// descriptors, 0 for 1024: with a Stream the App waits for them instead of dropping.
	Tx    engine.TxQueue
	Depth int
	// OtherPort says that Tx is of another port than Rx, so that connection ids mean nothing to it.
	OtherPort bool

	// Of a Sink; without both, packets are taken and given back. With both, Record has the packets
	// that come, and the counts of the App are those of the tensor.
	Tensor *Tensor
	Record *record.Options // Interface.Link is the App's
}

// maxBurst bounds Options.Burst.
const maxBurst = 1 << 16

// App is an application: see New. Run is called once; Snapshot by any goroutine at any time.
type App struct {
	o        Options
	in       *burst.Burst
	consumer engine.Consumer
	reports  Reporter // the same, nil if it does not say what becomes of packets: own counts it then
	c        counts
	own      outcome
}

// New makes an App. The caller closes it; with a Tensor it holds memory from now on.
func New(o Options) (*App, error) {
	bad := func(format string, args ...any) (*App, error) {
		return nil, fmt.Errorf("application %q: %s: %w", o.Name, fmt.Sprintf(format, args...), engine.ErrInvalid)
	}
	kinds := o.Kinds
	if kinds == nil {
		kinds = Kinds()
	}
	switch open := kinds[o.Kind]; {
	case open == nil:
		return bad("kind %q: expected one of %v", o.Kind, slices.Sorted(maps.Keys(kinds)))
	case o.Rx == nil:
		return bad("it has nothing to receive from")
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
	if o.Stream && o.Tx != nil {
		o.Burst = min(o.Burst, o.Depth) // it must find room as a whole
	}
	a := &App{o: o, in: burst.NewSegmented(o.Burst, segmentsOf(o.Burst))}
	var err error
	if a.consumer, err = kinds[o.Kind](&o); err != nil {
		return nil, fmt.Errorf("application %q: %w", o.Name, err)
	}
	a.reports, _ = a.consumer.(Reporter)
	return a, nil
}

// segmentsOf is the room in segments of bursts of so many packets.
func segmentsOf(packets int) int { return 2*packets + burst.MaxSegments }

// Name is the application's name.
func (a *App) Name() string { return a.o.Name }

// Run does the work until the context ends, which is no error, or the receiver or the transmit
// queue does, which is. What was received by then is dealt with. Everything that it holds it gives
// back.
func (a *App) Run(ctx context.Context) (err error) {
	defer func() {
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
	return engine.Consume(ctx, a.o.Rx, a.in, counting{a})
}

// counting counts what an App's consumer gets.
type counting struct{ *App }

func (a counting) Consume(ctx context.Context, b *burst.Burst) error {
	a.c.received(b)
	n := uint64(b.Len())
	err := a.consumer.Consume(ctx, b)
	switch {
	case a.reports != nil:
	case err != nil:
		a.own.drops[DropRefused].Add(n)
	default:
		a.own.taken.Add(n)
	}
	return err
}

func (a counting) Close() error { return a.consumer.Close() }

// Close closes the consumer: that of a tensor takes it away from the peers and gives its memory
// back. Run has returned by then. When the context ends first, the memory goes when the last peer
// has let go of it.
func (a *App) Close(ctx context.Context) error {
	if s, ok := a.consumer.(interface{ close(context.Context) error }); ok {
		return s.close(ctx)
	}
	return a.consumer.Close()
}
