package control

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// run calls Tick at each deadline until the time end has come, and returns the first error and its
// time.
func run(s *Session, end time.Time) (time.Time, error) {
	for {
		d := s.Deadline()
		if d.IsZero() || d.After(end) {
			return end, nil
		}
		if err := s.Tick(d); err != nil {
			return d, err
		}
	}
}

func TestHeartbeats(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	// Both idle: one heartbeat each per interval, one way takes 3 ms, and neither dies.
	for k := range 40 {
		now := at(time.Duration(k+1) * 250 * ms)
		if d := x.Deadline(); k == 0 && !d.Equal(now) {
			t.Fatalf("first heartbeat due at %v, want %v", d, now)
		}
		for _, s := range []*Session{x, y} {
			if err := s.Tick(now.Add(-ms)); err != nil || len(s.Outgoing()) != 0 {
				t.Fatalf("early heartbeat: %v, %d bytes", err, len(s.Outgoing()))
			}
			if err := s.Tick(now); err != nil {
				t.Fatal(err)
			}
		}
		a, b := flush(x), flush(y)
		for _, f := range [][]byte{a, b} {
			if m, rest, err := ParseFrame(f); err != nil || m.Type() != TypeHeartbeat || len(rest) != 0 {
				t.Fatalf("%v %v %d", m, err, len(rest))
			}
		}
		if err := y.Receive(now.Add(3*ms), a); err != nil {
			t.Fatal(err)
		}
		if err := x.Receive(now.Add(3*ms), b); err != nil {
			t.Fatal(err)
		}
	}
	// Each heartbeat was held for 247 ms before its echo left; that must not count.
	for _, s := range []*Session{x, y} {
		if got := s.RTT(); got != 6*ms {
			t.Errorf("%v: round trip %v, want 6ms", s.role, got)
		}
	}
}

func TestShorterHeartbeatIsAgreed(t *testing.T) {
	d, a := named("d"), named("a")
	d.HeartbeatEvery, d.DeadAfter = 20*ms, 60*ms
	x, y := readyPair(t, d, a)
	for _, s := range []*Session{x, y} {
		if got := s.Deadline(); !got.Equal(at(20 * ms)) {
			t.Errorf("%v: next heartbeat at %v", s.role, got.Sub(t0))
		}
	}
}

func TestNoHeartbeatWhileOthersAreSent(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	x.Send(at(200*ms), &Notification{ID: 1})
	if d := x.Deadline(); !d.Equal(at(450 * ms)) {
		t.Errorf("next heartbeat at %v, want 450ms", d.Sub(t0))
	}
	// Nothing is added to bytes that the stream does not take.
	n := len(x.Outgoing())
	if err := x.Tick(at(450 * ms)); err != nil || len(x.Outgoing()) != n {
		t.Errorf("%v, %d bytes behind %d", err, len(x.Outgoing()), n)
	}
}

func TestEchoThatWasMadeUp(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	for _, echo := range []uint64{1 << 63, ^uint64(0), uint64(time.Hour)} {
		if err := x.Receive(at(ms), frameOf(t, &Heartbeat{Sent: ^uint64(0), Echo: echo})); err != nil || x.RTT() != 0 {
			t.Errorf("echo %d: %v, round trip %v", echo, err, x.RTT())
		}
	}
	if err := x.Receive(at(5*ms), frameOf(t, &Heartbeat{Sent: 1, Echo: uint64(2*ms) + 1})); err != nil ||
		x.RTT() != 3*ms {
		t.Errorf("%v, round trip %v", err, x.RTT())
	}
}

func TestDeath(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	id, _ := x.Request(t0, &List{})
	x.Receive(at(100*ms), []byte{0x50}) // one byte of a frame is a sign of life
	when, err := run(x, at(10*time.Second))
	if !errors.Is(err, ErrDead) || !errors.Is(err, Down) || x.State() != Failed {
		t.Fatalf("%v, %v", err, x.State())
	}
	if got := when.Sub(t0); got != 1600*ms { // well below 2 s
		t.Errorf("dead after %v, want 1.6s", got)
	}
	if m := drain(x); len(m) != 1 || m[0].(*Response).ID != id || !errors.Is(m[0].(*Response).Err(), ErrDead) {
		t.Errorf("the pending request got %v", m)
	}
	if err2 := x.Tick(at(time.Minute)); err2 != err || !x.Deadline().IsZero() {
		t.Errorf("later: %v, deadline %v", err2, x.Deadline())
	}
}

