package replay

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/pcap"
	"github.com/penstock-io/penstock/packet/pcapread"
)

// Reasons for which a packet of a file is not sent.
const (
	SkipLink  = "of another link type"
	SkipTime  = "outside of the time"
	SkipLong  = "too long for the port"
	SkipShort = "shorter than an Ethernet header"
)

// ErrCut is wrapped by the error of a packet that is not whole in its file.
var ErrCut = errors.New("the file holds a part of the packet only")

// Source says which packets are sent, and when.
type Source struct {
	// Open opens the files, once for each round. Rounds is 0 for no end. The first packet of a
	// round is due with the last one of the round before.
	Open   func() (*pcapread.Merger, error)
	Rounds int
	// Live says that packets come as they are captured: nothing is read ahead before the start.
	Live bool

	Link pcap.Link // that the port sends
	Max  int       // length of the longest packet that the port takes
	// From and To are the times, of the file, of the first packet that is sent, and of the first
	// one that is not; they get the time of the first packet of the files. nil: no limit.
	From, To func(first int64) int64
	Pad      bool // fills up packets that are cut with zeros, instead of ErrCut
	Rewrite  *Rewrite

	// Packets go by the times of the file, Speed times as fast; by packets a second; or by bits a
	// second of packets as they lie in memory. None: as fast as the port takes them.
	Speed, PPS, Rate float64
}

func (o *Source) paced() bool { return o.Speed > 0 || o.PPS > 0 || o.Rate > 0 }

const (
	chunkSize = 1 << 20 // bytes
	chunks    = 16
)

// chunk is a number of packets that are ready to be sent.
type chunk struct {
	b    []byte
	recs []rec
	err  error // behind the packets; io.EOF at the end
}

// rec is a packet of a chunk.
type rec struct {
	due      int64 // nanoseconds behind the start
	hash     uint64
	off, len int
}

// source reads packets ahead of the sender.
type source struct {
	o          Source
	hash       bool
	free, full chan *chunk
	ready      chan struct{} // closed when there is enough to start with
	started    bool
	failed     error // before that
	cur        *chunk

	// Of the packets so far.
	first, begin, base, due int64 // times: of the files, of the first one sent, of the round, of the last one
	bits                    float64
	chosen                  uint64
	skipped                 map[string]uint64
	unread                  uint64
}

func newSource(o Source, hash bool) *source {
	s := &source{o: o, hash: hash, free: make(chan *chunk, chunks), full: make(chan *chunk, chunks),
		ready: make(chan struct{}), skipped: map[string]uint64{}}
	for range chunks {
		s.free <- &chunk{}
	}
	if s.started = o.Live; o.Live {
		close(s.ready)
	}
	return s
}

// run reads everything. The last chunk has the error.
func (s *source) run(ctx context.Context) {
	err := s.rounds(ctx)
	if !s.started && err != io.EOF {
		s.failed = err
	}
	if s.room(ctx, 0) {
		s.cur.err = err
		s.pass()
	}
	s.start()
}

func (s *source) start() {
	if !s.started {
		s.started = true
		close(s.ready)
	}
}

func (s *source) rounds(ctx context.Context) error {
	for round := 0; s.o.Rounds == 0 || round < s.o.Rounds; round++ {
		m, err := s.o.Open()
		if err != nil {
			return err
		}
		before := s.chosen
		s.base = s.due
		for n := 0; ; n++ {
			p, err := m.Next()
			if err == io.EOF {
				break
			}
			if err == nil {
				if n == 0 {
					s.first = p.Time
				}
				err = s.take(ctx, p, s.chosen == before)
			}
			if err != nil {
				return err
			}
		}
		if s.chosen == before {
			break // another round sends nothing either
		}
	}
	return io.EOF
}

// take puts a packet into the chunk, if it is to be sent.
func (s *source) take(ctx context.Context, p *pcapread.Packet, begins bool) error {
	o, n := &s.o, max(p.Length, len(p.Data))
	skip := ""
	switch {
	case p.Link != o.Link:
		skip = SkipLink
	case o.From != nil && p.Time < o.From(s.first), o.To != nil && p.Time >= o.To(s.first):
		skip = SkipTime
	case n > o.Max:
		skip = SkipLong
	case p.Link == pcap.Ethernet && len(p.Data) < packet.EthernetLen:
		skip = SkipShort
	case n > len(p.Data) && !o.Pad:
		return fmt.Errorf("%s: packet %d: %d bytes of %d: %w: capture with a longer snap length, or have it filled up "+
			"with zeros (--pad)", p.File, p.Number, len(p.Data), n, ErrCut)
	case o.Speed > 0 && !p.Timed:
		return fmt.Errorf("%s: packet %d has no time: replay it with --speed max, --pps or --rate", p.File, p.Number)
	}
	if skip != "" {
		s.skipped[skip]++
		return nil
	}
	if begins {
		s.begin = p.Time
	}
	if !s.room(ctx, n) {
		return context.Cause(ctx)
	}
	c := s.cur
	at := len(c.b)
	c.b = c.b[:at+n]
	b := c.b[at:]
	clear(b[copy(b, p.Data):])
	if o.Rewrite != nil && !o.Rewrite.apply(b) {
		s.unread++
	}
	switch {
	case o.Speed > 0:
		s.due = max(s.due, s.base+int64(float64(p.Time-s.begin)/o.Speed))
	case o.PPS > 0:
		s.due = int64(float64(s.chosen) * (1e9 / o.PPS))
	case o.Rate > 0:
		s.due = int64(s.bits * (1e9 / o.Rate))
		s.bits += 8 * float64(n)
	}
	s.chosen++
	r := rec{due: s.due, off: at, len: n}
	if s.hash {
		r.hash = hashOf(b)
	}
	c.recs = append(c.recs, r)
	if s.started && len(s.full) == 0 {
		s.pass() // the sender has nothing else
	}
	return nil
}

// room has a chunk with room for a packet. It reports false when the context has ended.
func (s *source) room(ctx context.Context, n int) bool {
	if s.cur != nil && len(s.cur.b)+n > chunkSize {
		s.pass()
	}
	if s.cur == nil {
		if len(s.free) == 0 {
			s.start()
		}
		select {
		case s.cur = <-s.free:
			if s.cur.b == nil {
				s.cur.b = make([]byte, 0, chunkSize)
			}
			s.cur.b, s.cur.recs, s.cur.err = s.cur.b[:0], s.cur.recs[:0], nil
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// pass hands the chunk on. There is room: a chunk is in one place.
func (s *source) pass() {
	s.full <- s.cur
	s.cur = nil
}

var seed = maphash.MakeSeed()

const least = 60 // bytes of a frame on an Ethernet, without its check sequence

// hashOf is the hash by which a packet is known.
func hashOf(b []byte) uint64 {
	if len(b) < least {
		var filled [least]byte
		copy(filled[:], b)
		return maphash.Bytes(seed, filled[:])
	}
	return maphash.Bytes(seed, b)
}
