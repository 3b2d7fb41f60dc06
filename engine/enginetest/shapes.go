package enginetest

import (
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// checkSplit receives headers and payload in memory of their own.
func checkSplit(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Split || h.OwnRx {
		t.Log("not asked: Capabilities.Split is false")
		return
	}
	for _, at := range []int{0, 60, 100} {
		if at == 0 && !r.caps.Frames {
			continue
		}
		heads, bodies := r.hostPool("headers", 128, 512), r.pool("payload", slotSize, 512)
		v := r.rx(r.B, engine.RxSpec{Pools: []*mem.Pool{heads, bodies}, SplitAt: at}, 0)
		s := r.tx(r.A, engine.TxSpec{}, 256)
		want := at
		if at == 0 {
			want = frameHeader
		}
		v.see = func(b *burst.Burst, i int, rec record) {
			n := b.PacketLen(i)
			if n <= want {
				return // all of it is header, in one segment or with an empty payload
			}
			if b.Segments(i) != 2 || b.Role(i, 0) != burst.Header || b.Role(i, 1) != burst.Payload {
				t.Fatalf("a packet of %d bytes, split at %d, has %d segments, the first a %v: expected a header and "+
					"a payload", n, at,
					b.Segments(i), b.Role(i, 0))
			}
			if k := len(b.Bytes(i, 0)); k != want {
				t.Fatalf("a packet of %d bytes, split at %d, has a header of %d bytes, expected %d", n, at, k, want)
			}
			if b.Segment(i, 0).Region != heads.Region() || b.Segment(i, 1).Region != bodies.Region() {
				t.Fatalf("a packet split at %d: its header is not in the first pool, or its payload not in the second",
					at)
			}
		}
		for i := range 40 {
			s.burstOf(1+i%4, r.minRecord()+i*31)
			v.want(int(s.seq))
		}
		if err := s.q.Close(); err != nil { // a port may have one
			t.Fatal(err)
		}
		if err := v.q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// checkChains sends and receives packets of several segments.
func checkChains(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Chains {
		t.Log("not asked: Capabilities.Chains is false")
		return
	}
	size := min(r.maxPacket(), 1900)
	var rxPools []*mem.Pool
	if !h.OwnRx {
		rxPools = []*mem.Pool{r.pool("chunks rx", 512, 1024)}
	}
	v := r.rx(r.B, engine.RxSpec{Pools: rxPools}, 0)
	s := r.tx(r.A, engine.TxSpec{Depth: 16, Pools: []*mem.Pool{r.pool("chunks tx", 512, 256)}}, 0)
	received, sent := false, 0
	v.see = func(b *burst.Burst, i int, _ record) { received = received || b.Segments(i) > 1 }
	b := r.burst(8)
	allocated := false
	for round := range 20 {
		n, err := s.q.Alloc(b, 3, size)
		if allocated = n > 0; !allocated {
			t.Logf("Alloc makes no chains: %v", err)
			break
		}
		for i := range n {
			if b.PacketLen(i) != size {
				t.Fatalf("Alloc of packets of %d bytes made one of %d", size, b.PacketLen(i))
			}
			s.write(b, i, size)
		}
		if err := s.q.Send(b); err != nil {
			t.Fatalf("Send of chains: %v", err)
		}
		if sent += n; round >= 0 {
			r.balance(sent, v)
		}
	}
	// Chains of the application's own making: what Alloc gave, and more behind it.
	extra := r.hostPool("extra", 512, 64)
	src := burst.PoolSource(extra)
	small := max(100, r.minRecord())
	for range 20 {
		s.alloc(b, 1, small)
		whole := append([]byte(nil), s.next(small+700)...)
		put(b, 0, whole[:small])
		for _, part := range [][]byte{whole[small : small+300], whole[small+300:]} {
			var slot [1]burst.Handle
			if extra.GetBatch(slot[:]) == 0 {
				t.Fatal("released memory of chains does not come back")
			}
			b.Builder().AddSegment(src, burst.Segment{Handle: slot[0], Off: extra.Offset(slot[0]),
				Len: uint32(len(part)), Cap: 512})
			copy(b.Bytes(0, b.Segments(0)-1), part)
		}
		b.SetConn(0, s.conn)
		if err := s.q.Send(b); err != nil {
			t.Fatalf("Send of a chain: %v", err)
		}
		sent++
		r.balance(sent, v)
		r.eventually("the memory of a chain to come back", func() error {
			if extra.Stats().InUse > 0 {
				return engine.ErrNotReady
			}
			return nil
		})
	}
	if !received && !allocated {
		t.Logf("chains are only sent here, not allocated nor received")
	}
	if v.n == 0 {
		d := r.dropped()
		t.Errorf("none of %d packets of several segments arrived, which Capabilities.Chains promises; dropped: %v",
			sent, &d)
	}
}

// checkTimestamps looks at receive times.
func checkTimestamps(t testing.TB, h Harness) {
	r := newRig(t, h)
	if !r.caps.Timestamps {
		t.Log("not asked: Capabilities.Timestamps is false")
		return
	}
	v := r.rx(r.B, engine.RxSpec{Timestamps: true, HardwareTime: r.caps.HardwareTime}, 512)
	s := r.tx(r.A, engine.TxSpec{}, 256)
	now := r.now
	var last, stamped int64
	before := -1 // the number of the packet in front
	start := now()
	v.see = func(b *burst.Burst, i int, rec record) {
		ns, ok := b.Time(i)
		if !ok {
			t.Fatalf("packet %d has no receive time, although RxSpec.Timestamps asked for it", rec.seq)
		}
		if hardware := b.Flags(i)&burst.HardwareTime != 0; hardware && !r.caps.HardwareTime {
			t.Fatalf("packet %d has a time of the NIC, although Capabilities.HardwareTime is false", rec.seq)
		}
		const slack = int64(60e9) // the machine's clock may be set meanwhile
		if end := now(); ns < start-slack || ns > end+slack {
			t.Fatalf("packet %d was received at %d ns, but between %d and %d by the clock: another epoch?", rec.seq, ns,
				start, end)
		}
		// Packets may overtake each other in the kernel when their sender moves to another
		// processor: they keep their times.
		if int(rec.seq) > before && ns < last {
			t.Fatalf("packet %d was received %d ns before packet %d, which was sent before it and is in front of it",
				rec.seq, last-ns, before)
		}
		last, before = ns, int(rec.seq)
		stamped++
	}
	for i := range 20 {
		s.burstOf(1+i%8, r.minRecord())
		v.want(int(s.seq))
	}
	if stamped == 0 {
		t.Error("no packet had a time")
	}
}
