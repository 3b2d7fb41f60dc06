package control

import "fmt"

// outgoing is what waits to be written, in pieces that never move. A piece is a whole number of
// frames.
type outgoing struct {
	pieces  []piece
	sent    int // bytes of the first piece that are written
	size    int // bytes of all pieces
	answers int // of them, those of answers
	memory  int // capacity of all pieces
}

type piece struct {
	b       []byte
	answers int
}

// pieceSize is the smallest capacity of a piece.
const pieceSize = 4 << 10

// first is the part of the first piece that is not written.
func (o *outgoing) first() []byte {
	if len(o.pieces) == 0 {
		return nil
	}
	return o.pieces[0].b[o.sent:]
}

// last is the last piece if a small frame may fit behind it.
func (o *outgoing) last() []byte {
	if n := len(o.pieces); n > 0 {
		if b := o.pieces[n-1].b; cap(b)-len(b) > HeaderSize {
			return b
		}
	}
	return nil
}

// needs is the memory that put takes.
func (o *outgoing) needs(b []byte, frame int) int {
	if cap(b) == cap(o.last()) { // it is the last piece
		return 0
	}
	return max(frame, pieceSize) - cap(o.kept())
}

// kept is the empty piece that an idle session keeps.
func (o *outgoing) kept() []byte {
	if len(o.pieces) == 1 && len(o.pieces[0].b) == 0 {
		return o.pieces[0].b
	}
	return nil
}

// put adds the last bytes of b, a frame: b is the last piece and the frame, in the memory of that
// piece where there is room.
func (o *outgoing) put(b []byte, frame int, answer bool) {
	if cap(b) == cap(o.last()) {
		o.pieces[len(o.pieces)-1].b = b
	} else {
		o.memory += o.needs(b, frame)
		if o.kept() != nil {
			o.pieces = o.pieces[:0]
		}
		o.pieces = append(o.pieces, piece{b: append(make([]byte, 0, max(frame, pieceSize)), b[len(b)-frame:]...)})
	}
	o.size += frame
	if answer {
		o.pieces[len(o.pieces)-1].answers += frame
		o.answers += frame
	}
}

// drop notes that n bytes of the first piece were written, and returns the memory that this gave
// back.
func (o *outgoing) drop(n int) (gave int) {
	if o.sent += n; len(o.pieces) == 0 || o.sent < len(o.pieces[0].b) {
		return 0
	}
	p := &o.pieces[0]
	o.size, o.answers, o.sent = o.size-len(p.b), o.answers-p.answers, 0
	if len(o.pieces) == 1 && cap(p.b) <= pieceSize { // an idle session keeps one
		*p = piece{b: p.b[:0]}
		return 0
	}
	gave = cap(p.b)
	o.memory -= gave
	*p = piece{}
	if o.pieces = o.pieces[1:]; len(o.pieces) == 0 {
		o.pieces = nil
	}
	return gave
}

// push queues a message of this side's own unless it is too large, or more than limit bytes of such
// messages would wait.
func (s *Session) push(m Message, limit int) error {
	b, n, err := s.frameOf(m)
	if err != nil {
		return err
	}
	if own := s.out.size - s.out.answers; own+n > limit {
		return fmt.Errorf("control: %v of %d bytes behind %d others: %w", m.Type(), n, own, ErrBacklog)
	}
	if err := s.hold(s.out.needs(b, n)); err != nil {
		return fmt.Errorf("control: %v of %d bytes behind %d others: %w: %w", m.Type(), n, s.out.size, ErrBacklog, err)
	}
	s.out.put(b, n, false)
	s.spoke = s.now - s.stalled
	return nil
}

// pushAnyway queues a heartbeat or a goodbye, for which a piece may be held beyond what is charged.
func (s *Session) pushAnyway(b []byte, n int) {
	s.held += s.out.needs(b, n)
	s.out.put(b, n, false)
}

// frameOf encodes m behind the last piece, if that has room, else elsewhere. The last n bytes of b
// are the frame.
func (s *Session) frameOf(m Message) (b []byte, n int, err error) {
	last := s.out.last()
	if b, err = AppendFrame(last, m); err != nil {
		return nil, 0, err
	}
	n = len(b) - len(last)
	if body := n - HeaderSize; body > s.maxBody {
		return nil, 0, fmt.Errorf("control: %v of %d bytes, this peer takes at most %d: %w", m.Type(), body, s.maxBody,
			ErrTooLarge)
	}
	return b, n, nil
}
