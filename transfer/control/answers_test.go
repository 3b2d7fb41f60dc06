package control

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// most is what Next gives at a time to an owner that answers all at once, while nothing is read.
const most = 2 * answersRoom

// TestAnswersWaitForTheReader: a peer that asks and does not read gets answers made up to a bound,
// for every method; each of its requests is answered when it reads, however slowly, and messages of
// the session's own and the end of paths do not wait.
func TestAnswersWaitForTheReader(t *testing.T) {
	for m := range Method(MethodNames + 2) {
		t.Run(m.String(), func(t *testing.T) {
			charged := 0
			a := named("a")
			a.Charge = func(n int) error {
				charged += n
				return nil
			}
			_, y := readyPair(t, named("d"), a)
			size := y.answerSize(m) - HeaderSize - responseOverhead
			id, answered := uint64(0), 0
			ask := func(m Method) {
				id++
				if err := y.Receive(t0, frameOf(t, &Request{ID: id, Method: m, Body: make([]byte, 100)})); err != nil {
					t.Fatal(err)
				}
			}
			serve := func() {
				for {
					m, ok := y.Next()
					if !ok {
						return
					}
					if err := y.respond(t0, &Response{ID: m.(*Request).ID, Body: make([]byte, size)}); err != nil {
						t.Fatal(err)
					}
					answered++
				}
			}
			for y.Open() < MaxPendingRequests {
				ask(m)
				serve()
				if y.out.answers > most || y.Held() > most+MaxPendingRequests*(128+100)+pieceSize ||
					charged < y.Held()-Allowance {
					t.Fatalf("request %d: %d bytes of answers, %d held, %d charged", id, y.out.answers, y.Held(),
						charged)
				}
			}
			t.Logf("%d of %d answers of %d bytes were made: %d held, %d charged", answered, id, size, y.Held(), charged)
			if answered == 0 {
				t.Error("no answer was made")
			}
			if err := y.Send(t0, &KeyRevoked{Key: testKey}); err != nil {
				t.Errorf("a message of its own: %v", err)
			}
			var got []byte
			for p := y.Outgoing(); len(p) > 0; p = y.Outgoing() {
				n := min(len(p), 100+size/3)
				got = append(got, p[:n]...)
				y.Sent(n)
				serve()
			}
			seen := map[uint64]bool{}
			for len(got) > 0 {
				m, rest, err := ParseFrame(got)
				if err != nil {
					t.Fatal(err)
				}
				if r, ok := m.(*Response); ok {
					if seen[r.ID] || r.Code != OK || len(r.Body) != size {
						t.Fatalf("answer to %d: %v, %d bytes", r.ID, r.Err(), len(r.Body))
					}
					seen[r.ID] = true
				}
				got = rest
			}
			if len(seen) != int(id) || y.Open() != 0 || y.Held() > pieceSize || charged != 0 {
				t.Errorf("%d of %d answers came, %d are open; %d held, %d charged", len(seen), id, y.Open(), y.Held(),
					charged)
			}
		})
	}
}

// TestEndsDoNotWaitBehindLists: while lists wait for their reader, the end of a path is served.
func TestEndsDoNotWaitBehindLists(t *testing.T) {
	_, y := readyPair(t, named("d"), named("a"))
	for id := uint64(1); id <= 100; id++ {
		y.Receive(t0, frameOf(t, &Request{ID: id, Method: MethodList}))
		for m, ok := y.Next(); ok; m, ok = y.Next() {
			y.respond(t0, &Response{ID: m.(*Request).ID, Body: make([]byte, MaxBody-responseOverhead)})
		}
	}
	if y.Open() < 90 {
		t.Fatalf("%d lists wait", y.Open())
	}
	y.Receive(t0, frameOf(t, &Request{ID: 101, Method: MethodPathDown, Body: make([]byte, 10)}))
	if m, ok := y.Next(); !ok || m.(*Request).ID != 101 {
		t.Errorf("got %+v", m)
	}
}

