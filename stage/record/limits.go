package record

import (
	"io"
)

// Limits are what ends a recording before Close, and where it goes instead of a file. The zero
// value has none.
type Limits struct {
	// SnapLen is how many bytes of each packet are recorded; 0: all, up to pcap.SnapLen.
	SnapLen int
	// The recording ends behind Count packets, and behind Files files; 0: it does not.
	Count, Files uint64
	// KeepFiles is how many whole files of the name stay, those of earlier runs included: the
	// recorder removes the oldest. 0: all stay.
	KeepFiles int
	// To, unless it is nil, gets what a file would, burst by burst. Name is what errors call it
	// then.
	To io.Writer
	// Ended is called once when the recording has ended, or To has failed, which is its error then.
	// It must not block, and calls no method of the Recorder.
	Ended func(error)
}

// finish ends the recording. The caller holds mu.
func (r *Recorder) finish(err error) {
	if !r.ended {
		r.ended = true
		if r.o.Ended != nil {
			r.o.Ended(err)
		}
	}
}

// file is what a recording is written to: an *os.File or a stream.
type file interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Name() string
}

// stream is Limits.To. Its writes follow each other.
type stream struct {
	r *Recorder
}

func (s stream) WriteAt(b []byte, _ int64) (int, error) {
	n, err := s.r.o.To.Write(b)
	if err != nil {
		s.r.mu.Lock()
		s.r.finish(err)
		s.r.mu.Unlock()
	}
	return n, err
}

func (stream) Truncate(int64) error { return nil }
func (stream) Close() error         { return nil }
func (s stream) Name() string       { return s.r.o.Name }
