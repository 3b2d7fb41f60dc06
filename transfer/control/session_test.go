package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-io/penstock/transfer/path"
)

var t0 = time.Unix(1000, 0)

func at(d time.Duration) time.Time { return t0.Add(d) }

func named(name string) Options {
	return Options{Identity: Identity{Name: name, Instance: 1, Paths: []string{"shm"}}}
}

func newSession(t testing.TB, r Role, o Options) *Session {
	t.Helper()
	s, err := New(r, o, t0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// flush takes everything that a session wants to write.
func flush(s *Session) []byte {
	var b []byte
	for p := s.Outgoing(); len(p) > 0; p = s.Outgoing() {
		b = append(b, p...)
		s.Sent(len(p))
	}
	return b
}

// move carries what from has to write to the session to.
func move(from, to *Session, now time.Time) error { return to.Receive(now, flush(from)) }

func drain(s *Session) []Message {
	var out []Message
	for {
		m, ok := s.Next()
		if !ok {
			return out
		}
		out = append(out, m)
	}
}

// readyPair is a dialer and an acceptor after the handshake, at t0.
func readyPair(t testing.TB, d, a Options) (*Session, *Session) {
	t.Helper()
	x, y := newSession(t, Dialer, d), newSession(t, Acceptor, a)
	if err := move(x, y, t0); err != nil {
		t.Fatal(err)
	}
	if err := move(y, x, t0); err != nil {
		t.Fatal(err)
	}
	if x.State() != Ready || y.State() != Ready {
		t.Fatalf("after the handshake: %v, %v", x.State(), y.State())
	}
	return x, y
}

func frameOf(t testing.TB, m Message) []byte {
	t.Helper()
	b, err := AppendFrame(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// raw is a frame of any type with any flags and a right checksum.
func raw(typ Type, flags uint16, body []byte) []byte {
	b := append(make([]byte, HeaderSize), body...)
	seal(b, 0, typ, flags)
	return b
}

func TestHandshake(t *testing.T) {
	d, a := named("d"), named("a")
	d.Node, a.Node = seq(1), seq(2)
	d.Features, a.Features = 0b0111, 0b1110
	d.Identity.MaxBody, a.Identity.MaxBody = 100<<10, 50<<10
	x, y := readyPair(t, d, a)
	for _, s := range []*Session{x, y} {
		if s.version != ProtocolMax || s.features != 0b0110 || s.MaxBody() != 50<<10 {
			t.Errorf("%v: version %d, features %#b, body %d", s.role, s.version, s.features, s.MaxBody())
		}
	}
	if p := x.Peer(); p.Name != "a" || p.Node != a.Node || !slices.Equal(p.Paths, a.Paths) {
		t.Errorf("dialer's peer: %+v", p)
	}
	if p := y.Peer(); p.Name != "d" || p.Node != d.Node || p.HeartbeatMillis != 250 {
		t.Errorf("acceptor's peer: %+v", p)
	}
}

func TestVersionMatrix(t *testing.T) {
	type span struct{ low, high uint16 }
	for _, c := range []struct {
		dialer, acceptor span
		want             uint16 // 0: none
	}{
		{span{1, 1}, span{1, 1}, 1},
		{span{1, 3}, span{1, 1}, 1}, // new to old
		{span{1, 1}, span{1, 3}, 1}, // old to new
		{span{2, 4}, span{3, 9}, 4},
		{span{3, 9}, span{2, 4}, 4},
		{span{3, 3}, span{1, 2}, 0},
		{span{1, 2}, span{3, 3}, 0},
		{span{65535, 65535}, span{1, 65535}, 65535},
	} {
		d, a := named("d"), named("a")
		d.VersionMin, d.VersionMax = c.dialer.low, c.dialer.high
		a.VersionMin, a.VersionMax = c.acceptor.low, c.acceptor.high
		x, y := newSession(t, Dialer, d), newSession(t, Acceptor, a)
		yerr := move(x, y, t0)
		xerr := move(y, x, t0)
		if c.want != 0 {
			if xerr != nil || yerr != nil || x.version != c.want || y.version != c.want {
				t.Errorf("%v: %d %v, %d %v", c, x.version, xerr, y.version, yerr)
			}
			continue
		}
		for _, err := range []error{xerr, yerr} {
			if !errors.Is(err, Version) {
				t.Errorf("%v: %v", c, err)
				continue
			}
			for _, s := range []string{"the dialer " + versions(d.VersionMin, d.VersionMax),
				"the acceptor speaks " + versions(a.VersionMin, a.VersionMax)} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%v: %q does not say %q", c, err, s)
				}
			}
		}
		if x.State() != Closed || y.State() != Failed {
			t.Errorf("%v: %v, %v", c, x.State(), y.State())
		}
	}
}

// TestUnknownFeaturesAndExtension: a newer node offers bits and handshake fields that this one does
// not know.
func TestUnknownFeaturesAndExtension(t *testing.T) {
	d, a := named("new"), named("old")
	d.Features, a.Features = ^uint64(0), 1
	d.Extension = bytes.Repeat([]byte{7}, MaxExtension)
	x, y := newSession(t, Dialer, d), newSession(t, Acceptor, a)
	hello := flush(x)
	if err := y.Receive(t0, hello); err != nil {
		t.Fatal(err)
	}
	clear(hello) // the caller uses its buffer again
	if err := move(y, x, t0); err != nil {
		t.Fatal(err)
	}
	if x.features != 1 || y.features != 1 {
		t.Errorf("features %#x, %#x", x.features, y.features)
	}
	if !bytes.Equal(y.Peer().Extension, d.Extension) {
		t.Error("the extension did not arrive")
	}
}

func TestAdmit(t *testing.T) {
	a := named("a")
	a.Admit = func(h *Hello) error { return fmt.Errorf("%q has two connections: %w", h.Name, OverBudget) }
	x, y := newSession(t, Dialer, named("d")), newSession(t, Acceptor, a)
	if err := move(x, y, t0); !errors.Is(err, OverBudget) || y.State() != Failed {
		t.Errorf("acceptor: %v, %v", err, y.State())
	}
	var e *Error
	if err := move(y, x, t0); !errors.As(err, &e) || e.Code != OverBudget || !e.Remote ||
		!strings.Contains(e.Text, `"d" has two`) {
		t.Errorf("dialer: %v", err)
	}
}

// TestTransitions has a frame of each type come in each state.
func TestTransitions(t *testing.T) {
	id := testIdentity()
	frames := []struct {
		name string
		b    []byte
	}{
		{"hello", frameOf(t, &Hello{VersionMin: ProtocolMin, VersionMax: ProtocolMax, Identity: id})},
		{"welcome", frameOf(t, &Welcome{Version: ProtocolMax, Identity: id})},
		{"welcome, version not offered", frameOf(t, &Welcome{Version: ProtocolMax + 1, Identity: id})},
		{"welcome, version 0", frameOf(t, &Welcome{Version: 0, Identity: id})},
		{"welcome, features not offered", frameOf(t, &Welcome{Version: ProtocolMax, Features: 2, Identity: id})},
		{"heartbeat", frameOf(t, &Heartbeat{Sent: 1})},
		{"goodbye", frameOf(t, &Goodbye{Code: Shutdown})},
		{"request", frameOf(t, &Request{ID: 1, Method: MethodList})},
		{"request 0", frameOf(t, &Request{ID: 0, Method: MethodList})},
		{"response", frameOf(t, &Response{ID: 1})},
		{"response not asked for", frameOf(t, &Response{ID: 9})},
		{"notification", frameOf(t, &Notification{ID: 1})},
		{"complete", frameOf(t, &Complete{})},
		{"revoked", frameOf(t, &KeyRevoked{})},
		{"unknown", raw(77, 0, nil)},
		{"unknown, optional", raw(77, FlagOptional, []byte("later"))},
		{"optional hello", raw(TypeHello, FlagOptional, nil)},
		{"unknown flag", raw(TypeHeartbeat, 2, make([]byte, 16))},
		{"unknown flag, optional", raw(77, FlagOptional|0x8000, nil)},
	}
	// What each state does with each frame: . nothing to see, m a message for the application, and
	// the state it moves to otherwise: R ready, C closed, F failed.
	states := []struct {
		name, want string
		make       func() *Session
	}{
		{"dialer in handshake", "FRFFF FCFFF FFFFF FFFF", func() *Session { return newSession(t, Dialer, named("d")) }},
		{"acceptor in handshake", "RFFFF FCFFF FFFFF FFFF", func() *Session { return newSession(t, Acceptor, named("a")) }},
		{"ready", "FFFFF .CmFm FmmmF .FFF", func() *Session {
			x, _ := readyPair(t, named("d"), named("a"))
			if _, err := x.Request(t0, &List{}); err != nil {
				t.Fatal(err)
			}
			return x
		}},
		{"closing", "..... .C... ..... .FFF", func() *Session {
			x, _ := readyPair(t, named("d"), named("a"))
			x.Goodbye(t0, Shutdown, "")
			return x
		}},
		{"closed", "FFFFF FFFFF FFFFF FFFF", func() *Session {
			x, y := readyPair(t, named("d"), named("a"))
			y.Goodbye(t0, Shutdown, "")
			move(y, x, t0)
			if x.State() != Closed {
				t.Fatal(x.State())
			}
			return x
		}},
		{"failed", "FFFFF FFFFF FFFFF FFFF", func() *Session {
			x, _ := readyPair(t, named("d"), named("a"))
			x.Disconnected(io.EOF)
			return x
		}},
	}
	for _, st := range states {
		want := strings.ReplaceAll(st.want, " ", "")
		if len(want) != len(frames) {
			t.Fatalf("%s: table has %d columns for %d frames", st.name, len(want), len(frames))
		}
		for i, f := range frames {
			s := st.make()
			before := s.State()
			flush(s)
			err := s.Receive(t0, f.b)
			msgs := 0
			for _, m := range drain(s) {
				if r, ok := m.(*Response); !ok || r.Err() == nil { // not the answers that the end of the session gives
					msgs++
				}
			}
			got := byte('?')
			switch {
			case s.State() == Failed && err != nil:
				got = 'F'
			case s.State() == Closed && err != nil:
				got = 'C'
			case s.State() == before && err == nil && msgs == 1:
				got = 'm'
			case s.State() == before && err == nil && msgs == 0:
				got = '.'
			case s.State() == Ready && err == nil:
				got = 'R'
			}
			if got != want[i] {
				t.Errorf("%s, %s: got %c, want %c: now %v, %d messages, error %v", st.name, f.name, got, want[i],
					s.State(), msgs, err)
			}
			if before <= Ready && got == 'F' {
				if !errors.Is(err, Protocol) {
					t.Errorf("%s, %s: %v is no protocol error", st.name, f.name, err)
				}
				if m, _, perr := ParseFrame(flush(s)); perr != nil || m.Type() != TypeGoodbye ||
					m.(*Goodbye).Code != Protocol {
					t.Errorf("%s, %s: the peer was not told: %v %v", st.name, f.name, m, perr)
				}
			}
		}
	}
}

func TestCallsBeforeReadyAndAfterTheEnd(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	if _, err := y.Request(t0, &Lookup{Name: "w"}); err != nil {
		t.Fatal(err)
	}
	move(y, x, t0)
	x.Goodbye(t0, Shutdown, "")
	for name, s := range map[string]*Session{"handshake": newSession(t, Acceptor, named("a")), "closing": x} {
		out := len(s.Outgoing())
		if _, err := s.Request(t0, &Lookup{Name: "w"}); !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: request: %v", name, err)
		}
		if err := s.Send(t0, &Notification{}); !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: send: %v", name, err)
		}
		if err := s.Respond(t0, 1, nil); !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: respond: %v", name, err)
		}
		if len(s.Outgoing()) != out {
			t.Errorf("%s: something was queued", name)
		}
	}
	if err := x.Send(t0, &Notification{}); !errors.Is(err, Shutdown) {
		t.Errorf("the error does not say why the session ended: %v", err)
	}
}

