package enginetest

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// wantAlloc calls Alloc and demands that many packets and that error.
func (s *sender) wantAlloc(b *burst.Burst, ask, want int, err error) {
	s.r.t.Helper()
	size := s.r.minRecord()
	n, got := s.q.Alloc(b, ask, size)
	if n != want || !errors.Is(got, err) || b.Len() != want {
		s.r.t.Fatalf("Alloc of %d packets: %d and %v, with %d in the burst; expected %d and %v", ask, n, got, b.Len(),
			want, err)
	}
	for i := range n {
		if k := b.PacketLen(i); k != size {
			s.r.t.Fatalf("packet %d of Alloc has %d bytes, expected %d", i, k, size)
		}
	}
}

// checkAlloc exhausts descriptors, and then memory.
func checkAlloc(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 8)
	b, c := r.burst(32), r.burst(32)
	var before, after engine.TxStats
	s.q.Stats(&before)
	s.wantAlloc(b, 20, 8, engine.ErrFull)
	s.wantAlloc(c, 1, 0, engine.ErrFull)
	s.q.Stats(&after)
	if after.Full != before.Full+2 {
		t.Errorf("TxStats.Full went from %d to %d when two Allocs found too few descriptors", before.Full, after.Full)
	}
	if n, err := s.q.Alloc(b, 1, r.minRecord()); err == nil || n != 0 {
		t.Errorf("Alloc into a burst that is not empty: %d and %v, expected 0 and an error", n, err)
	}
	if b.Len() != 8 {
		t.Fatalf("a burst of 8 packets has %d after an Alloc that was refused", b.Len())
	}
	b.Release()
	s.wantAlloc(b, 8, 8, nil)
	for i := range 8 {
		s.write(b, i, r.minRecord())
	}
	if err := s.q.Send(b); err != nil {
		t.Fatalf("Send: %v", err)
	}
	v.want(8)
	if err := s.q.Drain(t.Context()); err != nil {
		// a packet that has arrived may hold its descriptor until its queue learns of it
		t.Fatalf("Drain: %v", err)
	}
	if n, err := s.q.Alloc(nil, 1, 10); n != 0 || !errors.Is(err, engine.ErrNil) {
		t.Errorf("Alloc into a nil burst: %d and %v, expected engine.ErrNil", n, err)
	}
	if n, err := s.q.Alloc(b, 1, -1); n != 0 || err == nil {
		t.Errorf("Alloc of -1 bytes: %d and %v, expected an error", n, err)
	}
	b.Release()
	if r.caps.TxQueues < 2 {
		return
	}
	few := r.tx(r.A, engine.TxSpec{Depth: 16, Pools: []*mem.Pool{r.pool("few", slotSize, 4)}}, 0)
	for range 10 { // descriptors that found no memory must have come back
		few.wantAlloc(b, 6, 4, engine.ErrNoBuffers)
		few.wantAlloc(c, 1, 0, engine.ErrNoBuffers)
		b.Release()
	}
	few.q.Stats(&after)
	if after.NoBuffers != 20 || after.Full != 0 {
		t.Errorf("TxStats of 20 Allocs that found too little memory: NoBuffers %d, Full %d", after.NoBuffers,
			after.Full)
	}
	few.wantAlloc(b, 4, 4, nil)
	b.Release()
	if n, err := s.q.Alloc(b, 8, slotSize+1); n > 0 {
		if !r.caps.Chains {
			t.Errorf("Alloc of packets longer than a slot: %d and %v, expected an error where Capabilities.Chains "+
				"is false", n, err)
		}
		b.Release()
	} else if err == nil || errors.Is(err, engine.ErrFull) {
		t.Errorf("Alloc of packets longer than a slot: %d and %v", n, err)
	}
	s.wantAlloc(b, 8, 8, nil)
	b.Release()
}

// checkReservations takes descriptors and gives them back in all ways but Send.
func checkReservations(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 8)
	a, b, c := r.burst(16), r.burst(16), r.burst(16)
	for range 20 {
		s.wantAlloc(a, 8, 8, nil)
		a.Truncate(3)
		s.wantAlloc(b, 8, 5, engine.ErrFull)
		if n := b.MoveTo(c); n != 5 {
			t.Fatalf("MoveTo moved %d of 5 packets", n)
		}
		s.wantAlloc(b, 1, 0, engine.ErrFull)
		if !a.Take(c, 1) {
			t.Fatal("Take had no room")
		}
		c.Release() // six descriptors
		s.wantAlloc(b, 8, 6, engine.ErrFull)
		a.Release()
		b.Release()
		s.wantAlloc(a, 9, 8, engine.ErrFull)
		a.Release()
	}
	// A burst that was sent in part, by way of another burst: all of it arrives, and nothing stays
	// reserved.
	if !r.caps.Stream {
		s.wantAlloc(a, 8, 8, nil)
		for i := range 8 {
			s.write(a, i, r.minRecord())
		}
		for _, i := range []int{0, 1, 2} {
			a.Take(b, i)
		}
		for _, x := range []*burst.Burst{b, a} {
			if err := s.q.Send(x); err != nil {
				t.Fatalf("Send of a part: %v", err)
			}
		}
		v.want(8)
	}
	if err := s.q.Drain(t.Context()); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	s.wantAlloc(a, 9, 8, engine.ErrFull) // neither fewer nor more than before
	a.Release()
	// With all packets released, nothing was sent, and nothing counts as dropped.
	r.balance(v.n, v)
}

