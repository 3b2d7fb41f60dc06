package enginetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// checkRx receives through what waits for all engines: an engine.Rx, which owns the queue.
func checkRx(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	v.gaps = h.Lossy
	rx := engine.NewRx(v.q, engine.Batching{Packets: 16, Timeout: time.Millisecond})
	sent := 0
	for i := range 30 {
		n := 1 + i%20
		s.burstOf(n, r.minRecord())
		sent += n
		for v.n < sent && (!h.Lossy || uint64(sent-v.n) > r.lost()) {
			ctx, cancel := context.WithTimeout(t.Context(), h.Patience)
			if h.Lossy {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
			}
			err := rx.Recv(ctx, v.b)
			cancel()
			if err != nil && !(h.Lossy && errors.Is(err, context.DeadlineExceeded)) {
				t.Fatalf("Rx.Recv: %v, after %d of %d records", err, v.n, sent)
			}
			v.take(v.b)
			v.b.Release()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for {
			if err := rx.Recv(ctx, v.b); err != nil {
				if !errors.Is(err, context.Canceled) {
					done <- err
				}
				close(done)
				return
			}
			v.b.Release() // of others
		}
	}()
	cancel()
	r.ends("Rx.Recv whose context has ended", done)
	if err := r.B.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := rx.Recv(t.Context(), v.b); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Rx.Recv after Close: %v, expected engine.ErrClosed", err)
		}
	}
}

// checkTwoPools sends packets of a header and a payload segment.
func checkTwoPools(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.caps.Stream {
		t.Log("not asked: there are no packets")
		return
	}
	const head = 64
	heads, bodies := r.hostPool("headers", head, 64), r.pool("payload", slotSize, 64)
	q, err := r.tryTx(r.A, engine.TxSpec{Depth: 16, Pools: []*mem.Pool{heads, bodies}}, 0)
	if err != nil {
		if r.caps.Split || !errors.Is(err, engine.ErrInvalid) && !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("a transmit queue with two pools: %v; expected one, or engine.ErrUnsupported where "+
				"Capabilities.Split is false", err)
		}
		return
	}
	s := r.send(r.A, q)
	v := r.rx(r.B, engine.RxSpec{}, 256)
	b := r.burst(8)
	sent := 0
	for i := range 20 {
		body := r.minRecord() + 31*i
		n, err := q.Alloc(b, 4, body)
		if n != 4 || err != nil {
			t.Fatalf("Alloc of 4 packets from two pools: %d and %v", n, err)
		}
		for k := range n {
			if b.Segments(k) != 2 || b.Role(k, 0) != burst.Header || b.Role(k, 1) != burst.Payload ||
				len(b.Bytes(k, 0)) != heads.SlotSize() || len(b.Bytes(k, 1)) != body {
				t.Fatalf("Alloc of %d bytes from two pools made %d segments, the first a %v of %d bytes; expected a "+
					"header of %d and a payload of %d",
					body, b.Segments(k), b.Role(k, 0), len(b.Bytes(k, 0)), heads.SlotSize(), body)
			}
			b.SetLen(k, 0, 30+i)
			s.write(b, k, 30+i+body)
		}
		if err := q.Send(b); err != nil {
			t.Fatalf("Send: %v", err)
		}
		sent += n
		r.balance(sent, v)
	}
	v.rest(func() error { // where drops are not exact, what was sent last may still be under way
		if v.n == 0 {
			return errors.New("nothing arrived")
		}
		return nil
	})
}

