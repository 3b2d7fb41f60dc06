package control

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Receive takes bytes from the stream, in any chunks; p is free again when it returns. An error
// other than ErrUnread means that the session has ended (it is Err): the peer's goodbye as an
// *Error, or Protocol with where and what in the stream was wrong. Whole messages before that place
// are still returned by Next.
func (s *Session) Receive(now time.Time, p []byte) error {
	t := s.clock(now)
	switch {
	case s.state == Failed, s.state == Closed && len(p) == 0:
		return s.err
	case s.state == Closed:
		return s.fail(Protocol, Errorf(Protocol, "%d bytes after the goodbye", len(p)))
	}
	if len(p) > 0 {
		s.hear(t)
	}
	if s.unread > unreadLimit {
		return ErrUnread
	}
	for len(p) > 0 {
		frame := p
		if len(s.in) > 0 || !s.complete(p) {
			// Gather the header first, then what it announces; memory grows with the bytes that
			// came, not with the announcement.
			need := HeaderSize
			if len(s.in) >= HeaderSize {
				need += s.head.length
			}
			n := min(need-len(s.in), len(p))
			s.in = append(s.in, p[:n]...)
			p = p[n:]
			s.stats.bytesIn += uint64(n)
			if len(s.in) < need {
				break
			}
			if need == HeaderSize {
				h, err := parseHeader(s.in, s.bodyLimit())
				if err != nil {
					return s.violation(err)
				}
				if s.head = h; h.length > 0 {
					continue
				}
			}
			frame = s.in
		} else {
			n := HeaderSize + s.head.length
			frame, p = p[:n], p[n:]
			s.stats.bytesIn += uint64(n)
		}
		err := s.frame(t, s.head, frame)
		if s.in = s.in[:0]; cap(s.in) > keepBuffer {
			s.in = nil
		}
		if err != nil {
			if s.state == Closed && len(p) > 0 {
				return s.fail(Protocol, Errorf(Protocol, "%d bytes after the goodbye", len(p)))
			}
			return err
		}
	}
	return nil
}

// complete says whether p begins with a whole frame, which then needs no copy; s.head is its
// header. What is wrong with a header is left to the careful way.
func (s *Session) complete(p []byte) bool {
	if len(p) < HeaderSize {
		return false
	}
	h, err := parseHeader(p, s.bodyLimit())
	if err != nil || len(p) < HeaderSize+h.length {
		return false
	}
	s.head = h
	return true
}

// bodyLimit is the largest body that may come now. After a goodbye in the handshake the peer may
// think that it is over.
func (s *Session) bodyLimit() int {
	if s.state == Closing {
		return int(s.opt.Identity.MaxBody)
	}
	return s.maxBody
}

// violation ends the session because of what the peer sent.
func (s *Session) violation(err error) error {
	return s.fail(Protocol, Errorf(Protocol, "frame %d, up to byte %d of the stream: %s", s.stats.framesIn+1,
		s.stats.bytesIn, AsError(err).Text))
}

func (s *Session) violationf(format string, args ...any) error {
	return s.violation(Errorf(Protocol, format, args...))
}

// awaits names the message that a handshake waits for.
func (s *Session) awaits() Type {
	if s.role == Dialer {
		return TypeWelcome
	}
	return TypeHello
}

// frame acts on one frame. b aliases memory of the caller.
func (s *Session) frame(t time.Duration, h header, b []byte) error {
	body := b[HeaderSize:]
	if err := checkFrame(b[:HeaderSize], body); err != nil {
		return s.violation(err)
	}
	var err error
	switch {
	case s.state == Closing && h.typ != TypeGoodbye:
		s.stats.ignored++ // it was on its way when we said goodbye
	case h.typ == TypeGoodbye:
		err = s.goodbye(body)
	case s.state == Handshake:
		err = s.handshake(t, h.typ, body)
	case h.typ == TypeHeartbeat:
		err = s.beat(body)
	case h.typ == TypeHello, h.typ == TypeWelcome:
		err = s.violationf("a %v after the handshake", h.typ)
	case !h.typ.known() && h.optional:
		s.stats.ignored++
	default:
		err = s.message(h.typ, body)
	}
	s.stats.framesIn++
	return err
}

func (s *Session) goodbye(body []byte) error {
	m, err := parseMessage(TypeGoodbye, body)
	if err != nil {
		return s.violation(err)
	}
	if s.state != Closing { // otherwise our own reason was first
		g := m.(*Goodbye)
		s.err = &Error{Code: g.Code, Text: g.Reason, Remote: true}
	}
	s.state = Closed
	s.abandon()
	return s.err
}