// checkUnreserved sends what Alloc and Forward of this queue have not prepared: a sound queue
// refuses it and gives it back.
func checkUnreserved(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 8)
	refused := func(what string, b *burst.Burst) {
		t.Helper()
		if b.Len() == 0 {
			t.Fatalf("no packets for this: %s", what)
		}
		if err := s.q.Send(b); !errors.Is(err, engine.ErrUnreserved) {
			t.Errorf("Send of %s: %v, expected engine.ErrUnreserved", what, err)
		}
		if b.Len() != 0 {
			t.Errorf("Send of %s: %d packets are still in the burst", what, b.Len())
			b.Release()
		}
	}
	b := r.burst(16)
	pool := r.pool("foreign", slotSize, 8)
	src := burst.PoolSource(pool)
	for range 3 {
		var slots [5]burst.Handle
		n := pool.GetBatch(slots[:])
		for _, x := range slots[:n] {
			b.Builder().Add(src, burst.Segment{Handle: x, Off: pool.Offset(x), Len: uint32(r.minRecord())})
		}
		refused("packets of the application's own making", b)
		if s := pool.Stats(); s.InUse != 0 {
			t.Fatalf("%d slots did not come back from a Send that was refused", s.InUse)
		}
	}
	back, rx := r.line(r.B, r.A, 8)
	back.burstOf(3, r.minRecord())
	if _, err := rx.some(b); err != nil {
		t.Fatalf("TryRecv: %v", err)
	}
	refused("received packets without Forward", b)
	if r.caps.TxQueues >= 2 {
		other := r.tx(r.A, engine.TxSpec{Depth: 8}, 32)
		for range 3 {
			other.wantAlloc(b, 8, 8, nil)
			refused("packets of another queue's Alloc", b)
		}
		other.wantAlloc(b, 8, 8, nil) // the other queue has its descriptors back
		b.Release()
	}
	s.burstOf(8, r.minRecord())
	v.want(8)
	v.quiet()
}

// checkHeadroom puts headers in front of packets that were allocated with headroom.
func checkHeadroom(t testing.TB, h Harness) {
	r := newRig(t, h)
	v := r.rx(r.B, engine.RxSpec{}, 256)
	s := r.tx(r.A, engine.TxSpec{Headroom: 64, Depth: 8}, 32)
	b := r.burst(8)
	size := r.minRecord() + 100
	for i := range 20 {
		front := []int{64, 20, 1, 0}[i%4]
		n := s.alloc(b, 4, size-front)
		for k := range n {
			if have := b.Headroom(k); have < 64 {
				t.Fatalf("packet %d has %d bytes of headroom, of 64 that TxSpec.Headroom asked for", k, have)
			}
			if !b.Prepend(k, front) || b.PacketLen(k) != size {
				t.Fatalf("Prepend of %d bytes made a packet of %d bytes, expected %d", front, b.PacketLen(k), size)
			}
			s.write(b, k, size)
		}
		if err := s.q.Send(b); err != nil {
			t.Fatalf("Send: %v", err)
		}
		v.want(v.n + n)
	}
	v.quiet()
}

// checkForward sends received packets back, from the memory where they lie and from other memory.
func checkForward(t testing.TB, h Harness) {
	for _, same := range []bool{true, false} {
		if same && h.OwnRx {
			continue
		}
		forward(t, h, same)
	}
}

