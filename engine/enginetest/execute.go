package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/packet/burst"
	"github.com/penstock-io/penstock/packet/flow"
)

// execution is a program that runs.
type execution struct {
	r       *rig
	t       testing.TB
	p       Program
	senders [senders]*sender
	tx      [4]engine.TxQueue // A's
	rx      [4]*receiver      // B's
	rules   [4]uint32         // of the receive queues
	back    *receiver         // A's
	echo    *sender           // B's

	kept     []*burst.Burst // by B's application, until the round after the next
	keep     int            // of them, those of earlier rounds
	forward  *burst.Burst
	copies   *burst.Burst
	arrived  map[Flow][]Packet
	sent     int // packets by A and B
	received int
	waker    *engine.Waker
}

func newExecution(t testing.TB, h Harness, p Program) *execution {
	r := newRig(t, h)
	x := &execution{r: r, t: t, p: p, arrived: map[Flow][]Packet{}, waker: engine.NewWaker(), forward: r.burst(64),
		copies: r.burst(64)}
	var first *sender
	first, x.rx[0] = r.line(r.A, r.B, 256)
	x.echo, x.back = r.line(r.B, r.A, 256)
	x.tx[0] = first.q
	for i := range x.senders {
		x.senders[i] = first.as(uint16(i), uint16(i))
	}
	x.watch(x.rx[0], false)
	x.watch(x.back, true)
	return x
}

// watch makes a receiver note what arrives.
func (x *execution) watch(v *receiver, back bool) {
	v.gaps = true // order and completeness are looked at below, by flow
	v.loose = true
	v.note = func(rec record, whole []byte) {
		f := Flow{Sender: rec.sender}
		d := x.p.decide(rec.sender, rec.seq)
		if back {
			f = Flow{rec.sender, true, uint8(d)}
		}
		x.arrived[f] = append(x.arrived[f], Packet{rec.seq, rec.length, rec.sum})
		x.received++
		if !back && x.r.caps.Stream && (d == forwardIt || d == copyIt) {
			x.copyBack(whole)
		}
	}
}

// change does what the round begins with.
func (x *execution) change(c Change, k int) {
	t, r := x.t, x.r
	switch c {
	case AddRx:
		if r.caps.Stream || r.caps.RxQueues <= k || r.caps.TxQueues <= k {
			return
		}
		rules := r.B.Rules()
		if v := x.rx[k]; v != nil {
			if x.rules[k] != 0 {
				if _, err := rules.Apply(flow.Delete(x.rules[k])); err != nil {
					t.Fatalf("deleting a rule: %v", err)
				}
				x.rules[k] = 0
			}
			if err := v.q.Close(); err != nil {
				t.Fatalf("closing receive queue %d: %v", k, err)
			}
			x.rx[k] = nil
			return
		}
		x.rx[k] = r.rx(r.B, engine.RxSpec{ID: engine.Queue(k), Depth: 256}, 640)
		x.watch(x.rx[k], false)
		if rules != nil && r.caps.Frames {
			res, err := rules.Apply(flow.Add(classRule(uint16(k), uint16(k))))
			if err != nil {
				t.Fatalf("adding a rule: %v", err)
			}
			x.rules[k] = res.IDs[0]
		}
	case AddTx:
		if r.caps.TxQueues <= k {
			return
		}
		if q := x.tx[k]; q != nil {
			x.tx[k] = nil
			if err := q.Drain(t.Context()); err != nil {
				t.Fatalf("Drain: %v", err)
			}
			if err := q.Close(); err != nil {
				t.Fatalf("closing transmit queue %d: %v", k, err)
			}
			return
		}
		q, err := r.tryTx(r.A, engine.TxSpec{ID: engine.Queue(k), Depth: 64}, 256)
		if err != nil {
			t.Fatalf("adding transmit queue %d: %v", k, err)
		}
		x.tx[k] = q
	case AddEcho:
		if err := x.echo.q.Drain(t.Context()); err != nil {
			t.Fatalf("Drain: %v", err)
		}
		if err := x.echo.q.Close(); err != nil {
			t.Fatalf("closing the echo's queue: %v", err)
		}
		x.echo = r.tx(r.B, engine.TxSpec{ID: engine.Queue(0), Depth: 256}, 640)
	case Unsent:
		b := x.senders[0].b
		x.senders[0].alloc(b, 16, r.minRecord())
		b.Truncate(k)
		b.Release()
	}
}

// classRule steers a class to a queue.
func classRule(class, queue uint16) flow.Rule {
	rule, err := flow.ParseRule(fmt.Sprintf("udp dst %d -> queue %d", portBase+class, queue))
	if err != nil {
		panic(err)
	}
	return rule
}