func TestRequestsAndResponses(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	id1, err1 := x.Request(t0, &Lookup{Name: "w"})
	id2, err2 := x.Request(t0, &PathDown{PathID: 3})
	if err1 != nil || err2 != nil || id1 == id2 {
		t.Fatal(id1, id2, err1, err2)
	}
	if err := move(x, y, t0); err != nil {
		t.Fatal(err)
	}
	got := drain(y)
	if len(got) != 2 || y.Open() != 2 || x.Pending() != 2 {
		t.Fatalf("%d requests, %d open, %d pending", len(got), y.Open(), x.Pending())
	}
	r := got[0].(*Request)
	if q, err := Parse[Lookup](r.Body); err != nil || q.Name != "w" || r.ID != id1 || r.Method != MethodLookup {
		t.Fatalf("%+v %+v %v", r, q, err)
	}
	// Answered in the other order.
	if err := y.Refuse(t0, id2, fmt.Errorf("path 3: %w", path.ErrKey)); err != nil {
		t.Fatal(err)
	}
	entry := Entry{Name: "w", Desc: path.Desc{Key: testKey, Size: 5, Rights: path.Read}}
	if err := y.Respond(t0, id1, &entry); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{id1, id2, 99} {
		if err := y.Respond(t0, id, nil); err == nil {
			t.Errorf("request %d could be answered again", id)
		}
	}
	answers := flush(y)
	if err := x.Receive(t0, answers); err != nil {
		t.Fatal(err)
	}
	clear(answers)
	got = drain(x)
	if len(got) != 2 || x.Pending() != 0 || y.Open() != 0 {
		t.Fatalf("%d responses, %d pending, %d open", len(got), x.Pending(), y.Open())
	}
	no, yes := got[0].(*Response), got[1].(*Response)
	if err := no.Err(); !errors.Is(err, NotFound) || !errors.Is(err, path.ErrKey) || no.ID != id2 ||
		no.Method != MethodPathDown {
		t.Errorf("%+v: %v", no, err)
	}
	if e, err := Parse[Entry](yes.Body); yes.Err() != nil || err != nil || !cmp.Equal(e, entry) {
		t.Errorf("%+v %v %v", e, err, yes.Err())
	}
}

