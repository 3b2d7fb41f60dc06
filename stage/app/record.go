package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/stage/record"
	"github.com/penstock-io/penstock/stage/reorder"
)

// RecordSnapshot is what is known of the files of a recording.
type RecordSnapshot struct {
	File    string            `json:"file,omitempty"` // that is being written
	Files   uint64            `json:"files"`          // that are whole
	Packets uint64            `json:"packets"`        // written
	Bytes   uint64            `json:"bytes"`          // likewise
	Lost    map[string]uint64 `json:"lost,omitempty"` // packets, by reason
	Error   string            `json:"error,omitempty"`
}

// recording writes packets to files, and hands them on to another consumer if there is one.
type recording struct {
	r    *record.Recorder
	raw  bool
	next engine.Consumer // nil: none
}

// dropOf is the reason of a loss.
var dropOf = [record.NumLosses]Drop{record.DiskSlow: DropDiskSlow, record.DiskFull: DropDiskFull,
	record.DiskError: DropDiskError, record.Unreadable: DropUnreadable}

func newRecording(o *Options, next engine.Consumer) (engine.Consumer, error) {
	to, raw := *o.Record, o.Record.Format == record.Raw
	to.Interface.Link = pcap.User0
	if o.Frames {
		to.Interface.Link = pcap.Ethernet
	}
	var err error
	if o.Stream && !raw {
		err = o.bad("format %s: a byte stream has no packets, which only the format %s can hold", to.Format, record.Raw)
	}
	c := &recording{raw: raw, next: next}
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
	b.Fetch()
	for i := range b.Len() {
		if !c.raw && reorder.Of(b, i) != nil {
			return fmt.Errorf("a batch of the stage reorder is no packet: record it with the format %s: %w", record.Raw,
				engine.ErrUnsupported)
		}
	}
	c.r.Add(b)
	if c.next != nil {
		return c.next.Consume(ctx, b)
	}
	return nil
}

// Close implements engine.Consumer.
func (c *recording) Close() error { return c.close(context.Background()) }

func (c *recording) close(ctx context.Context) error {
	err := c.r.Close()
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
	x := &RecordSnapshot{File: s.File, Files: s.Files, Packets: s.Packets, Bytes: s.Bytes}
	for l, n := range s.Lost {
		if n > 0 {
			if x.Lost == nil {
				x.Lost = map[string]uint64{}
			}
			x.Lost[record.Loss(l).String()] = n
		}
	}
	if s.Err != nil {
		x.Error = s.Err.Error()
	}
	out.Record = x
	if next, ok := c.next.(Reporter); ok {
		next.Report(out)
		return
	}
	out.Taken = s.Taken
	for l, n := range s.Lost {
		out.Drops[dropOf[l]] = n
	}
}
