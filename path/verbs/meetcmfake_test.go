package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/ibv/cm"
	"github.com/penstock-io/penstock/internal/sys"
	"github.com/penstock-io/penstock/path"
)

// TestMeetings is what TestGuestConformance/Meetings asks of the kernel's connection manager.
func TestMeetings(t *testing.T) {
	w := newWorld(t, "mode wire")
	meetings(t, New(Options{Library: w.lib, cm: w.manager(t), Meet: MeetCM}))
}

// TestMeetAuto: a device without datagrams is met by the connection manager.
func TestMeetAuto(t *testing.T) {
	w := newWorld(t, "absent ud")
	l, err := New(Options{Library: w.lib, cm: w.manager(t)}).Listen()
	if err != nil {
		t.Fatal(err)
	}
	if _, is, err := parseCMAddress(l.Addr()); !is || err != nil {
		t.Errorf("it listens at %s (%v)", l.Addr(), err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestMeetingFails: each call to the connection manager fails, the first of its kind, the second and so on. A side that cannot go on says so, a dialer
// who got no answer asks again, and nothing stays behind.
func TestMeetingFails(t *testing.T) {
	w := newWorld(t, "")
	d := New(Options{Library: w.lib, cm: w.manager(t), Device: "fake0", Meet: MeetCM})
	for _, call := range []string{"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr", "rdma_listen", "rdma_resolve_addr", "rdma_resolve_route", "rdma_connect",
		"rdma_accept", "rdma_establish", "rdma_get_cm_event", "cm_address", "cm_route", "cm_connect", "cm_accept"} {
		limit := time.Minute
		if call == "rdma_get_cm_event" { // a listener that hears nothing more answers no dialer
			limit = time.Second
		}
		failed := 0
		for k := 1; ; k++ {
			w.do(t, fmt.Sprintf("reset; mode post; fail %s %d ENOBUFS", call, k))
			err := try(t, d, limit)
			w.clean(t)
			more := w.counted(t, call) >= k
			if err != nil && !more {
				t.Errorf("%s: %v, and nothing has failed", call, err)
			}
			if err != nil {
				failed++
			}
			if !more {
				break
			}
		}
		if recovers := call == "rdma_accept" || call == "cm_accept"; (failed == 0) != recovers {
			t.Errorf("%s: %d failures did harm", call, failed)
		}
	}
	w.do(t, "reset; mode post")
	if err := try(t, d, time.Minute); err != nil {
		t.Errorf("after all of them: %v", err)
	}
}

// stranger is a program that uses the connection manager and nothing else of ours.
type stranger struct {
	t *testing.T
	c *cm.Channel
}

func newStranger(t *testing.T, file string) *stranger {
	t.Helper()
	l, err := cm.Load(cm.Options{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &stranger{t, c}
}

func (s *stranger) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// next is the next event, nil when none came in time.
func (s *stranger) next() *cm.Event {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		ev, ok, err := s.c.Next()
		s.must(err)
		if ok {
			return &ev
		}
		if _, err := sys.PollIn(100, s.c.FD()); err != nil {
			s.t.Fatal(err)
		}
	}
	return nil
}

// ask sends a request with that data, and returns its answer.
func (s *stranger) ask(to netip.AddrPort, data []byte) *cm.Event {
	s.t.Helper()
	id, err := s.c.NewID()
	s.must(err)
	defer id.Close()
	s.must(id.ResolveAddress(netip.AddrPort{}, to, time.Minute))
	for {
		ev := s.next()
		switch {
		case ev == nil:
			return nil
		case ev.Type == cm.AddressResolved:
			s.must(id.ResolveRoute(time.Minute))
		case ev.Type == cm.RouteResolved:
			s.must(id.Connect(cm.Params{PrivateData: data, QPN: 99}))
		default:
			return ev
		}
	}
}

// TestHostileRequests: requests with any data, and with all of a hello but the secret, are rejected without a word, and take no dialer's place.
func TestHostileRequests(t *testing.T) {
	w := newWorld(t, "")
	file := w.manager(t)
	d := New(Options{Library: w.lib, cm: file, Meet: MeetCM})
	l, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at, _, err := parseCMAddress(l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	secret, tok, x := bytes.Repeat([]byte{7}, path.SecretSize), newToken(), new(path.Exports)
	accepted := make(chan path.Path, 1)
	go func() {
		p, err := l.Accept(t.Context(), tok, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret})
		if err != nil {
			t.Error(err)
		}
		accepted <- p
	}()
	h := hello{token: tok, nonce: 5, params: params{rails: 1, window: 8, mtu: 3, control: endpoint{qpn: 99}}}
	h.rail[0] = endpoint{qpn: 98}
	if err := new(hello).parseCM(h.appendCM(nil, nil), h.gid); err != nil {
		t.Fatal(err) // what is wrong with it is its secret alone
	}
	datas := [][]byte{nil, {cmMark}, {cmMark, version}, make([]byte, cm.MaxConnectData), bytes.Repeat([]byte{0xff}, cm.MaxConnectData), h.appendCM(nil, nil), h.appendCM(nil, []byte("another"))}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		b := h.appendCM(nil, nil)
		for range 1 + r.IntN(6) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		datas = append(datas, b[:1+r.IntN(len(b))])
	}
	s := newStranger(t, file)
	for _, b := range datas {
		ev := s.ask(at, b)
		if ev == nil || ev.Type != cm.Rejected || len(bytes.Trim(ev.Params.PrivateData, "\x00")) > 0 {
			t.Fatalf("a request with %x: %+v", b, ev)
		}
	}
	p, err := d.Dial(t.Context(), path.Offer{Addr: l.Addr(), Token: tok}, path.Config{Rights: path.Read | path.Write, Exports: x, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if q := <-accepted; q != nil {
		q.Close()
	}
}

// TestHostileAnswers: what a listener says that has not the secret is not believed, whatever it is: the dialer asks again until its time is over.
func TestHostileAnswers(t *testing.T) {
	w := newWorld(t, "")
	file := w.manager(t)
	s := newStranger(t, file)
	lis, err := s.c.NewID()
	s.must(err)
	s.must(lis.Bind(netip.MustParseAddrPort("192.0.2.1:0")))
	s.must(lis.Listen(8))
	secret := bytes.Repeat([]byte{7}, path.SecretSize)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		p, err := New(Options{Library: w.lib, cm: file, Insecure: true}).Dial(ctx, path.Offer{Addr: cmPrefix + lis.Local().String(), Token: newToken()},
			path.Config{Rights: path.Read | path.Write, Exports: new(path.Exports), Secret: secret})
		if err == nil {
			p.Close()
		}
		done <- err
	}()
	var nonce uint64
	welcomed := func(secret []byte) []byte {
		w := welcome{nonce: nonce, params: params{gid: netip.MustParseAddr("192.0.2.1").As16(), rails: 1, window: 8, ctlDepth: ctlDepth, msgDepth: msgDepth, mtu: 3,
			control: endpoint{qpn: 9}}}
		w.rail[0] = endpoint{qpn: 8}
		b := w.append(nil, secret)
		if err := new(welcome).parse(b); err != nil {
			t.Fatal(err) // what is wrong with it is its secret alone
		}
		return b
	}
	r := rand.New(rand.NewPCG(3, 4))
	answers := []func(*cm.ID) error{
		func(id *cm.ID) error { return id.Close() },
		func(id *cm.ID) error { return id.Reject(nil) },
		func(id *cm.ID) error { return id.Reject(bytes.Repeat([]byte{cmMark}, cm.MaxRejectData)) },
		func(id *cm.ID) error {
			return id.Reject((&welcome{nonce: nonce, status: statusRefused, words: "no"}).appendRefusal(nil, [16]byte{}, []byte("another")))
		},
		func(id *cm.ID) error { return id.Accept(cm.Params{QPN: 9}) },
		func(id *cm.ID) error { return id.Accept(cm.Params{QPN: 9, PrivateData: welcomed(nil)}) },
		func(id *cm.ID) error { return id.Accept(cm.Params{QPN: 9, PrivateData: welcomed([]byte("another"))}) },
		func(id *cm.ID) error {
			b := welcomed(nil)
			for range 1 + r.IntN(9) {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
			return id.Accept(cm.Params{QPN: 9, PrivateData: b[:r.IntN(len(b))]})
		},
	}
	for asked := 0; asked < len(answers); {
		ev := s.next()
		if ev == nil {
			t.Fatalf("the dialer has given up after %d answers", asked)
		}
		if ev.Type != cm.ConnectRequest {
			continue // of those before: it has gone
		}
		if b := ev.Params.PrivateData; len(b) == cm.MaxConnectData {
			var h hello
			if err := h.parseCM(b, ev.ID.Remote().Addr().As16()); err != nil {
				t.Error(err)
			}
			nonce = h.nonce
		}
		s.must(answers[asked](ev.ID))
		asked++
	}
	for ev := s.next(); ev != nil && ev.Type != cm.ConnectRequest; { // it asks once more
		ev = s.next()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("dial: %v", err)
	}
}