func TestReplayedFrames(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	id, _ := x.Request(t0, &Lookup{Name: "w"})
	request := flush(x)
	if err := y.Receive(t0, request); err != nil {
		t.Fatal(err)
	}
	if n := len(drain(y)); n != 1 {
		t.Errorf("%d requests", n)
	}
	y.Respond(t0, id, &Accept{Desc: path.Desc{Rights: path.Read}})
	response := flush(y)
	if err := x.Receive(t0, response); err != nil {
		t.Fatal(err)
	}
	if err := y.Receive(t0, request); !errors.Is(err, Protocol) ||
		!strings.Contains(err.Error(), "request 1 after request 1") {
		t.Errorf("replayed request, answered: %v", err)
	}
	if err := x.Receive(t0, response); !errors.Is(err, Protocol) ||
		!strings.Contains(err.Error(), "answer to request 1") {
		t.Errorf("replayed response: %v", err)
	}
	if n := len(drain(y)); n != 0 {
		t.Errorf("%d requests of the replay", n)
	}
	if n := len(drain(x)); n != 1 {
		t.Errorf("%d responses", n)
	}
}

func TestGoodbye(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	id, _ := x.Request(t0, &List{})
	y.Request(t0, &List{}) // on its way when x says goodbye
	x.Goodbye(t0, Shutdown, strings.Repeat("ü", MaxText))
	x.Goodbye(t0, Internal, "a second goodbye does nothing")
	if x.State() != Closing {
		t.Fatal(x.State())
	}
	if m := drain(x); len(m) != 1 || m[0].(*Response).ID != id || !errors.Is(m[0].(*Response).Err(), Shutdown) {
		t.Fatalf("the pending request got %+v", m)
	}
	if err := move(y, x, t0); err != nil || len(drain(x)) != 0 || x.stats.ignored != 1 {
		t.Errorf("what was on its way: %v, ignored %d", err, x.stats.ignored)
	}
	err := move(x, y, t0)
	var e *Error
	if !errors.As(err, &e) || e.Code != Shutdown || !e.Remote || len(e.Text) != MaxText || y.State() != Closed ||
		y.Err() != err {
		t.Errorf("peer: %v, %v", y.State(), err)
	}
	if m := drain(y); len(m) != 2 { // x's request came before the goodbye; y's own ends by it
		t.Errorf("peer: %d messages", len(m))
	}
	if !y.Deadline().IsZero() {
		t.Error("a closed session has a deadline")
	}
	if got, want := x.Deadline(), at(1500*time.Millisecond); !got.Equal(want) {
		t.Errorf("closing ends at %v, want %v", got, want)
	}
	if err := x.Tick(at(time.Second)); err != nil || x.State() != Closing {
		t.Errorf("early: %v, %v", err, x.State())
	}
	if err := x.Tick(at(1500 * time.Millisecond)); !errors.Is(err, Shutdown) || x.State() != Closed {
		t.Errorf("late: %v, %v", err, x.State())
	}
	// A byte after the goodbye, in the same chunk.
	x, y = readyPair(t, named("d"), named("a"))
	x.Goodbye(t0, Shutdown, "")
	if err := y.Receive(t0, append(flush(x), 1)); !errors.Is(err, Protocol) || y.State() != Failed {
		t.Errorf("a byte after the goodbye: %v, %v", err, y.State())
	}
	// The usual end: the peer ends the stream.
	x, _ = readyPair(t, named("d"), named("a"))
	x.Goodbye(t0, Shutdown, "")
	if err := x.Disconnected(io.EOF); !errors.Is(err, Shutdown) || errors.Is(err, io.EOF) || x.State() != Closed {
		t.Errorf("end of stream: %v, %v", err, x.State())
	}
}

