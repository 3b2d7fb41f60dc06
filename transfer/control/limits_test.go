package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestLimits(t *testing.T) {
	d := named("d")
	d.MaxPending = 3
	d.Identity.MaxBody = MinBody
	x, y := readyPair(t, d, named("a"))
	for range 3 {
		if _, err := x.Request(t0, &List{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Request(t0, &List{}); !errors.Is(err, ErrPending) {
		t.Errorf("one request too much: %v", err)
	}
	if err := y.Send(t0, &Notification{Body: make([]byte, MinBody-8)}); err != nil {
		t.Errorf("largest body: %v", err)
	}
	if err := y.Send(t0, &Notification{Body: make([]byte, MinBody-7)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more than the peer takes: %v", err)
	}
	if err := x.Receive(t0, raw(TypeNotification, 0, make([]byte, MinBody+1))[:HeaderSize]); !errors.Is(err, Protocol) {
		t.Errorf("a frame above the agreed limit: %v", err)
	}
	// The peer may not leave more than the protocol's number of requests open.
	x, y = readyPair(t, named("d"), named("a"))
	for i := range MaxPendingRequests {
		if err := y.Receive(t0, frameOf(t, &Request{ID: uint64(i) + 1})); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.Receive(t0, frameOf(t, &Request{ID: 1000})); !errors.Is(err, Protocol) {
		t.Errorf("request %d: %v", MaxPendingRequests+1, err)
	}
	if err := x.Send(t0, &Heartbeat{}); !errors.Is(err, BadRequest) {
		t.Errorf("a heartbeat by hand: %v", err)
	}
	if _, err := x.Request(t0, &Lookup{}); !errors.Is(err, BadRequest) || x.Pending() != 0 {
		t.Errorf("a lookup of nothing: %v", err)
	}
}

func TestBacklogIsBounded(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	m := &Notification{Body: make([]byte, MaxNotification)}
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = x.Send(t0, m)
	}
	if !errors.Is(err, ErrBacklog) || x.out.size > backlog || n < 10 {
		t.Fatalf("after %d: %v, %d bytes", n, err, x.out.size)
	}
	if _, err := x.Request(t0, &List{}); err != nil {
		t.Errorf("a small request fits still: %v", err)
	}
	have := bytes.Clone(x.Outgoing())
	shown := x.Outgoing()
	x.Goodbye(t0, Busy, "you do not read")
	if !bytes.Equal(shown, have) {
		t.Error("the goodbye changed bytes that were handed out")
	}
	var got []byte
	for len(x.Outgoing()) > 0 {
		p := x.Outgoing()[:min(len(x.Outgoing()), 40_000)]
		got = append(got, p...)
		x.Sent(len(p))
	}
	if !bytes.HasPrefix(got, have) {
		t.Error("the pieces are not what was shown first")
	}
	var last Message
	for n = 0; len(got) > 0; n++ {
		if last, got, err = ParseFrame(got); err != nil {
			t.Fatalf("frame %d: %v", n, err)
		}
	}
	if g, ok := last.(*Goodbye); !ok || g.Code != Busy {
		t.Errorf("last frame: %#v", last)
	}
	if x.out.memory > pieceSize || x.Held() != x.out.memory {
		t.Errorf("keeps %d bytes, holds %d although all is written", x.out.memory, x.Held())
	}
}

func TestUnreadIsBounded(t *testing.T) {
	x, _ := readyPair(t, named("d"), named("a"))
	f := frameOf(t, &Notification{ID: 1, Body: make([]byte, 1000)})
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		err = x.Receive(t0, f)
	}
	if !errors.Is(err, ErrUnread) || x.State() != Ready || x.Err() != nil || n > 1100 {
		t.Fatalf("after %d: %v, %v", n, err, x.State())
	}
	got := len(drain(x))
	if err := x.Receive(t0, f); err != nil {
		t.Fatalf("after draining: %v", err)
	}
	if got+len(drain(x)) != n {
		t.Errorf("%d of %d messages", got, n)
	}
	// A reader that always leaves one behind must neither lose messages nor make the session grow.
	for i := range 10_000 {
		if err := x.Receive(t0, frameOf(t, &Notification{ID: uint64(i)})); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		if m, ok := x.Next(); !ok || m.(*Notification).ID != uint64(i)-1 {
			t.Fatalf("message %d: %+v", i-1, m)
		}
	}
	if cap(x.inbox) > 1024 {
		t.Errorf("line of %d for one message", cap(x.inbox))
	}
}

// TestForgedLength: memory follows the bytes that came, never the length that was announced; too
// large a length is refused as soon as the header is there.
func TestForgedLength(t *testing.T) {
	for _, n := range []uint32{MinBody + 1, MaxBody + 1, 1 << 31, 1<<32 - 1} {
		s := newSession(t, Acceptor, named("a"))
		h := raw(TypeHello, 0, nil)
		binary.BigEndian.PutUint32(h[offLength:], n)
		if err := s.Receive(t0, h); !errors.Is(err, Protocol) {
			t.Errorf("length %d in the handshake: %v", n, err)
		}
	}
	x, _ := readyPair(t, named("d"), named("a"))
	h := raw(TypeNotification, 0, nil)
	binary.BigEndian.PutUint32(h[offLength:], MaxBody)
	if err := x.Receive(t0, append(h, 1, 2, 3)); err != nil {
		t.Fatal(err)
	}
	if cap(x.in) > 1024 {
		t.Errorf("%d bytes taken for 19", cap(x.in))
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"name":         func(o *Options) { o.Name = strings.Repeat("x", MaxName+1) },
		"versions":     func(o *Options) { o.VersionMin, o.VersionMax = 3, 2 },
		"heartbeat":    func(o *Options) { o.HeartbeatEvery = time.Millisecond },
		"heartbeat <0": func(o *Options) { o.HeartbeatEvery = -time.Second },
		"heartbeat >":  func(o *Options) { o.HeartbeatEvery, o.DeadAfter = 2*time.Minute, time.Hour },
		"dead":         func(o *Options) { o.DeadAfter = 400 * time.Millisecond },
		"handshake":    func(o *Options) { o.HandshakeTimeout = -1 },
		"request":      func(o *Options) { o.RequestTimeout = -1 },
		"pending":      func(o *Options) { o.MaxPending = MaxPendingRequests + 1 },
		"body":         func(o *Options) { o.Identity.MaxBody = MaxBody + 1 },
		"body <":       func(o *Options) { o.Identity.MaxBody = 1 },
		"paths":        func(o *Options) { o.Paths = make([]string, MaxPaths+1) },
		"empty path":   func(o *Options) { o.Paths = []string{""} },
	} {
		for _, r := range []Role{Dialer, Acceptor} {
			o := named("x")
			change(&o)
			if _, err := New(r, o, t0); err == nil {
				t.Errorf("%v: %s was accepted", r, name)
			}
		}
	}
	if _, err := New(0, named("x"), t0); err == nil {
		t.Error("no role was accepted")
	}
}