func (s *Session) handshake(t time.Duration, typ Type, body []byte) error {
	if typ != s.awaits() {
		return s.violationf("a %v before the %v", typ, s.awaits())
	}
	m, err := parseMessage(typ, bytes.Clone(body))
	if err != nil {
		return s.violation(err)
	}
	switch m := m.(type) {
	case *Hello:
		low, high := max(m.VersionMin, s.opt.VersionMin), min(m.VersionMax, s.opt.VersionMax)
		if low > high {
			return s.fail(Version, Errorf(Version, "the acceptor speaks %s of the protocol, the dialer %s",
				versions(s.opt.VersionMin, s.opt.VersionMax), versions(m.VersionMin, m.VersionMax)))
		}
		if s.opt.Admit != nil {
			if err := s.opt.Admit(m); err != nil {
				return s.fail(AsError(err).Code, err)
			}
		}
		w := Welcome{Version: high, Features: m.Features & s.opt.Features, Identity: s.opt.Identity}
		if err := s.push(&w, backlog); err != nil {
			return s.fail(Internal, err)
		}
		s.ready(t, w.Version, w.Features, m.Identity)
	case *Welcome:
		if m.Version < s.opt.VersionMin || m.Version > s.opt.VersionMax {
			return s.violationf("the peer chose version %d, this node offered %d to %d", m.Version, s.opt.VersionMin,
				s.opt.VersionMax)
		}
		if extra := m.Features &^ s.opt.Features; extra != 0 {
			return s.violationf("the peer chose features %#x, which this node did not offer", extra)
		}
		s.ready(t, m.Version, m.Features, m.Identity)
	}
	return nil
}

// versions are those of a range in words.
func versions(low, high uint16) string {
	if low == high {
		return fmt.Sprintf("version %d", low)
	}
	return fmt.Sprintf("versions %d to %d", low, high)
}

func (s *Session) ready(t time.Duration, version uint16, features uint64, peer Identity) {
	s.state = Ready
	s.version, s.features, s.peer = version, features, peer
	s.maxBody = int(min(peer.MaxBody, s.opt.Identity.MaxBody))
	s.every = min(s.opt.HeartbeatEvery, time.Duration(peer.HeartbeatMillis)*time.Millisecond)
	s.heard, s.spoke = t, t
	if s.role == Dialer {
		s.shook = max(s.shook, s.now)
	}
}

// beat takes a heartbeat without allocating.
func (s *Session) beat(body []byte) error {
	var m Heartbeat
	c := codec{b: body, what: "heartbeat"}
	m.fields(&c)
	if err := c.finish(); err != nil {
		return s.violation(err)
	}
	s.echo, s.echoAt = m.Sent, s.now
	// A peer can make up an echo; then it only fools itself, within the age of the session.
	if at := uint64(s.now) + 1; m.Echo != 0 && m.Echo <= at {
		sample := time.Duration(at - m.Echo)
		if s.rtt == 0 {
			s.rtt, s.rttvar = sample, sample/2
		} else {
			s.rttvar += ((sample - s.rtt).Abs() - s.rttvar) / 4
			s.rtt += (sample - s.rtt) / 8
		}
	}
	return nil
}

// message takes what the application is to see.
func (s *Session) message(typ Type, body []byte) error {
	m, err := parseMessage(typ, body)
	if err != nil {
		return s.violation(err)
	}
	switch m := m.(type) {
	case *Request:
		if m.ID <= s.peerID {
			return s.violationf("request %d after request %d: ids must rise", m.ID, s.peerID)
		}
		if len(s.open) >= MaxPendingRequests {
			return s.violationf("request %d while %d wait for their answers", m.ID, len(s.open))
		}
		s.peerID = m.ID
		s.ask(m)
		return nil
	case *Response:
		i, ok := slices.BinarySearchFunc(s.pending, m.ID, func(p pending, id uint64) int {
			return cmp.Compare(p.id, id)
		})
		if !ok {
			return s.violationf("an answer to request %d, which was not asked or has its answer", m.ID)
		}
		p := s.pending[i]
		s.pending = slices.Delete(s.pending, i, i+1)
		if p.expired {
			s.stats.late++
			return nil
		}
		m.Method = p.method
		m.Body = bytes.Clone(m.Body)
	case *Notification:
		m.Body = bytes.Clone(m.Body)
	}
	s.give(m)
	return nil
}

// cost is the memory that a waiting message is taken to use.
func cost(m Message) int {
	const fixed = 128
	switch m := m.(type) {
	case *Request:
		return fixed + len(m.Body)
	case *Response:
		return fixed + len(m.Text) + len(m.Body)
	case *Notification:
		return fixed + len(m.Body)
	case *Complete:
		return fixed + len(m.Text)
	}
	return fixed
}

// give puts a message in line for Next.
func (s *Session) give(m Message) {
	s.inbox = append(s.inbox, m)
	s.unread += cost(m)
}

// Next gives the messages in the order of their arrival: *Response, *Notification, *Complete,
// *KeyRevoked, then each *Request whose answer has room. A request that waits for room comes after
// a Sent, Respond, Refuse or Tick. Messages belong to the caller. Handshake, heartbeats and
// goodbyes are the session's own.
func (s *Session) Next() (Message, bool) {
	if s.taken == len(s.inbox) {
		if len(s.waiting) == 0 {
			return nil, false
		}
		m, ok := s.nextRequest()
		return m, ok
	}
	m := s.inbox[s.taken]
	s.inbox[s.taken] = nil
	s.taken++
	s.unread -= cost(m)
	if s.taken == len(s.inbox) || s.taken >= 64 && s.taken >= len(s.inbox)/2 {
		// a reader that never catches up must not grow the line for ever
		s.inbox, s.taken = slices.Delete(s.inbox, 0, s.taken), 0
		if len(s.inbox) == 0 && cap(s.inbox) > 64 {
			s.inbox = nil
		}
	}
	return m, true
}
