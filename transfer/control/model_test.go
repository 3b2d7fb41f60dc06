package control

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestModel joins two sessions by pipes that delay bytes as they like but lose none, and has both
// ask and answer at random, in any order, until one may say goodbye or the connection may be cut.
// Each request gets exactly one response, the one that was meant for it, or the reason why there is
// none; each notification comes once and in order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, a := named("d"), named("a")
		d.MaxPending = rapid.IntRange(1, 6).Draw(t, "pending of the dialer")
		a.MaxPending = rapid.IntRange(1, 6).Draw(t, "pending of the acceptor")
		d.RequestTimeout = time.Duration(rapid.SampledFrom([]int{20, 100, 100000}).Draw(t, "timeout")) * ms
		now := t0
		mk := func(r Role, o Options) *Session {
			s, err := New(r, o, now)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		type side struct {
			s        *Session
			pipe     []byte            // on its way to the other side
			asked    map[uint64]uint64 // id -> PathID in it
			answered map[uint64]int
			todo     []*Request
			refused  map[uint64]bool // decided by the other side
			sent     uint64
			received uint64
		}
		mkSide := func(s *Session) *side {
			return &side{s: s, asked: map[uint64]uint64{}, answered: map[uint64]int{}, refused: map[uint64]bool{}}
		}
		sides := [2]*side{mkSide(mk(Dialer, d)), mkSide(mk(Acceptor, a))}
		nonce := uint64(0)
		take := func(x, y *side) {
			for {
				m, ok := x.s.Next()
				if !ok {
					return
				}
				switch m := m.(type) {
				case *Request:
					q, err := Parse[PathDown](m.Body)
					if err != nil || q.PathID != y.asked[m.ID] || m.Method != MethodPathDown {
						t.Fatalf("request %d: %+v %v", m.ID, q, err)
					}
					x.todo = append(x.todo, m)
				case *Response:
					want, ok := x.asked[m.ID]
					if !ok {
						t.Fatalf("response to %d, which was not asked", m.ID)
					}
					if x.answered[m.ID]++; x.answered[m.ID] > 1 {
						t.Fatalf("second response to %d", m.ID)
					}
					err := m.Err()
					switch {
					case m.local != nil:
						if x.s.State() == Ready && !errors.Is(err, Timeout) {
							t.Fatalf("no answer to %d because of %v, but the session is ready", m.ID, err)
						}
					case x.refused[m.ID]:
						if !errors.Is(err, Busy) {
							t.Fatalf("request %d was refused: %v", m.ID, err)
						}
					default:
						if err != nil || len(m.Body) != 8 || binary.BigEndian.Uint64(m.Body) != want {
							t.Fatalf("request %d about %d: %x %v", m.ID, want, m.Body, err)
						}
					}
				case *Notification:
					if m.ID != x.received {
						t.Fatalf("notification %d, expected %d", m.ID, x.received)
					}
					x.received++
				default:
					t.Fatalf("%T", m)
				}
			}
		}
		check := func(x *side, err error) {
			if err != nil && x.s.State() <= Ready {
				t.Fatalf("%v in state %v", err, x.s.State())
			}
			if x.s.State() == Failed && !errors.Is(x.s.Err(), io.EOF) {
				t.Fatalf("failed: %v", x.s.Err())
			}
		}
		// pump writes a part of what waits, and delivers a part of what is on its way.
		pump := func(i, write, deliver int) {
			x, y := sides[i], sides[1-i]
			w := min(write, len(x.s.Outgoing()))
			x.pipe = append(x.pipe, x.s.Outgoing()[:w]...)
			x.s.Sent(w)
			n := min(deliver, len(x.pipe))
			if n == 0 {
				return
			}
			if st := y.s.State(); st == Ready || st == Handshake || st == Closing {
				check(y, y.s.Receive(now, x.pipe[:n]))
				take(y, x)
			}
			x.pipe = x.pipe[n:]
		}
		steps := rapid.IntRange(1, 150).Draw(t, "steps")
		for range steps {
			i := rapid.IntRange(0, 1).Draw(t, "side")
			x, y := sides[i], sides[1-i]
			switch op := rapid.SampledFrom([]string{"ask", "ask", "answer", "answer", "notify", "pump", "pump", "pump",
				"pump", "time", "rare"}).Draw(t, "step"); op {
			case "ask":
				nonce++
				id, err := x.s.Request(now, &PathDown{PathID: nonce})
				switch {
				case err == nil:
					x.asked[id] = nonce
				case errors.Is(err, ErrPending) && x.s.Pending() >= x.s.opt.MaxPending:
				case errors.Is(err, ErrNotReady) && x.s.State() != Ready:
				default:
					t.Fatal(err)
				}
			case "answer":
				if len(x.todo) == 0 || x.s.State() != Ready {
					break
				}
				k := rapid.IntRange(0, len(x.todo)-1).Draw(t, "which")
				r := x.todo[k]
				x.todo = append(x.todo[:k], x.todo[k+1:]...)
				var err error
				if rapid.Bool().Draw(t, "refuse") {
					y.refused[r.ID] = true
					err = x.s.Refuse(now, r.ID, Busy)
				} else {
					err = x.s.respond(now, &Response{ID: r.ID, Body: r.Body[:8]})
				}
				if err != nil {
					t.Fatal(err)
				}
			case "notify":
				if x.s.Send(now, &Notification{ID: x.sent}) == nil {
					x.sent++
				}
			case "pump":
				pump(i, rapid.IntRange(0, 300).Draw(t, "write"), rapid.IntRange(0, 300).Draw(t, "deliver"))
			case "time":
				now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "ms")) * ms)
				for _, z := range sides {
					z.s.Alive(now) // the pipes may be slow, the peers are alive
					for d := z.s.Deadline(); !d.IsZero() && !d.After(now); d = z.s.Deadline() {
						if err := z.s.Tick(now); err != nil {
							break
						}
						if z.s.State() == Handshake {
							return // no handshake in time
						}
					}
					take(z, sides[0])
				}
			case "rare":
				switch rapid.IntRange(0, 20).Draw(t, "rare") {
				case 0:
					x.s.Goodbye(now, Shutdown, "enough")
				case 1:
					for _, z := range sides {
						z.s.Disconnected(io.EOF)
					}
				}
			}
			take(sides[0], sides[1])
			take(sides[1], sides[0])
		}
		// In the end everything is carried, answered, and closed in order.
		for round := 0; ; round++ {
			if round > 1000 {
				t.Fatal("the sessions do not come to rest")
			}
			for i, x := range sides {
				pump(i, 1<<20, 1<<20)
				for x.s.State() == Ready && len(x.todo) > 0 {
					r := x.todo[0]
					x.todo = x.todo[1:]
					if err := x.s.respond(now, &Response{ID: r.ID, Body: r.Body[:8]}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(sides[0].pipe)+len(sides[1].pipe)+len(sides[0].s.Outgoing())+len(sides[1].s.Outgoing())+
				len(sides[0].todo)+len(sides[1].todo) == 0 ||
				sides[0].s.State() > Ready && sides[1].s.State() > Ready {
				break
			}
		}
		alive := sides[0].s.State() == Ready && sides[1].s.State() == Ready
		for i, x := range sides {
			if alive && (x.received != sides[1-i].sent || x.s.Pending() != 0 || x.s.Open() != 0) {
				t.Fatalf("at rest: %d of %d notifications, %d pending, %d open", x.received, sides[1-i].sent,
					x.s.Pending(), x.s.Open())
			}
			x.s.Goodbye(now, Shutdown, "")
			x.s.Disconnected(io.EOF)
			take(x, sides[1-i])
			for id := range x.asked {
				if x.answered[id] != 1 {
					t.Fatalf("request %d got %d responses", id, x.answered[id])
				}
			}
		}
	})
}