// TestServedForLong: requests that wait for something leave room to others while the peer reads,
// and none while it does not.
func TestServedForLong(t *testing.T) {
	_, y := readyPair(t, named("d"), named("a"))
	now := t0
	id := uint64(0)
	fill := func() (given []uint64) {
		for y.Open() < 60 {
			id++
			if err := y.Receive(now, frameOf(t, &Request{ID: id, Method: MethodCall})); err != nil {
				t.Fatal(err)
			}
		}
		for m, ok := y.Next(); ok; m, ok = y.Next() {
			given = append(given, m.(*Request).ID)
		}
		return given
	}
	first := fill()
	if n := len(first); n != answersRoom/y.answerSize(MethodCall) {
		t.Errorf("%d calls are served at a time", n)
	}
	now = now.Add(250 * ms)
	y.Tick(now)
	flush(y)
	if n := len(fill()); n != len(first) {
		t.Errorf("%d more are served after a heartbeat, expected %d", n, len(first))
	}
	now = now.Add(250 * ms)
	y.Tick(now)
	if err := y.Respond(now, first[0], nil); err != nil {
		t.Fatal(err)
	}
	if n := len(fill()); n != 0 {
		t.Errorf("%d are served while an answer is not read", n)
	}
	flush(y)
	if n := len(fill()); n != len(first) {
		t.Errorf("%d are served when it is read, expected %d", n, len(first))
	}
}

// TestListsServedForLong: a list that is made slowly, because many ask, counts as long as it takes.
func TestListsServedForLong(t *testing.T) {
	_, y := readyPair(t, named("d"), named("a"))
	now := t0
	given := 0
	for id := uint64(1); id <= 50; id++ {
		if err := y.Receive(now, frameOf(t, &Request{ID: id, Method: MethodList})); err != nil {
			t.Fatal(err)
		}
		for _, ok := y.Next(); ok; _, ok = y.Next() {
			given++
		}
		now = now.Add(250 * ms)
		y.Tick(now)
		flush(y)
	}
	if most := answersRoom / MaxBody; given != most {
		t.Errorf("%d lists are made at a time, expected %d", given, most)
	}
}