func TestAnyByteIsLife(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	f := frameOf(t, &Notification{Body: make([]byte, 100)})
	now := t0
	for i := range f { // a byte every 1.4 s: slow, but alive
		now = now.Add(1400 * ms)
		if _, err := run(x, now); err != nil {
			t.Fatalf("byte %d: %v", i, err)
		}
		if err := x.Receive(now, f[i:i+1]); err != nil {
			t.Fatal(err)
		}
		flush(x)
	}
	if len(drain(x)) != 1 {
		t.Error("no message")
	}
	x.Alive(now.Add(time.Second)) // seen on a data path
	if when, err := run(x, now.Add(time.Minute)); !errors.Is(err, ErrDead) || when.Sub(now) != 2500*ms {
		t.Errorf("%v after %v", err, when.Sub(now))
	}
}

// TestStalledProcess: this process did not run for three seconds. What the peer sent meanwhile lies
// in the socket; the peer must not be taken for dead before there was a chance to read it.
func TestStalledProcess(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	x.Request(t0, &List{})
	now := at(3 * time.Second)
	if err := x.Tick(now); err != nil {
		t.Fatalf("first tick after the stall: %v", err)
	}
	if x.State() != Ready {
		t.Fatal(x.State())
	}
	// Nothing is to be read: then silence counts from where it stopped, and the end comes in
	// bounded time.
	when, err := run(x, now.Add(time.Minute))
	if !errors.Is(err, ErrDead) || when.Sub(now) > 1500*ms {
		t.Errorf("%v, %v after the stall", err, when.Sub(now))
	}
	// Ticks that always come 100 ms late delay the verdict but do not prevent it.
	x, _ = readyPair(t, named("d"), named("a"))
	for range 20 {
		now = x.Deadline().Add(100 * ms)
		if err = x.Tick(now); err != nil {
			break
		}
		flush(x)
	}
	if !errors.Is(err, ErrDead) || now.Sub(t0) > 2500*ms {
		t.Errorf("%v after %v", err, now.Sub(t0))
	}
}

// TestLateTicks: the processor comes back at the moment when the peer would be taken for dead. What
// it sent is read first; without that the verdict comes all the same, also when each tick is late.
func TestLateTicks(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	if _, err := run(x, at(1400*ms)); err != nil {
		t.Fatal(err)
	}
	now := at(5 * time.Second) // the deadline was at 1.5 s
	if err := x.Tick(now); err != nil {
		t.Fatalf("a late tick: %v", err)
	}
	if when, err := run(x, now.Add(time.Minute)); !errors.Is(err, ErrDead) || when.Sub(now) != 250*ms {
		t.Errorf("nothing to read: %v after %v", err, when.Sub(now))
	}

	x, _ = readyPair(t, named("d"), named("a"))
	if _, err := run(x, at(1400*ms)); err != nil {
		t.Fatal(err)
	}
	if err := x.Tick(now); err != nil {
		t.Fatalf("a late tick: %v", err)
	}
	if err := x.Receive(now.Add(ms), frameOf(t, &Heartbeat{Sent: 1})); err != nil {
		t.Fatal(err)
	}
	if when, err := run(x, now.Add(time.Minute)); !errors.Is(err, ErrDead) || when.Sub(now) != 1501*ms {
		t.Errorf("after something was read: %v after %v", err, when.Sub(now))
	}

	x, _ = readyPair(t, named("d"), named("a"))
	var err error
	ticks := 0
	for ; err == nil && ticks < 100; ticks++ {
		err = x.Tick(x.Deadline().Add(time.Second))
		flush(x)
	}
	if !errors.Is(err, ErrDead) || ticks != 12 { // twice the limit, in heartbeats
		t.Errorf("late again and again: %v after %d ticks", err, ticks)
	}
}