// A dialer whose requests have their answers need not wait after its goodbye; a side with whose
// stream something could get lost does.
func TestLeave(t *testing.T) {
	for what, c := range map[string]struct {
		before func(d, a *Session)
		leaves bool
	}{
		"nothing": {func(_, _ *Session) {}, true},
		"answered": {func(d, a *Session) {
			id, err := d.Request(t0, &Status{})
			if err != nil {
				t.Fatal(err)
			}
			move(d, a, t0)
			drain(a)
			if err := a.Respond(t0, id, &StatusReport{}); err != nil {
				t.Fatal(err)
			}
			move(a, d, t0)
		}, true},
		"asked": {func(d, _ *Session) { d.Request(t0, &Status{}) }, false},
		"told":  {func(d, _ *Session) { d.Send(t0, &Notification{ID: 1}) }, false},
		"asked by the peer": {func(d, a *Session) {
			a.Request(t0, &Status{})
			move(a, d, t0)
		}, false},
	} {
		d, a := readyPair(t, named("d"), named("a"))
		c.before(d, a)
		d.Leave() // nothing was said yet
		if d.State() != Ready {
			t.Errorf("%s: %v without a goodbye", what, d.State())
		}
		d.Goodbye(t0, Shutdown, "bye")
		d.Leave() // it is not written yet
		if d.State() != Closing {
			t.Errorf("%s: %v before the goodbye was written", what, d.State())
		}
		move(d, a, t0)
		d.Leave()
		if left := d.State() == Closed; left != c.leaves {
			t.Errorf("%s: %v, expected to leave: %v", what, d.State(), c.leaves)
		}
		if a.State() != Closed {
			t.Errorf("%s: the peer is %v", what, a.State())
		}
	}
	d, a := readyPair(t, named("d"), named("a"))
	a.Goodbye(t0, Shutdown, "bye")
	move(a, d, t0)
	if a.Leave(); a.State() != Closing {
		t.Errorf("an acceptor is %v", a.State())
	}
}

