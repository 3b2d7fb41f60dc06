package enginetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// next asks for the lowest number that is free.
const next = -1

// checkQueueIDs adds queues with given ids, with chosen ones, and with ids that are in use.
func checkQueueIDs(t testing.TB, h Harness) {
	r := newRig(t, h)
	for _, k := range []struct {
		what string
		most int
		add  func(id int) (interface {
			ID() int
			Close() error
		}, error)
	}{
		{"receive", r.caps.RxQueues, func(id int) (interface {
			ID() int
			Close() error
		}, error) {
			return r.tryRx(r.B, engine.RxSpec{ID: engine.Queue(id), Depth: 8}, 128)
		}},
		{"transmit", r.caps.TxQueues, func(id int) (interface {
			ID() int
			Close() error
		}, error) {
			return r.tryTx(r.B, engine.TxSpec{ID: engine.Queue(id), Depth: 8}, 128)
		}},
	} {
		want := func(ask, id int) (close func() error) {
			t.Helper()
			q, err := k.add(ask)
			if err != nil {
				t.Fatalf("adding %s queue %d: %v", k.what, ask, err)
			}
			if q.ID() != id {
				t.Fatalf("adding %s queue %d made queue %d, expected %d", k.what, ask, q.ID(), id)
			}
			return q.Close
		}
		refused := func(ask int, as error) {
			t.Helper()
			if _, err := k.add(ask); err == nil || as != nil && !errors.Is(err, as) {
				t.Fatalf("adding %s queue %d: %v, expected a refusal: %v", k.what, ask, err, as)
			}
		}
		if k.most < 1 {
			continue
		}
		zero := want(next, 0)
		refused(0, engine.ErrExists)
		refused(-7, engine.ErrInvalid)
		var others []func() error
		if k.most >= 3 {
			others = append(others, want(2, 2), want(next, 1))
			refused(1, engine.ErrExists)
			refused(2, engine.ErrExists)
		}
		if err := zero(); err != nil {
			t.Fatalf("closing %s queue 0: %v", k.what, err)
		}
		others = append(others, want(next, 0))
		if room := k.most - len(others); room <= 64 { // as many as it says, and no more
			for range room {
				q, err := k.add(next)
				if err != nil {
					t.Fatalf("adding %s queue %d of the %d that Capabilities promises: %v", k.what, len(others)+1,
						k.most, err)
				}
				others = append(others, q.Close)
			}
			refused(next, engine.ErrInUse)
		}
		for _, c := range others {
			if err := c(); err != nil {
				t.Fatalf("closing a %s queue: %v", k.what, err)
			}
		}
		want(0, 0)()
	}
	if len(r.caps.Memory) > 0 {
		return
	}
	pool := []*mem.Pool{r.pool("refused", slotSize, 8)}
	if _, err := r.B.AddRxQueue(engine.RxSpec{Pools: pool}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a pool for an engine whose Capabilities.Memory is empty: %v, expected engine.ErrUnsupported", err)
	}
	if _, err := r.B.AddTxQueue(engine.TxSpec{Pools: pool}); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("a pool for an engine whose Capabilities.Memory is empty: %v, expected engine.ErrUnsupported", err)
	}
}

// checkQueues sends on several queues to several queues.
func checkQueues(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.caps.Stream {
		t.Log("not asked: a stream has one queue at each end")
		return
	}
	var rx []*receiver
	for range min(3, r.caps.RxQueues) {
		rx = append(rx, r.rx(r.B, engine.RxSpec{Depth: 256}, 512))
		rx[len(rx)-1].next = rx[0].next // a sender's packets all come to one queue
	}
	var tx []*sender
	for i := range min(3, r.caps.TxQueues) {
		s := r.tx(r.A, engine.TxSpec{Depth: 64}, 256)
		tx = append(tx, s.as(uint16(i), uint16(i)))
	}
	sent := 0
	for i := range 40 {
		for _, s := range tx {
			n := min(1+i%8, h.Window/len(tx))
			s.burstOf(n, r.minRecord()+i)
			sent += n
		}
		got := func() (n int) {
			for _, v := range rx {
				n += v.n
			}
			return n
		}
		for _, v := range rx {
			v.rest(func() error {
				if n := got(); n == sent || h.Lossy && uint64(sent-n) <= r.lost() || v != rx[0] {
					return nil
				}
				for _, w := range rx[1:] {
					w.quietly()
				}
				return engine.ErrNotReady
			})
		}
	}
	if !h.Spread {
		for i, v := range rx[1:] {
			if v.n > 0 {
				t.Errorf("queue %d got %d packets, although no rule steers there: they belong to the first queue", i+1,
					v.n)
			}
		}
	}
	r.balance(sent, rx...)
}