// TestLongHandshake: a peer that took long to let this side in may be silent for longer, until
// heartbeats tell the round trip.
func TestLongHandshake(t *testing.T) {
	x, y := newSession(t, Dialer, named("d")), newSession(t, Acceptor, named("a"))
	if err := errors.Join(move(x, y, at(350*ms)), move(y, x, at(400*ms))); err != nil {
		t.Fatal(err)
	}
	if got := x.Silence(); got != 4800*ms {
		t.Errorf("%v", got)
	}
	if got := y.Silence(); got != 1500*ms { // an acceptor has no round trip of its own
		t.Errorf("acceptor: %v", got)
	}
	a := named("a")
	a.RoundTrip = 200 * ms
	if z := newSession(t, Acceptor, a); z.Silence() != 2400*ms {
		t.Errorf("acceptor whose TLS took 200ms: %v", z.Silence())
	}
	if err := x.Receive(at(500*ms), frameOf(t, &Heartbeat{Sent: 1, Echo: uint64(499*ms) + 1})); err != nil ||
		x.RTT() != ms || x.Silence() != 1500*ms {
		t.Errorf("%v, round trip %v, %v", err, x.RTT(), x.Silence())
	}
	if when, err := run(x, at(time.Minute)); !errors.Is(err, ErrDead) || !when.Equal(at(2*time.Second)) {
		t.Errorf("%v at %v", err, when.Sub(t0))
	}
}

func TestClockThatGoesBack(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	x.Receive(at(time.Second), []byte{0x50})
	d := x.Deadline()
	if err := x.Receive(t0.Add(-time.Hour), []byte{0x4E}); err != nil {
		t.Fatal(err)
	}
	if err := x.Tick(t0); err != nil || x.Deadline().Before(d) {
		t.Errorf("%v, deadline %v before %v", err, x.Deadline(), d)
	}
}

// TestSlowLoris: one byte at a time keeps no handshake alive.
func TestSlowLoris(t *testing.T) {
	for _, r := range []Role{Acceptor, Dialer} {
		s := newSession(t, r, named("s"))
		f := raw(s.awaits(), 0, make([]byte, MinBody))
		flush(s)
		now := t0
		var err error
		for i := 0; err == nil && i < len(f); i++ {
			now = now.Add(50 * ms)
			if d := s.Deadline(); !now.Before(d) {
				now = d
				err = s.Tick(d)
				break
			}
			err = s.Receive(now, f[i:i+1])
		}
		if !errors.Is(err, Timeout) || s.State() != Failed || now.Sub(t0) != 2*time.Second {
			t.Errorf("%v: %v after %v", r, err, now.Sub(t0))
		}
		if !strings.Contains(err.Error(), "39 bytes") {
			t.Errorf("%v: %v does not say what came", r, err)
		}
	}
}

func TestRequestTimeout(t *testing.T) {
	d := named("d")
	d.RequestTimeout, d.MaxPending = time.Second, 2
	x, y := readyPair(t, d, named("a"))
	id1, _ := x.Request(t0, &List{})
	id2, _ := x.Request(at(100*ms), &Lookup{Name: "w"})
	move(x, y, at(100*ms))
	drain(y)
	beat := func(now time.Time) { // the peer lives
		if err := x.Receive(now, frameOf(t, &Heartbeat{})); err != nil {
			t.Fatal(err)
		}
	}
	step := func(to time.Duration) []Message {
		run(x, at(to-50*ms))
		flush(x)
		beat(at(to - 50*ms))
		if _, err := run(x, at(to)); err != nil {
			t.Fatal(err)
		}
		flush(x)
		return drain(x)
	}
	step(250 * ms)
	step(500 * ms)
	step(750 * ms)
	if m := step(999 * ms); len(m) != 0 {
		t.Fatalf("early: %v", m)
	}
	m := step(1000 * ms)
	if len(m) != 1 || m[0].(*Response).ID != id1 || !errors.Is(m[0].(*Response).Err(), Timeout) ||
		m[0].(*Response).Method != MethodList {
		t.Fatalf("%+v", m)
	}
	// The peer still counts it, and so do we: otherwise it would see more than it has to take.
	if _, err := x.Request(at(1000*ms), &List{}); !errors.Is(err, ErrPending) {
		t.Errorf("a third request: %v", err)
	}
	// It has its response: the end of the session gives no second one.
	x2, _ := readyPair(t, d, named("a"))
	x2.Request(t0, &List{})
	for x2.State() == Ready && len(drain(x2)) == 0 {
		x2.Alive(x2.Deadline())
		x2.Tick(x2.Deadline())
	}
	x2.Disconnected(io.EOF)
	if m := drain(x2); len(m) != 0 || x2.State() != Failed || !errors.Is(x2.Err(), io.EOF) {
		t.Errorf("a second response: %v; %v", m, x2.Err())
	}
	// A late answer is no protocol error and no second response.
	y.Respond(at(1000*ms), id1, &Entries{})
	y.Respond(at(1000*ms), id2, &Entry{Name: "w", Desc: testDesc})
	if err := move(y, x, at(1001*ms)); err != nil {
		t.Fatal(err)
	}
	m = drain(x)
	if len(m) != 1 || m[0].(*Response).ID != id2 || m[0].(*Response).Err() != nil || x.stats.late != 1 ||
		x.Pending() != 0 {
		t.Errorf("%+v, late %d, pending %d", m, x.stats.late, x.Pending())
	}
}