// round does one round, and returns when all has arrived.
func (x *execution) round(round *Round) {
	x.change(round.Change, round.Queue)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for _, b := range round.Bursts {
		s := x.senders[b.Sender]
		if s.q = x.tx[b.Queue]; s.q == nil {
			s.q = x.tx[0]
		}
		x.sent += len(b.Sizes)
		wg.Add(1)
		go func() {
			defer wg.Done()
			// Packets of one Alloc have one size: longest first would change the order, so equal
			// neighbours go together.
			for sizes := b.Sizes; len(sizes) > 0; {
				n := 1
				for n < len(sizes) && sizes[n] == sizes[0] {
					n++
				}
				s.records(n, sizes[0])
				sizes = sizes[n:]
			}
		}()
	}
	go func() { wg.Wait(); close(done) }()
	x.serve()
	<-done
	for _, b := range x.kept[:x.keep] {
		b.Release()
	}
	x.kept = slices.Delete(x.kept, 0, x.keep)
	x.keep = len(x.kept)
}

// records sends n records of that many bytes.
func (s *sender) records(n, size int) {
	if s.full != nil {
		size += frameHeader
	}
	s.burstOf(n, size)
}

// serve receives at both ends until everything that was sent has arrived or is counted as lost.
func (x *execution) serve() {
	limit := time.NewTimer(x.r.h.Patience)
	defer limit.Stop()
	all := append(slices.Clone(x.rx[:]), x.back)
	for {
		work := false
		for _, v := range all {
			if v == nil {
				continue
			}
			n, err := v.q.TryRecv(v.b)
			if err != nil {
				x.t.Fatalf("TryRecv: %v", err)
			}
			if n == 0 {
				continue
			}
			work = true
			v.take(v.b)
			if v != x.back && !x.r.caps.Stream {
				x.use(v)
			}
			v.b.Release()
		}
		if work {
			continue
		}
		if x.received >= x.sent { // more is wrong, and found in the end
			return
		}
		var tick <-chan time.Time
		if x.r.h.Lossy {
			if uint64(x.sent-x.received) <= x.r.lost() {
				return
			}
			tick = time.After(2 * time.Millisecond)
		}
		for _, v := range all {
			work = v != nil && v.q.Arm(x.waker) || work
		}
		if work {
			continue
		}
		select {
		case <-x.waker.C():
		case <-tick:
		case <-limit.C:
			x.t.Fatalf("waited %v: %d packets were sent, %d received; drops: %v", x.r.h.Patience, x.sent, x.received,
				x.r.dropped())
		}
	}
}

// use does with the packets of v.b what the program's application decides.
func (x *execution) use(v *receiver) {
	b, r := v.b, x.r
	r.turn(b, x.echo)
	var kept *burst.Burst
	for i := range b.Len() {
		rec, whole, ok := v.look(b, i)
		if !ok {
			continue
		}
		switch x.p.decide(rec.sender, rec.seq) {
		case keepIt:
			if kept == nil {
				kept = burst.NewSegmented(b.Cap(), 8*b.Cap())
				r.held = append(r.held, kept)
				x.kept = append(x.kept, kept)
			}
			if !b.Take(kept, i) {
				x.t.Fatal("Take had no room")
			}
		case forwardIt:
			if !b.Take(x.forward, i) {
				x.t.Fatal("Take had no room")
			}
		case copyIt:
			x.copyBack(whole)
		}
	}
	if n := x.forward.Len(); n > 0 {
		got, err := 0, error(nil)
		r.eventually("room to forward", func() error {
			if free := x.forward.Len(); free < n {
				x.t.Fatalf("Forward of %d packets with enough room: %d and %v", n, got, err)
			}
			got, err = x.echo.q.Forward(x.forward)
			return nil
		})
		if got != n || err != nil {
			x.t.Fatalf("Forward of %d packets: %d and %v", n, got, err)
		}
		if err := x.echo.q.Send(x.forward); err != nil {
			x.t.Fatalf("Send of forwarded packets: %v", err)
		}
		x.sent += n
	}
}

// copyBack sends a copy of the bytes of a packet, or of a record in a stream, back to A.
func (x *execution) copyBack(whole []byte) {
	s := x.echo
	s.alloc(x.copies, 1, len(whole))
	if !put(x.copies, 0, whole) {
		x.t.Fatal("a packet does not fit where one of its length was allocated")
	}
	x.copies.SetConn(0, s.conn)
	if err := s.q.Send(x.copies); err != nil && !errors.Is(err, engine.ErrDown) {
		x.t.Fatalf("Send of a copy: %v", err)
	}
	x.sent++
}

// look reads the record of packet i again, with the bytes of the whole packet.
func (v *receiver) look(b *burst.Burst, i int) (rec record, whole []byte, ok bool) {
	whole = v.data[:b.CopyTo(v.data, i)]
	p := whole
	if v.frames {
		if len(p) < frameHeader {
			return rec, nil, false
		}
		p = p[frameHeader:]
	}
	rec, ok, err := parseRecord(p)
	return rec, whole, ok && err == nil
}
