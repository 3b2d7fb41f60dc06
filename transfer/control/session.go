package control

import (
	"cmp"
	"fmt"
	"time"
)

// Role says which side of the stream a session is.
type Role uint8

const (
	Dialer   Role = iota + 1 // connected to the other side; speaks first
	Acceptor                 // was connected to
)

func (r Role) String() string {
	switch r {
	case Dialer:
		return "dialer"
	case Acceptor:
		return "acceptor"
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// State is where a session is in its life. It only moves down this list.
type State uint8

const (
	Handshake State = iota // waiting for Hello or Welcome
	Ready                  // messages flow
	Closing                // this side said goodbye and waits for the end of the stream
	Closed                 // ended in order: the peer said goodbye, or the stream ended after ours
	Failed                 // ended by an error: see Err
)

var stateNames = [...]string{"handshake", "ready", "closing", "closed", "failed"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// The versions of the protocol that this package speaks.
const (
	ProtocolMin = 3
	ProtocolMax = 3
)

// MaxPendingRequests is the number of requests that either side may have unanswered; the protocol
// fixes it, so that a node can bound what a peer makes it remember.
const MaxPendingRequests = 256

const (
	// backlog is the number of bytes of messages of this side's own, which are no answers, that may
	// wait to be written.
	backlog = 1 << 20
	// unreadLimit is the size of the messages that may wait for Next before Receive takes no more.
	unreadLimit = 1 << 20
	// keepBuffer is the largest buffer of what is half received that an idle session keeps: nodes
	// may have thousands of idle peers.
	keepBuffer = 8 << 10
)

// Options describe a session. The zero value of each field but Identity means its default.
type Options struct {
	Identity
	Session                [16]byte      // of a Dialer: see Hello
	Replaces               [][16]byte    // of a Dialer: see Hello
	VersionMin, VersionMax uint16        // default ProtocolMin, ProtocolMax
	Features               uint64        // offered; both sides use those that both offer
	HeartbeatEvery         time.Duration // default 250 ms; both sides use the shorter of the two
	// default 1500 ms, at least 2 heartbeats: silence after which the peer is dead, at least; see
	// Session.Silence
	DeadAfter        time.Duration
	HandshakeTimeout time.Duration // default 2 s, from New until Ready, however slowly bytes trickle in
	// what the handshake below the session took, if there was one; see Session.Silence
	RoundTrip      time.Duration
	RequestTimeout time.Duration // default 10 s
	MaxPending     int           // default and limit MaxPendingRequests
	// Admit, if set, tells an Acceptor whether to take this peer. An error refuses it: AsError
	// gives the code that the peer gets (NotPermitted, OverBudget, Busy). Admit must not call the
	// session. It may take its time, for example to end the session that this one replaces.
	Admit func(*Hello) error
	// Charge, if set, is asked before the session holds more than Allowance for its peer: requests,
	// answers, and what waits to be written. It takes that many bytes more, or nothing and returns
	// an error (Busy, OverBudget), which is the answer to a request that this concerns. Fewer than
	// 0 bytes are given back, which cannot fail. All is given back once the session has ended
	// (Disconnected) and each request that Next gave was answered. Charge must not call the
	// session. nil: nothing is charged.
	Charge func(bytes int) error
}

// stats are counters since New; all of them only grow.
type stats struct {
	framesIn, bytesIn uint64
	ignored           uint64 // optional frames of unknown type, and frames that came after our goodbye
	late              uint64 // answers to requests that had timed out
}

// Session is one end of a control connection. It is not safe for concurrent use: its owner holds a
// lock of its own. It never moves or changes the bytes of Outgoing before Sent, so that they can be
// written without that lock.
//
// Times are given by the caller and should carry Go's monotonic clock; a time before the last one
// counts as the last one. Time counts only as far as Tick keeps up with Deadline: when this process
// was stalled and Tick comes late, the delay is taken out of every timeout, since what the peer
// sent meanwhile may still lie unread in the socket. A Tick that is late by more than a heartbeat
// gives a silent peer one heartbeat more, in which that is read, and all of them together at most
// Silence once more. So a loaded machine slows the verdict on its peers down but does not falsify
// it. For the same reason every byte that arrives is a sign of life, not only a heartbeat.
type Session struct {
	role  Role
	opt   Options
	state State
	err   error

	start   time.Time
	now     time.Duration // since start; never goes back
	stalled time.Duration // by how much Ticks came late; now-stalled is the time that counts
	heard   time.Duration // last byte received, in time that counts
	grace   time.Duration // by how much longer the peer may be silent, for Ticks that came late since heard
	spoke   time.Duration // last frame queued
	limit   time.Duration // end of the handshake or of Closing

	version  uint16 // agreed; 0 before Ready
	features uint64 // that both sides have
	peer     Identity
	maxBody  int
	every    time.Duration // agreed heartbeat interval

	out     outgoing
	held    int // memory for the peer, out among it
	charged int // of it, by Options.Charge
	making  int // bytes for answers to requests that Next gave

	in   []byte // start of a frame that is not complete
	head header // of it, once len(in) >= HeaderSize

	inbox  []Message
	taken  int // inbox[:taken] is
	unread int // bytes

	lastID  uint64 // of our requests
	pending []pending
	peerID  uint64    // of the peer's latest request
	open    []asked   // its unanswered requests, by id
	waiting []waiting // of these, those that Next has not given

	told bool // this side sent more than requests
	free bool // to Leave

	echo   uint64 // Sent of the peer's latest heartbeat
	echoAt time.Duration
	rtt    time.Duration
	rttvar time.Duration
	shook  time.Duration // the longest round trip of the handshakes, as far as they are one
	stats  stats
}

// pending is a request of ours without an answer. The slice of them is ordered by id and therefore
// by deadline. A request that timed out stays until its answer comes: the peer still counts it.
type pending struct {
	id       uint64
	deadline time.Duration
	method   Method
	expired  bool
}

// New makes the session of one new stream. The error names the option that is out of bounds.
func New(role Role, o Options, now time.Time) (*Session, error) {
	if role != Dialer && role != Acceptor {
		return nil, fmt.Errorf("control: %v: expected Dialer or Acceptor", role)
	}
	o.VersionMin = cmp.Or(o.VersionMin, ProtocolMin)
	o.VersionMax = cmp.Or(o.VersionMax, ProtocolMax)
	o.HeartbeatEvery = cmp.Or(o.HeartbeatEvery, 250*time.Millisecond)
	o.DeadAfter = cmp.Or(o.DeadAfter, 1500*time.Millisecond)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 2*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 10*time.Second)
	o.MaxPending = cmp.Or(o.MaxPending, MaxPendingRequests)
	o.Identity.MaxBody = cmp.Or(o.Identity.MaxBody, MaxBody)
	o.HeartbeatMillis = uint32(min(max(o.HeartbeatEvery.Milliseconds(), 0), MaxHeartbeatMillis+1))
	switch {
	case o.DeadAfter < 2*o.HeartbeatEvery:
		return nil, fmt.Errorf("control: DeadAfter %v: expected at least two heartbeats of %v", o.DeadAfter,
			o.HeartbeatEvery)
	case o.HandshakeTimeout < 0 || o.RoundTrip < 0 || o.RequestTimeout < 0:
		return nil, fmt.Errorf("control: HandshakeTimeout %v, RoundTrip %v, RequestTimeout %v: expected positive "+
			"durations", o.HandshakeTimeout, o.RoundTrip, o.RequestTimeout)
	case o.MaxPending < 1 || o.MaxPending > MaxPendingRequests:
		return nil, fmt.Errorf("control: MaxPending %d: expected 1 to %d", o.MaxPending, MaxPendingRequests)
	}
	s := &Session{role: role, opt: o, start: now, limit: o.HandshakeTimeout, maxBody: MinBody, every: o.HeartbeatEvery,
		shook: o.RoundTrip}
	hello := Hello{VersionMin: o.VersionMin, VersionMax: o.VersionMax, Features: o.Features, Session: o.Session,
		Replaces: o.Replaces, Identity: o.Identity}
	if _, err := AppendFrame(nil, &hello); err != nil {
		// an acceptor makes it too, to check its options now and not in the handshake
		return nil, err
	}
	if role == Dialer {
		if err := s.push(&hello, backlog); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// State says where the session is in its life.
func (s *Session) State() State { return s.state }

// Err is nil until the session has ended or this side said goodbye, then why.
func (s *Session) Err() error { return s.err }

// Peer is who the other side says it is; the zero value before Ready. It is not proven by anything.
func (s *Session) Peer() Identity { return s.peer }

// MaxBody is the largest frame body in bytes that either side may send.
func (s *Session) MaxBody() int { return s.maxBody }

// Pending is the number of requests of this side that wait for an answer, including those that
// timed out.
func (s *Session) Pending() int { return len(s.pending) }

// Open is the number of requests of the peer that were not answered yet.
func (s *Session) Open() int { return len(s.open) }

// Waiting is how many of them wait until the peer has read the answers before.
func (s *Session) Waiting() (n int) {
	owed := s.owed()
	for _, w := range s.waiting {
		if !hasRoom(owed, s.sizeFor(w)) {
			n++
		}
	}
	return n
}

// Asked is the id of the peer's latest request.
func (s *Session) Asked() uint64 { return s.peerID }

// Outgoing is what must be written to the stream next. The bytes stay as they are until Sent, also
// when other calls come in between. Empty when there is nothing to write; otherwise there may be
// more behind it, which the next Outgoing shows. A goodbye is there even after the session has
// ended.
func (s *Session) Outgoing() []byte { return s.out.first() }

// Sent tells that the first n bytes of Outgoing were written. Requests of the peer that waited for
// this come from Next then.
func (s *Session) Sent(n int) { s.release(s.out.drop(min(max(n, 0), len(s.out.first())))) }

// notReady is the error of calls that need Ready.
func (s *Session) notReady() error {
	if s.err != nil {
		return fmt.Errorf("control: %v: %w: %w", s.state, ErrNotReady, s.err)
	}
	return fmt.Errorf("control: %v: %w", s.state, ErrNotReady)
}

// Request queues a request and returns its id. Exactly one *Response with this id will come from
// Next: the answer, or one whose Err is Timeout or the error that ended the session. The error
// matches ErrNotReady, ErrPending, ErrBacklog, ErrTooLarge or BadRequest; then nothing was queued.
func (s *Session) Request(now time.Time, q Query) (uint64, error) {
	body, err := AppendBody(nil, q)
	if err != nil {
		return 0, err
	}
	t, method := s.clock(now), q.Method()
	if s.state != Ready {
		return 0, s.notReady()
	}
	if len(s.pending) >= s.opt.MaxPending {
		return 0, fmt.Errorf("control: %v: %d requests: %w", method, len(s.pending), ErrPending)
	}
	id := s.lastID + 1
	if err := s.push(&Request{ID: id, Method: method, Body: body}, backlog); err != nil {
		return 0, err
	}
	s.lastID = id
	s.pending = append(s.pending, pending{id: id, deadline: t + s.opt.RequestTimeout, method: method})
	return id, nil
}

// Respond grants a request of the peer that Next gave; a nil body stands for Empty. It fails when
// id is not open (unknown, or answered already), and with ErrTooLarge or BadRequest when body
// cannot be sent (Refuse the request then). Each request that Next gave is to be answered, also
// when the session has ended: what is held for it is given back then.
func (s *Session) Respond(now time.Time, id uint64, body Body) error {
	m := Response{ID: id}
	if body != nil {
		b, err := AppendBody(nil, body)
		if err != nil {
			return err
		}
		m.Body = b
	}
	return s.respond(now, &m)
}

// Refuse answers a request of the peer with an error: AsError gives its code and text. It fails as
// Respond does.
func (s *Session) Refuse(now time.Time, id uint64, err error) error {
	e := AsError(err)
	if e == nil || e.Code == OK {
		e = &Error{Code: Internal, Text: "refused without a reason"}
	}
	return s.respond(now, &Response{ID: id, Code: e.Code, Text: clip(e.Text, MaxText)})
}

func (s *Session) respond(now time.Time, m *Response) error {
	s.clock(now)
	i, ok := s.find(m.ID)
	ok = ok && s.open[i].answer > 0
	if s.state != Ready {
		if ok {
			s.close(i)
		}
		return s.notReady()
	}
	if !ok {
		return fmt.Errorf("control: request %d of the peer is not open: unknown, not taken from Next, or answered "+
			"already", m.ID)
	}
	return s.answer(i, m)
}

// Send queues a one-way message: *Notification, *Complete or *KeyRevoked. The error matches
// ErrNotReady, ErrBacklog, ErrTooLarge or BadRequest; then nothing was queued.
func (s *Session) Send(now time.Time, m Message) error {
	s.clock(now)
	if s.state != Ready {
		return s.notReady()
	}
	switch x := m.(type) {
	case *Notification, *KeyRevoked:
	case *Complete:
		if clipped := clip(x.Text, MaxText); clipped != x.Text {
			y := *x
			y.Text = clipped
			m = &y
		}
	default:
		return Errorf(BadRequest, "a %v is not a one-way message", m.Type())
	}
	s.told = true
	return s.push(m, backlog)
}

// Goodbye ends the session in order. What was queued before is still to be written, then the
// goodbye; the peer's answer to it is that it ends the stream (tell Disconnected), for which Tick
// waits no longer than Options.DeadAfter. Requests that wait for an answer fail with this code. It
// does nothing when the session has ended or said goodbye before.
func (s *Session) Goodbye(now time.Time, code Code, reason string) {
	t := s.clock(now)
	if s.state > Ready {
		return
	}
	reason = clip(reason, MaxText)
	s.queueGoodbye(&Goodbye{Code: code, Reason: reason})
	s.err = &Error{Code: code, Text: reason}
	s.state = Closing
	s.limit = t + s.opt.DeadAfter
	s.free = s.role == Dialer && !s.told && len(s.pending)+len(s.open) == 0
	s.abandon()
}

// Leave ends a session that said goodbye before the stream ends, where nothing is lost with the
// stream: a Dialer's that sent nothing but requests, all of which have their answers, and has
// nothing left to write. Otherwise it does nothing.
func (s *Session) Leave() {
	if s.state == Closing && s.free && len(s.Outgoing()) == 0 {
		s.state = Closed
	}
}

// Disconnected tells that the stream ended or failed with cause (io.EOF, a reset). It returns Err,
// which wraps cause and matches Down unless a goodbye came first.
func (s *Session) Disconnected(cause error) error {
	switch s.state {
	case Closing:
		s.state = Closed
	case Handshake, Ready:
		at := ""
		if len(s.in) > 0 {
			at = fmt.Sprintf(" in the middle of a frame, after %d bytes of it", len(s.in))
		}
		s.state = Failed
		s.err = fmt.Errorf("control: connection lost%s: %w: %w", at, Down, cause)
		s.abandon()
	}
	gone := s.out.memory
	s.out = outgoing{}
	s.release(gone)
	return s.err
}

// fail ends the session by an error and tells the peer, as far as it still listens.
func (s *Session) fail(code Code, err error) error {
	if s.state <= Ready {
		s.queueGoodbye(&Goodbye{Code: code, Reason: clip(err.Error(), MaxText)})
	}
	s.state = Failed
	s.err = err
	s.abandon()
	return err
}

// queueGoodbye queues it, whatever is queued and charged.
func (s *Session) queueGoodbye(m *Goodbye) {
	b, n, _ := s.frameOf(m) // cannot fail: it fits the smallest body
	s.pushAnyway(b, n)
}

// abandon answers every pending request with the end of the session and drops what is half
// received.
func (s *Session) abandon() {
	for i := range s.pending {
		if p := &s.pending[i]; !p.expired {
			s.give(s.unanswered(p, s.err))
		}
	}
	s.pending = nil
	for m, ok := s.nextRequest(); ok; m, ok = s.nextRequest() {
		s.give(m) // it came before the end
	}
	for _, w := range s.waiting {
		i, _ := s.find(w.ID)
		s.close(i)
	}
	s.waiting = nil
	if s.state != Closing { // a closing session reads on until the peer's goodbye
		s.in = nil
	}
}

// unanswered is the response to a request that no answer will come to.
func (s *Session) unanswered(p *pending, err error) *Response {
	e := AsError(err)
	return &Response{ID: p.id, Code: e.Code, Text: clip(e.Text, MaxText), Method: p.method, local: err}
}