func TestHeartbeatsDoNotAllocate(t *testing.T) {
	x, y := readyPair(t, named("d"), named("a"))
	now := t0
	step := func() {
		now = now.Add(250 * ms)
		x.Tick(now)
		y.Tick(now)
		b := x.Outgoing()
		y.Receive(now, b[:5]) // also in pieces
		y.Receive(now, b[5:])
		x.Sent(len(b))
		b = y.Outgoing()
		x.Receive(now, b)
		y.Sent(len(b))
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations per heartbeat", n)
	}
	if x.State() != Ready || y.State() != Ready || x.stats.framesIn < 100 {
		t.Errorf("%v %v %+v", x.Err(), y.Err(), x.stats)
	}
}

// link carries what two sessions write, each piece after a delay, in order. Time goes on by hand
// until the end.
type link struct {
	delay time.Duration
	cut   func(now time.Time) bool // the link loses what is sent now; TCP brings it again when it is whole
	wires [2][]wire                // to x, to y
}

type wire struct {
	at time.Time
	b  []byte
}

func (l *link) run(x, y *Session, now, end time.Time) (time.Time, error) {
	both := [2]*Session{x, y}
	for ; now.Before(end); now = now.Add(10 * ms) {
		for i, s := range both {
			if err := s.Tick(now); err != nil {
				return now, err
			}
			if b := flush(both[1-i]); len(b) > 0 {
				l.wires[i] = append(l.wires[i], wire{now.Add(l.delay), b})
			}
			for len(l.wires[i]) > 0 && !l.wires[i][0].at.After(now) && !l.cut(now) {
				if err := s.Receive(now, l.wires[i][0].b); err != nil {
					return now, err
				}
				l.wires[i] = l.wires[i][1:]
			}
		}
	}
	return now, nil
}

// TestSilence: over a link with a round trip of 600 ms a pause of 4 s, in which TCP repairs losses,
// is no death; when the link stays cut, the peer is dead in time all the same. Over a short one
// that takes 1.5 s, as ever.
func TestSilence(t *testing.T) {
	for _, c := range []struct {
		delay, pause, least, most time.Duration
	}{{300 * ms, 4 * time.Second, 6 * time.Second, 20 * time.Second}, {ms, time.Second, 1200 * ms, 1600 * ms}} {
		// silence counts from the last heartbeat on
		x, y := readyPair(t, named("d"), named("a"))
		l := &link{delay: c.delay, cut: func(time.Time) bool { return false }}
		now, err := l.run(x, y, t0, at(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		pause := now.Add(c.pause)
		l.cut = func(now time.Time) bool { return now.Before(pause) }
		if now, err = l.run(x, y, now, now.Add(c.pause+20*time.Second)); err != nil {
			t.Fatalf("round trip %v, a pause of %v: %v", 2*c.delay, c.pause, err)
		}
		l.cut = func(time.Time) bool { return true }
		when, err := l.run(x, y, now, now.Add(time.Hour))
		if took := when.Sub(now); !errors.Is(err, ErrDead) || took < c.least-c.delay || took > c.most {
			t.Errorf("round trip %v: %v after %v", 2*c.delay, err, took)
		}
	}
	// A peer cannot be silent for ever by what it says of the round trip.
	x, _ := readyPair(t, named("d"), named("a"))
	x.rtt, x.rttvar = time.Hour, time.Hour
	if s := x.Silence(); s != maxSilence {
		t.Errorf("%v", s)
	}
}