// TestChargeModel has a peer ask and read at random, its requests be answered at random, and
// charges be refused at random. What is held beyond the allowance is charged at any time; each
// request that was given can be answered; each is answered or refused as busy once; all is given
// back in the end.
func TestChargeModel(tt *testing.T) {
	rapid.Check(tt, func(t *rapid.T) {
		charged, most := 0, rapid.SampledFrom([]int{0, 64 << 10, 300 << 10, 1 << 30}).Draw(t, "most")
		a := named("a")
		a.Charge = func(n int) error {
			if n > 0 && charged+n > most {
				return fmt.Errorf("too much: %w", Busy)
			}
			charged += n
			return nil
		}
		d, err := New(Dialer, named("d"), t0)
		if err != nil {
			t.Fatal(err)
		}
		y, err := New(Acceptor, a, t0)
		if err != nil {
			t.Fatal(err)
		}
		move(d, y, t0)
		move(y, d, t0)
		now := t0
		id := uint64(0)
		var given []*Request
		answers := map[uint64]int{}
		var stream []byte
		read := func(n int) {
			p := y.Outgoing()
			p = p[:min(n, len(p))]
			stream = append(stream, p...)
			y.Sent(len(p))
		}
		take := func() {
			for m, ok := y.Next(); ok; m, ok = y.Next() {
				if r := m.(*Request); len(r.Body) != int(r.ID)%3000 {
					t.Fatalf("request %d has %d bytes", r.ID, len(r.Body))
				}
				given = append(given, m.(*Request))
			}
		}
		respond := func(k int, refuse bool) error {
			r := given[k]
			given = slices.Delete(given, k, k+1)
			if refuse {
				return y.Refuse(now, r.ID, NotFound)
			}
			return y.respond(now, &Response{ID: r.ID,
				Body: make([]byte, y.answerSize(r.Method)-HeaderSize-responseOverhead)})
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"ask", "ask", "answer", "send", "read", "time"}).Draw(t, "step") {
			case "ask":
				for range rapid.IntRange(1, 20).Draw(t, "requests") {
					if y.Open() == MaxPendingRequests {
						break
					}
					id++
					m := rapid.SampledFrom([]Method{MethodList, MethodCall, MethodLookup, 99}).Draw(t, "method")
					if err := y.Receive(now, frameOf(tt,
						&Request{ID: id, Method: m, Body: make([]byte, id%3000)})); err != nil {
						t.Fatal(err)
					}
				}
			case "answer":
				if len(given) > 0 {
					if err := respond(rapid.IntRange(0, len(given)-1).Draw(t, "which"),
						rapid.Bool().Draw(t, "refuse")); err != nil {
						t.Fatal(err)
					}
				}
			case "send":
				y.Send(now, &Notification{Body: make([]byte, rapid.IntRange(0, 30000).Draw(t, "bytes"))})
			case "read":
				read(rapid.IntRange(1, 1<<20).Draw(t, "bytes"))
			case "time":
				now = now.Add(100 * ms)
				y.Alive(now)
				y.Tick(now)
			}
			if rapid.Bool().Draw(t, "take") {
				take()
			}
			if y.Held() > charged+Allowance+pieceSize || y.out.memory > y.Held() { // a heartbeat may take a piece
				t.Fatalf("%d held, of which %d wait to be written, %d charged", y.Held(), y.out.memory, charged)
			}
		}
		if rapid.Bool().Draw(t, "reads on") {
			for round := 0; y.Open() > 0; round++ {
				if round == 10000 {
					t.Fatalf("%d of %d requests stay open", y.Open(), id)
				}
				for len(y.Outgoing()) > 0 {
					read(1 << 20)
				}
				take()
				for len(given) > 0 {
					if err := respond(0, false); err != nil {
						t.Fatal(err)
					}
				}
			}
			for len(y.Outgoing()) > 0 {
				read(1 << 20)
			}
			for len(stream) > 0 {
				m, rest, err := ParseFrame(stream)
				if err != nil {
					t.Fatal(err)
				}
				if r, ok := m.(*Response); ok {
					if answers[r.ID]++; answers[r.ID] > 1 || r.Code == Busy && most == 1<<30 {
						t.Fatalf("answer %d to %d: %v", answers[r.ID], r.ID, r.Err())
					}
				}
				stream = rest
			}
			if len(answers) != int(id) {
				t.Fatalf("%d answers to %d requests", len(answers), id)
			}
		}
		y.Disconnected(io.EOF)
		take()
		for len(given) > 0 {
			if err := respond(0, false); !errors.Is(err, ErrNotReady) {
				t.Fatal(err)
			}
		}
		if y.Held() != 0 || charged != 0 {
			t.Fatalf("%d held and %d charged in the end", y.Held(), charged)
		}
	})
}

// A request for which there is no memory is not refused behind the goodbye: the peer reads nothing
// after it.
func TestNothingBehindTheGoodbye(t *testing.T) {
	a := named("a")
	a.Charge = func(n int) error {
		if n > 0 {
			return Busy
		}
		return nil
	}
	x, y := readyPair(t, named("d"), a)
	if err := y.Receive(t0, frameOf(t, &Request{ID: 1, Method: MethodCall, Body: make([]byte, 200<<10)})); err != nil {
		t.Fatal(err)
	}
	y.Goodbye(t0, Shutdown, "bye")
	if err := x.Receive(t0, flush(y)); !errors.Is(err, Shutdown) {
		t.Errorf("%v, expected Shutdown", err)
	}
}
