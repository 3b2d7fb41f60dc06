package enginetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet/burst"
)

// tooMuch is a number of packets that does not fit anywhere where a consumer of depth stalls.
func (r *rig) tooMuch(depth int) int { return max(2*depth+64, r.h.Buffered) }

// checkExhausted keeps all memory of the receiver, sends on, and gives it back: what found no
// memory is counted, and then packets arrive again.
func checkExhausted(t testing.TB, h Harness) {
	if h.OwnRx {
		t.Log("not asked: the receive memory is the engine's own")
		return
	}
	r := newRig(t, h)
	const slots = 64
	v := r.rx(r.B, engine.RxSpec{Depth: 512, Pools: []*mem.Pool{r.pool("little", slotSize, slots)}}, 0)
	s := r.tx(r.A, engine.TxSpec{Depth: 256}, 512)
	if r.caps.Stream || r.caps.Lossless {
		r.backpressure(s, v)
		return
	}
	v.gaps = true
	sent := 0
	for range 3 {
		var kept []*burst.Burst
		keep := func() {
			for {
				b := r.burst(32)
				n, err := v.q.TryRecv(b)
				if err != nil {
					t.Fatalf("TryRecv without memory: %v", err)
				}
				if n == 0 {
					return
				}
				v.take(b)
				kept = append(kept, b)
			}
		}
		before := r.lost()
		for range r.tooMuch(slots)/32 + 1 {
			s.burstOf(32, 1024)
			sent += 32
			keep()
		}
		r.eventually("drops for lack of memory", func() error {
			if keep(); r.lost() == before && !h.Silent {
				return fmt.Errorf("%d packets were sent to a receiver that has %d slots and keeps them, and none is "+
					"dropped", sent, slots)
			}
			return nil
		})
		for _, b := range kept {
			b.Release()
		}
		// It comes back to life.
		got := v.n
		for tries := 0; v.n < got+50; tries++ {
			if tries > 500 {
				t.Fatalf("only %d packets arrive after all memory was given back", v.n-got)
			}
			s.burstOf(8, 1024)
			sent += 8
			v.quietly()
			r.eventually("packets after all memory was given back", func() error {
				if v.quietly(); uint64(v.n)+r.lost() < uint64(sent) && r.caps.ExactDrops {
					return errors.New("some are neither here nor counted")
				}
				return nil
			})
		}
		if lately := r.lost(); !h.Lossy && r.caps.ExactDrops {
			s.burstOf(8, 1024)
			sent += 8
			v.rest(func() error {
				if uint64(v.n)+r.lost() < uint64(sent) {
					return engine.ErrNotReady
				}
				return nil
			})
			if r.lost() != lately {
				t.Errorf("with all memory given back, %d of 8 packets are dropped: %v", r.lost()-lately, r.dropped())
			}
		}
	}
	r.balance(sent, v)
	if h.Buffered > 0 {
		r.only(!h.Silent, engine.DropNoBuffers, engine.DropNoDeviceBuffers, engine.DropQueueFull, engine.DropKernel,
			engine.DropNIC)
	} else {
		r.only(true, engine.DropNoBuffers, engine.DropNoDeviceBuffers)
	}
}

// backpressure shows that the sender to a stream, or to another queue that is lossless, waits for
// its consumer, and that nothing is lost.
func (r *rig) backpressure(s *sender, v *receiver) {
	const n = 2000
	done := make(chan error, 1)
	go func() {
		defer close(done)
		for range n / 8 {
			s.burstOf(8, 1024)
		}
	}()
	for v.n < n {
		var kept []*burst.Burst
		for range 4 { // hold as much as there is, then let go
			b := r.burst(16)
			k, err := v.q.TryRecv(b)
			if err != nil {
				r.t.Fatalf("TryRecv: %v", err)
			}
			if k > 0 {
				v.take(b)
				kept = append(kept, b)
			}
		}
		for _, b := range kept {
			b.Release()
		}
		if len(kept) == 0 {
			v.atLeast(v.n + 1)
		}
	}
	r.ends("the sender to a slow consumer", done)
	r.only(false)
}

