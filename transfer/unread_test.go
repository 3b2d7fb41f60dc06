package transfer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/internal/budget"
	"github.com/penstock-io/penstock/transfer/control"
	"github.com/penstock-io/penstock/transfer/path"
)

// asker is the dialer of a session. It reads only by its method read.
type asker struct {
	t     testing.TB
	c     net.Conn
	in    []byte // the start of a frame
	near  *Peer  // of the node that was asked
	asked uint64 // requests
}

// newAsker has its handshake with a node, whose OnPeer sends to met.
func newAsker(t testing.TB, addr string, met <-chan *Peer) *asker {
	t.Helper()
	// A Unix socket: where one direction of a TCP connection is full, the kernel may also hold up
	// the other one.
	c, err := (&net.Dialer{}).DialContext(ctx(t), "unix", strings.TrimPrefix(addr, "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := control.New(control.Dialer, control.Options{Session: [16]byte{1}, DeadAfter: time.Hour,
		RequestTimeout: time.Hour,
		Identity:       control.Identity{Node: [16]byte{2}, Instance: 1, Name: "asker", Host: [16]byte{3}}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	for s.State() == control.Handshake {
		if out := s.Outgoing(); len(out) > 0 {
			n, err := c.Write(out)
			if s.Sent(n); err != nil {
				t.Fatal(err)
			}
			continue
		}
		n, err := c.Read(b)
		if err == nil {
			err = s.Receive(time.Now(), b[:n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	near := <-met
	near.raw.(*net.UnixConn).SetWriteBuffer(8 << 10)
	return &asker{t: t, c: c, near: near}
}

// read takes up to n bytes and returns the answers that are complete.
func (a *asker) read(n int) (out []*control.Response) {
	b := make([]byte, n)
	a.c.SetReadDeadline(time.Now().Add(time.Minute))
	n, err := a.c.Read(b)
	if err != nil {
		a.t.Fatal(err)
	}
	a.in = append(a.in, b[:n]...)
	for {
		m, rest, err := control.ParseFrame(a.in)
		if err != nil { // it is not whole
			return out
		}
		a.in = rest
		if r, ok := m.(*control.Response); ok {
			out = append(out, r)
		}
	}
}

// ask sends one more request.
func (a *asker) ask(q control.Query) {
	body, err := control.AppendBody(nil, q)
	if err != nil {
		a.t.Fatal(err)
	}
	a.asked++
	b, err := control.AppendFrame(nil, &control.Request{ID: a.asked, Method: q.Method(), Body: body})
	if err == nil {
		_, err = a.c.Write(b)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// stalled is how many requests wait in sessions whose peer does not read.
const stalled = 50

// stall asks until the node lets that many requests wait because their answers have no room.
func (a *asker) stall(q control.Query) {
	for {
		var open, waiting int
		until(a.t, "the end of the requests that are served", func() bool {
			a.near.mu.Lock()
			defer a.near.mu.Unlock()
			open, waiting = a.near.session.Open(), a.near.session.Waiting()
			return open == waiting && a.near.session.Asked() == a.asked
		})
		if waiting >= stalled {
			return
		}
		for range min(stalled, 220-open) {
			a.ask(q)
		}
	}
}

// TestAskAndNotRead has sessions ask for each kind of answer and read none: what the node holds for
// them is bounded and charged before, other principals' budget is untouched, and each session gets
// all its answers when it reads.
func TestAskAndNotRead(t *testing.T) {
	met := make(chan *Peer, 1)
	n := open(t, Options{Name: "server", Listen: []string{"unix://" + filepath.Join(t.TempDir(), "s")},
		DeadAfter: time.Hour, HeartbeatEvery: 10 * time.Second, OnPeer: func(p *Peer) {
			met <- p
		}})
	n.budget = budget.New(budget.Amounts{budget.Sessions: 1000, budget.Paths: 300, budget.Descriptors: 1000,
		budget.Memory: 1 << 30})
	r := region(t, 4096)
	random := rand.New(rand.NewPCG(1, 2))
	name := ""
	for range 2000 { // more than a page of a list, and names that do not become short
		name = fmt.Sprintf("%016x%016x%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(),
			random.Uint64(), random.Uint64(), random.Uint64())
		if _, err := n.Export(r.All(), ExportOptions{Name: name, Rights: path.Read}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.Handle("whole", func(_ context.Context, _ *Peer, b []byte) ([]byte, error) {
		return make([]byte, MaxCall), nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Handle("no", func(context.Context, *Peer, []byte) ([]byte, error) {
		return nil, control.Errorf(control.NotFound, "%s", strings.Repeat("n", control.MaxText))
	}); err != nil {
		t.Fatal(err)
	}
	const sessions = 2
	for _, k := range []struct {
		name string
		q    control.Query
	}{
		{"list", &control.List{}},
		{"names", &control.Names{}},
		{"status", &control.Status{}},
		{"lookup", &control.Lookup{Name: name}},
		{"call", &control.Call{Service: "whole"}},
		{"call with a long request", &control.Call{Service: "whole", Body: make([]byte, MaxCall)}},
		{"refused call", &control.Call{Service: "no"}},
		{"unknown service", &control.Call{Service: strings.Repeat("u", 255)}},
	} {
		t.Run(k.name, func(t *testing.T) {
			var all []*asker
			for range sessions {
				a := newAsker(t, n.Addrs()[0], met)
				a.stall(k.q)
				all = append(all, a)
			}
			who := all[0].near.principal()
			sum, answers := 0, uint64(0)
			for _, a := range all {
				a.near.mu.Lock()
				held, waiting := a.near.session.Held(), a.near.session.Waiting()
				a.near.mu.Unlock()
				body, _ := control.AppendBody(nil, k.q)
				// The answers of one session, and its requests that wait.
				if most := 2*(576<<10) + waiting*(len(body)+200); held > most {
					t.Errorf("a session holds %d bytes for its peer, expected at most %d", held, most)
				}
				sum += held
				answers += a.asked - uint64(waiting)
			}
			charged := n.budget.Held(who)[budget.Memory]
			t.Logf("%d sessions: %d answers were made, %d bytes are held, %d charged", sessions, answers, sum, charged)
			if charged < uint64(sum) || charged > uint64(sum)+sessions*(sessionMemory+64<<10) {
				t.Errorf("%d bytes are charged for %d that are held by %d sessions", charged, sum, sessions)
			}
			for _, a := range all {
				for got := uint64(0); got < a.asked; {
					for _, r := range a.read(64 << 10) {
						got++
						if k.name != "list" && k.name != "names" && k.name != "status" && k.name != "call" {
							continue
						}
						if r.Err() != nil {
							t.Fatal(r.Err())
						}
					}
				}
				a.c.Close()
				<-a.near.Gone()
			}
			if h := n.budget.Held(who); h != (budget.Amounts{}) || n.granted.Load() != 0 {
				t.Errorf("%v is charged and %d grants are out after all", h, n.granted.Load())
			}
		})
	}
}

// TestRequestsWaitForTheLimits: a peer asks in the write of its hello. While the node still asks
// its user for the limits of the peer, none of the requests is served, also not by the goroutine
// that writes, which heartbeats show to be at work.
func TestRequestsWaitForTheLimits(t *testing.T) {
	const calls = 40 // more than have room for their answers at once
	asked, gate, ready := make(chan struct{}), make(chan struct{}), make(chan bool, calls)
	n := open(t, Options{Name: "server", Listen: []string{"unix://" + filepath.Join(t.TempDir(), "s")},
		Limits: Limits{ForPeer: func(string) (Quota, bool) { close(asked); <-gate; return Quota{}, false }}})
	if _, err := n.Handle("s", func(_ context.Context, p *Peer, _ []byte) ([]byte, error) {
		ready <- p.wasReady()
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	c, err := (&net.Dialer{}).DialContext(ctx(t), "unix", strings.TrimPrefix(n.Addrs()[0], "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := control.New(control.Dialer, control.Options{Session: [16]byte{1}, HeartbeatEvery: 10 * time.Millisecond,
		Identity: control.Identity{Node: [16]byte{2}, Instance: 1, Name: "asker", Host: [16]byte{3}}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b := slices.Clone(s.Outgoing())
	for id := range uint64(calls) {
		body, err := control.AppendBody(nil, &control.Call{Service: "s"})
		if err == nil {
			b, err = control.AppendFrame(b, &control.Request{ID: id + 1, Method: control.MethodCall, Body: body})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	<-asked
	a := &asker{t: t, c: c}
	for beats := 0; beats < 3; beats += a.beats() {
	}
	close(gate)
	for range calls {
		if !<-ready {
			t.Fatal("a request is served before the session is ready")
		}
	}
}

// beats reads, and returns how many heartbeats are complete.
func (a *asker) beats() (n int) {
	b := make([]byte, 4096)
	a.c.SetReadDeadline(time.Now().Add(time.Minute))
	k, err := a.c.Read(b)
	if err != nil {
		a.t.Fatal(err)
	}
	a.in = append(a.in, b[:k]...)
	for {
		m, rest, err := control.ParseFrame(a.in)
		if err != nil { // it is not whole
			return n
		}
		a.in = rest
		if _, ok := m.(*control.Heartbeat); ok {
			n++
		}
	}
}