// checkSourceMAC has the port write its own address.
func checkSourceMAC(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Frames {
		t.Log("not asked: packets are no frames")
		return
	}
	pools := []*mem.Pool{r.pool("mac", slotSize, 64)}
	q, err := r.tryTx(r.A, engine.TxSpec{Depth: 16, SourceMAC: true, Pools: pools}, 0)
	if err != nil {
		if !errors.Is(err, engine.ErrUnsupported) {
			t.Errorf("a transmit queue with SourceMAC: %v, expected one or engine.ErrUnsupported", err)
		}
		return
	}
	s := r.send(r.A, q)
	s.full.frame.SrcMAC = packet.MAC{2, 2, 2, 2, 2, 2}
	v := r.rx(r.B, engine.RxSpec{}, 256)
	want := r.A.Info().MAC
	v.see = func(b *burst.Burst, i int, rec record) {
		if got := packet.MAC(v.data[6:12]); got != want {
			t.Fatalf("frame %d has the source address %v, expected the port's own, %v", rec.seq, got, want)
		}
	}
	s.burstOf(8, r.minRecord())
	v.want(8)
	// Of a frame that another burst shares a copy leaves: that burst keeps its address.
	s.alloc(s.b, 1, r.minRecord())
	s.write(s.b, 0, r.minRecord())
	kept, mac := r.burst(1), s.full.frame.SrcMAC
	if !burst.NewShares(4).Clone(s.b, kept) {
		t.Fatal("no clone")
	}
	if err := s.q.Send(s.b); err != nil {
		t.Fatalf("Send of a frame that another burst shares: %v", err)
	}
	v.want(9)
	if got := packet.MAC(kept.Bytes(0, 0)[6:12]); got != mac {
		t.Errorf("the frame in the burst that was kept has the source address %v, expected %v", got, mac)
	}
	kept.Release()
	if !r.caps.Chains {
		return
	}
	// Segments may end anywhere, also within the address.
	extra := r.hostPool("pieces", 512, 8)
	src := burst.PoolSource(extra)
	b := r.burst(1)
	for sent, cut := range []int{1, 6, 9, 12} {
		s.alloc(b, 1, cut)
		frame := s.next(max(100, r.minRecord()))
		put(b, 0, frame[:cut])
		var slot [1]burst.Handle
		if extra.GetBatch(slot[:]) == 0 {
			t.Fatal("the memory of frames that were sent does not come back")
		}
		b.Builder().AddSegment(src, burst.Segment{Handle: slot[0], Off: extra.Offset(slot[0]),
			Len: uint32(len(frame) - cut), Cap: 512})
		copy(b.Bytes(0, 1), frame[cut:])
		b.SetConn(0, s.conn)
		if err := s.q.Send(b); err != nil {
			t.Fatalf("Send of a frame in two segments, the first of %d bytes: %v", cut, err)
		}
		v.want(10 + sent)
	}
}

// checkSendAt sends packets that carry times. None leaves early.
func checkSendAt(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.SendAt {
		t.Log("not asked: Capabilities.SendAt is false")
		return
	}
	v := r.rx(r.B, engine.RxSpec{}, 256)
	s := r.tx(r.A, engine.TxSpec{Depth: 64, SendAt: true}, 128)
	var due []int64
	v.see = func(_ *burst.Burst, _ int, rec record) {
		if now := r.now(); now < due[rec.seq] {
			t.Errorf("packet %d arrived %d ns before it was to leave", rec.seq, due[rec.seq]-now)
		}
	}
	timed := 0
	for i := range 5 {
		n := s.alloc(s.b, 8, r.minRecord())
		at := r.now()
		for k := range n {
			s.write(s.b, k, r.minRecord())
			if k%4 == 3 { // some leave when those in front have left
				due = append(due, at)
				continue
			}
			at += int64(i+1) * 200_000
			due = append(due, at)
			s.b.SetTime(k, at)
			timed++
		}
		if err := s.q.Send(s.b); err != nil {
			t.Fatalf("Send of packets with times: %v", err)
		}
		v.want(len(due))
	}
	// A packet may be there before its sender has counted it: the figures are whole when the queue
	// says that all have left.
	ctx, cancel := context.WithTimeout(t.Context(), h.Patience)
	defer cancel()
	if err := s.q.Drain(ctx); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	var st engine.TxStats
	if s.q.Stats(&st); st.TooEarly != 0 || st.TimedPackets != uint64(timed) && st.TimedPackets != uint64(len(due)) {
		t.Errorf("%d packets with times were sent; TxStats: TimedPackets %d, TooEarly %d", timed, st.TimedPackets,
			st.TooEarly)
	}
	if st.LateSum < st.LateMax {
		t.Errorf("TxStats: the latest packet was %d ns late, all together %d ns", st.LateMax, st.LateSum)
	}
}