func TestGoodbyeInTheHandshake(t *testing.T) {
	x, y := newSession(t, Dialer, named("d")), newSession(t, Acceptor, named("a"))
	hello := flush(x)
	x.Goodbye(t0, Canceled, "")
	if err := y.Receive(t0, hello); err != nil {
		t.Fatal(err)
	}
	if err := y.Send(t0, &Notification{Body: make([]byte, MaxNotification)}); err != nil {
		// larger than a handshake allows
		t.Fatal(err)
	}
	if err := move(y, x, t0); err != nil || x.State() != Closing {
		t.Errorf("%v, %v", x.State(), err)
	}
	if err := move(x, y, t0); !errors.Is(err, Canceled) {
		t.Errorf("peer: %v", err)
	}
}

func TestDisconnected(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	x.Request(t0, &List{})
	y.Receive(t0, flush(x)[:20])
	y.Request(t0, &List{})
	err := y.Disconnected(io.ErrUnexpectedEOF)
	if !errors.Is(err, Down) || !errors.Is(err, path.ErrDown) || !errors.Is(err, io.ErrUnexpectedEOF) ||
		!strings.Contains(err.Error(), "after 20 bytes") || y.State() != Failed {
		t.Errorf("%v, %v", err, y.State())
	}
	if m := drain(y); len(m) != 1 || !errors.Is(m[0].(*Response).Err(), io.ErrUnexpectedEOF) {
		t.Errorf("the pending request got %v", m)
	}
	if again := y.Disconnected(io.EOF); again != err {
		t.Errorf("a second end changed the error: %v", again)
	}
	if len(y.Outgoing()) != 0 {
		t.Error("something to write to a stream that is gone")
	}
}

