package enginetest

import (
	"context"
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
)

// unknownConn is the id of a connection that no port has.
const unknownConn = 1 << 30

// checkRefusals asks for what the port's Capabilities deny: each is refused as ErrUnsupported, and
// nothing of it is ignored.
func checkRefusals(t testing.TB, h Harness) {
	r := newRig(t, h)
	for _, c := range []struct {
		what string
		can  bool
		spec engine.RxSpec
	}{
		{"Conn", r.caps.Connections, engine.RxSpec{Conn: unknownConn}},
		{"Timestamps", r.caps.Timestamps, engine.RxSpec{Timestamps: true}},
		{"HardwareTime", r.caps.HardwareTime, engine.RxSpec{HardwareTime: true}},
	} {
		if c.can {
			continue
		}
		if _, err := r.tryRx(r.B, c.spec, 64); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("RxSpec.%s on a port that does not have it: %v, expected engine.ErrUnsupported", c.what, err)
		}
	}
	if !r.caps.Split && !r.h.OwnRx {
		two := []*mem.Pool{r.hostPool("headers", slotSize, 16), r.pool("payloads", slotSize, 16)}
		if _, err := r.tryRx(r.B, engine.RxSpec{Pools: two, SplitAt: 42}, 0); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("header/data split on a port without: %v, expected engine.ErrUnsupported", err)
		}
	}
	for _, c := range []struct {
		what string
		can  bool
		spec engine.TxSpec
	}{
		{"Rate", r.caps.Pacing, engine.TxSpec{Rate: 1 << 30}},
		{"SendAt", r.caps.SendAt, engine.TxSpec{SendAt: true}},
		{"SourceMAC", r.caps.Frames, engine.TxSpec{SourceMAC: true}},
	} {
		if c.can {
			continue
		}
		if _, err := r.tryTx(r.A, c.spec, 64); !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("TxSpec.%s on a port that does not have it: %v, expected engine.ErrUnsupported", c.what, err)
		}
	}
}

// checkConn binds a receive queue to the connection between the ports, where queues can be bound:
// its packets come there. A connection that is not there is refused.
func checkConn(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Connections {
		t.Log("not asked: Capabilities.Connections is false")
		return
	}
	if _, err := r.tryRx(r.B, engine.RxSpec{Conn: unknownConn}, 64); !errors.Is(err, engine.ErrUnsupported) &&
		!errors.Is(err, engine.ErrNotFound) {
		t.Errorf("RxSpec.Conn of no connection: %v, expected engine.ErrNotFound, or ErrUnsupported where queues are "+
			"not bound", err)
	}
	if r.Conn == nil || r.Conn(r.B) == 0 {
		t.Log("the ports have no ids of connections")
		return
	}
	q, err := r.tryRx(r.B, engine.RxSpec{Conn: r.Conn(r.B)}, 256)
	if errors.Is(err, engine.ErrUnsupported) {
		t.Logf("not asked: %v", err)
		return
	}
	if err != nil {
		t.Fatalf("RxSpec.Conn %d, the connection to the other port: %v", r.Conn(r.B), err)
	}
	v := r.receive(q)
	s := r.tx(r.A, engine.TxSpec{Depth: 16}, 64)
	n := s.alloc(s.b, 8, r.minRecord())
	for i := range n {
		s.write(s.b, i, r.minRecord())
	}
	if err := s.q.Send(s.b); err != nil {
		t.Fatalf("Send: %v", err)
	}
	v.want(n)
}

// checkRate sends faster than TxSpec.Rate: the packets take at least as long as the rate says, but
// for what may leave at once after a rest.
func checkRate(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Pacing {
		t.Log("not asked: Capabilities.Pacing is false")
		return
	}
	const (
		size  = 1024
		rate  = 100e6 // bits per second
		rest  = rate/8*4/1000 + 2048 + size
		bytes = 4 * rest
	)
	v := r.rx(r.B, engine.RxSpec{}, 256)
	s := r.tx(r.A, engine.TxSpec{Depth: 64, Rate: rate}, 128)
	begin, sent := r.now(), 0
	for sent*size < bytes {
		n := s.alloc(s.b, 8, size)
		for i := range n {
			s.write(s.b, i, size)
		}
		if err := s.q.Send(s.b); err != nil {
			t.Fatalf("Send on a queue with a rate: %v", err)
		}
		sent += n
		v.want(sent)
	}
	took := r.now() - begin
	if least := int64((sent*size - rest) * 8 * 10); took < least { // 10 ns a bit
		t.Errorf("%d packets of %d bytes took %d ns at %d bit/s, expected at least %d", sent, size, took, int(rate),
			least)
	}
	ctx, cancel := context.WithTimeout(t.Context(), h.Patience)
	defer cancel()
	if err := s.q.Drain(ctx); err != nil {
		t.Errorf("Drain: %v", err)
	}
}
