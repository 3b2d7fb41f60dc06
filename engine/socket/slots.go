package socket

import (
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// slots are free slots of a receive queue's pool, of which the kernel fills the first ones. Their
// buffers lie somewhere else: set keeps those in step.
type slots struct {
	pool *mem.Pool
	src  *burst.Source
	all  []byte // of the pool's region
	size uint32 // of a slot, as far as it is used
	h    []mem.Handle
	have int // of h
	used int // of which the first are used or not: those that are used are NoHandle
	got  []mem.Handle
	set  func(i int, b []byte)
}

func newSlots(pool *mem.Pool, src *burst.Source, n int, set func(int, []byte)) slots {
	return slots{pool: pool, src: src, all: pool.Region().All().Bytes(), size: uint32(pool.SlotSize()),
		h: make([]mem.Handle, n), got: make([]mem.Handle, n), set: set}
}

// limit uses no more of each slot than that; 0 is all of it. It is called before the first fill.
func (s *slots) limit(bytes int) {
	if bytes > 0 && bytes < int(s.size) {
		s.size = uint32(bytes)
	}
}

// take takes slot i, which has been filled.
func (s *slots) take(i int) mem.Handle {
	h := s.h[i]
	s.h[i] = burst.NoHandle
	return h
}

// fill replaces what was taken of the first ones and adds more, up to as many as there is room for.
// It says how many there are.
func (s *slots) fill() int {
	holes := 0
	for _, h := range s.h[:s.used] {
		if h == burst.NoHandle {
			holes++
		}
	}
	n := s.have - holes
	if n == len(s.h) {
		s.used = 0
		return n
	}
	got := s.pool.GetBatch(s.got[:len(s.h)-n])
	for i := 0; i < s.used && i < s.have; i++ {
		switch {
		case s.h[i] != burst.NoHandle:
		case got > 0:
			got--
			s.put(i, s.got[got])
		default: // there were fewer than holes: the last one fills it
			s.have--
			for s.have > i && s.h[s.have] == burst.NoHandle {
				s.have--
			}
			if s.have > i {
				s.put(i, s.h[s.have])
				s.h[s.have] = burst.NoHandle
			}
		}
	}
	for got > 0 {
		got--
		s.put(s.have, s.got[got])
		s.have++
	}
	s.used = 0
	return s.have
}

func (s *slots) put(i int, h mem.Handle) {
	s.h[i] = h
	off := s.pool.Offset(h)
	s.set(i, s.all[off:off+uint64(s.size):off+uint64(s.size)])
}

// close gives all back.
func (s *slots) close() {
	n := 0
	for _, h := range s.h[:s.have] {
		if h != burst.NoHandle {
			s.h[n] = h
			n++
		}
	}
	s.pool.PutBatch(s.h[:n])
	s.have, s.used = 0, 0
}

// readable asks the kernel whether a descriptor has something now.
func readable(fd int) bool {
	i, err := sys.PollIn(0, fd)
	return i == 0 || err != nil
}
