package app

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/stage/record"
)

// recording writes packets to files, and hands them on to another consumer if there is one.
type recording struct {
	r    *record.Recorder
	next engine.Consumer // nil: none
}

// dropOf is the reason of a loss.
var dropOf = [record.NumLosses]Drop{record.DiskSlow: DropDiskSlow, record.DiskFull: DropDiskFull,
	record.DiskError: DropDiskError, record.Unreadable: DropUnreadable}

func newRecording(o *Options, next engine.Consumer) (engine.Consumer, error) {
	to, c := *o.Record, &recording{next: next}
	err := to.Of(o.Frames, o.Stream)
	if err == nil {
		c.r, err = record.New(to)
	}
	if err != nil {
		if next != nil {
			err = errors.Join(err, next.Close())
		}
		return nil, err
	}
	return c, nil
}

// Consume implements engine.Consumer.
func (c *recording) Consume(ctx context.Context, b *burst.Burst) error {
	c.r.Add(b)
	if c.next != nil {
		return c.next.Consume(ctx, b)
	}
	return nil
}

// Close implements engine.Consumer. It waits record.CloseLimit at most for the disk.
func (c *recording) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), record.CloseLimit)
	defer cancel()
	return c.close(ctx)
}

func (c *recording) close(ctx context.Context) error {
	err := c.r.Close(ctx)
	switch next := c.next.(type) {
	case nil:
	case *sink:
		err = errors.Join(err, next.close(ctx))
	default:
		err = errors.Join(err, next.Close())
	}
	return err
}

// Report implements Reporter.
func (c *recording) Report(out *Snapshot) {
	s := c.r.Stats()
	out.Record = s.Snapshot()
	if next, ok := c.next.(Reporter); ok {
		next.Report(out)
		return
	}
	out.Taken = s.Taken + s.Filtered + s.Beyond
	for l, n := range s.Lost {
		out.Drops[dropOf[l]] = n
	}
}

// Recorder is what a Sink records with, nil if it does not.
func (a *App) Recorder() *record.Recorder {
	if c, ok := a.consumer.(*recording); ok {
		return c.r
	}
	return nil
}
