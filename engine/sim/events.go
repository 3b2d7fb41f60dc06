package sim

import (
	"sync"
	"time"
)

// event is a frame that arrives, or a call, at a time.
type event struct {
	at    int64 // ns since 1970
	wire  *wire // nil for a call
	seq   uint64
	from  *endpoint // who sent the frame
	frame []byte
	call  func()
}

// before orders events: by time, calls first, then by wire and by when they were added. Wires come
// before sequence numbers so that senders that run at the same time have no influence.
func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	a, b := -1, -1
	if e.wire != nil {
		a = e.wire.id
	}
	if o.wire != nil {
		b = o.wire.id
	}
	if a != b {
		return a < b
	}
	return e.seq < o.seq
}

// scheduler runs events in one goroutine, which exists while there are any, and for a moment
// longer.
type scheduler struct {
	net *Network

	mu     sync.Mutex
	heap   []event
	seq    uint64
	closed bool
	kick   chan struct{} // of the goroutine that runs: something comes before what it waits for; nil without one
	done   chan struct{} // closed when that goroutine has ended
	spare  [][]byte      // buffers for frames
}

// spareFrames is how many unused buffers are kept.
const spareFrames = 4096

// buffer returns a copy of frame.
func (s *scheduler) buffer(frame []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b []byte
	if n := len(s.spare); n > 0 {
		b = s.spare[n-1][:0]
		s.spare = s.spare[:n-1]
	}
	return append(b, frame...)
}

// add adds an event and reports whether it will come to pass: not after close.
func (s *scheduler) add(e event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.seq++
	e.seq = s.seq
	s.push(e)
	switch {
	case s.kick == nil:
		s.kick, s.done = make(chan struct{}, 1), make(chan struct{})
		go s.run(s.kick, s.done)
	case s.heap[0].seq == e.seq:
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	return true
}

func (s *scheduler) push(e event) {
	h := append(s.heap, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	s.heap = h
}

func (s *scheduler) pop() event {
	h := s.heap
	e := h[0]
	last := len(h) - 1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		k := 2*i + 1
		if k >= last {
			break
		}
		if k+1 < last && h[k+1].before(&h[k]) {
			k++
		}
		if !h[k].before(&h[i]) {
			break
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
	s.heap = h
	return e
}

// idle is how long the goroutine waits for the next event before it ends, so that it is not started
// again for each.
const idle = time.Second

// next returns what is due, or how long to wait. ok is false when the goroutine has to end, because
// there was nothing for long.
func (s *scheduler) next(rested bool) (e event, wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heap) == 0 {
		if s.closed || rested {
			s.kick = nil
			return e, 0, false
		}
		return e, idle, true
	}
	if wait = time.Duration(s.heap[0].at - time.Now().UnixNano()); wait > 0 {
		return e, wait, true
	}
	return s.pop(), 0, true
}

func (s *scheduler) run(kick, done chan struct{}) {
	defer close(done)
	var timer *time.Timer
	rested := false // the last wait was over with nothing to do
	for {
		e, wait, ok := s.next(rested)
		rested = false
		switch {
		case !ok:
			if timer != nil {
				timer.Stop()
			}
			return
		case wait > 0:
			if timer == nil {
				timer = time.NewTimer(wait)
			} else {
				timer.Reset(wait)
			}
			select {
			case <-timer.C:
				rested = true
			case <-kick:
			}
		case e.call != nil:
			e.call()
		default:
			e.wire.arrive(&e)
			s.mu.Lock()
			if len(s.spare) < spareFrames {
				s.spare = append(s.spare, e.frame)
			}
			s.mu.Unlock()
		}
	}
}

// close drops all events and waits for the goroutine.
func (s *scheduler) close() {
	s.net.mu.Lock() // the accounts change
	s.mu.Lock()
	s.closed = true
	for len(s.heap) > 0 {
		if e := s.pop(); e.wire != nil {
			e.wire.abandon()
		}
	}
	s.heap, s.spare = nil, nil
	running := s.kick != nil
	done := s.done
	if running {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
	s.net.mu.Unlock()
	if running {
		<-done
	}
}