// TestChunking has the same stream come whole, byte by byte, and cut at every place.
func TestChunking(t *testing.T) {
	var stream []byte
	for _, m := range []Message{
		&Hello{VersionMin: ProtocolMin, VersionMax: ProtocolMax, Identity: testIdentity()},
		&Heartbeat{Sent: 1}, &Notification{ID: 1}, &Request{ID: 1, Method: MethodList, Body: []byte("abc")},
		&Complete{Path: "tcp"}, &KeyRevoked{Key: testKey}, &Notification{ID: 2, Body: []byte("xyz")},
	} {
		stream = append(stream, frameOf(t, m)...)
	}
	stream = append(stream, raw(200, FlagOptional, nil)...)
	feed := func(chunks ...[]byte) []Message {
		s := newSession(t, Acceptor, named("a"))
		for _, c := range chunks {
			c = bytes.Clone(c)
			if err := s.Receive(t0, c); err != nil {
				t.Fatal(err)
			}
			for i := range c { // the caller uses its buffer again
				c[i] = 0xAA
			}
		}
		if s.stats.bytesIn != uint64(len(stream)) || s.stats.framesIn != 8 || s.stats.ignored != 1 {
			t.Errorf("%+v", s.stats)
		}
		return drain(s)
	}
	want := feed(stream)
	if len(want) != 5 {
		t.Fatalf("%d messages", len(want))
	}
	var single [][]byte
	for i := range stream {
		single = append(single, stream[i:i+1])
	}
	if d := cmp.Diff(want, feed(single...)); d != "" {
		t.Error("byte by byte: " + d)
	}
	for i := range stream {
		if d := cmp.Diff(want, feed(stream[:i], nil, stream[i:])); d != "" {
			t.Errorf("cut at %d: %s", i, d)
		}
	}
}