// checkStalled lets the consumer stand still while more is sent than fits anywhere.
func checkStalled(t testing.TB, h Harness) {
	r := newRig(t, h)
	const depth = 128
	v := r.rx(r.B, engine.RxSpec{Depth: depth}, 4*depth+256)
	s := r.tx(r.A, engine.TxSpec{Depth: 256}, 512)
	if r.caps.Stream || r.caps.Lossless {
		t.Log("not asked: the sender waits for its consumer: see Exhausted")
		return
	}
	v.gaps = true
	sent := 0
	for range 3 {
		before, lost := v.n+v.others, r.lost()
		for range r.tooMuch(depth)/32 + 1 {
			s.burstOf(32, 1024)
			sent += 32
		}
		if err := s.q.Drain(t.Context()); err != nil {
			t.Fatalf("Drain: %v", err)
		}
		if r.caps.ExactDrops {
			r.eventually("drops because the consumer stands still", func() error {
				if r.lost() == lost {
					return fmt.Errorf("%d packets were sent for a queue of depth %d, and none is counted as a drop",
						sent, depth)
				}
				return nil
			})
		}
		r.balance(sent, v)
		if got := v.n + v.others - before; got < depth && !h.Lossy {
			t.Errorf("%d packets waited for a consumer that stood still, of at least %d that RxSpec.Depth asked for",
				got, depth)
		}
		for range 20 {
			s.burstOf(8, 1024)
			sent += 8
			r.balance(sent, v)
		}
	}
	r.only(!h.Lossy && r.caps.ExactDrops, engine.DropQueueFull, engine.DropKernel, engine.DropNIC)
}

// checkDiscard throws away what waits.
func checkDiscard(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	if n, err := v.q.Discard(); err != nil || n != 0 && !h.Noise {
		t.Errorf("Discard where nothing waits: %d and %v", n, err)
	}
	if r.caps.Stream || h.Noise {
		return
	}
	sent, gone := 0, 0
	v.gaps = true
	for range 10 {
		s.burstOf(8, r.minRecord())
		sent += 8
		here := 0
		r.eventually("packets to discard", func() error {
			n, err := v.q.Discard()
			if err != nil {
				t.Fatalf("Discard: %v", err)
			}
			if here += n; uint64(here) < 8 && (!h.Lossy || uint64(sent-gone-here-v.n) > r.lost()-uint64(gone+here)) {
				return fmt.Errorf("%d of 8", here)
			}
			return nil
		})
		gone += here
		s.burstOf(4, r.minRecord())
		sent += 4
		r.balance(sent, v)
	}
	var st engine.RxStats
	v.q.Stats(&st)
	if st.Drops[engine.DropFlushed] != uint64(gone) {
		t.Errorf("%d packets were thrown away with Discard, RxStats count %d as DropFlushed: %v", gone,
			st.Drops[engine.DropFlushed], &st.Drops)
	}
	if st.Packets != uint64(v.n) {
		t.Errorf("%d packets were received, RxStats count %d: those that were thrown away are not among them", v.n,
			st.Packets)
	}
}

