package enginetest

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/penstock-io/penstock/engine"
	"github.com/penstock-io/penstock/mem"
	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// etherTypeTest is "local experimental" (IEEE 802, 1), for frames that are too short for a record.
const etherTypeTest = 0x88b5

// line adds a queue at each end, so that a sends to b, with depth descriptors and slots of 2048
// bytes at both ends.
func (r *rig) line(from, to engine.Port, depth int) (*sender, *receiver) {
	r.t.Helper()
	v := r.rx(to, engine.RxSpec{Depth: depth}, 2*depth+128)
	return r.tx(from, engine.TxSpec{Depth: depth}, 2*depth+128), v
}

// sizes are the packet sizes in bytes to probe.
func (r *rig) sizes() []int {
	most := r.maxPacket()
	out := []int{0, 1, 2, 13, 14, 15, 59, 60, 61, 64, 127, 128, 129, 1400, 1499, 1500, 1514, most - 1, most}
	for _, n := range append(slices.Clone(r.h.Boundaries), frameHeader, r.minRecord()) {
		out = append(out, n-1, n, n+1)
	}
	least := r.h.MinPacket
	if r.caps.Stream {
		least = max(least, 1)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(n int) bool { return n < least || n > most })
}

// checkSizes sends one packet of each size in each direction and compares every byte.
func checkSizes(t testing.TB, h Harness) {
	r := newRig(t, h)
	for _, d := range []struct{ from, to engine.Port }{{r.A, r.B}, {r.B, r.A}} {
		r.oneByOne(d.from, d.to, r.sizes())
	}
}

func (r *rig) oneByOne(from, to engine.Port, sizes []int) {
	r.t.Helper()
	most := r.maxPacket()
	var rxs engine.RxSpec
	if !r.h.OwnRx {
		rxs.Pools = []*mem.Pool{r.pool("sizes rx", max(most, slotSize), 192)}
	}
	v := r.rx(to, rxs, 0)
	s := r.tx(from, engine.TxSpec{Depth: 16, Pools: []*mem.Pool{r.pool("sizes tx", max(most, slotSize), 32)}}, 0)
	for _, n := range sizes {
		sent := append([]byte(nil), s.any(n)...)
		for tries := 0; ; tries++ {
			before := r.lost()
			s.alloc(s.b, 1, n)
			if got := s.b.PacketLen(0); got != n {
				r.t.Fatalf("Alloc of a packet of %d bytes made one of %d", n, got)
			}
			if !put(s.b, 0, sent) {
				r.t.Fatalf("%d bytes do not fit into a packet that was allocated for so many", n)
			}
			s.b.SetConn(0, s.conn)
			if err := s.q.Send(s.b); err != nil {
				r.t.Fatalf("Send of a packet of %d bytes: %v", n, err)
			}
			if v.exactly(sent, before) {
				break
			}
			if !r.h.Lossy || tries == 100 {
				r.t.Fatalf("a packet of %d bytes is lost", n)
			}
		}
	}
	if err := v.q.Close(); err != nil {
		r.t.Errorf("closing the receive queue: %v", err)
	}
	if err := s.q.Close(); err != nil {
		r.t.Errorf("closing the transmit queue: %v", err)
	}
}

// any makes a packet of any size, with a record if one fits.
func (s *sender) any(n int) []byte {
	if n >= s.r.minRecord() {
		return s.next(n)
	}
	p := s.data[:n]
	pattern(p, uint64(n)+1)
	if s.full != nil && n >= packet.EthernetLen {
		copy(p, s.full.frame.DstMAC[:])
		copy(p[6:], s.full.frame.SrcMAC[:])
		binary.BigEndian.PutUint16(p[12:], etherTypeTest)
	}
	return p
}

