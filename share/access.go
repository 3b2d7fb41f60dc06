package share

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/transfer"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/identity"
)

// Access is a peer's reading or writing of one name, at its beginning or at its end
// (Options.OnAccess).
//
// Reads of all but small files (see the package) go one-sided into the peer's memory, so of a read
// this side knows what the reader says ([Fetch], [Stream] and [Mirror] do): Good, Path and Whole
// are its word. That it may read, the name, the size and that it is gone are this side's own
// knowledge, and of an upload all but Path.
type Access struct {
	Peer   *transfer.Peer
	Name   string // as the peer calls it
	Upload bool   // else it is a read
	Size   uint64 // of the whole, bytes
	From   uint64 // bytes from the beginning that an earlier attempt had left
	Good   uint64 // bytes from the beginning that are in place now, as far as is known
	Path   string // that the bytes took, such as "tcp"; "" if it is not known, or nothing had to be moved
	Begun  time.Time
	Ended  bool  // else it begins
	Whole  bool  // it ended with all bytes in place and verified
	Err    error // why it ended without; nil unless Ended
}

// ErrGaveUp means that a peer ended an upload or a read of its own accord before it was whole.
var ErrGaveUp = errors.New("share: the peer gave up")

// ReadSnapshot is a read under way.
type ReadSnapshot struct {
	Peer string `json:"peer"`
	Name string `json:"name"`
	Size uint64 `json:"size"` // bytes
	Good uint64 `json:"good"` // bytes from the beginning that the peer says it has
}

// accesses are what peers do with a Server's files.
type accesses struct {
	mu      sync.Mutex // guards what follows
	reads   map[*transfer.Peer]map[uint64]*access
	n       int // under way, uploads included
	ended   accounts
	changed chan struct{} // closed and replaced when n gets smaller
}

// access is one under way.
type access struct {
	Access               // Good and Path are guarded by the mutex of accesses while it is in reads
	begun  chan struct{} // closed when OnAccess has returned from its beginning
}

// maxReads bounds what is kept of one peer that begins to read and never ends.
const maxReads = 1024

// Readers say what they do by calls to the service "share/read/1", on the session that they read
// over. Numbers are big-endian; the answers are empty.
//
//	begin  1, id u64 of the reader's choice, from u64 bytes that it has already, name (the rest)
//	so far 2, id u64, good u64 bytes from the beginning that it has
//	end    3, id u64, good u64, whole u8 (0 or 1), path (the rest): the read is over; whole: all is there, checked
const readService = "share/read/1"

const (
	opReadBegin = 1
	opReadSoFar = 2
	opReadEnd   = 3

	// maxVia is the longest name of a path in bytes.
	maxVia = 32
)

type readRequest struct {
	op    byte
	id    uint64
	good  uint64
	whole bool
	text  string // a name or a path
}

func (r *readRequest) append(b []byte) []byte {
	b = append(b, r.op)
	b = binary.BigEndian.AppendUint64(b, r.id)
	b = binary.BigEndian.AppendUint64(b, r.good)
	if r.op == opReadEnd {
		whole := byte(0)
		if r.whole {
			whole = 1
		}
		b = append(b, whole)
	}
	return append(b, r.text...)
}

func parseRead(b []byte) (r readRequest, err error) {
	in := fieldsOf(b)
	r.op, r.id, r.good = in.byte(), in.num(8), in.num(8)
	least, most := 0, 0
	switch r.op {
	case opReadBegin:
		least, most = 1, MaxName
	case opReadSoFar:
	case opReadEnd:
		r.whole, most = in.flag(), maxVia
	default:
		in.expect(false)
	}
	r.text = in.rest(least, most)
	return r, in.err("read report")
}

// read answers a reader's call.
func (s *Server) read(_ context.Context, p *transfer.Peer, b []byte) ([]byte, error) {
	r, err := parseRead(b)
	if err != nil {
		return nil, err
	}
	if r.op == opReadBegin {
		return nil, s.readBegins(p, r)
	}
	s.access.mu.Lock()
	x := s.access.reads[p][r.id]
	switch {
	case x == nil, r.good > x.Size, r.good < x.Good, r.whole && r.good < x.Size:
		s.access.mu.Unlock()
		return nil, control.Errorf(control.BadRequest, "no such read, or one that is not at %d bytes", r.good)
	case r.op == opReadSoFar:
		x.Good = r.good
		s.access.mu.Unlock()
		return nil, nil
	}
	delete(s.access.reads[p], r.id)
	x.Good, x.Path = r.good, r.text
	s.access.mu.Unlock()
	err = nil
	if !r.whole {
		err = ErrGaveUp
	}
	s.ends(x, err)
	return nil, nil
}

