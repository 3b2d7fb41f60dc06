package control

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What a peer has a session hold is bounded, and charged before it is held (Options.Charge): its
// requests until they are answered, the largest answer that each may get from when Next gives it,
// and what waits to be written. A request whose answer has no room waits; Next gives it when the
// peer has read what is before it. So each request that Next gave can be answered, and a peer that
// does not read gets no further answers made.

const (
	// Allowance is how much memory in bytes a session holds for its peer before it asks
	// Options.Charge.
	Allowance = 64 << 10
	// chargeStep is by how much what is charged changes.
	chargeStep = 64 << 10
	// answersRoom is the size of answers that wait to be written or are being made, beyond which no
	// further large one is begun; small ones have twice as much, so that the end of a path does not
	// wait behind lists.
	answersRoom = 576 << 10
	// smallAnswer is what an answer takes at most, the errors among them, if its method is not one
	// of answerSize.
	smallAnswer = HeaderSize + MinBody
	// serveMemory is what the owner takes for a request that it serves: a goroutine.
	serveMemory = 8 << 10
)

// asked is a request of the peer without an answer.
type asked struct {
	id     uint64
	held   int           // memory that is held for it
	answer int           // of it, that for its answer; 0: Next has not given the request
	since  time.Duration // when Next gave it
	waits  bool          // what serves it may wait for something else of the peer
}

// waiting is a request that Next has not given.
type waiting struct {
	*Request
	err error // there was no memory to keep its body
}

// answerSize is how many bytes the frame of the answer to a request may take.
func (s *Session) answerSize(m Method) int {
	switch m {
	case MethodOpenPath, MethodLookup, MethodOffer, MethodPathDown, MethodDigest, MethodEnd, MethodDelivered,
		MethodStage, MethodUnstage, MethodPlace, MethodFetch:
		return smallAnswer
	case MethodCall:
		return HeaderSize + min(responseOverhead+2+MaxCall, s.maxBody)
	}
	return HeaderSize + s.maxBody
}

// hold takes memory for the peer, or nothing with an error.
func (s *Session) hold(n int) error {
	if d := chargeFor(s.held+n) - s.charged; d > 0 {
		if s.opt.Charge != nil {
			if err := s.opt.Charge(d); err != nil {
				return err
			}
		}
		s.charged += d
	}
	s.held += n
	return nil
}

// release gives memory back.
func (s *Session) release(n int) {
	s.held -= n
	if d := chargeFor(s.held) - s.charged; d < 0 {
		if s.opt.Charge != nil {
			s.opt.Charge(d)
		}
		s.charged += d
	}
}

// chargeFor is what is charged for n bytes that are held.
func chargeFor(n int) int {
	return (max(n-Allowance, 0) + chargeStep - 1) / chargeStep * chargeStep
}

// Held is the memory in bytes that the session holds for its peer: requests, answers, and what
// waits to be written.
func (s *Session) Held() int { return s.held }

// find is where the request of the peer is in s.open.
func (s *Session) find(id uint64) (int, bool) {
	return slices.BinarySearchFunc(s.open, id, func(a asked, id uint64) int { return cmp.Compare(a.id, id) })
}

// ask takes a request of the peer. Its body aliases memory of the caller.
func (s *Session) ask(m *Request) {
	a, w := asked{id: m.ID}, waiting{Request: m}
	if w.err = s.hold(cost(m)); w.err != nil {
		m.Body = nil
	} else {
		m.Body = bytes.Clone(m.Body)
		a.held = cost(m)
	}
	s.open = append(s.open, a)
	s.waiting = append(s.waiting, w)
}

// owed is the size of the answers that wait to be written or are being made. A call or a copy that
// has been served for a heartbeat waits for something; while the peer reads all that it gets, the
// answers of such do not count, so that others may end what they wait for.
func (s *Session) owed() (n int) {
	if s.out.answers > 0 {
		n = s.out.answers + s.making
	} else if s.making > 0 {
		for _, a := range s.open {
			if !a.waits || s.now-a.since < s.every {
				n += a.answer
			}
		}
	}
	return n
}

// sizeFor is how much the answer to a request that waits may take.
func (s *Session) sizeFor(w waiting) int {
	if w.err != nil { // a refusal
		return smallAnswer
	}
	return s.answerSize(w.Method)
}

// hasRoom says whether an answer of that size may be made while others are owed.
func hasRoom(owed, size int) bool {
	room := answersRoom
	if size <= smallAnswer {
		room *= 2
	}
	return owed == 0 || owed+size <= room
}

// nextRequest is the first request of the peer whose answer has room. One for which there is no
// memory, and never will be by what the peer reads, is refused.
func (s *Session) nextRequest() (*Request, bool) {
	owed := s.owed()
	for i := 0; i < len(s.waiting); i++ {
		w := s.waiting[i]
		size := s.sizeFor(w)
		if !hasRoom(owed, size) {
			continue
		}
		at, _ := s.find(w.ID)
		a := &s.open[at]
		err := s.hold(size + serveMemory)
		if err != nil && (owed > 0 || s.hold(smallAnswer) != nil) {
			continue
		}
		if err != nil {
			size = smallAnswer
			if w.err == nil {
				w.err = err
			}
		} else {
			a.held += serveMemory
		}
		a.held += size
		a.answer, a.since, a.waits = size, s.now, w.Method == MethodCall || size <= smallAnswer
		s.making += size
		s.waiting = slices.Delete(s.waiting, i, i+1)
		if len(s.waiting) == 0 {
			s.waiting = nil
		}
		if w.err == nil {
			return w.Request, true
		}
		if s.state > Ready { // nothing may follow the goodbye
			s.close(at)
			owed, i = s.owed(), i-1
			continue
		}
		e := AsError(w.err)
		// cannot fail: an error is a small answer
		s.answer(at, &Response{ID: w.ID, Code: e.Code, Text: clip(e.Text, MaxText)})
		owed = s.owed()
		i--
	}
	return nil, false
}

// answer queues the answer to s.open[i], which Next gave.
func (s *Session) answer(i int, m *Response) error {
	b, n, err := s.frameOf(m)
	if err != nil {
		return err
	}
	if a := s.open[i]; n > a.answer {
		return fmt.Errorf("control: an answer of %d bytes, the method has at most %d: %w", n, a.answer, ErrTooLarge)
	}
	s.held += s.out.needs(b, n) // a part of what is given back now
	s.out.put(b, n, true)
	s.spoke = s.now - s.stalled
	s.told = true
	s.close(i)
	return nil
}

// close forgets s.open[i].
func (s *Session) close(i int) {
	a := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	s.making -= a.answer
	s.release(a.held)
}