// quietly receives what is there now.
func (v *receiver) quietly() {
	v.r.t.Helper()
	for {
		n, err := v.q.TryRecv(v.b)
		if err != nil {
			v.r.t.Fatalf("TryRecv: %v", err)
		}
		if n == 0 {
			return
		}
		v.take(v.b)
		v.b.Release()
	}
}

// checkComeAndGo adds and closes queues and pools at both ends while others carry traffic.
func checkComeAndGo(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.caps.TxQueues < 2 {
		t.Log("not asked: the port has one transmit queue")
		return
	}
	s, v := r.line(r.A, r.B, 64)
	// the goroutine that holds it sends and receives; no mutex, since virtual time stands still at
	// one
	turn := make(chan struct{}, 1)
	sent := 0
	more := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-more:
				return
			default:
			}
			turn <- struct{}{}
			n := min(8, h.Window/2)
			s.burstOf(n, r.minRecord())
			sent += n
			v.want(sent)
			<-turn
		}
	}()
	for i := range 15 {
		id, pools := uint16(1+i), len(r.pools)
		var rx engine.RxQueue
		if !h.Spread && !r.caps.Stream && r.caps.RxQueues > 1 {
			q, err := r.tryRx(r.B, engine.RxSpec{ID: engine.Queue(1), Depth: 16}, 128)
			if err != nil {
				t.Fatalf("adding a receive queue under load: %v", err)
			}
			rx = q
		}
		q, err := r.tryTx(r.A, engine.TxSpec{Depth: 16}, 32)
		if err != nil {
			t.Fatalf("adding a transmit queue under load: %v", err)
		}
		x := r.send(r.A, q).as(id, 0)
		turn <- struct{}{}
		x.burstOf(5, r.minRecord())
		sent += 5
		if err := q.Drain(t.Context()); err != nil {
			t.Fatalf("Drain: %v", err)
		}
		if i%3 > 0 { // what has left arrives also when its queue is closed
			if err := q.Close(); err != nil {
				t.Fatalf("closing a transmit queue under load: %v", err)
			}
		}
		v.want(sent)
		<-turn
		if i%3 == 0 {
			if err := q.Close(); err != nil {
				t.Fatalf("closing a transmit queue under load: %v", err)
			}
		}
		if rx != nil {
			if err := rx.Close(); err != nil {
				t.Fatalf("closing a receive queue under load: %v", err)
			}
		}
		for _, p := range r.pools[pools:] { // a pool goes as soon as its queue has gone
			r.eventually("a closed queue to give its memory back", func() error {
				if n := p.Stats().InUse; n > 0 {
					return fmt.Errorf("%d slots of pool %s are out", n, p.Name())
				}
				return nil
			})
			if err := p.Close(); err != nil {
				t.Fatalf("closing the pool of a queue that was closed: %v", err)
			}
		}
	}
	close(more)
	r.ends("the traffic on the other queue", done)
	r.balance(sent, v)
}

// checkSenders has several goroutines send into one transmit queue. Each one's packets arrive in
// order.
func checkSenders(t testing.TB, h Harness) {
	r := newRig(t, h)
	first, v := r.line(r.A, r.B, 128)
	const senders, windows = 4, 30
	window := max(1, h.Window/senders)
	sent := 0
	turns := make([]chan int, senders)
	done := make(chan error, senders)
	for i := range senders {
		s := first.as(uint16(i), uint16(i))
		turns[i] = make(chan int, 1)
		go func() {
			for n := range turns[i] {
				for n > 0 {
					k := min(n, 1+int(s.seq)%5)
					s.burstOf(k, r.minRecord()+int(s.seq)%700)
					n -= k
				}
				done <- nil
			}
		}()
	}
	defer func() {
		for _, c := range turns {
			close(c)
		}
	}()
	for range windows {
		for _, c := range turns {
			c <- window
			sent += window
		}
		for range senders {
			r.ends("a sender among several", done)
		}
		v.want(sent)
	}
	r.balance(sent, v)
}