func (s *Server) readBegins(p *transfer.Peer, r readRequest) error {
	if err := p.Require(identity.Read); err != nil {
		return err
	}
	size, ok := s.sizeOf(r.text)
	if !ok || r.good > size {
		return control.Errorf(control.NotFound, "nothing of that name and size is served")
	}
	x := newAccess(Access{Peer: p, Name: r.text, Size: size, From: r.good, Good: r.good})
	a := &s.access
	a.mu.Lock()
	own, known := a.reads[p]
	switch {
	case s.ctx.Err() != nil:
		a.mu.Unlock()
		return control.Errorf(control.Shutdown, "this share is closed")
	case len(own) >= maxReads:
		a.mu.Unlock()
		return control.Errorf(control.Busy, "%d reads of yours have begun and not ended", maxReads)
	case own[r.id] != nil:
		a.mu.Unlock()
		return control.Errorf(control.BadRequest, "a read with this id has begun already")
	case !known:
		own = map[uint64]*access{}
		a.reads[p] = own
		s.wg.Go(func() { s.watchReads(p) })
	}
	own[r.id] = x
	a.mu.Unlock()
	s.begins(x)
	return nil
}

// readWhole counts a read of which only the end is said.
func (s *Server) readWhole(p *transfer.Peer, name string, size uint64, via string) {
	x := newAccess(Access{Peer: p, Name: name, Size: size})
	s.begins(x)
	x.Good, x.Path = size, via
	s.ends(x, nil)
}

// watchReads ends the reads of a peer when it is gone, or the share is closed.
func (s *Server) watchReads(p *transfer.Peer) {
	var err error
	select {
	case <-p.Gone():
		err = p.Err()
	case <-s.ctx.Done():
		err = ErrClosed
	}
	s.access.mu.Lock()
	var left []*access
	for _, x := range s.access.reads[p] {
		left = append(left, x)
	}
	delete(s.access.reads, p) // one that begins late is watched again, and ends at once
	s.access.mu.Unlock()
	slices.SortFunc(left, func(a, b *access) int { return strings.Compare(a.Name, b.Name) })
	for _, x := range left {
		s.ends(x, err)
	}
}

func newAccess(a Access) *access {
	a.Begun = time.Now()
	return &access{a, make(chan struct{})}
}

// begins counts one and reports the beginning to OnAccess.
func (s *Server) begins(x *access) {
	s.access.mu.Lock()
	s.access.n++
	a := x.Access
	s.access.mu.Unlock()
	if s.o.OnAccess != nil {
		a.Good = a.From
		s.o.OnAccess(a)
	}
	close(x.begun)
}

// ends counts one and reports the end to OnAccess, after the beginning. No other goroutine has x
// any more.
func (s *Server) ends(x *access, err error) {
	<-x.begun
	x.Ended, x.Whole, x.Err = true, err == nil, err
	a := &s.access
	a.mu.Lock()
	a.ended.enter(accountOf(x.Peer), &x.Access)
	a.mu.Unlock()
	if s.o.OnAccess != nil {
		s.o.OnAccess(x.Access)
	}
	a.mu.Lock()
	a.n--
	close(a.changed)
	a.changed = make(chan struct{})
	a.mu.Unlock()
}

// UnderWay is how many reads and uploads have begun and not ended, and a channel that is closed
// when one ends. Reads are only known with Options.OnAccess.
func (s *Server) UnderWay() (n int, changed <-chan struct{}) {
	s.access.mu.Lock()
	defer s.access.mu.Unlock()
	return s.access.n, s.access.changed
}

// sizeOf is the size of what is served under a name.
func (s *Server) sizeOf(name string) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.names[name]
	if !ok {
		return 0, false
	}
	return v.export.Span().Len, true
}

func (s *Server) readSnapshots() (out []ReadSnapshot) {
	s.access.mu.Lock()
	defer s.access.mu.Unlock()
	for p, own := range s.access.reads {
		for _, x := range own {
			out = append(out, ReadSnapshot{p.Name(), x.Name, x.Size, x.Good})
		}
	}
	slices.SortFunc(out, func(a, b ReadSnapshot) int {
		return strings.Compare(a.Name+"\x00"+a.Peer, b.Name+"\x00"+b.Peer)
	})
	return out
}