// owner runs a session over a connection, as package transfer does: a reader, and a writer that
// keeps the deadlines.
type owner struct {
	mu   sync.Mutex
	s    *Session
	conn net.Conn
	kick chan struct{}
	got  func(*owner, Message)
	done sync.WaitGroup
	err  error // of the session; read it after done
}

func own(s *Session, conn net.Conn, got func(*owner, Message)) *owner {
	o := &owner{s: s, conn: conn, kick: make(chan struct{}, 1), got: got}
	o.done.Go(o.read)
	o.done.Go(o.write)
	return o
}

func (o *owner) do(f func(*Session)) {
	o.mu.Lock()
	f(o.s)
	o.mu.Unlock()
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

func (o *owner) read() {
	buf := make([]byte, 100)
	for {
		n, err := o.conn.Read(buf)
		var end error
		var msgs []Message
		o.do(func(s *Session) {
			if err != nil {
				end = s.Disconnected(err)
			} else {
				end = s.Receive(time.Now(), buf[:n])
			}
			msgs = drain(s)
		})
		for _, m := range msgs {
			o.got(o, m)
		}
		if end != nil {
			return
		}
	}
}

func (o *owner) write() {
	defer o.conn.Close()
	for {
		o.mu.Lock()
		err := o.s.Tick(time.Now())
		out, deadline, msgs := o.s.Outgoing(), o.s.Deadline(), drain(o.s)
		o.mu.Unlock()
		for _, m := range msgs {
			o.got(o, m)
		}
		if len(out) > 0 {
			o.conn.SetWriteDeadline(time.Now().Add(time.Second))
			n, werr := o.conn.Write(out) // without the lock: the bytes do not move
			o.do(func(s *Session) { s.Sent(n) })
			if werr == nil {
				continue
			}
		}
		if err != nil {
			o.err = err
			return
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-o.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func TestTwoSessionsOverAPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c1, c2 := net.Pipe()
		x, _ := New(Dialer, named("d"), time.Now())
		y, _ := New(Acceptor, named("a"), time.Now())
		const n = 200
		answers := make(chan *Response, n)
		handle := func(o *owner, m Message) {
			switch m := m.(type) {
			case *Request:
				o.do(func(s *Session) { s.Respond(time.Now(), m.ID, nil) })
			case *Response:
				answers <- m
			}
		}
		a, b := own(x, c1, handle), own(y, c2, handle)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for o := a; o != nil; {
			synctest.Wait()
			o.mu.Lock()
			ready := o.s.State() == Ready
			o.mu.Unlock()
			if ready {
				break
			}
			if ctx.Err() != nil {
				t.Fatal("not ready")
			}
		}
		for range n {
			a.do(func(s *Session) {
				if _, err := s.Request(time.Now(), &List{}); err != nil {
					t.Error(err)
				}
			})
		}
		seen := map[uint64]bool{}
		for range n {
			r := <-answers
			if r.Err() != nil || seen[r.ID] {
				t.Fatalf("%d: %v", r.ID, r.Err())
			}
			seen[r.ID] = true
		}
		// An idle hour: heartbeats keep both alive, and only heartbeats are sent.
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, o := range []*owner{a, b} {
			o.mu.Lock()
			st, state := o.s.stats, o.s.State()
			o.mu.Unlock()
			if state != Ready || st.framesIn > 4*3600+n+10 || st.framesIn < 4*3600 {
				t.Errorf("after an hour: %v, %+v", state, st)
			}
		}
		a.do(func(s *Session) { s.Goodbye(time.Now(), Shutdown, "done") })
		a.done.Wait()
		b.done.Wait()
		if !errors.Is(a.err, Shutdown) || !errors.Is(b.err, Shutdown) || x.State() != Closed || y.State() != Closed {
			t.Errorf("%v %v, %v %v", x.State(), a.err, y.State(), b.err)
		}
	})
}

// TestHungPeer: the other side takes the connection and then does nothing, as a stopped process
// does.
func TestHungPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c1, c2 := net.Pipe()
		start := time.Now()
		x, _ := New(Dialer, named("d"), start)
		y, _ := New(Acceptor, named("a"), start)
		a := own(x, c1, func(*owner, Message) {})
		buf := make([]byte, 1000)
		n, _ := c2.Read(buf)
		if err := y.Receive(start, buf[:n]); err != nil {
			t.Fatal(err)
		}
		c2.Write(flush(y))
		go io.Copy(io.Discard, c2) // the kernel still takes bytes for it
		a.done.Wait()
		if took := time.Since(start); !errors.Is(a.err, ErrDead) || took >= 2*time.Second {
			t.Errorf("%v after %v", a.err, took)
		}
		c2.Close()
	})
}