func forward(t testing.TB, h Harness, same bool) {
	r := newRig(t, h)
	defer r.end()
	s, v := r.line(r.A, r.B, 64)
	back := r.rx(r.A, engine.RxSpec{}, 512)
	var pools []*mem.Pool
	if same {
		// The echo's receive queue is made again, so that both its queues have one pool.
		if err := v.q.Close(); err != nil {
			t.Fatal(err)
		}
		pools = []*mem.Pool{r.pool("echo", slotSize, 1024)}
		v = r.rx(r.B, engine.RxSpec{Pools: pools}, 0)
	}
	echo := r.tx(r.B, engine.TxSpec{Depth: 64, Pools: pools}, 128)
	sent, echoed := 0, 0
	for i := range 40 {
		n := 1 + i%8
		s.burstOf(n, r.minRecord()+i*17)
		sent += n
		v.seen(sent, func(b *burst.Burst, others int) {
			r.turn(b, echo)
			if i%10 == 9 && !r.caps.Stream { // of some bursts one packet has been taken before
				taken := burst.NewSegmented(1, burst.MaxSegments)
				b.Take(taken, 0)
				taken.Release()
			}
			for n := range b.Len() {
				b.SetTime(n, 1) // as if the queue had been asked for receive times
			}
			live := b.Live()
			k, err := echo.q.Forward(b)
			if k != live || err != nil || b.Live() != live {
				t.Fatalf("Forward of %d packets: %d and %v, with %d in the burst", live, k, err, b.Live())
			}
			for n := range b.Len() {
				if _, ok := b.Time(n); ok {
					t.Fatalf("Forward: packet %d keeps the time of its receipt, which is not when it is to leave", n)
				}
			}
			if i%10 == 9 && !r.caps.Stream {
				// The caller does not send: the descriptors go back with the packets.
				back.gaps = true
				b.Release()
				return
			}
			echoed += k - others
			if err := echo.q.Send(b); err != nil || b.Len() != 0 {
				t.Fatalf("Send of forwarded packets: %v, with %d in the burst", err, b.Len())
			}
		})
		if r.caps.Stream {
			echoed = sent // pieces were counted, not records
		}
		back.want(echoed)
	}
	r.eventually("the echo to drain", func() error {
		return echo.q.Drain(t.Context())
	})
	var st engine.TxStats
	echo.q.Stats(&st)
	switch {
	case st.Forwarded < st.Packets:
		t.Errorf("TxStats.Forwarded is %d of %d packets, all of which were forwarded", st.Forwarded, st.Packets)
	case same && r.B.Capabilities().ZeroCopyForward && st.Copied != 0:
		t.Errorf("%d bytes were copied although both queues have the same memory and Capabilities.ZeroCopyForward "+
			"is true", st.Copied)
	case st.Copied != 0 && st.Copied < st.Bytes:
		t.Errorf("TxStats.Copied is %d, of packets with %d bytes: expected none or all", st.Copied, st.Bytes)
	}
	r.forwardShort(s, v, back)
}

// turn makes the packets of b ready to go back to where they came from.
func (r *rig) turn(b *burst.Burst, by *sender) {
	for i := range b.Len() {
		if by.conn != 0 {
			b.SetConn(i, by.conn)
		}
		if p := b.Bytes(i, 0); by.full != nil && len(p) >= 12 {
			copy(p, by.full.frame.DstMAC[:])
			copy(p[6:], by.full.frame.SrcMAC[:])
		}
	}
}

// seen receives until n records have come in all, and gives each burst to use, which takes its
// packets. others of them are not of the suite.
func (v *receiver) seen(n int, use func(b *burst.Burst, others int)) {
	v.r.t.Helper()
	var stop func() error
	if v.r.h.Lossy {
		stop = func() error {
			if uint64(n-v.n) <= v.r.lost() {
				return nil
			}
			return engine.ErrNotReady
		}
	}
	for v.n < n {
		got, err := v.someOr(v.b, stop)
		if err != nil {
			v.r.t.Fatalf("TryRecv: %v", err)
		}
		if got == 0 {
			return
		}
		before := v.others
		v.take(v.b)
		use(v.b, v.others-before)
		v.b.Release()
	}
}

// forwardShort forwards more packets than there are descriptors.
func (r *rig) forwardShort(s *sender, v, back *receiver) {
	t := r.t
	t.Helper()
	if r.caps.Stream || r.h.Lossy || r.caps.TxQueues < 2 {
		return
	}
	few := r.tx(r.B, engine.TxSpec{Depth: 4}, 64)
	s.burstOf(10, r.minRecord())
	b := r.burst(16)
	for b.Len() < 10 {
		if _, err := v.some(b); err != nil {
			t.Fatalf("TryRecv: %v", err)
		}
		if r.h.Noise {
			break
		}
	}
	r.turn(b, few)
	live := b.Live()
	n, err := few.q.Forward(b)
	if n > 4 || live > 4 && (n != 4 || !errors.Is(err, engine.ErrFull)) || b.Live() != n {
		t.Fatalf("Forward of %d packets with 4 descriptors: %d and %v, with %d in the burst; expected 4 and "+
			"engine.ErrFull", live, n, err, b.Live())
	}
	if k, err := few.q.Forward(r.burst(1)); k != 0 || err != nil {
		t.Errorf("Forward of an empty burst: %d and %v, expected 0 and nil", k, err)
	}
	back.gaps = true
	if err := few.q.Send(b); err != nil {
		t.Fatalf("Send: %v", err)
	}
	back.want(back.n + n)
	v.n, v.gaps = v.n+live, true
}