// exactly receives one packet, or so much of a stream, and demands these bytes. It is false when
// the packet was lost, that is counted as a drop since before.
func (v *receiver) exactly(sent []byte, before uint64) bool {
	t := v.r.t
	t.Helper()
	var got []byte
	for {
		var stop func() error
		if v.r.h.Lossy {
			stop = func() error {
				if v.r.lost() > before {
					return nil
				}
				return engine.ErrNotReady
			}
		}
		n, err := v.someOr(v.b, stop)
		if err != nil {
			t.Fatalf("TryRecv: %v", err)
		}
		if n == 0 {
			return false
		}
		for i := range n {
			k := v.b.CopyTo(v.data, i)
			got = append(got, v.data[:k]...)
			if v.r.caps.Stream {
				continue
			}
			padded := v.frames && len(sent) < 60 && k == 60 && bytes.Equal(got[:len(sent)], sent)
			switch {
			case bytes.Equal(got, sent) || padded:
				if w := v.b.WireLen(i); w != k {
					t.Fatalf("WireLen of a packet of %d bytes is %d", k, w)
				}
				if i+1 < n && !v.r.h.Noise {
					t.Fatalf("one packet was sent, %d came", n)
				}
				v.b.Release()
				return true
			case !v.r.h.Noise:
				t.Fatalf("a packet of %d bytes was sent, one of %d came; the first difference is at %d", len(sent),
					len(got), differ(got, sent))
			}
			got = got[:0]
		}
		v.b.Release()
		if v.r.caps.Stream && len(got) >= len(sent) {
			if !bytes.Equal(got, sent) {
				t.Fatalf("%d bytes were sent, %d came; the first difference is at %d", len(sent), len(got),
					differ(got, sent))
			}
			return true
		}
	}
}

// differ is the place of the first difference.
func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// checkOrder sends many bursts of one flow, in windows so that no queue is overloaded, and demands
// each packet once and in order.
func checkOrder(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 256)
	least := r.minRecord()
	for i := range h.rounds / 10 {
		for k, left := 0, h.Window; left > 0; k++ {
			n := min(left, 1+(i+3*k)%40)
			s.burstOf(n, least+(i*37+k*211)%(1400-least))
			left -= n
		}
		v.want((i + 1) * h.Window)
	}
	v.quiet()
}

// checkRoom looks at what TryRecv does with a burst that has little room, none, or packets in it.
func checkRoom(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	size := max(r.minRecord(), 256)
	s.burstOf(16, size)
	small := r.burst(3)
	for want := 16; v.n < want && !t.Failed(); {
		had := small.Len()
		got, err := v.someOr(small, func() error {
			if h.Lossy && uint64(want-v.n-had) <= r.lost() || had == small.Cap() {
				return nil
			}
			return engine.ErrNotReady
		})
		if err != nil {
			t.Fatalf("TryRecv: %v", err)
		}
		if small.Len() != had+got || small.Len() > small.Cap() {
			t.Fatalf("TryRecv said %d packets; the burst of room %d held %d before and holds %d now", got, small.Cap(),
				had, small.Len())
		}
		if small.Room() > 0 && got > 0 && v.n+small.Len() < want && !r.caps.Stream {
			continue // fill it up
		}
		if full := small.Len(); small.Room() == 0 {
			if n, err := v.q.TryRecv(small); n != 0 || err != nil || small.Len() != full {
				t.Fatalf("TryRecv into a full burst: %d, %v; it held %d packets and holds %d", n, err, full,
					small.Len())
			}
		}
		v.take(small)
		if small.Len() == 0 {
			break
		}
		small.Release()
	}
	v.quiet()
}

// checkEmpty calls TryRecv where nothing is, and Send with nothing.
func checkEmpty(t testing.TB, h Harness) {
	r := newRig(t, h)
	s, v := r.line(r.A, r.B, 64)
	done := make(chan error, 1)
	go func() {
		for range 100 {
			if n, err := v.q.TryRecv(v.b); err != nil || n != 0 && !h.Noise {
				done <- &unexpected{n, err}
				return
			}
			v.b.Release()
		}
		done <- nil
	}()
	r.ends("TryRecv on a queue with nothing in it", done)
	empty := burst.New(4)
	if err := s.q.Send(empty); err != nil {
		t.Errorf("Send of an empty burst: %v, expected nil", err)
	}
	if n, err := s.q.Alloc(empty, 0, 100); n != 0 || err != nil {
		t.Errorf("Alloc of no packets: %d, %v, expected 0 and nil", n, err)
	}
	if err := s.q.Send(nil); err == nil {
		t.Error("Send of a nil burst: no error, expected engine.ErrNil")
	}
	s.burstOf(1, r.minRecord())
	v.want(1)
}
