package engine

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/packet"
	"github.com/penstock-io/penstock/packet/burst"
)

// The source address is written wherever segments end, and nothing else is.
func TestSetSource(t *testing.T) {
	pool := newPool(t, 64)
	src := burst.PoolSource(pool)
	mac := packet.MAC{0xa, 0xb, 0xc, 0xd, 0xe, 0xf}
	rapid.Check(t, func(t *rapid.T) {
		b := burst.NewSegmented(1, 16)
		defer b.Release()
		var before []byte
		for k, n := range rapid.SliceOfN(rapid.IntRange(0, 20), 1, 8).Draw(t, "segments") {
			var slot [1]burst.Handle
			if pool.GetBatch(slot[:]) == 0 {
				t.Fatal("no slot")
			}
			s := burst.Segment{Handle: slot[0], Off: pool.Offset(slot[0]), Len: uint32(n), Cap: 64}
			if k == 0 {
				b.Builder().Add(src, s)
			} else {
				b.Builder().AddSegment(src, s)
			}
			p := b.Bytes(0, k)
			p = p[:cap(p)]
			for i := range p {
				p[i] = byte(100 + len(before) + i)
			}
			before = append(before, p[:n]...)
		}
		ok := setSource(b, 0, mac)
		if ok != (len(before) >= 12) {
			t.Fatalf("%d bytes: %v", len(before), ok)
		}
		if ok {
			copy(before[6:12], mac[:])
		}
		var got []byte
		for k := range b.Segments(0) {
			p := b.Bytes(0, k)
			for i, c := range p[len(p):cap(p)] {
				if c != byte(100+len(got)+len(p)+i) {
					t.Fatalf("segment %d: something was written behind its end", k)
				}
			}
			got = append(got, p...)
		}
		if !bytes.Equal(got, before) {
			t.Fatalf("%x, expected %x", got, before)
		}
	})
}
