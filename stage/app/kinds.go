package app

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
)

// Kind is the word that says what an App does.
type Kind string

// The kinds of this package, by the words of a configuration.
const (
	Count   Kind = "count"   // counts and releases
	Echo    Kind = "echo"    // sends back where it came from
	Forward Kind = "forward" // sends out of another port
	Sink    Kind = "sink"    // takes everything, into a tensor if there is one
)

// Constructor makes what an App does with packets, of its Options, which are complete. A consumer
// that is no Reporter has taken all packets of a Consume that returns nil.
type Constructor func(o *Options) (engine.Consumer, error)

// Kinds are the constructors of this package by their words. A program adds its own, and hands all
// to New:
//
//	kinds := app.Kinds()
//	kinds["tee"] = newTee
//	a, err := app.New(app.Options{Kind: "tee", Kinds: kinds, ...})
func Kinds() map[Kind]Constructor {
	return map[Kind]Constructor{
		Count:   newDiscard,
		Echo:    func(o *Options) (engine.Consumer, error) { return newSender(o, true) },
		Forward: func(o *Options) (engine.Consumer, error) { return newSender(o, false) },
		Sink:    newTaker,
	}
}

// Reporter is a consumer that says what became of the packets that it got.
type Reporter interface {
	// Report fills Sent, SentBytes, Taken, Drops, Tensor and Record of s. Any goroutine may call
	// it, at any time.
	Report(s *Snapshot)
}

// bad is an error of Options.
func (o *Options) bad(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), engine.ErrInvalid)
}

// discard takes packets and gives them back.
type discard struct{}

func newDiscard(o *Options) (engine.Consumer, error) {
	switch {
	case o.Tx != nil:
		return nil, o.bad("%s has a transmit queue: it sends nothing", o.Kind)
	case o.Tensor != nil:
		return nil, o.bad("%s has a tensor: it keeps nothing", o.Kind)
	case o.Record != nil:
		return nil, o.bad("%s has a record: it keeps nothing", o.Kind)
	}
	return discard{}, nil
}

// newTaker makes a sink: with a tensor, a recording, both or neither.
func newTaker(o *Options) (engine.Consumer, error) {
	if o.Tx != nil || o.Tensor == nil && o.Record == nil {
		return newDiscard(o)
	}
	var to engine.Consumer
	var err error
	if o.Tensor != nil {
		if to, err = newSink(*o.Tensor, o.Frames, o.Stream); err != nil {
			return nil, err
		}
	}
	if o.Record == nil {
		return to, nil
	}
	return newRecording(o, to)
}

// Consume implements engine.Consumer: the caller releases what is left in the burst.
func (discard) Consume(context.Context, *burst.Burst) error { return nil }

// Close implements engine.Consumer.
func (discard) Close() error { return nil }
