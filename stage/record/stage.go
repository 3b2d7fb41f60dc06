package record

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/metrics"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/pcap"
)

// Kind is the stage for files, whose Options package system makes: see docs/record.md.
var Kind = engine.StageKind{Name: "record", Doc: "writes what passes to files; what is behind it gets the same bytes",
	Open: OpenStage}

// A Stage records what passes.
type Stage struct {
	from engine.Receiver
	r    *Recorder

	packets, bytes metrics.Counter
}

// OpenStage makes a Stage, with Options in spec. It sets Options.Interface.Link.
func OpenStage(from engine.Receiver, spec engine.StageSpec) (engine.Stage, error) {
	o, err := engine.Given[Options](spec.Options)
	if err == nil {
		err = o.Of(spec.Port.Frames, spec.Port.Stream)
	}
	if err != nil {
		return nil, fmt.Errorf("record: queue %q: %w", spec.Queue, err)
	}
	r, err := New(o)
	if err != nil {
		return nil, err
	}
	return &Stage{from: from, r: r}, nil
}

// Of says what the packets are, and fails where the format cannot hold them.
func (o *Options) Of(frames, stream bool) error {
	o.Interface.Link = LinkOf(frames)
	if stream && o.Format != Raw {
		return fmt.Errorf("format %s: a byte stream has no packets, which only the format %s can hold: %w", o.Format,
			Raw, engine.ErrInvalid)
	}
	return nil
}

// LinkOf is the link type of recorded packets: frames, or datagrams without headers.
func LinkOf(frames bool) pcap.Link {
	if frames {
		return pcap.Ethernet
	}
	return pcap.User0
}

// Recorder writes the files. Close closes it.
func (s *Stage) Recorder() *Recorder { return s.r }

// TryRecv implements engine.Receiver.
func (s *Stage) TryRecv(b *burst.Burst) (int, error) {
	if b == nil {
		return 0, engine.ErrNil
	}
	had := b.Len()
	n, err := s.from.TryRecv(b)
	if n > 0 {
		s.r.AddFrom(b, had)
		s.packets.Add(uint64(n))
		s.bytes.Add(uint64(b.Builder().LenFrom(had)))
	}
	return n, err
}

// Arm implements engine.Receiver.
func (s *Stage) Arm(w *engine.Waker) (ready bool) { return s.from.Arm(w) }

// Stats implements engine.Stage. What passes is not copied. Copied are bytes of the file that a
// device copied.
func (s *Stage) Stats(out *engine.RxStats) {
	*out = engine.RxStats{Packets: s.packets.Load(), Bytes: s.bytes.Load(), Copied: s.r.Stats().Bounced}
}

// Counts implements engine.StageCounter.
func (s *Stage) Counts() []engine.Count {
	x := s.r.Stats()
	out := []engine.Count{{Name: "written", N: x.Packets}, {Name: "files", N: x.Files},
		{Name: "filtered", N: x.Filtered}}
	for l, n := range x.Lost {
		out = append(out, engine.Count{Name: Loss(l).String(), N: n})
	}
	return out
}

// Close implements engine.Stage. It waits CloseLimit at most for the disk.
func (s *Stage) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), CloseLimit)
	defer cancel()
	return s.r.Close(ctx)
}