// checkLink takes the link down and up.
func checkLink(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.SetLink == nil {
		t.Log("not asked: this harness cannot take the link down")
		return
	}
	s, v := r.line(r.A, r.B, 64)
	v.gaps = true
	if r.caps.Stream {
		t.Log("not asked: a stream ends with its link or waits for it")
		return
	}
	sent := 0
	for range 3 {
		s.burstOf(8, r.minRecord())
		sent += 8
		r.balance(sent, v)
		got := v.n
		r.SetLink(false)
		for range 8 {
			s.alloc(s.b, 4, r.minRecord())
			k := s.b.Len()
			for i := range k {
				s.write(s.b, i, r.minRecord())
			}
			sent += k
			if err := s.q.Send(s.b); err != nil && !errors.Is(err, engine.ErrDown) {
				t.Fatalf("Send while the link is down: %v, expected nil or engine.ErrDown", err)
			}
			if s.b.Len() != 0 {
				t.Fatalf("%d packets are in the burst after Send", s.b.Len())
			}
		}
		r.SetLink(true)
		r.balance(sent, v)
		if v.n != got && !h.Noise {
			t.Errorf("%d packets came through while the link was down", v.n-got)
		}
		start := time.Now()
		for tries := 0; ; tries++ { // a link may take a moment
			s.burstOf(8, r.minRecord())
			sent += 8
			before := v.n
			r.balance(sent, v)
			if v.n == before+8 {
				break
			}
			if time.Since(start) > h.Patience {
				t.Fatalf("packets are still lost after the link came up again: %v", r.dropped())
			}
		}
	}
	r.only(true, engine.DropDown)
}

// checkTooLong sends packets that the receiver's memory is too small for, and packets that are
// longer than the port allows.
func checkTooLong(t testing.TB, h Harness) {
	r := newRig(t, h)
	if r.caps.Stream {
		t.Log("not asked: a stream has no packets that could be too long")
		return
	}
	sent := 0
	var v *receiver
	if !h.OwnRx {
		v = r.rx(r.B, engine.RxSpec{Pools: []*mem.Pool{r.pool("short", 256, 256)}}, 0)
	} else {
		v = r.rx(r.B, engine.RxSpec{}, 0)
	}
	v.gaps = true
	s := r.tx(r.A, engine.TxSpec{}, 256)
	if !h.OwnRx && !r.caps.Chains {
		cut := 0
		v.cut = func(b *burst.Burst, i int) bool {
			if b.Flags(i)&burst.Truncated == 0 {
				return false
			}
			if b.WireLen(i) <= b.PacketLen(i) {
				t.Errorf("a truncated packet of %d bytes had %d on the wire", b.PacketLen(i), b.WireLen(i))
			}
			cut++
			return true
		}
		for i := range 20 {
			size := 257 + 10*i
			if i%2 > 0 {
				size = r.minRecord()
			}
			s.burstOf(1, size)
			if sent++; i%2 > 0 {
				r.balance(sent, v)
			}
		}
		r.balance(sent, v)
		if !h.Lossy {
			v.rest(func() error { // where drops are not exact, balance does not wait for packets that are on their way
				if d := r.dropped(); cut == 0 && d[engine.DropTooLong] < 10 {
					return fmt.Errorf("10 packets were longer than the memory for one, but the drops are: %v", &d)
				}
				return nil
			})
			if d := r.dropped(); cut == 0 && d[engine.DropTooLong] != 10 {
				t.Errorf("10 packets were longer than the memory for one, but the drops are: %v", &d)
			}
		}
		r.only(cut == 0, engine.DropTooLong)
	}
	if r.caps.MaxPacket == 0 || h.MaxPacket > 0 {
		return
	}
	most := r.caps.MaxPacket
	long := r.tx(r.A, engine.TxSpec{Pools: []*mem.Pool{r.pool("long", most+1024, 16)}}, 0)
	long.data = make([]byte, most+1)
	n, err := long.q.Alloc(long.b, 1, most+1)
	if n == 0 {
		if err == nil || errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrNoBuffers) {
			t.Errorf("Alloc of a packet of %d bytes where %d are the most: %v", most+1, most, err)
		}
		return
	}
	before := r.dropped()
	long.write(long.b, 0, most+1)
	long.q.Send(long.b) // an error may say what the statistics must
	r.balance(sent+1, v)
	if d := r.dropped(); d[engine.DropTooLong] != before[engine.DropTooLong]+1 {
		t.Errorf("a packet of %d bytes was sent where %d are the most, but the drops are: %v", most+1, most, &d)
	}
}
