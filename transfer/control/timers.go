package control

import (
	"fmt"
	"time"
)

// RTT is the round trip as heartbeats measured it, smoothed (RFC 6298: 1/8 of each new sample),
// including the time until both owners called Receive; 0 as long as there is no sample.
func (s *Session) RTT() time.Duration { return s.rtt }

// maxSilence bounds what a long round trip adds to Options.DeadAfter: the peer takes part in
// measuring it.
const maxSilence = time.Minute

// Silence is how long nothing may come before the peer is taken for dead: Options.DeadAfter, and
// where round trips are long, ten of them and four times their variation (RFC 6298), which is what
// a few losses in a row take to be repaired on a link with full queues. Until heartbeats have
// measured one, the time that handshakes took counts (Options.RoundTrip, and that of a Dialer from
// Hello to Welcome): a machine with much to do is known from the start.
func (s *Session) Silence() time.Duration {
	rtt, rttvar := s.rtt, s.rttvar
	if rtt == 0 {
		rtt, rttvar = s.shook, s.shook/2
	}
	return max(s.opt.DeadAfter, min(10*rtt+4*rttvar, maxSilence))
}

// Deadline is when Tick must be called next; the zero time when the session has ended. It changes
// with every other call.
func (s *Session) Deadline() time.Time {
	d, ok := s.deadline()
	if !ok {
		return time.Time{}
	}
	return s.start.Add(d + s.stalled)
}

// deadline is the next deadline in time that counts.
func (s *Session) deadline() (time.Duration, bool) {
	switch s.state {
	case Handshake, Closing:
		return s.limit, true
	case Ready:
		d := min(s.spoke+s.every, s.heard+s.Silence()+s.grace)
		for i := range s.pending {
			if !s.pending[i].expired {
				d = min(d, s.pending[i].deadline)
				break
			}
		}
		return d, true
	}
	return 0, false
}

// clock takes the time of a call and returns the time that counts: it does not pass a deadline
// before Tick has acted on it.
func (s *Session) clock(now time.Time) time.Duration {
	s.now = max(s.now, now.Sub(s.start))
	if d, ok := s.deadline(); ok && s.now-s.stalled > d {
		if s.now-s.stalled > d+s.every {
			s.grace = min(s.grace+s.every, s.Silence())
		}
		s.stalled = s.now - d
	}
	return s.now - s.stalled
}

// Tick does what is due: sends a heartbeat when nothing else was sent, gives up requests, takes a
// silent peer for dead, ends a handshake that takes too long. Call it at Deadline; earlier calls do
// no harm. The error is Err, when the session has ended: after silence it matches ErrDead and Down,
// after a slow handshake Timeout.
func (s *Session) Tick(now time.Time) error {
	t := s.clock(now)
	switch s.state {
	case Handshake:
		if t >= s.limit {
			return s.fail(Timeout, Errorf(Timeout, "no complete handshake within %v: %d bytes of a %s came",
				s.opt.HandshakeTimeout, s.stats.bytesIn, s.awaits()))
		}
		return nil
	case Ready:
		return s.tickReady(t)
	case Closing:
		if t < s.limit {
			return nil
		}
		s.state = Closed
	}
	return s.err
}

func (s *Session) tickReady(t time.Duration) error {
	if limit := s.Silence() + s.grace; t >= s.heard+limit {
		return s.fail(Timeout, fmt.Errorf("control: nothing received for %v: %w: %w", limit, ErrDead, Down))
	}
	for i := range s.pending {
		p := &s.pending[i]
		if p.expired {
			continue
		}
		if p.deadline > t {
			break
		}
		p.expired = true
		s.give(s.unanswered(p, Errorf(Timeout, "no answer to %v within %v", p.method, s.opt.RequestTimeout)))
	}
	if t >= s.spoke+s.every {
		if len(s.out.first()) == 0 { // otherwise what waits to be written will be the sign of life
			s.heartbeat()
		}
		s.spoke = t
	}
	return nil
}

// heartbeat queues one; it allocates nothing once the session has sent something.
func (s *Session) heartbeat() {
	m := Heartbeat{Sent: uint64(s.now) + 1}
	if s.echo != 0 {
		m.Echo = s.echo + uint64(s.now-s.echoAt)
	}
	last := s.out.last()
	c := codec{b: append(last, make([]byte, HeaderSize)...), encode: true}
	m.fields(&c)
	seal(c.b, len(last), TypeHeartbeat, 0)
	s.pushAnyway(c.b, len(c.b)-len(last))
}

// Alive tells that the peer showed life elsewhere, for example by bytes on a data path: it is not
// taken for dead for another Silence.
func (s *Session) Alive(now time.Time) { s.hear(s.clock(now)) }

// hear notes a sign of life.
func (s *Session) hear(t time.Duration) {
	if t >= s.heard {
		s.heard, s.grace = t, 0
	}
}
